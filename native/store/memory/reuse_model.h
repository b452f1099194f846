// reuse_model.h — how soon, if at all, a block comes back that was used once, twice, or more often.
// For each class it counts how many blocks came back at which age, and how many had not when memory of them ended. From these
// it knows what a block is worth: the reuses to be expected for each moment that it is kept on, until the age that is best for
// it. Ages are counted in uses of blocks, whichever they are: the only time in which memory ages.
// Counts fade, so that it follows the traffic, to what is believed without any: in every age alike, and more in what was used
// more often.
// Invariants: what is worth how much changes at a renewal alone. The same observations give the same values on every machine.
// Thread: its owner's. Nothing here allocates.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace halfstep::store {

class ReuseModel {
 public:
  static constexpr uint32_t kClasses = 3;
  // Buckets of ages grow by 2^(1/3); the last one, from 2^23.7 on, is open.
  static constexpr uint32_t kBucketsPerDoubling = 3;
  static constexpr uint32_t kBuckets = 24 * kBucketsPerDoubling;
  static constexpr uint32_t kRenewEvery = 4096;  // uses: some tens of microseconds' work, then

  ReuseModel() noexcept;

  // A block of this class was used again at this age.
  void reused(uint32_t touch_class, uint64_t age) noexcept { ++reused_[touch_class][bucket_of(age)]; }
  // It was not, as far as memory reached.
  void forgotten(uint32_t touch_class, uint64_t age) noexcept { ++forgotten_[touch_class][bucket_of(age)]; }
  // Learns from what was counted, and lets it fade.
  void renew() noexcept;

  double worth(uint32_t touch_class, uint64_t age) const noexcept { return worth_[touch_class][bucket_of(age)]; }
  static size_t bucket_of(uint64_t age) noexcept;

 private:
  using Histogram = std::array<double, kBuckets>;
  void learn(uint32_t touch_class) noexcept;

  Histogram widths_;
  std::array<Histogram, kClasses> reused_;
  std::array<Histogram, kClasses> forgotten_;
  std::array<Histogram, kClasses> worth_;
};

}  // namespace halfstep::store
