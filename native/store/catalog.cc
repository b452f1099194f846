#include "store/catalog.h"

#include <algorithm>
#include <cassert>

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

Catalog::Catalog(uint32_t segments, Names& names) : names_(names), segments_(segments) {
  for (uint32_t number = 0; number < segments; ++number) segments_[number].number = number;
}

Location Catalog::find(const IndexKey& key) const noexcept {
  const uint64_t packed = index_.find(hash_of(key));
  return packed == index::Table::kNone ? Location{} : Location::of(packed);
}

Location Catalog::add(Segment& segment, const format::Entry& entry, ConstBytes engine_key, bool held) {
  const Location location{segment.number, static_cast<uint32_t>(segment.blocks.size())};
  Block& block = segment.blocks.emplace_back(block_of(entry));
  if (const Location before = find(block.key); before.valid()) drop(before);
  block.key_at = static_cast<uint32_t>(segment.keys.size());
  block.key_bytes = static_cast<uint8_t>(engine_key.size());
  segment.keys.insert(segment.keys.end(), engine_key.begin(), engine_key.end());
  block.live = true;
  index_.put(hash_of(block.key), location.packed());
  ++segment.live_blocks;
  live_bytes_ += block.extent_bytes();
  names_.add_live_bytes(block.scope, static_cast<int64_t>(block.extent_bytes()));
  if (held) set_held(location, true);
  return location;
}

void Catalog::add_dead(Segment& segment, const format::Entry& entry) { segment.blocks.push_back(block_of(entry)); }

void Catalog::drop(Location location) noexcept {
  Block& block = at(location);
  if (!block.live) return;
  set_held(location, false);
  index_.erase(hash_of(block.key), location.packed());
  block.live = false;
  --segments_[location.segment].live_blocks;
  live_bytes_ -= block.extent_bytes();
  names_.add_live_bytes(block.scope, -static_cast<int64_t>(block.extent_bytes()));
}

void Catalog::set_held(Location location, bool held) noexcept {
  Block& block = at(location);
  if (block.held == held || !block.live) return;
  block.held = held;
  segments_[location.segment].held_blocks += held ? 1U : UINT32_MAX;
}

void Catalog::release(Segment& segment) {
  assert(segment.live_blocks == 0 && segment.held_blocks == 0);
  segment.blocks = {};
  segment.keys = {};
  segment.entries = {};
  segment.long_key_bytes = 0;
  segment.next_page = segment.written_page = segment.durable_page = 0;
  segment.frames = 0;
  segment.opened = 0;
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
