#include "net/turn_queue.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace halfstep::net {

Turn::~Turn() {
  if (queue_ != nullptr) queue_->remove(*this);
}

TurnQueue::~TurnQueue() {
  for (Turn* turn : waiting_) turn->queue_ = nullptr;
}

void TurnQueue::push(Turn& turn) {
  if (turn.queued_) return;
  turn.queued_ = true;
  turn.queue_ = this;
  if (taken_ != &turn) insert(turn);  // else when it is known what it has used
}

uint64_t TurnQueue::start_us(const Turn& turn) const noexcept {
  const uint64_t from_us = turn.round_ == 0 ? std::max(used_us_, newcomers_us_) : used_us_ - std::min(used_us_, kCreditUs);
  return std::max(turn.used_us_, from_us);
}

void TurnQueue::insert(Turn& turn) {
  turn.order_ = pushed_++;
  turn.used_us_ = start_us(turn);
  if (turn.round_ == round_) ++again_count_;
  waiting_.push(turn);
}

void TurnQueue::remove(Turn& turn) noexcept {
  const bool waits = turn.queued_ && taken_ != &turn;
  if (taken_ == &turn) taken_ = nullptr;
  turn.queue_ = nullptr;
  turn.queued_ = false;
  if (!waits) return;
  if (turn.round_ == round_) --again_count_;
  waiting_.remove(turn);
}

void TurnQueue::charge(Turn& turn, uint64_t us) {
  const bool waits = turn.queued_ && taken_ != &turn;
  if (waits) waiting_.remove(turn);
  // Of one that does not wait, on top of where it would start: else what others have used meanwhile would swallow it.
  turn.used_us_ = (waits ? turn.used_us_ : start_us(turn)) + us;
  if (waits) waiting_.push(turn);
}

size_t TurnQueue::run(const Clock& clock, uint64_t began_us, uint64_t round_us_max) {
  HALFSTEP_DCHECK(!running_);
  running_ = true;
  ++round_;
  taken_count_ = again_count_ = 0;
  began_us_ = began_us;
  while (!waiting_.empty() && waiting_.front()->round_ != round_) {
    Turn& turn = *waiting_.front();
    waiting_.remove(turn);
    turn.queued_ = false;
    const bool newcomer = std::exchange(turn.round_, round_) == 0;
    used_us_ = std::max(used_us_, turn.used_us_);
    taken_ = &turn;
    ++taken_count_;
    turn.take_(turn.owner_);  // may destroy the turn
    const uint64_t now_us = clock.now_us();
    const bool gone = std::exchange(taken_, nullptr) == nullptr;
    if (newcomer || gone) newcomers_us_ = std::max(newcomers_us_, used_us_) + (now_us - began_us_);
    if (!gone) {
      turn.used_us_ += now_us - began_us_;
      if (turn.queued_) {
        insert(turn);
      } else {
        turn.queue_ = nullptr;
      }
    }
    began_us_ = now_us;
    if (now_us - began_us >= round_us_max) break;
  }
  const size_t wanted = crowd();
  running_ = false;
  return wanted;
}

}  // namespace halfstep::net
