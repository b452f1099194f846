// reply.h — frames that answer a request: Final, Answers and Want, built in the shard's buffer and queued at once.
// Invariants: a Final carries the shard's load; one Reply is open at a time on a shard.
// Thread: the shard's.
#pragma once

#include <string_view>

#include "wire/message.h"
#include "wire/records.h"

namespace halfstep::shard {

class Client;

class Reply {
 public:
  Reply(Client& client, uint64_t request_id, wire::Opcode frame = wire::Opcode::Final);
  wire::FrameWriter& frame() noexcept { return frame_; }
  // One answer for the request as a whole, with a sentence for people when there is something to say.
  void whole(wire::AnswerReason status, std::string_view reason = {});
  void send();

 private:
  Client& client_;
  wire::Opcode opcode_;
  wire::FrameWriter frame_;
};

// A Final that says one thing about all of a request, counted under its command.
void answer_whole(Client& client, wire::Opcode command, uint64_t request_id, wire::AnswerReason status,
                  std::string_view reason = {});

// What parse_request() answered, for the client: rejected as malformed, as over a limit, or as not understood.
void answer_unparsed(Client& client, wire::Opcode command, uint64_t request_id, Status status, ConstBytes body);

}  // namespace halfstep::shard
