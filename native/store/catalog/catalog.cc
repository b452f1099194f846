#include "store/catalog/catalog.h"

#include <algorithm>

#include "base/check.h"
#include "store/format/hint.h"
#include "store/format/mutant.h"

namespace halfstep::store {
namespace {

uint32_t bound(uint32_t checksum, const IndexKey& key) noexcept {
  return HALFSTEP_MUTANT(NoKeyInChecksum) ? checksum : checksum ^ index::checksum_bits(hash_of(key));
}

}  // namespace

uint32_t Block::checksum(const IndexKey& key) const noexcept { return bound(bound_checksum, key); }

Catalog::Catalog(Setup setup, Names& names)
    : names_(names),
      clock_(setup.segments * setup.segment_bytes),
      segment_pages_(setup.segment_bytes / kPageBytes),
      segments_(setup.segments),
      index_(std::move(setup.index)) {
  for (uint32_t number = 0; number < setup.segments; ++number) segments_[number].number = number;
}

// ---- Lookups ---------------------------------------------------------------------------------------------------------------

index::Found Catalog::look(const IndexKey& key) const noexcept {
  const index::Found found = index_->find(hash_of(key));
  return found && !stale(found.entry) ? found : index::Found();
}

Block Catalog::find(const IndexKey& key) const noexcept {
  const index::Found found = look(key);
  return found ? decode(found.entry) : Block();
}

Block Catalog::decode(const index::Entry& entry) const noexcept {
  const Segment& segment = segments_[segment_of(entry)];
  Block block;
  block.location = {segment.number, static_cast<uint32_t>(entry.location().page % segment_pages_), entry.location().reuse};
  block.pages = entry.pages();
  block.pages_back = entry.pages_back();
  block.bound_checksum = entry.checksum();
  block.slot = entry.scope_slot();
  block.scope = slots_.scope(block.slot);
  block.expiry_code = entry.expiry_code();
  block.expiry_s = segment.marks.expiry_s(block.location.page, block.expiry_code);
  block.touch_stamp = entry.touch_stamp();
  block.touch_class = entry.touch_class();
  block.hint = entry.hint();
  block.trailer = entry.trailer();
  block.held = entry.held();
  block.sliding = entry.sliding();
  return block;
}

uint32_t Catalog::block_bytes(const Block& block, wire::Component component) const noexcept {
  if (!block.trailer) return static_cast<uint32_t>(block.extent_bytes());
  const wire::GroupShape* group = names_.group(block.scope, component);
  if (group != nullptr && group->part_count != 0) return static_cast<uint32_t>(group->offset_of(group->part_count));
  return segments_[block.location.segment].lengths.find(block.location.page);
}

// ---- Changes ---------------------------------------------------------------------------------------------------------------

void Catalog::note(Segment& segment, const format::Entry& entry, uint64_t now_s) {
  segment.expires_s = std::max(segment.expires_s, entry.expiry_s == 0 ? Segment::kNeverExpires : entry.expiry_s);
  if (entry.expiry_s != 0) segment.marks.pass(entry.page, now_s);
  if ((entry.flags & format::kEntryTrailer) == 0) return;
  const wire::GroupShape* group = names_.group(entry.scope, {entry.component});
  if (group == nullptr || group->part_count == 0) segment.lengths.add(entry.page, entry.raw_bytes);
}

index::Entry Catalog::encode(const Segment& segment, const format::Entry& entry, const Touch& touch) {
  index::Entry to;
  to.set_location(place_of(location_of(segment, entry)));
  to.set_pages(static_cast<uint32_t>(shape_of(entry).extent_bytes() / kPageBytes));
  to.set_pages_back(entry.pages_back);
  to.set_trailer((entry.flags & format::kEntryTrailer) != 0);
  to.set_checksum(bound(entry.checksum, key_of(entry)));
  to.set_touch(touch.stamp, touch.touch_class);
  to.set_hint(entry.hint <= index::kHintMax ? entry.hint : 0);
  to.set_scope_slot(slots_.take(entry.scope, static_cast<uint16_t>(wire::Component{entry.component}.group()), entry.codecs));
  to.set_expiry(segment.marks.code(entry.page, entry.expiry_s), (entry.flags & format::kEntrySliding) != 0);
  return to;
}

Status Catalog::add(Segment& segment, const format::Entry& entry, const Touch& touch, bool held) {
  const index::Entry fresh = encode(segment, entry, touch);
  if (fresh.scope_slot() == ScopeSlots::kNone) return Code::NoSpace;
  const IndexKey key = key_of(entry);
  const Status placed = place(fresh, entry);
  if (placed == Code::Present) {
    const index::Found before = index_->find(hash_of(key));
    leave(before.entry);
    replace(before, fresh);
    enter(fresh, entry);
  } else if (!placed.ok()) {
    return placed;
  }
  if (held) set_held(key, true);
  return {};
}

Status Catalog::add_absent(Segment& segment, const format::Entry& entry, const Touch& touch) {
  const index::Entry fresh = encode(segment, entry, touch);
  if (fresh.scope_slot() == ScopeSlots::kNone) return Code::NoSpace;
  return place(fresh, entry);
}

Status Catalog::place(const index::Entry& fresh, const format::Entry& of) {
  const IndexKey key = key_of(of);
  Status inserted = index_->insert(hash_of(key), fresh);
  if (inserted == Code::Present) {
    const index::Found before = index_->find(hash_of(key));
    if (!stale(before.entry)) return inserted;
    --stale_;
    replace(before, fresh);
    inserted = {};
  }
  if (inserted.ok()) enter(fresh, of);
  return inserted;
}

bool Catalog::move(const IndexKey& key, const Location& original, const format::Entry& copy, Segment& to, bool touched_since) {
  const index::Found found = look(key);
  if (!found || !(found.entry.location() == place_of(original))) return false;
  index::Entry moved = encode(to, copy, {found.entry.touch_stamp(), touched_since ? kTouchedOnce : kUntouched});
  // What was used all the same is no longer what its hint said.
  if (goes_first(moved.hint()) && found.entry.touch_class() != kUntouched) moved.set_hint(0);
  moved.set_held(found.entry.held());
  moved.set_expiry(moved.expiry_code(), found.entry.sliding());  // it may have been given another end meanwhile
  leave(found.entry);
  replace(found, moved);
  enter(moved, copy);
  const uint32_t expiry_s = copy.expiry_s;
  to.expires_s = std::max(to.expires_s, expiry_s == 0 ? Segment::kNeverExpires : expiry_s);
  if (touched_since) mark_touched(moved);
  return true;
}

void Catalog::replace(const index::Found& found, const index::Entry& entry) noexcept {
  [[maybe_unused]] const bool replaced = index_->replace(found.handle, found.entry.location(), entry);
  HALFSTEP_CHECK(replaced);
}

void Catalog::enter(const index::Entry& entry, const format::Entry& of) noexcept {
  Share& share = count(entry, 1);
  ++share.blocks;
  share.pages += entry.pages();
  share.logical_bytes += of.raw_bytes;
  share.stored_bytes += of.stored_bytes;
}

void Catalog::leave_share(const index::Entry& entry, Share& share) noexcept {
  HALFSTEP_CHECK(share.blocks > 0 && share.pages >= entry.pages(), share.blocks, share.pages, entry.pages());
  share.leave(entry.pages());
  std::vector<Share>& shares = segments_[segment_of(entry)].shares;
  if (share.blocks == 0) shares.erase(shares.begin() + (&share - shares.data()));
}

// All sums of the segment but those of the block's share, which it returns.
Share& Catalog::count(const index::Entry& entry, int sign) noexcept {
  Segment& segment = segments_[segment_of(entry)];
  const uint32_t pages = entry.pages();
  const auto sign32 = static_cast<uint32_t>(sign);  // modulo 2^n: subtracts
  const auto sign64 = static_cast<uint64_t>(int64_t{sign});
  segment.live_blocks += sign32;
  segment.live_pages += sign64 * pages;
  live_blocks_ += sign64;
  live_bytes_ += sign64 * pages * kPageBytes;
  names_.add_live_bytes(slots_.scope(entry.scope_slot()), int64_t{sign} * pages * static_cast<int64_t>(kPageBytes));
  auto share = std::lower_bound(segment.shares.begin(), segment.shares.end(), entry.scope_slot(),
                                [](const Share& s, uint16_t slot) { return s.slot < slot; });
  if (share == segment.shares.end() || share->slot != entry.scope_slot()) {
    share = segment.shares.insert(share, {.slot = entry.scope_slot()});
  }
  if (entry.touch_class() != kUntouched) {
    const uint64_t when = clock_.when(entry.touch_stamp());
    sign > 0 ? segment.touched.add(when, pages) : segment.touched.remove(when, pages);
  } else if (goes_first(entry.hint())) {
    segment.first_pages += sign64 * pages;
  }
  if (entry.held()) count_held(entry, sign);
  return *share;
}

void Catalog::count_held(const index::Entry& entry, int sign) noexcept {
  Segment& segment = segments_[segment_of(entry)];
  segment.held_blocks += static_cast<uint32_t>(sign);
  segment.held_pages += static_cast<uint64_t>(int64_t{sign}) * entry.pages();
}

bool Catalog::drop(const IndexKey& key, const Location& location) noexcept {
  const index::Found found = look(key);
  if (!found || !(found.entry.location() == place_of(location))) return false;
  leave(found.entry);
  return index_->erase(found.handle, found.entry.location());
}

void Catalog::set_held(const IndexKey& key, bool held) noexcept {
  if (HALFSTEP_MUTANT(HoldIgnored)) return;
  const index::Found found = look(key);
  if (!found || found.entry.held() == held) return;
  if (HALFSTEP_MUTANT(HintBeatsHold) && goes_first(found.entry.hint())) return;
  index::Entry changed = found.entry;
  changed.set_held(held);
  count_held(changed, held ? 1 : -1);
  replace(found, changed);
}

void Catalog::set_expiry(const IndexKey& key, uint32_t expiry_s) noexcept {
  const index::Found found = look(key);
  if (!found) return;
  Segment& segment = segments_[segment_of(found.entry)];
  index::Entry changed = found.entry;
  changed.set_expiry(segment.marks.code(static_cast<uint32_t>(changed.location().page % segment_pages_), expiry_s), false);
  if (HALFSTEP_MUTANT(ChangedStillSlides)) changed.set_expiry(changed.expiry_code(), found.entry.sliding());
  replace(found, changed);
  segment.expires_s = std::max(segment.expires_s, expiry_s == 0 ? Segment::kNeverExpires : expiry_s);
}

uint32_t Catalog::slide(const IndexKey& key, uint64_t now_s) noexcept {
  const index::Found found = look(key);
  if (!found || !found.entry.sliding() || HALFSTEP_MUTANT(UseDoesNotSlide)) return 0;
  Segment& segment = segments_[segment_of(found.entry)];
  const auto page = static_cast<uint32_t>(found.entry.location().page % segment_pages_);
  const uint32_t ttl_s = names_.sliding_ttl_s(slots_.scope(found.entry.scope_slot()));
  const auto end_s = static_cast<uint32_t>(std::min<uint64_t>(now_s + ttl_s, UINT32_MAX));
  const uint16_t code = segment.marks.code(page, end_s);
  if (ttl_s == 0 || code <= found.entry.expiry_code()) return segment.marks.expiry_s(page, found.entry.expiry_code());
  index::Entry moved = found.entry;
  moved.set_expiry(code, true);
  mark_touched(moved);
  replace(found, moved);
  segment.expires_s = std::max(segment.expires_s, end_s);
  return segment.marks.expiry_s(page, code);
}

Used Catalog::touch(const IndexKey& key, uint64_t at) noexcept {
  const index::Found found = look(key);
  if (!found) return Used::Absent;
  const Used used = found.entry.sliding() ? Used::Slides : Used::There;
  const uint64_t used_at = std::min(at, clock_.now());
  const auto stamp = static_cast<uint16_t>(used_at);
  Segment& segment = segments_[segment_of(found.entry)];
  index::Entry touched = found.entry;
  if (touched.touch_class() == kUntouched) {
    if (goes_first(touched.hint())) segment.first_pages -= touched.pages();
    touched.set_touch(stamp, kTouchedOnce);
  } else {
    const uint64_t before = clock_.when(touched.touch_stamp());
    if (before >= used_at) return used;
    segment.touched.remove(before, touched.pages());
    touched.set_touch(stamp, kTouchedMore);
  }
  segment.touched.add(used_at, touched.pages());
  mark_touched(touched);
  replace(found, touched);
  return used;
}

void Catalog::mark_touched(const index::Entry& entry) noexcept {
  const uint64_t page = entry.location().page % segment_pages_;
  segments_[segment_of(entry)].touched_regions |= uint64_t{1} << (page * Segment::kRegions / segment_pages_);
}

void Catalog::void_segment(Segment& segment) noexcept {
  // A count that came round would make its oldest stale entries live again. Hardly ever: the sweep was asked for long before.
  if (segment.voids == kVoidsMax) {
    const auto dead = [this](const Block& block) { return !names_.alive(block.scope); };
    if (lap_on_) (void)sweep(UINT64_MAX, dead);
    (void)sweep(UINT64_MAX, dead);
  }
  for (const Share& share : segment.shares) {
    names_.add_live_bytes(slots_.scope(share.slot), -static_cast<int64_t>(share.pages * kPageBytes));
  }
  HALFSTEP_CHECK(segment.live_blocks <= live_blocks_, segment.live_blocks, live_blocks_);
  live_blocks_ -= segment.live_blocks;
  HALFSTEP_CHECK(segment.live_pages * kPageBytes <= live_bytes_, segment.live_pages * kPageBytes, live_bytes_);
  live_bytes_ -= segment.live_pages * kPageBytes;
  stale_ += segment.live_blocks;
  segment.live_blocks = segment.held_blocks = 0;
  segment.live_pages = segment.held_pages = segment.first_pages = 0;
  segment.shares = {};
  segment.touched = {};
  ++segment.departed;
  if (!HALFSTEP_MUTANT(VoidedStaysLive)) ++segment.reuse;
  voids_most_ = std::max(voids_most_, ++segment.voids);
}

void Catalog::lap_ended() noexcept {
  lap_on_ = false;
  slots_.lap_ended();
  voids_most_ = 0;
  for (Segment& segment : segments_) {
    segment.voids = static_cast<uint16_t>(segment.voids - segment.voids_at_lap);
    voids_most_ = std::max(voids_most_, segment.voids);
  }
}

void Catalog::release(Segment& segment) {
  HALFSTEP_CHECK(segment.reads_in_flight == 0 && segment.frames_in_flight == 0, segment.reads_in_flight,
                 segment.frames_in_flight);
  HALFSTEP_CHECK(segment.live_blocks == 0 && segment.held_blocks == 0 && segment.live_pages == 0 && segment.first_pages == 0 &&
                     segment.shares.empty(),
                 segment.live_blocks, segment.held_blocks, segment.live_pages);
  segment.roll.reset();
  segment.lengths = {};
  segment.long_key_bytes = 0;
  segment.next_page = segment.written_page = segment.durable_page = 0;
  segment.footer_read = segment.may_return = segment.unread = false;
  segment.frames = 0;
  segment.newest_frame = 0;
  segment.expires_s = 0;
  segment.touched = {};
  segment.touched_regions = 0;
}

// ---- Facts -----------------------------------------------------------------------------------------------------------------

std::vector<Stock> Catalog::stocks() const {
  std::vector<Stock> by_slot;
  for (const Segment& segment : segments_) {
    for (const Share& share : segment.shares) {
      if (share.slot >= by_slot.size()) by_slot.resize(size_t{share.slot} + 1);
      Stock& stock = by_slot[share.slot];
      stock.kind = slots_.kind(share.slot);
      stock.blocks += share.blocks;
      stock.logical_bytes += share.logical_bytes;
      stock.stored_bytes += share.stored_bytes;
      stock.flash_bytes += share.pages * kPageBytes;
    }
  }
  std::erase_if(by_slot, [](const Stock& stock) { return stock.blocks == 0; });
  return by_slot;
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
  uint64_t bytes = index_->bytes();
  for (const Segment& segment : segments_) bytes += segment.memory_bytes();
  return bytes;
}

// ---- Invariants ------------------------------------------------------------------------------------------------------------

void Catalog::check_invariants() const {
  struct Walked {
    uint32_t live_blocks = 0, held_blocks = 0;
    uint64_t live_pages = 0, held_pages = 0, first_pages = 0;
    std::vector<Share> shares;
  };
  std::vector<Walked> walked(segments_.size());  // what the index has of each segment
  uint64_t live_blocks = 0, live_pages = 0, stale_entries = 0;
  index_->for_each([&](const index::Entry& entry) {
    HALFSTEP_CHECK(segment_of(entry) < segments_.size(), segment_of(entry), segments_.size());
    if (stale(entry)) {
      ++stale_entries;
      return;
    }
    HALFSTEP_CHECK(slots_.scope(entry.scope_slot()) != 0, entry.scope_slot());
    HALFSTEP_CHECK(entry.location().page % segment_pages_ + entry.pages() <= segment_pages_, entry.location().page,
                   entry.pages());
    Walked& segment = walked[segment_of(entry)];
    ++segment.live_blocks;
    segment.live_pages += entry.pages();
    segment.first_pages += goes_first(entry.hint()) && entry.touch_class() == kUntouched ? entry.pages() : 0;
    segment.held_blocks += entry.held() ? 1 : 0;
    segment.held_pages += entry.held() ? entry.pages() : 0;
    auto share = std::lower_bound(segment.shares.begin(), segment.shares.end(), entry.scope_slot(),
                                  [](const Share& s, uint16_t slot) { return s.slot < slot; });
    if (share == segment.shares.end() || share->slot != entry.scope_slot()) {
      share = segment.shares.insert(share, {.slot = entry.scope_slot()});
    }
    ++share->blocks;
    share->pages += entry.pages();
    ++live_blocks;
    live_pages += entry.pages();
  });
  HALFSTEP_CHECK(live_blocks == live_blocks_ && live_pages * kPageBytes == live_bytes_, live_blocks, live_blocks_, live_bytes_);
  HALFSTEP_CHECK(stale_entries == stale_ && live_blocks + stale_entries == index_->size(), stale_entries, stale_,
                 index_->size());
  for (const Segment& segment : segments_) {
    const Walked& as_walked = walked[segment.number];
    HALFSTEP_CHECK(segment.live_blocks == as_walked.live_blocks && segment.live_pages == as_walked.live_pages, segment.number,
                   segment.live_blocks, as_walked.live_blocks);
    HALFSTEP_CHECK(segment.held_blocks == as_walked.held_blocks && segment.held_pages == as_walked.held_pages, segment.number,
                   segment.held_blocks, as_walked.held_blocks);
    HALFSTEP_CHECK(segment.first_pages == as_walked.first_pages, segment.number, segment.first_pages, as_walked.first_pages);
    const auto alike = [](const Share& a, const Share& b) {
      return a.slot == b.slot && a.blocks == b.blocks && a.pages == b.pages;
    };
    HALFSTEP_CHECK(std::ranges::equal(segment.shares, as_walked.shares, alike), segment.number);
    for (const Share& share : segment.shares) {
      // Stored bytes lie in their pages.
      HALFSTEP_CHECK(share.stored_bytes <= share.pages * kPageBytes, segment.number, share.stored_bytes, share.pages);
    }
    check_segment(segment);
  }
}

void Catalog::check_segment(const Segment& segment) const {
  HALFSTEP_CHECK(segment.durable_page <= segment.written_page && segment.written_page <= segment.next_page &&
                     segment.next_page <= segment_pages_,
                 segment.number, segment.durable_page, segment.written_page, segment.next_page);
  // What is empty, or never used again, finds nothing and is found by nothing.
  const bool empty = segment.state == SegmentState::Free || segment.state == SegmentState::Logging ||
                     segment.state == SegmentState::Ready || segment.state == SegmentState::Bad;
  HALFSTEP_CHECK(!empty || (segment.live_blocks == 0 && segment.frames_in_flight == 0), segment.number, segment.state,
                 segment.live_blocks, segment.frames_in_flight);
}

}  // namespace halfstep::store
