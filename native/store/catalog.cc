#include "store/catalog.h"

#include <algorithm>
#include <cassert>

#include "store/mutant.h"

namespace halfstep::store {

Block block_of(const format::Entry& entry) noexcept {
  Block block;
  block.key = {entry.key_low, entry.key_high};
  block.birth = entry.birth;
  block.page = entry.page;
  block.stored_bytes = entry.stored_bytes;
  block.raw_bytes = entry.raw_bytes;
  block.bound_checksum = entry.checksum ^ static_cast<uint32_t>(entry.key_high);
  block.scope = entry.scope;
  block.component = entry.component;
  block.created_s = entry.created_s;
  block.expiry_s = entry.expiry_s;
  block.parts = entry.parts;
  block.pages_back = entry.pages_back;
  block.trailer = (entry.flags & format::kEntryTrailer) != 0;
  return block;
}

Catalog::Catalog(uint32_t segments, uint64_t segment_bytes, Names& names)
    : names_(names), clock_(segments * segment_bytes), segments_(segments) {
  for (uint32_t number = 0; number < segments; ++number) segments_[number].number = number;
}

Location Catalog::find(const IndexKey& key) const noexcept {
  const uint64_t packed = index_.find(hash_of(key));
  return packed == index::Table::kNone ? Location{} : Location::of(packed);
}

Location Catalog::append(Segment& segment, const format::Entry& entry, ConstBytes engine_key) {
  const Location location{segment.number, static_cast<uint32_t>(segment.blocks.size())};
  Block& block = segment.blocks.emplace_back(block_of(entry));
  block.key_at = static_cast<uint32_t>(segment.keys.size());
  block.key_bytes = static_cast<uint8_t>(engine_key.size());
  block.touch_stamp = static_cast<uint16_t>(clock_.now());
  segment.keys.insert(segment.keys.end(), engine_key.begin(), engine_key.end());
  segment.expires_s = std::max(segment.expires_s, entry.expiry_s == 0 ? Segment::kNeverExpires : entry.expiry_s);
  return location;
}

Location Catalog::add(Segment& segment, const format::Entry& entry, ConstBytes engine_key, bool held) {
  const Location location = append(segment, entry, engine_key);
  const Block& block = at(location);
  if (const Location before = find(block.key); before.valid()) drop(before);
  index_.put(hash_of(block.key), location.packed());
  enter(location);
  live_bytes_ += block.extent_bytes();
  names_.add_live_bytes(block.scope, static_cast<int64_t>(block.extent_bytes()));
  if (held) set_held(location, true);
  return location;
}

void Catalog::add_dead(Segment& segment, const format::Entry& entry) { segment.blocks.push_back(block_of(entry)); }

Location Catalog::add_copy(Segment& segment, const format::Entry& entry, ConstBytes engine_key) {
  return append(segment, entry, engine_key);
}

bool Catalog::move(Location original, Location copy, bool touched_since) {
  Block& from = at(original);
  Block& to = at(copy);
  if (!from.live || !index_.replace(hash_of(from.key), original.packed(), copy.packed())) return false;
  to.touch_stamp = from.touch_stamp;
  to.touch_class = touched_since ? kTouchedOnce : kUntouched;
  if (from.expiry_s != to.expiry_s) set_expiry(copy, from.expiry_s);  // changed while it was being copied
  const bool held = from.held;
  set_held(original, false);
  leave(original);
  enter(copy);
  set_held(copy, held);
  if (touched_since) change_touch_page(copy);
  return true;
}

// Its segment's sums, not the index or the bytes of all.
void Catalog::enter(Location location) noexcept {
  Block& block = at(location);
  Segment& segment = segments_[location.segment];
  block.live = true;
  ++segment.live_blocks;
  segment.live_pages += block.pages();
  if (block.touch_class != kUntouched) segment.touched.add(clock_.when(block.touch_stamp), block.pages());
}

void Catalog::leave(Location location) noexcept {
  Block& block = at(location);
  Segment& segment = segments_[location.segment];
  block.live = false;
  --segment.live_blocks;
  segment.live_pages -= block.pages();
  if (block.touch_class != kUntouched) segment.touched.remove(clock_.when(block.touch_stamp), block.pages());
}

void Catalog::drop(Location location) noexcept {
  Block& block = at(location);
  if (!block.live) return;
  set_held(location, false);
  index_.erase(hash_of(block.key), location.packed());
  leave(location);
  live_bytes_ -= block.extent_bytes();
  names_.add_live_bytes(block.scope, -static_cast<int64_t>(block.extent_bytes()));
}

void Catalog::set_held(Location location, bool held) noexcept {
  if (HALFSTEP_MUTANT(HoldIgnored)) return;
  Block& block = at(location);
  if (block.held == held || !block.live) return;
  block.held = held;
  Segment& segment = segments_[location.segment];
  if (held) {
    ++segment.held_blocks;
    segment.held_pages += block.pages();
  } else {
    --segment.held_blocks;
    segment.held_pages -= block.pages();
  }
}

void Catalog::set_expiry(Location location, uint32_t expiry_s) noexcept {
  at(location).expiry_s = expiry_s;
  uint32_t& latest_s = segments_[location.segment].expires_s;
  latest_s = std::max(latest_s, expiry_s == 0 ? Segment::kNeverExpires : expiry_s);
}

void Catalog::touch(Location location) {
  Block& block = at(location);
  if (!block.live) return;
  const uint64_t now = clock_.now();
  const auto stamp = static_cast<uint16_t>(now);
  Segment& segment = segments_[location.segment];
  if (block.touch_class == kUntouched) {
    block.touch_class = kTouchedOnce;
  } else {
    if (block.touch_stamp == stamp) return;
    segment.touched.remove(clock_.when(block.touch_stamp), block.pages());
    block.touch_class = kTouchedMore;
  }
  block.touch_stamp = stamp;
  segment.touched.add(now, block.pages());
  change_touch_page(location);
}

void Catalog::change_touch_page(Location location) {
  std::vector<bool>& changed = segments_[location.segment].touch_pages_changed;
  const size_t page = location.ordinal / format::kTouchesPerPage;
  if (page >= changed.size()) changed.resize(page + 1);
  changed[page] = true;
}

void Catalog::restore_touch(Location location, uint16_t stamp, uint8_t touch_class) noexcept {
  Block& block = at(location);
  block.touch_stamp = stamp;
  block.touch_class = touch_class & 3U;
}

void Catalog::count_touches() {
  for (Segment& segment : segments_) {
    segment.touched = {};
    for (const Block& block : segment.blocks) {
      if (block.live && block.touch_class != kUntouched) segment.touched.add(clock_.when(block.touch_stamp), block.pages());
    }
  }
}

void Catalog::release(Segment& segment) {
  assert(segment.live_blocks == 0 && segment.held_blocks == 0 && segment.live_pages == 0);
  segment.blocks = {};
  segment.keys = {};
  segment.entries = {};
  segment.long_key_bytes = 0;
  segment.next_page = segment.written_page = segment.durable_page = 0;
  segment.may_return = false;
  segment.frames = 0;
  segment.newest_frame = 0;
  segment.expires_s = 0;
  segment.touched = {};
  segment.touch_pages_changed = {};
}

uint64_t Catalog::oldest_generation(uint64_t none) const noexcept {
  uint64_t oldest = none;
  for (const Segment& segment : segments_) {
    // A segment that is being reclaimed still holds its old frames on flash until its new generation is logged.
    const bool frames = segment.holds_frames() || segment.state == SegmentState::Logging;
    if (frames && segment.generation != 0) oldest = std::min(oldest, segment.generation);
  }
  return oldest;
}

bool Catalog::any_may_return() const noexcept {
  return std::any_of(segments_.begin(), segments_.end(), [](const Segment& s) { return s.may_return && s.holds_frames(); }) ||
         oldest_generation_unknown(UINT64_MAX) != UINT64_MAX;
}

uint64_t Catalog::oldest_generation_unknown(uint64_t none) const noexcept {
  uint64_t oldest = none;
  for (const Segment& segment : segments_) {
    const bool frames = segment.holds_frames() || segment.state == SegmentState::Logging;
    if (frames && segment.records_missing && segment.generation != 0) oldest = std::min(oldest, segment.generation);
  }
  return oldest;
}

uint64_t Catalog::memory_bytes() const noexcept {
  uint64_t bytes = index_.memory_bytes();
  for (const Segment& segment : segments_) {
    bytes += segment.blocks.capacity() * sizeof(Block) + segment.keys.capacity() +
             segment.entries.capacity() * sizeof(format::Entry);
  }
  return bytes;
}

}  // namespace halfstep::store
