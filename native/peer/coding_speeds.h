// coding_speeds.h — how fast this client codes and decodes, how much smaller blocks become, and what became of each block.
// Each is a sum that is halved once it is large, so that what was long ago counts for nothing.
// Thread: any; all is under mutex_, which is taken a few times a block.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <mutex>

#include "peer/coding_choice.h"

namespace halfstep::peer {

// Bytes and the time that they took.
class Rate {
 public:
  static constexpr uint64_t kRememberedUs = 2'000'000;
  void add(uint64_t bytes, uint64_t us) noexcept {
    bytes_ += bytes;
    us_ += us;
    if (us_ < kRememberedUs) return;
    bytes_ /= 2;
    us_ /= 2;
  }
  // 0: nothing was measured yet, or it took no time.
  uint64_t bytes_per_s() const noexcept { return us_ == 0 ? 0 : bytes_ * 1'000'000 / us_; }

 private:
  uint64_t bytes_ = 0;
  uint64_t us_ = 0;
};

// The fastest that bytes have come and gone of late: windows of at least kWindowUs, each of which may forget 1 part in 64.
class PeakRate {
 public:
  static constexpr uint64_t kWindowUs = 10'000;
  void add(uint64_t bytes, uint64_t now_us) noexcept {
    if (begun_us_ == 0) begun_us_ = now_us;
    bytes_ += bytes;
    if (now_us - begun_us_ < kWindowUs) return;
    peak_ = std::max(peak_ - peak_ / 64, bytes_ * 1'000'000 / (now_us - begun_us_));
    begun_us_ = now_us;
    bytes_ = 0;
  }
  uint64_t bytes_per_s() const noexcept { return peak_; }

 private:
  uint64_t begun_us_ = 0;
  uint64_t bytes_ = 0;
  uint64_t peak_ = 0;
};

class CodingSpeeds {
 public:
  // One in so many blocks that would be raw is coded all the same, and one in so many coded ones is decoded to see how long
  // that takes.
  static constexpr uint64_t kProbeBlocks = 64;

  struct Facts {
    CodingInputs last;  // of the newest choice
    std::array<uint64_t, kCodingReasons> blocks{};
  };

  explicit CodingSpeeds(CodingMode mode) noexcept : mode_(mode) {}

  // inputs: the path's speeds and the block; the rest is filled in.
  CodingReason choose(CodingInputs inputs, uint32_t threads) noexcept {
    const std::lock_guard lock(mutex_);
    inputs.encode_bytes_per_s = encode_.bytes_per_s() * threads;
    inputs.decode_bytes_per_s = decode_.bytes_per_s();
    inputs.ratio_milli = stored_bytes_ == 0 ? 0 : static_cast<uint32_t>(raw_bytes_ * 1000 / stored_bytes_);
    facts_.last = inputs;
    const CodingReason reason = choose_coding(mode_, inputs);
    const bool measured = !codes(reason) && reason != CodingReason::Never;
    return measured && ++raw_choices_ % kProbeBlocks == 0 ? CodingReason::Probe : reason;
  }
  void add_encoded(uint64_t raw_bytes, uint64_t stored_bytes, uint64_t us) noexcept {
    const std::lock_guard lock(mutex_);
    encode_.add(raw_bytes, us);
    raw_bytes_ += raw_bytes;
    stored_bytes_ += stored_bytes;
    if (raw_bytes_ < kRememberedBytes) return;
    raw_bytes_ /= 2;
    stored_bytes_ /= 2;
  }
  // Whether the block that was just coded shall be decoded, too.
  bool wants_decode() noexcept {
    const std::lock_guard lock(mutex_);
    return mode_ == CodingMode::Auto && (decode_.bytes_per_s() == 0 || decode_turn_++ % kProbeBlocks == 0);
  }
  void add_decoded(uint64_t raw_bytes, uint64_t us) noexcept {
    const std::lock_guard lock(mutex_);
    decode_.add(raw_bytes, us);
  }
  void count(CodingReason reason) noexcept {
    const std::lock_guard lock(mutex_);
    ++facts_.blocks[static_cast<size_t>(reason)];
  }
  Facts facts() const noexcept {
    const std::lock_guard lock(mutex_);
    return facts_;
  }

 private:
  static constexpr uint64_t kRememberedBytes = uint64_t{1} << 30;

  const CodingMode mode_;
  mutable std::mutex mutex_;
  Rate encode_;
  Rate decode_;
  uint64_t raw_bytes_ = 0;
  uint64_t stored_bytes_ = 0;
  uint64_t raw_choices_ = 0;
  uint64_t decode_turn_ = 0;
  Facts facts_;
};

}  // namespace halfstep::peer
