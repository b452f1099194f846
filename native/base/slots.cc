#include "base/slots.h"

#include <bit>

#include "base/check.h"

namespace halfstep {

static_assert(kArenaRegionBytesMax % kPieceBytesMax == 0, "no piece may straddle two regions");

Slot::~Slot() {
  if (pool_ != nullptr) pool_->give_back(*this);
}

uint64_t Slot::held_bytes() const noexcept { return SlotPool::held_bytes(bytes_); }

SlotPool::SlotPool(Arena& arena)
    : arena_(arena),
      base_(arena.bytes().data()),
      capacity_bytes_(round_down(arena.bytes().size(), kPieceBytesMax)),
      free_bytes_(capacity_bytes_) {
  for (uint32_t& head : partial_head_) head = kNone;
  chunks_.resize(capacity_bytes_ / kPieceBytesMax);
  // Linked from the end, so that the first ones taken are neighbours in ascending order.
  for (auto chunk = static_cast<uint32_t>(chunks_.size()); chunk-- > 0;) link(free_head_, chunk);
}

uint32_t SlotPool::tail_class(uint64_t tail_bytes) noexcept {
  return static_cast<uint32_t>(std::bit_width(div_up(tail_bytes, kPageBytes) - 1));
}

uint64_t SlotPool::held_bytes(uint64_t bytes) noexcept {
  const uint64_t tail = bytes % kPieceBytesMax;
  uint64_t held = bytes - tail;
  if (tail != 0) held += std::bit_ceil(div_up(tail, kPageBytes)) * kPageBytes;
  return held;
}

void SlotPool::link(uint32_t& head, uint32_t chunk) noexcept {
  chunks_[chunk].previous = kNone;
  chunks_[chunk].next = head;
  if (head != kNone) chunks_[head].previous = chunk;
  head = chunk;
}

void SlotPool::unlink(uint32_t& head, uint32_t chunk) noexcept {
  const Chunk& c = chunks_[chunk];
  if (c.previous != kNone) chunks_[c.previous].next = c.next;
  if (c.next != kNone) chunks_[c.next].previous = c.previous;
  if (head == chunk) head = c.next;
}

uint32_t SlotPool::take_chunk() noexcept {
  const uint32_t chunk = free_head_;
  if (chunk == kNone) return kNone;
  unlink(free_head_, chunk);
  chunks_[chunk].tail_class = kWhole;
  return chunk;
}

// Returns a page number or kNone.
uint32_t SlotPool::take_tail(uint32_t cls) noexcept {
  if (cls == kClasses) {  // more than half a chunk: take it whole
    const uint32_t chunk = take_chunk();
    if (chunk == kNone) return kNone;
    HALFSTEP_CHECK(kPieceBytesMax <= free_bytes_, kPieceBytesMax, free_bytes_);
    free_bytes_ -= kPieceBytesMax;
    return chunk * kChunkPages;
  }
  const uint32_t units = kChunkPages >> cls;
  if (partial_head_[cls] == kNone) {
    const uint32_t fresh = take_chunk();
    if (fresh == kNone) return kNone;
    chunks_[fresh].tail_class = static_cast<uint8_t>(cls);
    chunks_[fresh].free_units = units == 64 ? ~uint64_t{0} : (uint64_t{1} << units) - 1;
    link(partial_head_[cls], fresh);
  }
  const uint32_t chunk = partial_head_[cls];
  Chunk& c = chunks_[chunk];
  const auto unit = static_cast<uint32_t>(std::countr_zero(c.free_units));
  c.free_units &= c.free_units - 1;
  if (c.free_units == 0) unlink(partial_head_[cls], chunk);
  HALFSTEP_CHECK(uint64_t{kPageBytes} << cls <= free_bytes_, uint64_t{kPageBytes} << cls, free_bytes_);
  free_bytes_ -= uint64_t{kPageBytes} << cls;
  return chunk * kChunkPages + (unit << cls);
}

void SlotPool::give_piece(uint32_t page) noexcept {
  const uint32_t chunk = page / kChunkPages;
  Chunk& c = chunks_[chunk];
  if (c.tail_class == kWhole) {
    free_bytes_ += kPieceBytesMax;
    link(free_head_, chunk);
    return;
  }
  const uint32_t cls = c.tail_class;
  const uint32_t units = kChunkPages >> cls;
  const uint64_t all = units == 64 ? ~uint64_t{0} : (uint64_t{1} << units) - 1;
  const uint64_t bit = uint64_t{1} << ((page % kChunkPages) >> cls);
  HALFSTEP_CHECK((c.free_units & bit) == 0);
  if (c.free_units == 0) link(partial_head_[cls], chunk);
  c.free_units |= bit;
  free_bytes_ += uint64_t{kPageBytes} << cls;
  if (c.free_units == all) {
    unlink(partial_head_[cls], chunk);
    c.tail_class = kWhole;
    link(free_head_, chunk);
  }
}

Slot SlotPool::take(uint64_t bytes) noexcept {
  HALFSTEP_CHECK(bytes > 0, bytes);
  Slot slot;
  if (held_bytes(bytes) > free_bytes_) return slot;
  uint32_t previous = kNone;
  uint64_t got = 0;
  while (got < bytes) {
    const uint64_t left = bytes - got;
    uint32_t page = kNone;
    if (left >= kPieceBytesMax) {
      const uint32_t chunk = take_chunk();
      if (chunk != kNone) {
        page = chunk * kChunkPages;
        HALFSTEP_CHECK(kPieceBytesMax <= free_bytes_, kPieceBytesMax, free_bytes_);
        free_bytes_ -= kPieceBytesMax;
      }
    } else {
      page = take_tail(tail_class(left));
    }
    if (page == kNone) {  // enough bytes are free, but in tails of another class
      if (got != 0) {
        slot.pool_ = this;
        slot.bytes_ = got;
      }
      return Slot();  // `slot` gives back what it has
    }
    if (previous == kNone) {
      slot.first_ = page;
    } else {
      chunks_[previous / kChunkPages].next_in_slot = page;
    }
    previous = page;
    got += left < kPieceBytesMax ? left : kPieceBytesMax;
  }
  slot.pool_ = this;
  slot.bytes_ = bytes;
  return slot;
}

void SlotPool::give_back(Slot& slot) noexcept {
  uint32_t page = slot.first_;
  for (uint64_t left = slot.bytes_;;) {
    const uint32_t next = chunks_[page / kChunkPages].next_in_slot;
    give_piece(page);
    if (left <= kPieceBytesMax) break;
    left -= kPieceBytesMax;
    page = next;
  }
  slot.pool_ = nullptr;
}

}  // namespace halfstep
