#include "shard/reply.h"

#include <string>

#include "shard/client.h"
#include "shard/diagnosis.h"
#include "shard/request_host.h"

namespace halfstep::shard {

namespace {

std::vector<std::byte>& emptied(std::vector<std::byte>& buffer) {
  buffer.clear();
  return buffer;
}

}  // namespace

Reply::Reply(Client& client, uint64_t request_id, wire::Opcode frame)
    : client_(client), opcode_(frame), frame_(emptied(client.host().frame_buffer())) {
  frame_.begin(frame, request_id);
}

void Reply::whole(wire::AnswerReason status, std::string_view reason) {
  wire::StatusWriter statuses(frame_, wire::kWholeRequest, 0);
  statuses.add(0, status);
  statuses.close();
  if (!reason.empty()) frame_.tlv_bytes(wire::Tlv::Reason, as_bytes(reason));
}

void Reply::send() {
  if (opcode_ == wire::Opcode::Final) frame_.tlv(wire::Tlv::Load, client_.host().load());
  frame_.finish();
  client_.send(client_.host().frame_buffer());
}

void answer_whole(Client& client, wire::Opcode command, uint64_t request_id, wire::AnswerReason status,
                  std::string_view reason) {
  client.host().counts().answer(command, status);
  Reply reply(client, request_id);
  reply.whole(status, reason);
  reply.send();
}

void answer_unparsed(Client& client, wire::Opcode command, uint64_t request_id, Status status, ConstBytes body) {
  wire::Reason reason = wire::Reason::Malformed;
  if (status == Code::TooLarge) reason = wire::Reason::Limit;
  if (status == Code::Unsupported) reason = wire::Reason::Unsupported;
  answer_whole(client, command, request_id, {wire::Answer::Rejected, reason}, diagnose_request(command, body));
}

}  // namespace halfstep::shard
