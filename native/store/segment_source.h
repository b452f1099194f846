// segment_source.h — empty segments for the writer: reclaims the oldest, logs its new generation, keeps one ready.
// Reclaim here is "overwrite the oldest", after segments without a live block: blocks leave the index, then the new generation
// is logged and flushed, and only then may the first byte be written (V1 section 7). Invariants: a segment with a live hold, a
// read in flight or a flush to come is not taken; nothing is written to a segment whose generation is not on media. When the
// record log is crowded, holds do not protect the oldest segments any more: deletes must not fail. Thread: the shard's.
#pragma once

#include "store/core.h"

namespace halfstep::store {

class SegmentWriter;

class SegmentSource {
 public:
  explicit SegmentSource(Core& core) : core_(core) {}

  // The segment that is ready, now Open; null when there is none yet.
  Segment* take() noexcept;
  // Starts making one ready if none is; `writer` closes its open segment when that is the one that has to go.
  void turn(SegmentWriter& writer);
  // There is none and nothing is under way: everything is held or being read.
  bool exhausted() const noexcept { return exhausted_; }
  uint64_t next_turn_us() const noexcept {
    return ready_ == nullptr && core_.clock.now_us() < retry_at_us_ ? retry_at_us_ : UINT64_MAX;
  }
  bool busy() const noexcept { return logging_ != nullptr; }

 private:
  // Nothing reads it, writes to it or waits for it; when somebody waits for a flush of it, that is asked for.
  bool at_rest(const Segment& segment, SegmentWriter& writer) noexcept;
  Segment* pick(bool despite_holds, SegmentWriter& writer) noexcept;
  void relieve_log(SegmentWriter& writer);
  void begin(Segment& segment);
  void logged(Segment& segment, uint64_t generation, Status status);

  Core& core_;
  Segment* ready_ = nullptr;
  Segment* logging_ = nullptr;
  uint32_t next_free_ = 0;
  bool exhausted_ = false;
  bool flush_asked_ = false;  // so that a segment comes to rest
  uint64_t retry_at_us_ = 0;
};

}  // namespace halfstep::store
