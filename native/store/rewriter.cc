#include "store/rewriter.h"

#include <cassert>

#include "base/crc.h"
#include "store/streams.h"

namespace halfstep::store {
namespace {

constexpr uint64_t kVerifyBytesPerTurn = 256 * KiB;
constexpr uint64_t kNowhere = UINT64_MAX;

}  // namespace

Rewriter::Rewriter(Core& core, Streams& streams, const ReclaimPolicy& policy)
    : core_(core), streams_(streams), policy_(policy) {
  if (core_.rewrite_bytes >= 2 * kFrameHeaderBytes) buffer_ = core_.slots.take(core_.rewrite_bytes);
}

void Rewriter::start(Segment& victim, bool last_word) {
  assert(!active() && items_.empty() && moves_.empty() && copies_out_ == 0);
  victim_ = &victim;
  last_word_ = last_word;
  gave_up_ = flush_asked_ = false;
  failures_ = 0;
  next_ordinal_ = 0;
  frame_page_ = UINT32_MAX;
}

void Rewriter::turn() {
  if (victim_ == nullptr) return;
  publish();
  if (outstanding_ > 0 || copies_out_ > 0) return;
  if (!items_.empty()) {
    verify_some();
    if (verify_next_ == items_.size()) commit_chunk();
    return;
  }
  large_ = Slot();
  if (!gave_up_) choose_chunk();
  if (!items_.empty()) return read_chunk();
  if (next_ordinal_ < victim_->blocks.size() && !gave_up_) return;
  if (moves_.empty()) {
    victim_ = nullptr;
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

bool Rewriter::worth_keeping(const Block& block) noexcept {
  if (!block.live || core_.expired(block.expiry_s) || !core_.names.alive(block.scope)) return false;
  const LogClock& clock = core_.catalog.clock();
  return block.held || policy_.worth_keeping(block.touch_class, clock.now() - clock.when(block.touch_stamp));
}

void Rewriter::choose_chunk() {
  ranges_.clear();
  uint64_t at = 0;
  uint64_t header_at = kNowhere;
  for (; next_ordinal_ < victim_->blocks.size(); ++next_ordinal_) {
    const Block& block = victim_->blocks[next_ordinal_];
    if (block.pages_back == 0) continue;  // only its ordinal was found again
    if (const uint32_t frame = block.page - block.pages_back; frame != frame_page_) {
      frame_page_ = frame;
      frame_header_pages_ = std::min<uint32_t>(block.pages_back, format::kFrameHeaderPagesMax);
      header_at = kNowhere;
    }
    if (worth_keeping(block) && !choose(block, &at, &header_at)) return;
  }
}

// False when the chunk is full.
bool Rewriter::choose(const Block& block, uint64_t* at, uint64_t* header_at) {
  const uint64_t bytes = block.extent_bytes();
  const uint64_t header_bytes = uint64_t{frame_header_pages_} * kPageBytes;
  const bool large = bytes + kFrameHeaderBytes > buffer_.bytes();
  if (large) {
    if (!items_.empty()) return false;
    large_ = core_.memory.take(bytes);
    if (large_.empty()) {  // memory is for who reads and writes: the next pass, or the end of it
      ++failures_;
      return true;
    }
  } else if (*at + (*header_at == kNowhere ? header_bytes : 0) + bytes > buffer_.bytes()) {
    return false;
  }
  if (*header_at == kNowhere) {
    *header_at = *at;
    *at += header_bytes;
    want_range(frame_page_, buffer_, *header_at, header_bytes);
  }
  const Slot& slot = large ? large_ : buffer_;
  items_.push_back({next_ordinal_, &slot, large ? 0 : *at, *header_at, frame_header_pages_, frame_page_});
  want_range(block.page, slot, items_.back().at, bytes);
  if (!large) {
    *at += bytes;
    return true;
  }
  ++next_ordinal_;
  return false;
}

void Rewriter::want_range(uint32_t page, const Slot& slot, uint64_t at, uint64_t bytes) {
  const uint64_t offset = core_.places.segment(victim_->number) + uint64_t{page} * kPageBytes;
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
  opened_at_ = kNowhere;
  Transfer* first = nullptr;
  for (const Range& range : ranges_) {
    TransferCutter cutter(core_.slots.arena(), range.device_offset, [&](uint64_t offset, Bytes bytes) {
      Transfer& piece = core_.transfers.take();
      piece.request.op = io::Op::Read;
      piece.request.offset = offset;
      piece.request.data = bytes.data();
      piece.request.bytes = static_cast<uint32_t>(bytes.size());
      piece.request.owner = this;
      piece.request.complete = on_piece;
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
    core_.engine.submit(piece.request);
  }
}

void Rewriter::on_piece(io::Request& request) {
  auto& self = *static_cast<Rewriter*>(request.owner);
  if (request.error != 0) {  // what was in the memory before must not pass for what was asked for
    std::memset(request.data, 0, request.bytes);
    self.read_failed_ = true;
  }
  self.core_.transfers.give(Transfer::of(request));
  if (--self.outstanding_ == 0) --self.victim_->reads_in_flight;
}

// ---- What is written -------------------------------------------------------------------------------------------------------

void Rewriter::verify_some() {
  uint64_t bytes = 0;
  while (verify_next_ < items_.size() && bytes < kVerifyBytesPerTurn) {
    const Item& item = items_[verify_next_++];
    const Block& block = victim_->blocks[item.ordinal];
    if (gave_up_ || !block.live) continue;
    bytes += block.extent_bytes();
    Extent& copy = take_copy();
    if (verify(item, copy)) {
      verified_.push_back(&copy);
    } else {
      give_copy(copy);
      drop_unreadable(item);
    }
  }
}

// The block's entry as its frame has it; false when that page is damaged, or says something else.
bool Rewriter::find_entry(const Item& item, const Block& block, format::Entry* entry) {
  for (uint32_t p = 0; p < item.header_pages; ++p) {
    Bytes page;
    const uint64_t at = item.header_at + uint64_t{p} * kPageBytes;
    buffer_.for_range(at, kPageBytes, [&](Bytes piece) { page = piece; });
    if (at != opened_at_) {
      const PageAddress address{0, 0, victim_->number, item.frame_page + p, victim_->generation};
      opened_at_ = at;
      if (!open_page(core_.page_secret, page, format::PageKind::FrameEntries, address, &opened_).ok()) opened_.entries = 0;
    }
    if (item.ordinal < opened_.first_entry || item.ordinal - opened_.first_entry >= opened_.entries) continue;
    *entry = entry_at(page, item.ordinal - opened_.first_entry);
    return entry->page == block.page && entry->birth == block.birth && entry->checksum == block.checksum() &&
           IndexKey{entry->key_low, entry->key_high} == block.key;
  }
  return false;
}

bool Rewriter::verify(const Item& item, Extent& copy) {
  const Block& block = victim_->blocks[item.ordinal];
  const ConstBytes engine_key = victim_->key_of(block);
  if (!find_entry(item, block, &copy.entry) || copy.entry.engine_key_bytes != engine_key.size()) return false;
  copy.entry.expiry_s = block.expiry_s;  // it may have been changed since
  copy.key = block.key;
  copy.shape = block.shape();
  copy.set_block_bytes(block.raw_bytes);
  std::memcpy(copy.engine_key.data(), engine_key.data(), engine_key.size());
  copy.lent = item.slot;
  copy.lent_at = item.at;
  copy.original = {victim_->number, item.ordinal};
  const uint64_t bytes = block.extent_bytes();
  copy.part_table().clear();
  if (copy.shape.trailer) {
    uint32_t crc = 0;
    copy.for_range(0, bytes, [&](Bytes piece) { crc = crc32c(piece, crc); });
    return crc == block.checksum();
  }
  const wire::GroupShape* group = core_.names.group(block.scope, {block.component});
  if (group == nullptr || group->parts_of(block.raw_bytes) != copy.shape.parts) return false;
  copy.part_table().resize(copy.shape.parts);
  cut_parts(*group, block.raw_bytes, copy.part_table());
  copy.verifier.begin(copy.shape, &copy.part_table());
  copy.for_range(0, bytes, [&](Bytes piece) { copy.verifier.feed(piece); });
  return copy.verifier.checksum() == block.checksum();
}

void Rewriter::drop_unreadable(const Item& item) {
  ++failures_;
  if (!last_word_ || read_failed_) return;  // a device that answers with errors now may answer later
  const IndexKey key = victim_->blocks[item.ordinal].key;
  core_.evict({victim_->number, item.ordinal}, Eviction::Unreadable);
  core_.bury(key);
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
  const Block& block = core_.catalog.at(copy.original);
  moves_.push_back({copy.original, copy.location, core_.catalog.segment(copy.location.segment).generation, end_page,
                    block.touch_stamp, block.touch_class});
  give_copy(copy);
  --copies_out_;
}

void Rewriter::failed(Extent& copy) {
  if (core_.catalog.at(copy.original).live) ++failures_;
  give_copy(copy);
  --copies_out_;
}

// Copies that are on media take the place of their originals; those that will never be, not.
void Rewriter::publish() {
  std::erase_if(moves_, [this](const Move& move) {
    const Segment& segment = core_.catalog.segment(move.copy.segment);
    if (segment.generation != move.generation || segment.durable_page < move.end_page) {
      const bool lost = segment.generation != move.generation ||
                        (segment.state == SegmentState::Ended && !streams_.of(segment).unflushed(segment));
      failures_ += lost ? 1 : 0;
      return lost;
    }
    const Block& original = core_.catalog.at(move.original);
    const bool touched = original.touch_stamp != move.touch_stamp || original.touch_class != move.touch_class;
    const IndexKey key = original.key;
    if (!core_.catalog.move(move.original, move.copy, touched)) return true;
    Extent* resident = core_.memory.find(key);
    if (resident != nullptr && resident->state == ExtentState::Clean && resident->location == move.original) {
      resident->location = move.copy;
    }
    return true;
  });
}

Extent& Rewriter::take_copy() {
  if (unused_.empty()) unused_.push_back(&copies_.emplace_back());
  Extent& copy = *unused_.back();
  unused_.pop_back();
  copy.rewriter = this;
  copy.state = ExtentState::Dirty;
  copy.attempts = 0;
  copy.in_frame = false;
  copy.next_pending = nullptr;
  copy.location = {};
  return copy;
}

void Rewriter::give_copy(Extent& copy) noexcept {
  copy.lent = nullptr;
  copy.state = ExtentState::Unused;
  unused_.push_back(&copy);
}

}  // namespace halfstep::store
