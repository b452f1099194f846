// catalog.h — what is where: the segments of the shard, the blocks in them, and the index that finds a block by its key.
// Plain here: a record per block in its segment's array, freed with the segment. The array's order is the order on flash, so
// that an ordinal is the same in memory, in the frames and in the footer.
// Invariants: the index names a block if and only if its record is live; a record's place never changes while its segment
// keeps its generation; live bytes are the sums of the live records' extents. A copy that reclaim has written is a record that
// is not live until move() gives it the place of the old one.
// Thread: the shard's.
#pragma once

#include <vector>

#include "index/table.h"
#include "store/extent_layout.h"
#include "store/format.h"
#include "store/names.h"
#include "store/touch.h"

namespace halfstep::store {

inline Hash128 hash_of(const IndexKey& key) noexcept { return {key.low, key.high}; }

struct Location {
  uint32_t segment = UINT32_MAX;
  uint32_t ordinal = 0;
  uint64_t packed() const noexcept { return uint64_t{segment} << 32 | ordinal; }
  static Location of(uint64_t packed) noexcept { return {static_cast<uint32_t>(packed >> 32), static_cast<uint32_t>(packed)}; }
  bool valid() const noexcept { return segment != UINT32_MAX; }
  bool operator==(const Location&) const noexcept = default;
};

// A stored block in memory. The checksum is bound to the key (V1 section 2): a record under a wrong key verifies nothing.
struct Block {
  IndexKey key;
  uint64_t birth = 0;
  uint32_t page = 0;
  uint32_t stored_bytes = 0;
  uint32_t raw_bytes = 0;
  uint32_t bound_checksum = 0;
  uint32_t scope = 0;
  uint32_t component = 0;
  uint32_t created_s = 0;
  uint32_t expiry_s = 0;
  uint32_t key_at = 0;  // of its engine key in the segment's
  uint16_t parts = 0;
  uint16_t pages_back = 0;
  uint16_t touch_stamp = 0;  // of LogClock: last touch, or when it was written
  uint8_t touch_class : 2 = kUntouched;
  uint8_t key_bytes = 0;  // 0: lost with a page that a footer's key stood in
  bool trailer = false;
  bool live = false;
  bool held = false;

  ExtentShape shape() const noexcept { return {parts, stored_bytes, trailer}; }
  uint64_t extent_bytes() const noexcept { return shape().extent_bytes(); }
  uint32_t pages() const noexcept { return static_cast<uint32_t>(extent_bytes() / kPageBytes); }
  uint32_t checksum() const noexcept { return bound_checksum ^ static_cast<uint32_t>(key.high); }
};
Block block_of(const format::Entry& entry) noexcept;

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

struct Segment {
  uint32_t number = 0;
  SegmentState state = SegmentState::Free;
  uint8_t write_errors = 0;
  uint8_t stream = 0;
  uint8_t ttl_class = 0;
  uint8_t lane = 0;  // which writer it belongs to (streams.h)
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
  uint32_t expires_s = 0;  // when all that was ever written to it has expired; kNeverExpires, 0 = nothing was
  TouchHistogram touched;
  std::vector<bool> touch_pages_changed;  // of its touch map, since they were written
  uint64_t long_key_bytes = 0;            // with their heads, in the footer to come
  bool records_missing = false;           // its frames hold entries that are not in `blocks`
  bool may_return = false;                // blocks left the index unburied: a restart may take them again
  std::vector<Block> blocks;
  std::vector<std::byte> keys;         // engine keys, back to back
  std::vector<format::Entry> entries;  // until the footer is written

  static constexpr uint32_t kNeverExpires = UINT32_MAX;
  bool holds_frames() const noexcept { return state >= SegmentState::Open && state <= SegmentState::Ended; }
  bool all_expired(uint64_t now_s) const noexcept { return expires_s != 0 && expires_s != kNeverExpires && expires_s <= now_s; }
  ConstBytes key_of(const Block& block) const noexcept { return ConstBytes(keys).subspan(block.key_at, block.key_bytes); }
};

class Catalog {
 public:
  Catalog(uint32_t segments, uint64_t segment_bytes, Names& names);

  Segment& segment(uint32_t number) noexcept { return segments_[number]; }
  const Segment& segment(uint32_t number) const noexcept { return segments_[number]; }
  std::vector<Segment>& segments() noexcept { return segments_; }
  const std::vector<Segment>& segments() const noexcept { return segments_; }
  uint32_t segment_count() const noexcept { return static_cast<uint32_t>(segments_.size()); }

  Location find(const IndexKey& key) const noexcept;
  Block& at(Location location) noexcept { return segments_[location.segment].blocks[location.ordinal]; }
  const Block& at(Location location) const noexcept { return segments_[location.segment].blocks[location.ordinal]; }

  // Appends the record, live, and names it in the index; what the index named before is no longer live.
  Location add(Segment& segment, const format::Entry& entry, ConstBytes engine_key, bool held);
  // The same for a record that is not live: it only keeps its ordinal.
  void add_dead(Segment& segment, const format::Entry& entry);
  // A copy that reclaim is writing: nothing finds it yet.
  Location add_copy(Segment& segment, const format::Entry& entry, ConstBytes engine_key);
  // The index names the copy instead, if it still names the original: else false, and the copy stays nobody's.
  // `touched_since`: somebody used the original while it was being copied.
  bool move(Location original, Location copy, bool touched_since);
  // Out of the index. No-op for a record that is not live.
  void drop(Location location) noexcept;
  void set_held(Location location, bool held) noexcept;
  // Its end is another than its frame says: its segment may not be free of living blocks before that.
  void set_expiry(Location location, uint32_t expiry_s) noexcept;

  LogClock& clock() noexcept { return clock_; }
  const LogClock& clock() const noexcept { return clock_; }
  // The block is used now. All touches of one moment count once.
  void touch(Location location);
  // What a restart knows of it, before the clock goes on; count_touches() when all is known.
  void restore_touch(Location location, uint16_t stamp, uint8_t touch_class) noexcept;
  void count_touches();
  // Forgets the records of a segment without a live block.
  static void release(Segment& segment);

  // The lowest generation of the segments that hold frames: tombstones below it are done with.
  uint64_t oldest_generation(uint64_t none) const noexcept;

  // Whether a restart could bring back a block that is not in the index now, because nothing on media says that it is gone.
  bool any_may_return() const noexcept;

  // The lowest generation of those with frames whose entries are not all known.
  uint64_t oldest_generation_unknown(uint64_t none) const noexcept;
  // visit(const IndexKey&, birth) for every entry, live or not, of the segments that hold frames.
  template <typename Visit>
  void for_each_record(Visit&& visit) const {
    for (const Segment& segment : segments_) {
      if (!segment.holds_frames()) continue;
      for (const Block& block : segment.blocks) visit(block.key, block.birth);
    }
  }

  uint64_t live_blocks() const noexcept { return index_.size(); }
  uint64_t live_bytes() const noexcept { return live_bytes_; }
  uint64_t memory_bytes() const noexcept;

 private:
  Location append(Segment& segment, const format::Entry& entry, ConstBytes engine_key);
  void enter(Location location) noexcept;
  void leave(Location location) noexcept;
  void change_touch_page(Location location);

  Names& names_;
  LogClock clock_;
  std::vector<Segment> segments_;
  index::Table index_;
  uint64_t live_bytes_ = 0;
};

}  // namespace halfstep::store
