// device_health.h — what the errors of one device mean: an outage, which ends, or a place that has gone bad.
// An outage costs time and misses, never segments or blocks. So a write that failed is written again at its place until it
// lands, and a place counts as bad only when other places take writes meanwhile. A shortage (no space, a quota, a file's size
// limit) is never wear. A read that failed is a miss; a block is given up for such errors alone only after they came at
// several moments, minutes apart, while other blocks could be read.
// Invariants: nothing here decides by one error; what is counted of one moment is counted once. Thread: the shard's.
#pragma once

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <deque>

#include "store/catalog/catalog.h"
#include "store/format/mutant.h"

namespace halfstep::store {

// The device or what stands behind it has run out of something that may come back.
constexpr bool is_shortage(int32_t error) noexcept {
  return error == -ENOSPC || error == -EDQUOT || error == -EFBIG || error == -ENOMEM || error == -EAGAIN;
}

// A shortage that has lasted less is of the moment, whatever else lands: a thin pool takes writes where it has taken some
// before.
constexpr bool is_passing(int32_t error, uint64_t failing_since_us, uint64_t now_us) noexcept {
  constexpr uint64_t kShortageUs = 1'000'000;
  return is_shortage(error) && now_us - failing_since_us < kShortageUs;
}
// Meanwhile, the longest pause between two tries of a place that others have witnessed against.
constexpr uint64_t kPassingPauseUs = 40'000;

// How long a write that failed so often in a row waits: 10 ms, then twice as long each time, up to 640 ms.
constexpr uint64_t backed_off_us(uint32_t failures) noexcept {
  constexpr uint64_t kFirstUs = 10'000;
  constexpr uint32_t kDoublings = 6;
  return kFirstUs << std::min(std::max(failures, 1U) - 1, kDoublings);
}

// Of several errors of a segment at one moment one counts, and a shortage is no wear.
inline void note_write_error(Segment& segment, int32_t error, uint64_t now_us) noexcept {
  constexpr uint64_t kRestUs = 60'000'000;
  constexpr uint64_t kMomentUs = 600'000'000;
  segment.rests_until_us = now_us + kRestUs;
  if (HALFSTEP_MUTANT(ErrorEndsSegment)) {
    ++segment.write_errors;
    return;
  }
  if (is_shortage(error) || (segment.error_us != 0 && now_us - segment.error_us < kMomentUs)) return;
  segment.error_us = now_us;
  ++segment.write_errors;
}

// Of writes: from failed frames, records and flushes. A footer that fails is no sign, as nobody waits for it; one that lands
// is.
class WriteHealth {
 public:
  // A frame or footer is on its way to media after all, wherever it lies.
  void landed() noexcept {
    ++landed_;
    failed_in_row_ = 0;
  }
  void failed(int32_t error, uint64_t now_us) noexcept {
    ++failed_in_row_;
    error_ = error;
    failed_us_ = now_us;
  }
  void flushed(bool ok, uint64_t now_us) noexcept {
    flushes_failed_in_row_ = ok ? 0 : flushes_failed_in_row_ + 1;
    if (!ok) failed_us_ = now_us;
  }

  // The device takes nothing now: who would wait for it is told at once. What nobody tries any more is not known.
  bool out(uint64_t now_us) const noexcept {
    return (failed_in_row_ >= kInRow || flushes_failed_in_row_ >= kInRow) && now_us - failed_us_ < kKnownForUs;
  }
  int32_t error() const noexcept { return failed_in_row_ > 0 ? error_ : -EIO; }
  // How much has landed: what grows says that there are places that can be written.
  uint64_t places_landed() const noexcept { return landed_; }

 private:
  static constexpr uint32_t kInRow = 2;
  static constexpr uint64_t kKnownForUs = 2'000'000;  // more than the longest pause before the next try
  uint64_t failed_us_ = 0;
  uint64_t landed_ = 0;
  uint32_t failed_in_row_ = 0;
  uint32_t flushes_failed_in_row_ = 0;
  int32_t error_ = 0;
};

// Blocks that the device did not give when they were last asked for, bounded: what does not fit is not remembered, and is asked
// for like any other.
class UnreadBlocks {
 public:
  // The device answered with an error. `reads`: how many it has answered well, ever. True: the block is lost.
  bool failed(const IndexKey& key, const Location& location, uint64_t now_us, uint64_t reads) {
    if (HALFSTEP_MUTANT(ErrorCountsAsRot)) return true;
    Unread* unread = find(key);
    if (unread == nullptr || !(unread->location == location)) {
      if (unread != nullptr) forget(key);
      if (blocks_.size() == kBlocksMax) blocks_.pop_front();
      blocks_.push_back({key, location, now_us, now_us, reads, 1});
      return false;
    }
    if (now_us - unread->last_us < kMomentUs || reads == unread->reads) return false;
    unread->last_us = now_us;
    unread->reads = reads;
    ++unread->moments;
    return unread->moments >= kMomentsMax && now_us - unread->first_us >= kPatienceUs;
  }
  void forget(const IndexKey& key) noexcept {
    std::erase_if(blocks_, [&](const Unread& u) { return u.key == key; });
  }
  // It failed at more than one moment: a put of it is taken, in its place.
  bool doubtful(const IndexKey& key, const Location& location) const noexcept {
    const Unread* unread = const_cast<UnreadBlocks*>(this)->find(key);
    return unread != nullptr && unread->location == location && unread->moments > 1;
  }
  bool empty() const noexcept { return blocks_.empty(); }

 private:
  struct Unread {
    IndexKey key;
    Location location;
    uint64_t first_us = 0;
    uint64_t last_us = 0;  // the last moment that counted
    uint64_t reads = 0;    // then
    uint32_t moments = 0;
  };
  static constexpr size_t kBlocksMax = 1024;
  static constexpr uint64_t kMomentUs = 60'000'000;
  static constexpr uint64_t kPatienceUs = 600'000'000;
  static constexpr uint32_t kMomentsMax = 3;

  Unread* find(const IndexKey& key) noexcept {
    for (Unread& u : blocks_) {
      if (u.key == key) return &u;
    }
    return nullptr;
  }
  std::deque<Unread> blocks_;
};

}  // namespace halfstep::store
