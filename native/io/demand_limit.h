// demand_limit.h — how many bytes of gets' reads are at a device at once. As many as keep it busy: what is more only comes
// later, and all together, and then the device has nothing to do while that is verified and sent.
// Some devices tell of nothing before all that they have is done; virtual drives are such. Where that was everything that gets
// wanted, the next is half of it: the device reads one half while the other is sent. From there the limit grows again, slowly:
// the halves come to differ, and meet, and are made anew.
// What goes with the one before it (gather_run.h) is not asked about, so that a block is there whole or not at all.
// Thread: the scheduler's.
#pragma once

#include <algorithm>
#include <cstdint>

#include "base/units.h"

namespace halfstep::io {

class DemandLimit {
 public:
  static constexpr uint64_t kBytesMax = 32 * MiB;  // what one core sends in 5 to 8 ms
  static constexpr uint64_t kBytesMin = 512 * KiB;
  static constexpr uint64_t kGrowsByOneIn = 64;  // of what has landed

  bool takes(uint64_t bytes) const noexcept { return out_ + bytes <= limit_; }

  void given(uint64_t bytes) noexcept {
    given_ += bytes;
    out_ += bytes;
  }
  // requests: 0 where it came with the one before.
  void landed(uint64_t bytes, uint32_t requests) noexcept {
    out_ -= bytes;
    landed_ += bytes;
    requests_ += requests;
  }
  // After a look at the device. queued: whether others wait to go.
  void looked(bool queued) noexcept {
    if (landed_ == 0) return;
    // Less than that any drive may have done between two looks.
    const bool all_at_once = landed_ == given_ && requests_ > 1 && landed_ >= 2 * kBytesMin;
    if (all_at_once && !queued) {
      limit_ = std::max({landed_ / 2, limit_ / 2, kBytesMin});
    } else {
      limit_ = std::min(limit_ + landed_ / kGrowsByOneIn, kBytesMax);
    }
    landed_ = requests_ = 0;
    if (out_ == 0) given_ = 0;
  }

 private:
  uint64_t limit_ = kBytesMax;
  uint64_t out_ = 0;                    // at the device
  uint64_t given_ = 0;                  // since nothing was there
  uint64_t landed_ = 0, requests_ = 0;  // since the last look
};

}  // namespace halfstep::io
