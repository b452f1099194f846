// load_meter.h — how many bytes a second a shard serves, for the client's decision between fetching and computing again.
// Invariants: the rate is that of the last whole second that had work; an idle shard keeps telling it.
// Thread: the shard's.
#pragma once

#include <cstdint>

namespace halfstep::shard {

class LoadMeter {
 public:
  void add(uint64_t bytes, uint64_t now_us) noexcept {
    if (now_us - began_us_ >= kSpanUs) {
      if (bytes_ != 0) rate_ = bytes_ * 1'000'000 / (last_us_ - began_us_ + 1);
      began_us_ = now_us;
      bytes_ = 0;
    }
    last_us_ = now_us;
    bytes_ += bytes;
  }
  // Zero before the first second has passed.
  uint64_t bytes_per_s() const noexcept { return rate_; }

 private:
  static constexpr uint64_t kSpanUs = 1'000'000;
  uint64_t began_us_ = 0;
  uint64_t last_us_ = 0;
  uint64_t bytes_ = 0;
  uint64_t rate_ = 0;
};

}  // namespace halfstep::shard
