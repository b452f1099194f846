// touch.h — when a block was last used. Time is what has been written to the log since: the only time in which a cache ages.
// A stamp counts 1/1024 of the capacity in 16 bits and comes round after 64 capacities of writes; a class says how often the
// block was used since it was last written, in 2 bits. An index entry has room for both (index/entry.h).
// A segment keeps a histogram of its touched pages by the epoch of their last touch, so that what is worth keeping in it is
// known without a look at its blocks.
// Invariants: the clock only grows; a histogram counts every live touched block of its segment once, in the epoch of its
// stamp, as long as that is one of the newest 64.
// Thread: the shard's.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>

namespace halfstep::store {

inline constexpr uint32_t kStampsPerCapacity = 1024;

// Of a block, since it was last written.
inline constexpr uint8_t kUntouched = 0, kTouchedOnce = 1, kTouchedMore = 2;

class LogClock {
 public:
  explicit LogClock(uint64_t capacity_bytes) noexcept
      : unit_bytes_(std::max<uint64_t>(capacity_bytes / kStampsPerCapacity, 1)) {}

  void advance(uint64_t bytes) noexcept { bytes_ += bytes; }
  // After a restart: goes on from there.
  void resume(uint64_t stamps) noexcept { bytes_ = stamps * unit_bytes_; }

  uint64_t now() const noexcept { return bytes_ / unit_bytes_; }
  uint64_t bytes() const noexcept { return bytes_; }
  // The whole time of a stamp, which was taken less than 2^16 stamps ago.
  uint64_t when(uint16_t stamp) const noexcept {
    const uint64_t now_stamp = now();
    const auto age = static_cast<uint16_t>(now_stamp - stamp);
    return now_stamp - std::min<uint64_t>(age, now_stamp);
  }

 private:
  uint64_t unit_bytes_;
  uint64_t bytes_ = 0;
};

class TouchHistogram {
 public:
  static constexpr uint32_t kEpochs = 64;
  static constexpr uint32_t kEpochStamps = kStampsPerCapacity * 3 / 2 / kEpochs;  // all of them: 1.5 capacities
  static_assert(kEpochStamps * kEpochs * 2 == kStampsPerCapacity * 3);

  void add(uint64_t when, uint32_t pages) noexcept {
    const uint64_t epoch = when / kEpochStamps;
    for (; newest_ < epoch; ++newest_) {
      if (epoch - newest_ > kEpochs) newest_ = epoch - kEpochs;
      pages_[(newest_ + 1) % kEpochs] = 0;
    }
    if (newest_ - epoch < kEpochs) pages_[epoch % kEpochs] += pages;
  }
  void remove(uint64_t when, uint32_t pages) noexcept {
    const uint64_t epoch = when / kEpochStamps;
    if (epoch > newest_ || newest_ - epoch >= kEpochs) return;
    // A stamp that has come round says an epoch in which it was never counted: below nothing the sum would be everything.
    pages_[epoch % kEpochs] -= std::min(pages_[epoch % kEpochs], pages);
  }
  // Pages whose last touch was at `when` or later, whole epochs.
  uint64_t pages_since(uint64_t when) const noexcept {
    uint64_t pages = 0;
    for (uint64_t epoch = first_epoch(when); epoch <= newest_; ++epoch) pages += pages_[epoch % kEpochs];
    return pages;
  }
  // The first moment, `when` or a border of epochs after it, since which at most so many pages were touched.
  uint64_t since(uint64_t pages, uint64_t when) const noexcept {
    const uint64_t first = first_epoch(when);
    for (uint64_t epoch = newest_ + 1; epoch-- > first;) {
      if (pages_[epoch % kEpochs] > pages) return (epoch + 1) * kEpochStamps;
      pages -= pages_[epoch % kEpochs];
    }
    return when;
  }

 private:
  // Of those that are kept.
  uint64_t first_epoch(uint64_t when) const noexcept {
    return std::max(when / kEpochStamps, newest_ < kEpochs ? 0 : newest_ - kEpochs + 1);
  }

  uint64_t newest_ = 0;
  std::array<uint32_t, kEpochs> pages_{};
};

}  // namespace halfstep::store
