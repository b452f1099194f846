#include "store/reclaim/rewriter.h"

#include <algorithm>

#include "base/check.h"
#include "base/crc.h"
#include "store/memory/staleness.h"
#include "store/write/streams.h"

namespace halfstep::store {
namespace {

constexpr uint64_t kVerifyBytesPerTurn = 256 * KiB;
// Of a pass that has time: what a get may find before it at the device, unless it is behind, and how long nobody need write.
constexpr uint64_t kCalmChunkBytes = 256 * KiB;
constexpr uint64_t kCalmGapUs = 20'000;

}  // namespace

Rewriter::Rewriter(const Needs& needs, Streams& streams, RollReader& rolls, const ReclaimPolicy& policy, Slot buffer)
    : engine_(needs.engine),
      places_(needs.places),
      transfers_(needs.transfers),
      log_(needs.log),
      catalog_(needs.catalog),
      memory_(needs.memory),
      names_(needs.names),
      events_(needs.events),
      evictor_(needs.evictor),
      tombstones_(needs.tombstones),
      clock_(needs.clock),
      store_time_(needs.store_time),
      counters_(needs.counters),
      streams_(streams),
      rolls_(rolls),
      policy_(policy),
      buffer_(std::move(buffer)) {
  request_.done = [](RollRequest&) {};
}

void Rewriter::start(Segment& victim, const Keep& keep, uint64_t room_pages, bool last_word) {
  HALFSTEP_DCHECK(!active() && items_.empty() && moves_.empty() && copies_out_ == 0, copies_out_);
  victim_ = &victim;
  last_word_ = last_word;
  haste_ = false;
  keep_ = asked_ = keep;
  unread_ = false;
  chosen_bytes_ = 0;
  put_before_ = put_bytes();
  room_bytes_ = std::max<uint64_t>(room_pages * kPageBytes, 1);
  next_chunk_us_ = 0;
  gave_up_ = flush_asked_ = false;
  failures_ = 0;
  next_ordinal_ = 0;
  request_.segment = victim.number;
  rolls_.read(request_);
}

void Rewriter::turn() {
  if (victim_ == nullptr) return;
  publish();
  if (request_.busy || outstanding_ > 0 || copies_out_ > 0) return;
  unread_ = unread_ || request_.scanned.read_errors > 0;
  if (!items_.empty()) {
    verify_some();
    if (verify_next_ == items_.size()) commit_chunk();
    return;
  }
  if (rests()) return;
  large_ = Slot();
  if (!gave_up_) choose_chunk();
  if (!items_.empty()) return read_chunk();
  if (next_ordinal_ < request_.scanned.entries.size() && !gave_up_) return;
  if (moves_.empty()) {
    victim_ = nullptr;
    if (!events_.enabled()) request_.scanned = {};
  } else if (!flush_asked_) {
    flush_asked_ = true;
    streams_.copies().want_flush();
  }
}

void Rewriter::give_up() {
  gave_up_ = true;
  streams_.copies().withdraw_copies();
}

// ---- What is read ----------------------------------------------------------------------------------------------------------

Block Rewriter::block_of(const FoundEntry& found) const noexcept {
  if (!found.present) return {};
  const Block block = catalog_.find({found.entry.key_low, found.entry.key_high});
  return block.location == catalog_.location_of(*victim_, found.entry) ? block : Block();
}

bool Rewriter::one_of_some(const Block& block) const noexcept {
  return !block.held && catalog_.clock().when(block.touch_stamp) < keep_.all_since;
}

bool Rewriter::worth_keeping(const Block& block) const noexcept {
  if (!block || store_time_.expired(block.expiry_s) || !names_.alive(block.scope)) return false;
  if (block.held) return true;
  const LogClock& clock = catalog_.clock();
  const uint64_t when = clock.when(block.touch_stamp);
  if (!policy_.worth_keeping(block.touch_class, clock.now() - when)) return false;
  return !one_of_some(block) || (when >= keep_.some_since && keep_.some_pages * kPageBytes >= block.extent_bytes());
}

// Whoever is starved may have become so after `haste_` was set.
bool Rewriter::hasty() const noexcept { return haste_ || streams_.starved(); }

bool Rewriter::rests() const noexcept {
  if (hasty() || gave_up_ || !items_.empty() || next_ordinal_ >= request_.scanned.entries.size()) return false;
  return behind_bytes() == 0 && clock_.now_us() < next_chunk_us_;
}

uint64_t Rewriter::behind_bytes() const noexcept {
  const uint64_t used = std::min(put_bytes() - put_before_, room_bytes_);
  const auto due = static_cast<uint64_t>(static_cast<double>(keep_.pages * kPageBytes) * static_cast<double>(used) /
                                         static_cast<double>(room_bytes_));
  return due - std::min(due, chosen_bytes_);
}

Keep Rewriter::left() const noexcept {
  Keep left = keep_;
  left.pages -= std::min(left.pages, chosen_bytes_ / kPageBytes);
  return left;
}

uint64_t Rewriter::chunk_bytes() const noexcept {
  if (hasty()) return buffer_.bytes();
  return std::min(buffer_.bytes(), std::max(kCalmChunkBytes, behind_bytes()));
}

void Rewriter::choose_chunk() {
  ranges_.clear();
  uint64_t at = 0;
  const uint64_t bytes_max = chunk_bytes();
  next_chunk_us_ = clock_.now_us() + kCalmGapUs;
  const std::vector<FoundEntry>& entries = request_.scanned.entries;
  for (; next_ordinal_ < entries.size(); ++next_ordinal_) {
    const FoundEntry& found = entries[next_ordinal_];
    const Block block = block_of(found);
    if (worth_keeping(block) && !choose(found, block, bytes_max, &at)) return;
  }
}

// False when the chunk is full.
bool Rewriter::choose(const FoundEntry& found, const Block& block, uint64_t bytes_max, uint64_t* at) {
  const uint64_t bytes = block.extent_bytes();
  const bool large = bytes > buffer_.bytes();
  if (large) {
    if (!items_.empty()) return false;
    large_ = memory_.take(bytes);
    if (large_.empty()) {  // memory is for who reads and writes: the next pass, or the end of it
      ++failures_;
      return true;
    }
  } else if (*at + bytes > (items_.empty() ? buffer_.bytes() : bytes_max)) {
    return false;
  }
  chosen_bytes_ += bytes;
  if (one_of_some(block)) keep_.some_pages -= bytes / kPageBytes;
  const Slot& slot = large ? large_ : buffer_;
  items_.push_back({&found, &slot, large ? 0 : *at});
  want_range(block.location.page, slot, items_.back().at, bytes);
  if (!large) {
    *at += bytes;
    return true;
  }
  ++next_ordinal_;
  return false;
}

void Rewriter::want_range(uint32_t page, const Slot& slot, uint64_t at, uint64_t bytes) {
  const uint64_t offset = places_.segment(victim_->number) + uint64_t{page} * kPageBytes;
  if (!ranges_.empty()) {
    Range& last = ranges_.back();
    if (last.slot == &slot && last.device_offset + last.bytes == offset && last.at + last.bytes == at) {
      last.bytes += bytes;
      return;
    }
  }
  ranges_.push_back({offset, &slot, at, bytes});
}

void Rewriter::read_chunk() {
  ++victim_->reads_in_flight;
  read_failed_ = false;
  verify_next_ = 0;
  Transfer* first = nullptr;
  const io::IoClass io_class = hasty() ? io::IoClass::Write : io::IoClass::Reclaim;
  const io::Request like{.op = io::Op::Read, .io_class = io_class, .complete = on_piece, .owner = this};
  for (const Range& range : ranges_) {
    TransferCutter cutter(transfers_.arena(), range.device_offset, [&](uint64_t offset, Bytes bytes) {
      Transfer& piece = transfers_.take(like, offset, bytes);
      piece.next = first;
      first = &piece;
      ++outstanding_;
    });
    range.slot->for_range(range.at, range.bytes, [&](Bytes piece) { cutter.add(piece); });
    cutter.finish();
  }
  while (first != nullptr) {
    Transfer& piece = *first;
    first = piece.next;
    engine_.submit(piece.request);
  }
}

void Rewriter::on_piece(io::Request& request) {
  auto& self = *static_cast<Rewriter*>(request.owner);
  if (request.error != 0) {  // what was in the memory before must not pass for what was asked for
    std::memset(request.data, 0, request.bytes);
    self.read_failed_ = self.unread_ = true;
  }
  self.transfers_.give(Transfer::of(request));
  if (--self.outstanding_ == 0) --self.victim_->reads_in_flight;
}

// ---- What is written -------------------------------------------------------------------------------------------------------

void Rewriter::verify_some() {
  uint64_t bytes = 0;
  while (verify_next_ < items_.size() && bytes < kVerifyBytesPerTurn) {
    const Item& item = items_[verify_next_++];
    const Block block = block_of(*item.found);
    if (gave_up_ || !block) continue;
    bytes += block.extent_bytes();
    Extent& copy = take_copy();
    if (verify(item, block, copy)) {
      verified_.push_back(&copy);
    } else {
      give_copy(copy);
      drop_unreadable(item, block);
    }
  }
}

bool Rewriter::verify(const Item& item, const Block& block, Extent& copy) {
  const FoundEntry& found = *item.found;
  const ConstBytes engine_key = request_.scanned.key_of(found);
  copy.entry = found.entry;
  copy.key = {found.entry.key_low, found.entry.key_high};
  const uint32_t checksum = block.checksum(copy.key);
  if (engine_key.size() != copy.entry.engine_key_bytes || checksum != copy.entry.checksum) return false;
  copy.entry.expiry_s = catalog_.exact_expiry_s(block, log_.life().expiry_s(found.entry));  // it may have been changed since
  if (!block.sliding) copy.entry.flags &= static_cast<uint8_t>(~format::kEntrySliding);
  copy.shape = shape_of(copy.entry);
  copy.set_block_bytes(copy.entry.raw_bytes);
  std::memcpy(copy.engine_key.data(), engine_key.data(), engine_key.size());
  copy.as_copy.lent = item.slot;
  copy.as_copy.lent_at = item.at;
  copy.as_copy.original = block.location;
  copy.block = block;
  const uint64_t bytes = block.extent_bytes();
  if (copy.shape.extent_bytes() != bytes) return false;
  copy.part_table().reset(0);
  if (copy.shape.trailer) {
    uint32_t crc = 0;
    copy.for_range(0, bytes, [&](Bytes piece) { crc = crc32c(piece, crc); });
    return crc == checksum;
  }
  const wire::GroupShape* group = names_.group(block.scope, {copy.entry.component});
  if (group == nullptr || group->parts_of(copy.entry.raw_bytes) != copy.shape.parts) return false;
  copy.part_table().reset(copy.shape.parts);
  cut_parts(*group, copy.entry.raw_bytes, copy.part_table());
  copy.verifier.begin(copy.shape, &copy.part_table());
  copy.for_range(0, bytes, [&](Bytes piece) { copy.verifier.feed(piece); });
  return copy.verifier.checksum() == checksum;
}

void Rewriter::drop_unreadable(const Item& item, const Block& block) {
  ++failures_;
  if (!last_word_ || read_failed_) return;  // a device that answers with errors now may answer later
  const IndexKey key{item.found->entry.key_low, item.found->entry.key_high};
  evictor_.evict(event_of(item.found->entry, request_.scanned.key_of(*item.found)), block, Eviction::Unreadable);
  tombstones_.bury(key);
}

void Rewriter::commit_chunk() {
  items_.clear();
  verify_next_ = 0;
  for (Extent* copy : verified_) {
    if (gave_up_) {
      give_copy(*copy);
      continue;
    }
    ++copies_out_;
    streams_.copies().commit(*copy);
  }
  verified_.clear();
}

void Rewriter::landed(Extent& copy, uint32_t end_page) {
  const uint32_t segment = copy.location().segment;
  Move& move = moves_.emplace_back();
  move = {copy.key, copy.as_copy.original, copy.entry, segment, catalog_.segment(segment).generation, end_page, copy.block, {}};
  const Block now = catalog_.find(copy.key);
  move.touch = {now.touch_stamp, now.touch_class};
  give_copy(copy);
  --copies_out_;
}

void Rewriter::failed(Extent& copy) {
  if (catalog_.live(copy.key, copy.as_copy.original)) ++failures_;
  give_copy(copy);
  --copies_out_;
}

// Copies that are on media take the place of their originals; those that will never be, not.
void Rewriter::publish() {
  std::erase_if(moves_, [this](Move& move) {
    Segment& segment = catalog_.segment(move.segment);
    if (segment.generation != move.generation || segment.durable_page < move.end_page) {
      const bool lost = segment.generation != move.generation ||
                        (segment.state == SegmentState::Ended && !streams_.of(segment).unflushed(segment));
      failures_ += lost ? 1 : 0;
      return lost;
    }
    const Block original = catalog_.find(move.key);
    if (!(original.location == move.original) || store_time_.expired(original.expiry_s)) return true;
    const bool touched = original.touch_stamp != move.touch.stamp || original.touch_class != move.touch.touch_class;
    if (original.expiry_code != move.chosen.expiry_code) move.copy.expiry_s = original.expiry_s;  // changed meanwhile
    if (!catalog_.move(move.key, move.original, move.copy, segment, touched)) return true;
    Extent* resident = memory_.find(move.key);
    if (resident != nullptr && resident->state == ExtentState::Clean && resident->location() == move.original) {
      resident->set_location(catalog_.location_of(segment, move.copy));
      round_expiry(catalog_, *resident);
    }
    return true;
  });
}

Extent& Rewriter::take_copy() {
  if (unused_.empty()) unused_.push_back(&copies_.emplace_back());
  Extent& copy = *unused_.back();
  unused_.pop_back();
  copy.as_copy.owner = this;
  copy.state = ExtentState::Dirty;
  copy.attempts = 0;
  copy.in_frame = false;
  copy.next_pending = nullptr;
  copy.set_location({});
  return copy;
}

void Rewriter::give_copy(Extent& copy) noexcept {
  copy.as_copy.lent = nullptr;
  copy.state = ExtentState::Unused;
  unused_.push_back(&copy);
}

}  // namespace halfstep::store
