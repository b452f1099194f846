// target.h — the caller's memory: where the bytes of a section's items go (get) or come from (put).
// Invariants: what set() accepted is inside the memory that the caller described, for every item and every part; nothing
// outside it is ever named by for_range().
// Thread: set on the submitter's, read on the client's.
#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "base/bytes.h"
#include "base/status.h"
#include "peer/halfstep.h"
#include "peer/selection.h"
#include "wire/layout.h"
#include "wire/records.h"

namespace halfstep::peer {

class Target {
 public:
  void clear() noexcept;
  // Copies what `section` describes. `block_bytes` (put) tells each item's length, which the memory must hold exactly.
  Fault set(const hs_section& section, uint32_t item_count, const wire::GroupShape& shape, const Selection& selection);

  // Whether the selected parts of a block of `block_bytes`, a length that the shape allows, have a place each.
  bool fits(uint32_t item, uint32_t block_bytes, const wire::GroupShape& shape, const Selection& selection) const noexcept;
  // Of some of it; null where there is none.
  const void* first_address() const noexcept {
    if (kind_ == HS_TARGET_ROWS) return parts_.empty() ? nullptr : parts_[0].base;
    return pieces_.empty() ? nullptr : pieces_[0].base;
  }
  // iovec: the memory of an item, in order; pieces are numbered over all items.
  struct Piece {
    std::byte* base;
    size_t bytes;
    uint64_t at;  // among the item's bytes
  };
  bool by_rows() const noexcept { return kind_ == HS_TARGET_ROWS; }
  std::span<const Piece> pieces() const noexcept { return pieces_; }
  std::pair<uint32_t, uint32_t> pieces_of(uint32_t item) const noexcept { return {first_piece_[item], first_piece_[item + 1]}; }
  // rows
  std::span<const hs_part_descriptor> parts() const noexcept { return parts_; }
  int64_t row(uint32_t item) const noexcept { return rows_[item]; }

  // put: its bytes were copied, back to back from `at` on, into slots of `slot_bytes`.
  void set_staged(std::span<const wire::Offer> offers, std::span<std::byte* const> slots, size_t slot_bytes, uint64_t at);
  // A guess at an item's bytes, for spreading a batch over connections.
  uint64_t room_bytes(uint32_t item) const noexcept;

  // visit(Bytes) for the memory of [offset, offset + count) of a part that fits, in order. `part_at` is where the part starts
  // among the item's bytes (Selection::offset_of).
  template <typename Visit>
  void for_range(uint32_t item, uint32_t part, uint64_t part_at, uint32_t offset, uint32_t count, Visit&& visit) const;

 private:
  Fault set_iovecs(const hs_section& section, uint32_t item_count, const wire::GroupShape& shape, const Selection& selection);
  Fault set_rows(const hs_section& section, uint32_t item_count, const wire::GroupShape& shape, const Selection& selection);

  uint32_t kind_ = HS_TARGET_NONE;
  std::vector<Piece> pieces_;
  std::vector<uint32_t> first_piece_;  // by item, and one past the end
  std::vector<hs_part_descriptor> parts_;
  std::vector<int64_t> rows_;
  uint64_t row_bytes_ = 0;
};

template <typename Visit>
void Target::for_range(uint32_t item, uint32_t part, uint64_t part_at, uint32_t offset, uint32_t count, Visit&& visit) const {
  if (kind_ == HS_TARGET_ROWS) {
    const hs_part_descriptor& to = parts_[part];
    const int64_t row_at = static_cast<int64_t>(to.offset) + rows_[item] * to.row_stride;
    uint32_t inner = offset / to.inner_bytes;
    uint32_t within = offset % to.inner_bytes;
    while (count > 0) {
      const uint32_t step = count < to.inner_bytes - within ? count : to.inner_bytes - within;
      visit(Bytes(static_cast<std::byte*>(to.base) + (row_at + int64_t{inner} * to.inner_stride + within), step));
      count -= step;
      within = 0;
      ++inner;
    }
    return;
  }
  const uint64_t from = part_at + offset;
  uint32_t low = first_piece_[item];
  for (uint32_t high = first_piece_[item + 1]; high - low > 1;) {  // the last piece that starts at or before `from`
    const uint32_t middle = low + (high - low) / 2;
    (pieces_[middle].at <= from ? low : high) = middle;
  }
  uint64_t within = from - pieces_[low].at;
  while (count > 0) {
    const Piece& piece = pieces_[low++];
    const uint64_t left = piece.bytes - within;
    const auto step = static_cast<uint32_t>(left < count ? left : count);
    if (step > 0) visit(Bytes(piece.base + within, step));
    count -= step;
    within = 0;
  }
}

}  // namespace halfstep::peer
