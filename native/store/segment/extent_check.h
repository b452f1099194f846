// extent_check.h — reads one extent and compares it with its checksum, for a start that may not believe what it finds.
// Twice at most: what was read wrongly once may be right on media. In memory of its own, window by window, so that it waits for
// nobody's. Thread: the shard's.
#pragma once

#include "io/engine.h"
#include "store/format/page.h"

namespace halfstep::store {

class ExtentCheck {
 public:
  explicit ExtentCheck(io::Engine& engine);
  ExtentCheck(const ExtentCheck&) = delete;  // its request points into it
  ExtentCheck& operator=(const ExtentCheck&) = delete;

  void begin(uint64_t device_offset, uint64_t bytes, uint32_t checksum);
  bool reading() const noexcept { return reading_; }
  // When nothing is being read: takes what was, and reads on. False: sound() is the verdict.
  bool go_on();
  bool sound() const noexcept { return sound_; }
  // Not sound, because the device did not give it.
  bool unanswered() const noexcept { return unanswered_; }

 private:
  bool next_attempt() noexcept;

  static constexpr uint32_t kWindowPages = 256 * KiB / kPageBytes;
  static constexpr uint32_t kAttempts = 2;
  io::Engine& engine_;
  PageBuffer window_;
  io::Request io_;
  uint64_t offset_ = 0;
  uint64_t bytes_ = 0;
  uint64_t taken_ = 0;  // of this attempt
  uint32_t checksum_ = 0;
  uint32_t crc_ = 0;
  uint32_t attempts_left_ = 0;
  bool submitted_ = false;
  bool reading_ = false;
  bool sound_ = false;
  bool unanswered_ = false;
};

}  // namespace halfstep::store
