// busy_poll.h — whether a thread that waits looks for a while before it sleeps.
// To be put to sleep and woken takes a core 5 to 60 us, most on a virtual machine; an answer over shared memory or loopback is
// often there sooner, and the end that sleeps keeps the other one waiting. Looking pays while many waits are that short, and
// costs up to kLookUs of a core for each that is not: so a few long waits in a row end it, and one in kRestWaits tries again.
// Who looks gives the core to whoever wants it. If somebody does, he keeps it for longer than a wake-up takes: then sleeping
// is better, and the next try is far off.
// Thread: one at a time.
#pragma once

#include <sched.h>

#include <algorithm>
#include <cstdint>
#include <utility>

#include "base/clock.h"

namespace halfstep::net {

class BusyPoll {
 public:
  // As long as Linux looks by default before it halts a virtual core (guest_halt_poll_ns).
  static constexpr uint64_t kLookUs = 200;
  // The core was away for longer: a busy thread had it for a slice. Less is the kernel, with packets of our own for one.
  static constexpr uint64_t kGivenUsMax = 500;
  static constexpr uint32_t kRestWaits = 64;
  static constexpr uint32_t kRestWaitsCrowded = 4096;

  // Calls ready() until it returns something other than 0, for a part of *wait_us, which it takes off; returns that.
  template <typename Ready>
  int look(uint64_t* wait_us, Ready&& ready) {
    if (*wait_us == 0 || !begin()) return 0;
    int found = ready();
    if (found != 0) {
      looked(true);
      return found;
    }
    const SystemClock clock;
    const uint64_t look_us = std::min(*wait_us, kLookUs);
    const uint64_t began_us = clock.now_us();
    uint64_t now_us = began_us;
    bool away = false;
    while (found == 0 && !away && now_us - began_us < look_us) {
      ::sched_yield();  // what we wait for may need this very core
      found = ready();
      const uint64_t before_us = std::exchange(now_us, clock.now_us());
      away = found == 0 && now_us - before_us > kGivenUsMax;
    }
    if (away) {
      crowded();
    } else if (found != 0 || look_us == kLookUs) {
      looked(found != 0);
    }
    *wait_us -= std::min(*wait_us, now_us - began_us);
    return found;
  }

  // What look() goes by. Whether to look this time; looked() or crowded() follows, unless it was cut short.
  bool begin() noexcept {
    if (trust_ == 0 && --rest_ != 0) return false;
    if (trust_ == 0) trust_ = 1;
    ++looks_;
    return true;
  }
  // came: what was waited for came meanwhile.
  void looked(bool came) noexcept {
    if (came) {
      trust_ += trust_ < kTrustMax ? 1 : 0;
    } else {
      lose(2, kRestWaits);
    }
  }
  // Somebody else wanted the core.
  void crowded() noexcept { lose(4, kRestWaitsCrowded); }
  uint64_t looks() const noexcept { return looks_; }

 private:
  static constexpr uint32_t kTrustMax = 8;

  void lose(uint32_t divisor, uint32_t rest) noexcept {
    trust_ /= divisor;
    if (trust_ == 0) rest_ = rest;
  }

  uint32_t trust_ = 1;
  uint32_t rest_ = 0;  // waits until the next try; of no trust alone
  uint64_t looks_ = 0;
};

}  // namespace halfstep::net
