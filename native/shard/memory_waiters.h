// memory_waiters.h — requests that wait for memory of one kind: first come first served, but one that wants much holds up none
// that wants little. Who wants no more than a quarter of what the first in line wants may pass it, until as much as that has
// passed: so it waits for twice its own bytes at the most.
// Invariant: joining, leaving and asking cost the same however many wait. Thread: the shard's.
#pragma once

#include <cstdint>

#include "shard/waiter.h"

namespace halfstep::shard {

class MemoryWaiters {
 public:
  bool empty() const noexcept { return first_ == nullptr; }
  void join(Waiter& request) noexcept {
    request.waits_before_ = last_;
    request.waits_after_ = nullptr;
    (last_ != nullptr ? last_->waits_after_ : first_) = &request;
    last_ = &request;
  }
  // True: it stood before others, who may need less.
  bool leave(Waiter& request) noexcept {
    const bool first = first_ == &request;
    if (first) passed_bytes_ = 0;
    if (next_ == &request) next_ = request.waits_after_;
    (first ? first_ : request.waits_before_->waits_after_) = request.waits_after_;
    (last_ == &request ? last_ : request.waits_after_->waits_before_) = request.waits_before_;
    request.waits_before_ = request.waits_after_ = nullptr;
    return first && first_ != nullptr;
  }
  // Whether `request` may ask for `bytes` now, though others have waited longer.
  bool may_pass(const Waiter& request, uint64_t bytes) const noexcept {
    if (first_ == nullptr || first_ == &request) return true;
    const uint64_t wanted_bytes = first_->memory_wanted();
    return bytes <= wanted_bytes / 4 && passed_bytes_ + bytes <= wanted_bytes;
  }
  // It may, and has got it.
  void note_passed(const Waiter& request, uint64_t bytes) noexcept {
    if (first_ != nullptr && first_ != &request) passed_bytes_ += bytes;
  }
  // Memory has come back: lets go on who can, kTriesMax of them behind one who cannot, and of no more than kLooksMax.
  void resume() {
    uint32_t tries = kTriesMax;
    uint32_t looks = kLooksMax;
    for (Waiter* request = first_; request != nullptr && tries != 0 && looks-- != 0; request = next_) {
      next_ = request->waits_after_;
      if (!may_pass(*request, request->memory_wanted())) continue;
      if (request != first_) --tries;
      request->resume();  // may leave, and so may others
    }
    next_ = nullptr;
  }
  // Of all that wait; no more than `most_bytes` need be known.
  uint64_t wanted_bytes(uint64_t most_bytes) const noexcept {
    uint64_t bytes = 0;
    for (const Waiter* request = first_; request != nullptr && bytes < most_bytes; request = request->waits_after_) {
      bytes += request->memory_wanted();
    }
    return bytes;
  }

 private:
  static constexpr uint32_t kTriesMax = 64;
  static constexpr uint32_t kLooksMax = 1024;

  Waiter* first_ = nullptr;
  Waiter* last_ = nullptr;
  Waiter* next_ = nullptr;     // whom resume() looks at next
  uint64_t passed_bytes_ = 0;  // by the first
};

}  // namespace halfstep::shard
