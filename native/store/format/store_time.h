// store_time.h — the store's own time, in seconds since 1970: what ends and ages are counted in.
// It follows the wall clock where that can be believed, and goes on by the monotonic clock where it cannot.
// Invariants: it never runs backwards, over starts neither; it stays below kStoreTimeLimitS, so that an end that is written
// down lies behind it. A wall clock that says more is not taken at all, nor what a store's pages say of such a time: an end has
// 32 bits, and a block with a TTL would be gone as it is stored. A clock that jumps ahead by more than a day while the daemon
// runs is taken only when it has said so for kBelievedAfterUs: all blocks with a TTL would be gone at once, and do not come
// back when the clock is set right. Thread: the shard's.
#pragma once

#include <algorithm>
#include <cstdint>

#include "base/clock.h"
#include "store/format/mutant.h"

namespace halfstep::store {

inline constexpr uint64_t kSecondsADay = 86'400;
// Ten years before the last end that 32 bits can say: in the year 2096.
inline constexpr uint64_t kStoreTimeLimitS = UINT32_MAX - 3653 * kSecondsADay;
inline constexpr uint64_t kJumpS = kSecondsADay;
inline constexpr uint64_t kBelievedAfterUs = 3'600'000'000;

// 0 for a time that is not taken.
constexpr uint64_t believable_s(uint64_t seconds) noexcept { return seconds < kStoreTimeLimitS ? seconds : 0; }

class StoreTime {
 public:
  // at_least_s: what the store was told last.
  StoreTime(const Clock& clock, uint64_t at_least_s) noexcept
      : clock_(clock), base_s_(std::max(believable_s(at_least_s), believable_s(clock.wall_s()))), base_us_(clock.now_us()) {}

  uint64_t now_s() noexcept {
    const uint64_t now_us = clock_.now_us();
    const uint64_t passed_s = now_us > base_us_ ? (now_us - base_us_) / 1'000'000 : 0;
    const uint64_t wall_s = believable_s(clock_.wall_s());
    if (wall_s < base_s_ || !taken(wall_s, base_s_ + passed_s, now_us)) {
      base_s_ = std::min(base_s_ + passed_s, kStoreTimeLimitS);
      base_us_ += passed_s * 1'000'000;
    } else {
      base_s_ = wall_s;
      base_us_ = now_us;
    }
    return base_s_;
  }
  // Whether what ends then is over; 0: it never ends.
  bool expired(uint32_t end_s) noexcept {
    if (HALFSTEP_MUTANT(ExpiryIgnored)) return false;
    return end_s != 0 && end_s <= now_s();
  }
  // Something on media was written at this time.
  void raise_to(uint64_t seconds) noexcept { base_s_ = std::max(base_s_, believable_s(seconds)); }
  // Of the last look, for those that may change nothing.
  uint64_t last_s() const noexcept { return base_s_; }
  // Seconds by which the wall clock is ahead of the store's time; below 0: behind it.
  int64_t clock_ahead_s() const noexcept { return static_cast<int64_t>(clock_.wall_s()) - static_cast<int64_t>(base_s_); }

 private:
  bool taken(uint64_t wall_s, uint64_t expected_s, uint64_t now_us) noexcept {
    if (wall_s <= expected_s + kJumpS) {
      doubted_ = false;
      return true;
    }
    // Another jump begins anew.
    const uint64_t shift_s = wall_s - expected_s;
    const uint64_t change_s = shift_s > doubted_shift_s_ ? shift_s - doubted_shift_s_ : doubted_shift_s_ - shift_s;
    if (!doubted_ || change_s > kJumpS) {
      doubted_ = true;
      doubted_shift_s_ = shift_s;
      doubted_since_us_ = now_us;
    }
    if (now_us - doubted_since_us_ < kBelievedAfterUs) return false;
    doubted_ = false;
    return true;
  }

  const Clock& clock_;
  uint64_t base_s_;
  uint64_t base_us_;  // by the monotonic clock, when the base was that
  bool doubted_ = false;
  uint64_t doubted_shift_s_ = 0;
  uint64_t doubted_since_us_ = 0;
};

}  // namespace halfstep::store
