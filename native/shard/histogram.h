// histogram.h — latencies of one command, in microseconds, in buckets that all commands share.
// Invariants: counts only grow; the last bucket takes everything beyond the last bound.
// Thread: the shard's.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

namespace halfstep::shard {

// 10 us to 10 s in steps of 1, 2, 5: a hot hit is tens of microseconds, the longest default deadline is two seconds.
inline constexpr std::array<uint64_t, 19> kLatencyBoundsUs = {
    10,     20,     50,      100,     200,     500,       1'000,     2'000,     5'000,     10'000,
    20'000, 50'000, 100'000, 200'000, 500'000, 1'000'000, 2'000'000, 5'000'000, 10'000'000};

class LatencyHistogram {
 public:
  static constexpr size_t kBuckets = kLatencyBoundsUs.size() + 1;

  void add(uint64_t us) noexcept {
    const auto bound = std::lower_bound(kLatencyBoundsUs.begin(), kLatencyBoundsUs.end(), us);
    ++counts_[static_cast<size_t>(bound - kLatencyBoundsUs.begin())];
    sum_us_ += us;
  }

  const std::array<uint64_t, kBuckets>& counts() const noexcept { return counts_; }
  uint64_t sum_us() const noexcept { return sum_us_; }

 private:
  std::array<uint64_t, kBuckets> counts_{};
  uint64_t sum_us_ = 0;
};

}  // namespace halfstep::shard
