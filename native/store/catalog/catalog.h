// catalog.h — what is where: the segments of the shard, and the index that finds a block by its key (index/block_index.h).
// A block is 24 bytes in the index and nothing else in memory. What these say relative to its segment is decoded here: the
// place counts from the segment's first page, the scope by its slot, the expiry from the segment's marks. Voiding a segment is
// O(1): its reuse count moves on, and index entries with another one are *stale*: nothing finds them, a put of the same key
// replaces them, and the sweep erases the rest. Invariants: the live blocks of a segment are those index entries that name it
// with its reuse count; live bytes and every sum of a segment are over its live blocks; no entry ceases to be live at its place
// but by leave() or void_segment(), which count it (Segment::departed); a stale entry is erased before its count comes round. A
// copy that reclaim has written is in no sum until move() gives it the place of the original. Thread: the shard's.
#pragma once

#include <array>
#include <memory>
#include <span>
#include <vector>

#include "index/block_index.h"
#include "store/catalog/names.h"
#include "store/catalog/scope_slots.h"
#include "store/catalog/segment.h"
#include "store/format/block.h"
#include "store/format/extent_layout.h"
#include "store/format/format.h"
#include "store/format/mutant.h"

namespace halfstep::store {

inline IndexKey key_of(const format::Entry& entry) noexcept { return {entry.key_low, entry.key_high}; }

// Where an extent begins, and which use of its segment wrote it.
struct Location {
  uint32_t segment = UINT32_MAX;
  uint32_t page = 0;
  uint8_t reuse = 0;
  bool valid() const noexcept { return segment != UINT32_MAX; }
  bool operator==(const Location&) const noexcept = default;
};

// A block as its index entry says it is.
struct Block {
  Location location;
  uint32_t pages = 0;
  uint32_t pages_back = 0;
  uint32_t bound_checksum = 0;  // with the key in it: under a wrong key it verifies nothing
  uint32_t scope = 0;
  uint16_t slot = 0;      // kind_of()
  uint32_t expiry_s = 0;  // 0: never; rounded down
  uint16_t expiry_code = 0;
  uint16_t touch_stamp = 0;  // of LogClock: last touch, or when it was written
  uint8_t touch_class = kUntouched;
  uint8_t hint = 0;
  bool trailer = false;
  bool held = false;
  bool sliding = false;  // its end moves on with every use

  explicit operator bool() const noexcept { return location.valid(); }
  uint64_t extent_bytes() const noexcept { return uint64_t{pages} * kPageBytes; }
  uint32_t checksum(const IndexKey& key) const noexcept;
};

// Live blocks of one kind: bytes that were put, those of their parts as they are stored, and whole pages with trailers and
// padding.
struct Stock {
  ScopeSlots::Kind kind;
  uint64_t blocks = 0;
  uint64_t logical_bytes = 0;
  uint64_t stored_bytes = 0;
  uint64_t flash_bytes = 0;
};

struct Touch {
  uint16_t stamp = 0;
  uint8_t touch_class = kUntouched;
  uint8_t life_left = 0;  // on flash: of a block whose end slides, what was left of its life, in 63rds; 0: as its frame says
};

enum class Used : uint8_t { Absent, There, Slides };

class Catalog {
 public:
  struct Setup {
    uint32_t segments = 0;
    uint64_t segment_bytes = 0;
    std::unique_ptr<index::BlockIndex> index;
  };
  Catalog(Setup setup, Names& names);

  Segment& segment(uint32_t number) noexcept { return segments_[number]; }
  const Segment& segment(uint32_t number) const noexcept { return segments_[number]; }
  std::vector<Segment>& segments() noexcept { return segments_; }
  const std::vector<Segment>& segments() const noexcept { return segments_; }
  uint32_t segment_count() const noexcept { return static_cast<uint32_t>(segments_.size()); }

