// busy_poll.h — whether a thread that waits looks for a while before it sleeps.
// To be put to sleep and woken takes a core 5 to 60 us, most on a virtual machine; an answer over shared memory or loopback is
// often there sooner, and the end that sleeps keeps the other one waiting. Looking pays while most waits are that short, and
// costs up to kLookUs of a core for each that is not: so a few long waits in a row end it, and one in kRestWaits tries again.
// Thread: one.
#pragma once

#include <cstdint>

namespace halfstep::net {

class BusyPoll {
 public:
  static constexpr uint64_t kLookUs = 50;
  static constexpr uint32_t kRestWaits = 64;

  // Whether to look this time; looked() follows if so.
  bool begin() noexcept {
    if (trust_ != 0) return true;
    if (++rested_ < kRestWaits) return false;
    rested_ = 0;
    trust_ = 1;
    return true;
  }
  // came: what was waited for came meanwhile.
  void looked(bool came) noexcept { trust_ = came ? (trust_ < kTrustMax ? trust_ + 1 : kTrustMax) : trust_ / 2; }

 private:
  static constexpr uint32_t kTrustMax = 8;

  uint32_t trust_ = 1;
  uint32_t rested_ = 0;
};

}  // namespace halfstep::net
