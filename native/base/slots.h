// slots.h — the arena cut into slots: memory for one extent in flight or resident.
// A slot is a chain of pieces: whole chunks of 256 KiB, then one tail piece of a power of two of pages. So nothing fragments,
// nothing is allocated per block, and no piece is longer than a chunk on the wire.
// Invariants: a Slot is move-only and gives its pieces back exactly once; pieces are page-aligned and lie in one region;
// the first `bytes` bytes of the chain are the slot's, the rest of the tail piece is nobody's.
// Thread: the shard's.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "base/arena.h"
#include "base/bytes.h"
#include "base/check.h"
#include "base/units.h"

namespace halfstep {

inline constexpr uint32_t kPieceBytesMax = 256 * KiB;

class SlotPool;

class Slot {
 public:
  Slot() = default;
  Slot(Slot&& other) noexcept { swap(other); }
  Slot& operator=(Slot&& other) noexcept {
    Slot taken(std::move(other));
    swap(taken);
    return *this;
  }
  ~Slot();

  bool empty() const noexcept { return pool_ == nullptr; }
  uint64_t bytes() const noexcept { return bytes_; }
  // What it takes from the pool, rounding included.
  uint64_t held_bytes() const noexcept;
  uint32_t piece_count() const noexcept { return static_cast<uint32_t>(div_up(bytes_, kPieceBytesMax)); }

  // Calls visit(Bytes piece) for the memory of [offset, offset + count), in order; at most kPieceBytesMax each.
  template <typename Visit>
  void for_range(uint64_t offset, uint64_t count, Visit&& visit) const;

 private:
  friend class SlotPool;
  void swap(Slot& other) noexcept {
    std::swap(pool_, other.pool_);
    std::swap(bytes_, other.bytes_);
    std::swap(first_, other.first_);
    std::swap(cursor_piece_, other.cursor_piece_);
    std::swap(cursor_, other.cursor_);
  }

  SlotPool* pool_ = nullptr;
  uint64_t bytes_ = 0;
  uint32_t first_ = 0;                 // page number of the first piece
  mutable uint32_t cursor_piece_ = 0;  // where the last for_range ended: sequential access walks no chain
  mutable uint32_t cursor_ = 0;
};

class SlotPool {
 public:
  explicit SlotPool(Arena& arena);
  SlotPool(const SlotPool&) = delete;
  SlotPool& operator=(const SlotPool&) = delete;

  // An empty slot when the pool cannot hold it now. 0 < bytes.
  [[nodiscard]] Slot take(uint64_t bytes) noexcept;
  // What take(bytes) needs of the pool.
  static uint64_t held_bytes(uint64_t bytes) noexcept;

  uint64_t capacity_bytes() const noexcept { return capacity_bytes_; }
  uint64_t free_bytes() const noexcept { return free_bytes_; }
  Arena& arena() noexcept { return arena_; }

 private:
  friend class Slot;
  static constexpr uint32_t kNone = UINT32_MAX;
  static constexpr uint32_t kChunkPages = kPieceBytesMax / kPageBytes;  // 64: one bit each
  static constexpr uint32_t kClasses = 6;                               // tails of 1, 2, 4, 8, 16, 32 pages

  struct Chunk {
    uint64_t free_units = 0;    // tail chunks: bit i = unit i is free
    uint32_t next_in_slot = 0;  // page number of the next piece
    uint32_t previous = kNone;  // neighbours in the list of free chunks or of a class's partly free ones
    uint32_t next = kNone;
    uint8_t tail_class = kWhole;
  };
  static constexpr uint8_t kWhole = 0xFF;

  static uint32_t tail_class(uint64_t tail_bytes) noexcept;
  uint32_t take_chunk() noexcept;
  uint32_t take_tail(uint32_t cls) noexcept;
  void give_piece(uint32_t page) noexcept;
  void give_back(Slot& slot) noexcept;
  void link(uint32_t& head, uint32_t chunk) noexcept;
  void unlink(uint32_t& head, uint32_t chunk) noexcept;
  std::byte* address(uint32_t page) const noexcept { return base_ + uint64_t{page} * kPageBytes; }

  Arena& arena_;
  std::byte* base_;
  uint64_t capacity_bytes_;
  uint64_t free_bytes_;
  uint32_t free_head_ = kNone;
  uint32_t partial_head_[kClasses];
  std::vector<Chunk> chunks_;
};

template <typename Visit>
void Slot::for_range(uint64_t offset, uint64_t count, Visit&& visit) const {
  HALFSTEP_CHECK(offset + count <= bytes_, offset + count, bytes_);
  if (count == 0) return;
  const auto piece = static_cast<uint32_t>(offset / kPieceBytesMax);
  if (cursor_piece_ > piece || cursor_piece_ == 0) {
    cursor_piece_ = 0;
    cursor_ = first_;
  }
  for (; cursor_piece_ < piece; ++cursor_piece_) cursor_ = pool_->chunks_[cursor_ / SlotPool::kChunkPages].next_in_slot;
  uint64_t within = offset % kPieceBytesMax;
  for (;;) {
    const uint64_t step = count < kPieceBytesMax - within ? count : kPieceBytesMax - within;
    visit(Bytes(pool_->address(cursor_) + within, static_cast<size_t>(step)));
    count -= step;
    if (count == 0) return;
    within = 0;
    cursor_ = pool_->chunks_[cursor_ / SlotPool::kChunkPages].next_in_slot;
    ++cursor_piece_;
  }
}

}  // namespace halfstep