  // Lookups ----------------------------------------------------------------------------------------------------------------
  Block find(const IndexKey& key) const noexcept;
  // Whether the key's block is there, live, and at this place.
  bool live(const IndexKey& key, const Location& location) const noexcept {
    const index::Found found = look(key);
    return found && location.valid() && found.entry.location() == place_of(location);
  }
  // The same, again and again. `seen`: what this left there when it was last asked of the same key and place; kNotSeen before.
  // The index is looked at only when a block has left the segment since.
  static constexpr uint64_t kNotSeen = UINT64_MAX;
  bool still_live(const IndexKey& key, const Location& location, uint64_t& seen) const noexcept {
    if (!unseen(location, seen)) return true;
    if (!live(key, location)) return false;
    seen = segments_[location.segment].departed;
    return true;
  }
  // Whether still_live() of a place looks at the index.
  bool unseen(const Location& location, uint64_t seen) const noexcept {
    return !location.valid() || segments_[location.segment].departed != seen;
  }
  Location location_of(const Segment& segment, const format::Entry& entry) const noexcept {
    return {segment.number, entry.page, segment.reuse};
  }
  // visit(size_t at, const Block&) for each of so many keys, key(size_t at), in order; memory is asked for ahead.
  template <typename Key, typename Visit>
  void find_many(size_t count, Key&& key, Visit&& visit) const;
  // Some ten keys before they are changed.
  [[gnu::always_inline]] void prefetch(const IndexKey& key) const noexcept { index_->prefetch(hash_of(key)); }
  uint32_t scope_of(const Share& share) const noexcept { return slots_.scope(share.slot); }
  const ScopeSlots::Kind& kind_of(const Block& block) const noexcept { return slots_.kind(block.slot); }
  // When a block ends, to the second as far as anything but the index says it. `known_s`: what its entry and the log say.
  uint32_t exact_expiry_s(const Block& block, uint32_t known_s) const noexcept {
    const Segment& segment = segments_[block.location.segment];
    return segment.marks.code(block.location.page, known_s) == block.expiry_code ? known_s : block.expiry_s;
  }
  // Of the raw bytes of a block of this component.
  uint32_t block_bytes(const Block& block, wire::Component component) const noexcept;

  // Changes ----------------------------------------------------------------------------------------------------------------
  // The segment begins to be written, or was recovered: what its blocks' expiry counts from.
  void begin(Segment& segment, uint64_t now_s) { segment.marks.begin(now_s); }
  // An entry of its frames, live or a copy; in order.
  void note(Segment& segment, const format::Entry& entry, uint64_t now_s);
  // Names a noted entry in the index; what the index named before under this key is no longer live. NoSpace: the index is full.
  Status add(Segment& segment, const format::Entry& entry, const Touch& touch, bool held);
  // The same, but Present, and nothing changed, when a live block is there under this key.
  Status add_absent(Segment& segment, const format::Entry& entry, const Touch& touch);
  // The index names the copy, which was noted, instead of the original, if it still names that: else false, and the copy stays
  // nobody's. `touched_since`: somebody used the original while it was being copied.
  bool move(const IndexKey& key, const Location& original, const format::Entry& copy, Segment& to, bool touched_since);
  // Out of the index, if it is there at this place.
  bool drop(const IndexKey& key, const Location& location) noexcept;
  void set_held(const IndexKey& key, bool held) noexcept;
  // Its end is another than its frame says, and moves no more: its segment may not be free of living blocks before that.
  void set_expiry(const IndexKey& key, uint32_t expiry_s) noexcept;
  // The block is used, at this time of the clock or now. All touches of one moment count once; an end that slides is slide()'s.
  Used touch(const IndexKey& key, uint64_t at = UINT64_MAX) noexcept;
  // Used now: if its end slides, it moves on, never back. What that is then; 0: it is not there, or does not slide.
  uint32_t slide(const IndexKey& key, uint64_t now_s) noexcept;
  // None of its blocks is live any more.
  void void_segment(Segment& segment) noexcept;
  // Forgets the rest of a segment without a live block.
  static void release(Segment& segment);

  // Sweeping ---------------------------------------------------------------------------------------------------------------
  // Visits the live blocks of the next `buckets` of the index, in its order: visit(const Block&) -> bool, true drops it. Stale
  // entries are erased. True at the end of a lap.
  template <typename Visit>
  bool sweep(uint64_t buckets, Visit&& visit);
  // The index is nearly full, or some segment's reuse count comes round before long.
  bool wants_sweep() const noexcept {
    return voids_most_ >= kVoidsWanted || stale_ * 32 > index_->slots() || (stale_ > 0 && index_full());
  }
  // So full that an insert may be refused: nothing new is taken in.
  bool index_full() const noexcept { return index_->size() * 16 >= index_->slots() * 15; }
  // Of the live ones alone: reclaim has to make room.
  bool index_crowded() const noexcept { return live_blocks_ * 16 >= index_->slots() * 14; }

  LogClock& clock() noexcept { return clock_; }
  const LogClock& clock() const noexcept { return clock_; }
  // The lowest generation of the segments that hold frames: tombstones below it are done with.
  uint64_t oldest_generation(uint64_t none) const noexcept;
  // Whether a restart could bring back a block that is not in the index now, because nothing on media says that it is gone.
  bool any_may_return() const noexcept;
  // The lowest generation of those with frames whose entries are not all known.
  uint64_t oldest_generation_unknown(uint64_t none) const noexcept;

