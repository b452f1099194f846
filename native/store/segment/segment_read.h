// segment_read.h — the scan of one segment (segment_scan.h), reading what it asks for while others go on.
// Invariants: one request in flight at most; what cannot be read as a whole is read page by page, and what then cannot be read
// is a page that the scan does without. Thread: the shard's.
#pragma once

#include "store/format/shard_media.h"
#include "store/segment/segment_scan.h"

namespace halfstep::store {

class SegmentRead {
 public:
  SegmentRead(const ShardMedia& media, io::IoClass io_class);
  SegmentRead(const SegmentRead&) = delete;  // its request points into it
  SegmentRead& operator=(const SegmentRead&) = delete;

  void begin(uint32_t number, uint64_t generation, ScannedSegment* out, bool frames_alone = false) {
    scan_.begin(number, generation, frames_alone, out);
  }
  // The footer's last page was read before, and fits.
  void begin_at_footer(uint32_t number, uint64_t generation, const format::PageHeader& tail, ScannedSegment* out) {
    scan_.begin_at_footer(number, generation, tail, out);
  }
  bool reading() const noexcept { return reading_; }
  // When nothing is being read: takes what was, and reads on. False: all is said.
  bool go_on();

 private:
  void submit(uint32_t page_of_window);
  void landed();

  static constexpr uint32_t kWholeWindow = UINT32_MAX;
  io::Engine& engine_;
  SegmentScan scan_;
  io::Request io_;
  bool reading_ = false;
  uint32_t page_ = kWholeWindow;  // of the window, read alone after it could not be read as a whole
};

}  // namespace halfstep::store
