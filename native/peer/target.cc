#include "peer/target.h"

#include <algorithm>
#include <string>

namespace halfstep::peer {
namespace {

using Wide = __int128;

std::string decimal(uint64_t value) { return std::to_string(value); }

// Offsets within a descriptor's memory are computed in 64 bits afterwards; nothing that comes near their end is memory.
constexpr Wide kFar = Wide{1} << 61;

// Whether all that a descriptor reaches for rows first..last lies in its memory.
bool stays_inside(const hs_part_descriptor& part, int64_t first_row, int64_t last_row) {
  const Wide at_first = Wide{part.offset} + Wide{first_row} * part.row_stride;
  const Wide at_last = Wide{part.offset} + Wide{last_row} * part.row_stride;
  const Wide inner = Wide{part.inner_count - 1} * part.inner_stride;
  const Wide low = std::min(at_first, at_last) + std::min(inner, Wide{0});
  const Wide high = std::max(at_first, at_last) + std::max(inner, Wide{0}) + part.inner_bytes;
  const bool near = part.offset < kFar && at_first > -kFar && at_last > -kFar && at_first < kFar && at_last < kFar;
  return near && part.base_bytes < kFar && low >= 0 && high <= Wide{part.base_bytes};
}

}  // namespace

void Target::clear() noexcept {
  kind_ = HS_TARGET_NONE;
  pieces_.clear();
  first_piece_.clear();
  parts_.clear();
  rows_.clear();
  row_bytes_ = 0;
}

Fault Target::set(const hs_section& section, uint32_t item_count, const wire::GroupShape& shape, const Selection& selection) {
  clear();
  Fault fault;
  switch (section.target_kind) {
    case HS_TARGET_IOVEC: fault = set_iovecs(section, item_count, shape, selection); break;
    case HS_TARGET_ROWS: fault = set_rows(section, item_count, shape, selection); break;
    default:
      return {Code::Invalid, "target_kind=" + decimal(section.target_kind) + ": get and put need an iovec or rows target"};
  }
  if (fault.ok()) kind_ = section.target_kind;
  return fault;
}

Fault Target::set_iovecs(const hs_section& section, uint32_t item_count, const wire::GroupShape& shape,
                         const Selection& selection) {
  if (section.iovecs == nullptr) return {Code::Invalid, "iovecs: null, though target_kind is HS_TARGET_IOVEC"};
  size_t next = 0;
  first_piece_.push_back(0);
  for (uint32_t item = 0; item < item_count; ++item) {
    uint64_t at = 0;
    const uint32_t count = section.iovec_counts == nullptr ? 1 : section.iovec_counts[item];
    for (uint32_t i = 0; i < count; ++i) {
      const hs_iovec& piece = section.iovecs[next++];
      if (piece.bytes == 0) continue;
      if (piece.base == nullptr) return {Code::Invalid, "iovec of item " + decimal(item) + ": null base"};
      pieces_.push_back({static_cast<std::byte*>(piece.base), piece.bytes, at});
      at += piece.bytes;
      if (at < piece.bytes) return {Code::Invalid, "iovec of item " + decimal(item) + ": lengths overflow"};
    }
    first_piece_.push_back(static_cast<uint32_t>(pieces_.size()));
    if (section.block_bytes != nullptr) {
      if (at != section.block_bytes[item]) {
        return {Code::Invalid, "iovec of item " + decimal(item) + ": " + decimal(at) +
                                   " bytes; must be exactly its block_bytes=" + decimal(section.block_bytes[item])};
      }
    } else if (shape.part_count != 0) {
      const uint64_t needed = selection.bytes_of(shape.offset_of(shape.part_count), shape);
      if (at < needed) {
        return {Code::Invalid,
                "iovec of item " + decimal(item) + ": " + decimal(at) + " bytes; the parts asked for have " + decimal(needed)};
      }
    }
  }
  return {};
}

Fault Target::set_rows(const hs_section& section, uint32_t item_count, const wire::GroupShape& shape,
                       const Selection& selection) {
  if (section.parts == nullptr || section.rows == nullptr) {
    return {Code::Invalid, "parts, rows: null, though target_kind is HS_TARGET_ROWS"};
  }
  if (section.part_descriptor_count > wire::kPartsMax) {
    return {Code::TooLarge,
            "part_descriptor_count=" + decimal(section.part_descriptor_count) + ": at most " + decimal(wire::kPartsMax)};
  }
  uint32_t parts_needed = std::max(shape.part_count != 0 ? uint32_t{shape.part_count} : 1U, selection.part_end());
  if (!selection.all()) parts_needed = selection.part_end();
  if (section.part_descriptor_count < parts_needed) {
    return {Code::Invalid, "part_descriptor_count=" + decimal(section.part_descriptor_count) + ": the parts asked for need " +
                               decimal(parts_needed)};
  }
  parts_.assign(section.parts, section.parts + section.part_descriptor_count);
  rows_.assign(section.rows, section.rows + item_count);
  const auto [first_row, last_row] = std::minmax_element(rows_.begin(), rows_.end());
  for (uint32_t p = 0; p < parts_.size(); ++p) {
    if (selection.ordinal(p) == Selection::kNone) continue;
    const hs_part_descriptor& part = parts_[p];
    const std::string text = "descriptor of part " + decimal(p) + ": ";
    if (part.base == nullptr || part.inner_count == 0 || part.inner_bytes == 0) {
      return {Code::Invalid, text + "base, inner_count and inner_bytes must not be zero"};
    }
    const uint64_t bytes = uint64_t{part.inner_count} * part.inner_bytes;
    const uint32_t part_bytes = shape.part_bytes[p % shape.size_count];
    const bool last_may_be_shorter = shape.part_count == 0 && bytes < part_bytes;
    if (bytes != part_bytes && !last_may_be_shorter) {
      return {Code::Invalid, text + decimal(part.inner_count) + " x " + decimal(part.inner_bytes) + " bytes; the part has " +
                                 decimal(part_bytes)};
    }
    if (!stays_inside(part, *first_row, *last_row)) {
      return {Code::Invalid, text + "rows " + decimal(*first_row) + " to " + decimal(*last_row) +
                                 " leave its memory of base_bytes=" + decimal(part.base_bytes)};
    }
    row_bytes_ += bytes;
  }
  if (section.block_bytes == nullptr) return {};
  kind_ = HS_TARGET_ROWS;
  for (uint32_t item = 0; item < item_count; ++item) {
    if (!fits(item, section.block_bytes[item], shape, selection)) {
      return {Code::Invalid,
              "block_bytes=" + decimal(section.block_bytes[item]) + " of item " + decimal(item) + ": more than its row has"};
    }
  }
  return {};
}

void Target::set_staged(std::span<const wire::Offer> offers, std::span<std::byte* const> slots, size_t slot_bytes,
                        uint64_t at) {
  clear();
  kind_ = HS_TARGET_IOVEC;
  first_piece_.push_back(0);
  for (const wire::Offer& offer : offers) {
    for (uint64_t from = 0; from < offer.block_bytes;) {
      const size_t within = at % slot_bytes;
      const auto step = std::min<uint64_t>(offer.block_bytes - from, slot_bytes - within);
      pieces_.push_back({slots[at / slot_bytes] + within, step, from});
      from += step;
      at += step;
    }
    first_piece_.push_back(static_cast<uint32_t>(pieces_.size()));
  }
}

bool Target::fits(uint32_t item, uint32_t block_bytes, const wire::GroupShape& shape,
                  const Selection& selection) const noexcept {
  if (kind_ == HS_TARGET_IOVEC) {
    const uint32_t end = first_piece_[item + 1];
    const uint64_t room = end == first_piece_[item] ? 0 : pieces_[end - 1].at + pieces_[end - 1].bytes;
    return selection.bytes_of(block_bytes, shape) <= room;
  }
  if (kind_ != HS_TARGET_ROWS) return false;
  const uint32_t parts = shape.parts_of(block_bytes);
  if (selection.all() && parts > parts_.size()) return false;
  // Only a group whose parts follow "until the length ends" leaves anything open: how long the last part is.
  if (shape.part_count != 0) return true;
  for (uint32_t p = 0; p < parts && p < parts_.size(); ++p) {
    if (selection.ordinal(p) == Selection::kNone) continue;
    if (shape.bytes_of(p, block_bytes) > uint64_t{parts_[p].inner_count} * parts_[p].inner_bytes) return false;
  }
  return true;
}

uint64_t Target::room_bytes(uint32_t item) const noexcept {
  if (kind_ == HS_TARGET_ROWS) return row_bytes_;
  if (kind_ != HS_TARGET_IOVEC) return 0;
  const uint32_t end = first_piece_[item + 1];
  return end == first_piece_[item] ? 0 : pieces_[end - 1].at + pieces_[end - 1].bytes;
}

}  // namespace halfstep::peer
