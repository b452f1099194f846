// roll_reader.h — reads the rolls of segments again, one at a time and in the order of asking, for whoever has to go through a
// segment's blocks: reclaim, the quota sweep, the touch map, list, the log's tombstones.
// By the footer, or by the frames where there is none or it is damaged (segment_scan.h). What comes out is what flash says, not
// what is alive: each entry is looked up in the index by key and place.
// Invariants: a segment is not reused while its roll is asked for; `done` comes once, from turn() or a completion, never from
// inside read().
// Thread: the shard's.
#pragma once

#include "store/catalog/catalog.h"
#include "store/format/shard_media.h"
#include "store/segment/segment_read.h"

namespace halfstep::store {

struct RollRequest {
  uint32_t segment = 0;
  void (*done)(RollRequest& request) = nullptr;
  void* owner = nullptr;

  ScannedSegment scanned;  // empty if nothing could be read
  bool busy = false;
  RollRequest* next = nullptr;
};

class RollReader {
 public:
  RollReader(const ShardMedia& media, Catalog& catalog);

  // The request is the reader's until `done`.
  void read(RollRequest& request);
  void turn();
  bool idle() const noexcept { return head_ == nullptr; }
  uint64_t next_turn_us() const noexcept { return !idle() && !read_.reading() ? 0 : UINT64_MAX; }

 private:
  Catalog& catalog_;
  SegmentRead read_;
  RollRequest* head_ = nullptr;  // being read
  RollRequest** tail_ = &head_;
  bool begun_ = false;
};

}  // namespace halfstep::store
