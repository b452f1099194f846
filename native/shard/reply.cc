#include "shard/reply.h"

#include <string>

#include "shard/connection.h"
#include "shard/diagnosis.h"
#include "shard/shard.h"

namespace halfstep::shard {

namespace {

std::vector<std::byte>& emptied(std::vector<std::byte>& buffer) {
  buffer.clear();
  return buffer;
}

}  // namespace

Reply::Reply(Connection& connection, uint64_t request_id, wire::Opcode frame)
    : connection_(connection), opcode_(frame), frame_(emptied(connection.shard().frame_buffer())) {
  frame_.begin(frame, request_id);
}

void Reply::whole(wire::AnswerReason status, std::string_view reason) {
  wire::StatusWriter statuses(frame_, wire::kWholeRequest, 0);
  statuses.add(0, status);
  statuses.close();
  if (!reason.empty()) frame_.tlv_bytes(wire::Tlv::Reason, as_bytes(reason));
}

void Reply::send() {
  if (opcode_ == wire::Opcode::Final) frame_.tlv(wire::Tlv::Load, connection_.shard().load());
  frame_.finish();
  connection_.send(connection_.shard().frame_buffer());
}

void answer_whole(Connection& connection, wire::Opcode command, uint64_t request_id, wire::AnswerReason status,
                  std::string_view reason) {
  connection.shard().counts().answer(command, status);
  Reply reply(connection, request_id);
  reply.whole(status, reason);
  reply.send();
}

void answer_unparsed(Connection& connection, wire::Opcode command, uint64_t request_id, Status status, ConstBytes body) {
  wire::Reason reason = wire::Reason::Malformed;
  if (status == Code::TooLarge) reason = wire::Reason::Limit;
  if (status == Code::Unsupported) reason = wire::Reason::Unsupported;
  answer_whole(connection, command, request_id, {wire::Answer::Rejected, reason}, diagnose_request(command, body));
}

}  // namespace halfstep::shard
