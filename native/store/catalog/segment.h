// segment.h — what memory knows of one segment: its state, and sums over its blocks. Nothing here grows with their number but
// the roll, as long as the segment is being written, and the lengths that nothing else in memory can tell.
// Thread: the shard's.
#pragma once

#include <algorithm>
#include <memory>
#include <vector>

#include "store/catalog/expiry_marks.h"
#include "store/format/roll.h"
#include "store/format/touch.h"

namespace halfstep::store {

enum class SegmentState : uint8_t {
  Free,     // no generation that anybody may write with
  Logging,  // its new generation is on the way to the record log
  Ready,    // the generation is on media, nothing written yet
  Open,     // frames are being appended
  Sealing,  // full: waits for its frames, a flush and the footer
  Sealed,   // has a footer
  Ended,    // ended by a failure: walked frame by frame after a restart
  Bad,      // never used again
};

// The raw lengths of blocks with a trailer, by page. That of a plain block is that of its extent, and a group of a fixed number
// of parts has one for all of its blocks; what is left are blocks of any length that are ragged or coded (ADR 0004).
class Lengths {
 public:
  // In ascending order of pages.
  void add(uint32_t page, uint32_t raw_bytes) { lengths_.push_back({page, raw_bytes}); }
  // 0: not known.
  uint32_t find(uint32_t page) const noexcept {
    const auto at =
        std::lower_bound(lengths_.begin(), lengths_.end(), page, [](const Length& l, uint32_t p) { return l.page < p; });
    return at != lengths_.end() && at->page == page ? at->raw_bytes : 0;
  }
  void shrink() { lengths_.shrink_to_fit(); }
  uint64_t memory_bytes() const noexcept { return lengths_.capacity() * sizeof(Length); }

 private:
  struct Length {
    uint32_t page;
    uint32_t raw_bytes;
  };
  std::vector<Length> lengths_;
};

// What of a segment belongs to one scope, group and set of codecs, by their slot: so that voiding it needs no look at its
// blocks. What the index does not say of a block is added up as it comes; of one that leaves alone, its pages' part of it goes.
struct Share {
  uint16_t slot = 0;
  uint32_t blocks = 0;
  uint64_t pages = 0;
  uint64_t logical_bytes = 0;
  uint64_t stored_bytes = 0;

  void leave(uint32_t block_pages) noexcept {
    logical_bytes -= logical_bytes * block_pages / pages;
    stored_bytes -= stored_bytes * block_pages / pages;
    pages -= block_pages;
    --blocks;
  }
};

struct Segment {
  uint32_t number = 0;
  SegmentState state = SegmentState::Free;
  uint8_t write_errors = 0;     // moments at which it could not be written though others could, since it was last sealed
  uint8_t media_errors = 0;     // blocks and pages of it that were not as they were written, or never to be read again
  uint8_t retirements = 0;      // how often it was logged bad; on flash, too
  bool unread = false;          // the start could not read it: its blocks are not known, and the next start may find them
  uint64_t retired_s = 0;       // store time, in this process
  uint64_t error_us = 0;        // when write_errors was last counted
  uint64_t rests_until_us = 0;  // not written to before, as long as there is another
  uint8_t stream = 0;
  uint8_t ttl_class = 0;
  uint8_t lane = 0;           // which writer it belongs to (streams.h)
  uint8_t reuse = 0;          // of the locations of its blocks: index entries with another count are stale
  uint16_t voids = 0;         // of it since the last whole lap of the sweep: stale entries may name that many counts
  uint16_t voids_at_lap = 0;  // of those, before the lap that is on began
  uint64_t generation = 0;
  uint64_t newest_frame = 0;  // sequence of it: the order of reclaim
  uint32_t next_page = 0;     // where the next frame starts
  uint32_t written_page = 0;  // all frames below have completed
  uint32_t durable_page = 0;  // and were covered by a flush: the watermark
  uint32_t frames = 0;
  uint32_t frames_in_flight = 0;
  uint32_t reads_in_flight = 0;
  uint32_t held_blocks = 0;
  uint32_t live_blocks = 0;
  uint64_t held_pages = 0;
  uint64_t live_pages = 0;
  uint64_t first_pages = 0;  // of those: a hint says that they go first (hint.h), and nobody has used them since
  // How often a block of it ceased to be live, over all its uses: what is live stays so until one more does.
  uint64_t departed = 0;
  uint32_t expires_s = 0;  // when all that was ever written to it has expired; kNeverExpires, 0 = nothing was
  TouchHistogram touched;
  uint64_t touched_regions = 0;  // a bit for each 64th of its pages: touched since that part of its touch map was written
  uint64_t long_key_bytes = 0;   // with their heads, in the footer to come
  bool records_missing = false;  // its frames hold entries that are not known, or will not be for long
  bool footer_read = false;      // of one that has Ended: what is known of it comes from what is left of its footer, too
  bool may_return = false;       // blocks left the index unburied: a restart may take them again
  ExpiryMarks marks;
  Lengths lengths;
  std::vector<Share> shares;
  std::unique_ptr<Roll> roll;  // null: on flash alone

  static constexpr uint32_t kNeverExpires = UINT32_MAX;
  static constexpr uint64_t kRegions = 64;
  bool holds_frames() const noexcept { return state >= SegmentState::Open && state <= SegmentState::Ended; }
  void note_media_error() noexcept {
    if (media_errors < UINT8_MAX) ++media_errors;
  }
  bool all_expired(uint64_t now_s) const noexcept { return expires_s != 0 && expires_s != kNeverExpires && expires_s <= now_s; }
  // Nothing of it is in flight any more, and no flush to come can change what is known of it.
  bool settled() const noexcept { return frames_in_flight == 0 && durable_page == written_page; }
  uint64_t memory_bytes() const noexcept {
    return sizeof(Segment) + marks.memory_bytes() + lengths.memory_bytes() + shares.capacity() * sizeof(Share) +
           (roll != nullptr ? sizeof(Roll) + roll->memory_bytes() : 0);
  }
};

}  // namespace halfstep::store