  // No slot for the scope: every one is taken, by the living or until the sweep has been round.
  bool scope_fits(uint32_t scope, uint16_t group, uint64_t codecs) {
    return slots_.take(scope, group, codecs) != ScopeSlots::kNone;
  }
  // Of each kind that has any. Costs a look at every segment.
  std::vector<Stock> stocks() const;

  uint64_t live_blocks() const noexcept { return live_blocks_; }
  uint64_t live_bytes() const noexcept { return live_bytes_; }
  uint64_t index_bytes() const noexcept { return index_->bytes(); }
  ConstBytes index_memory() const noexcept { return index_->mapping().bytes(); }
  // With what the segments take.
  uint64_t memory_bytes() const noexcept;

  // Ends the process where a sum is not what a walk of the index says. Costs as much as that.
  void check_invariants() const;

 private:
  static constexpr uint16_t kVoidsMax = 255, kVoidsWanted = 128;

  index::Location place_of(const Location& location) const noexcept {
    return {uint64_t{location.segment} * segment_pages_ + location.page, location.reuse};
  }
  uint32_t segment_of(const index::Entry& entry) const noexcept {
    return static_cast<uint32_t>(entry.location().page / segment_pages_);
  }
  bool stale(const index::Entry& entry) const noexcept { return segments_[segment_of(entry)].reuse != entry.location().reuse; }
  index::Found look(const IndexKey& key) const noexcept;  // live ones alone
  Block decode(const index::Entry& entry) const noexcept;
  index::Entry encode(const Segment& segment, const format::Entry& entry, const Touch& touch);

  // The sums of its segment, not the index.
  void enter(const index::Entry& entry, const format::Entry& of) noexcept;
  void leave(const index::Entry& entry) noexcept {
    leave_share(entry, count(entry, -1));
    ++segments_[segment_of(entry)].departed;
  }
  Share& count(const index::Entry& entry, int sign) noexcept;
  void leave_share(const index::Entry& entry, Share& share) noexcept;
  void count_held(const index::Entry& entry, int sign) noexcept;
  // In the index, under a key that has none, or a stale one. Present: a live one is there.
  Status place(const index::Entry& fresh, const format::Entry& of);
  void mark_touched(const index::Entry& entry) noexcept;
  void replace(const index::Found& found, const index::Entry& entry) noexcept;
  void lap_ended() noexcept;
  void check_segment(const Segment& segment) const;

  Names& names_;
  LogClock clock_;
  uint64_t segment_pages_;
  std::vector<Segment> segments_;
  std::unique_ptr<index::BlockIndex> index_;
  ScopeSlots slots_;
  bool lap_on_ = false;
  uint16_t voids_most_ = 0;
  uint64_t stale_ = 0;
  uint64_t live_blocks_ = 0;
  uint64_t live_bytes_ = 0;
};

template <typename Key, typename Visit>
void Catalog::find_many(size_t count, Key&& key, Visit&& visit) const {
  constexpr size_t kAtOnce = 64;
  std::array<Hash128, kAtOnce> hashes;
  std::array<index::Found, kAtOnce> found;
  for (size_t first = 0; first < count; first += kAtOnce) {
    const size_t now = std::min(kAtOnce, count - first);
    for (size_t i = 0; i < now; ++i) hashes[i] = hash_of(key(first + i));
    index_->find_many(std::span(hashes).first(now), found);
    for (size_t i = 0; i < now; ++i) {
      visit(first + i, found[i] && !stale(found[i].entry) ? decode(found[i].entry) : Block());
    }
  }
}

template <typename Visit>
bool Catalog::sweep(uint64_t buckets, Visit&& visit) {
  if (!lap_on_) {
    lap_on_ = true;
    slots_.lap_begins([this](uint32_t scope) { return names_.alive(scope); });
    for (Segment& segment : segments_) segment.voids_at_lap = segment.voids;
  }
  const bool lap = index_->sweep(buckets, [&](index::Entry& entry) {
    if (stale(entry)) {
      --stale_;
      return index::BlockIndex::Verdict::Erase;
    }
    if (!visit(decode(entry))) return index::BlockIndex::Verdict::Keep;
    leave(entry);
    return index::BlockIndex::Verdict::Erase;
  });
  if (lap) lap_ended();
  return lap;
}

}  // namespace halfstep::store
