// request_memory.h — what all requests of a shard have on the heap: bodies that came in part, bodies and plans of what is under
// way, and answers that were not sent. Payload is not of it: that lies in the arena, and Credit counts it.
// A connection may have four times what nobody has, as of blocks (Credit::Common): so one alone comes to four fifths of it,
// many leave a newcomer some, and all together never have more. Invariants: `bytes_max` is the bound of what take() gives;
// buffers (bodies that came in part, unsent answers) are noted as they are, and beyond half of it connections end
// (Shard::relieve), so that requests which came whole find the other half. Thread: the shard's.
#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>

#include "base/check.h"

namespace halfstep::shard {

class RequestMemory {
 public:
  explicit RequestMemory(uint64_t bytes_max) noexcept : bytes_max_(bytes_max) {}
  // False: it would be more than whoever has `used_bytes` may have.
  bool take(uint64_t used_bytes, uint64_t bytes) noexcept {
    if (used_bytes + bytes > 4 * (free_bytes() - std::min(free_bytes(), bytes))) return false;
    add(bytes);
    return true;
  }
  void add(uint64_t bytes) noexcept {
    bytes_ += bytes;
    peak_bytes_ = std::max(peak_bytes_, bytes_);
  }
  void give(uint64_t bytes) noexcept {
    HALFSTEP_CHECK(bytes <= bytes_, bytes, bytes_);
    bytes_ -= bytes;
  }
  // What a connection's buffers have grown or shrunk to.
  void note_buffer(uint64_t before_bytes, uint64_t bytes) noexcept {
    add(bytes);
    give(before_bytes);
    HALFSTEP_CHECK(before_bytes <= buffer_bytes_ + bytes, before_bytes, buffer_bytes_ + bytes);
    buffer_bytes_ = buffer_bytes_ + bytes - before_bytes;
  }
  uint64_t bytes() const noexcept { return bytes_; }
  uint64_t bytes_max() const noexcept { return bytes_max_; }
  uint64_t free_bytes() const noexcept { return bytes_max_ - std::min(bytes_max_, bytes_); }
  uint64_t buffer_bytes_max() const noexcept { return bytes_max_ / 2; }
  bool buffers_exceeded() const noexcept { return buffer_bytes_ > buffer_bytes_max(); }
  // The most since it was last asked.
  uint64_t take_peak() noexcept { return std::exchange(peak_bytes_, bytes_); }

 private:
  const uint64_t bytes_max_;
  uint64_t bytes_ = 0;
  uint64_t buffer_bytes_ = 0;  // of them
  uint64_t peak_bytes_ = 0;
};

}  // namespace halfstep::shard
