// request_match.h — match: which of the keys are there. It is answered at once, unless it waits (kBatchWait): then when each of
// them has been seen there, or at the deadline, with what is there by then.
// A match that waits stands in line for one block at a time, the first that is not there; so it takes little memory, and others
// wake it seldom. Thread: the shard's.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "shard/key_waiters.h"
#include "shard/metrics.h"
#include "shard/pool.h"
#include "shard/request.h"
#include "shard/section_items.h"
#include "wire/records.h"

namespace halfstep::shard {

class MatchRequest;

void answer_match(Client& client, Pool<MatchRequest>& pool, uint64_t id, ConstBytes body);

class MatchRequest final : public Request, private KeyWaiters::Owner {
 public:
  explicit MatchRequest(Pool<MatchRequest>& pool) noexcept : pool_(pool) {}
  void start(Client& client, uint64_t id, ConstBytes body);
  void end(wire::AnswerReason with) override;

 private:
  // Looks on from where it is. Waits for the first that is not there, or answers; how many it looked at.
  uint32_t look();
  void answer();
  void answer_whole_and_finish(wire::AnswerReason with, std::string_view reason);
  bool is_hopeless() const noexcept;
  KeyWaiters::Waiter waiter() const noexcept override { return {command_name(opcode()), started_us(), deadline_us()}; }
  uint32_t woken(KeyWaiters::Wait& wait, KeyWaiters::Why why) override;
  void on_drop() override;
  void recycle() override;

  Pool<MatchRequest>& pool_;
  std::vector<std::byte> body_;
  wire::RequestView view_;
  ItemWalk walk_;
  std::vector<uint32_t> scopes_;  // by section, as they were when it came
  size_t at_ = 0;                 // of what walk_ has gathered
  KeyWaiters::Wait wait_;
};

}  // namespace halfstep::shard
