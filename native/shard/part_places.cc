#include "shard/part_places.h"

#include <algorithm>

namespace halfstep::shard {
namespace {

uint64_t bytes_between(const wire::GroupShape& shape, uint64_t first_part, uint64_t last_part) noexcept {
  return shape.offset_of(static_cast<uint32_t>(last_part + 1)) - shape.offset_of(static_cast<uint32_t>(first_part));
}

}  // namespace

uint32_t places_of(const wire::SectionView& section) noexcept {
  uint32_t places = 0;
  for (uint32_t r = 0; r < section.head.range_count; ++r) places += section.range(r).count;
  return places;
}

uint64_t part_at(const wire::SectionView& section, uint32_t place) noexcept {
  for (uint32_t r = 0; r < section.head.range_count; ++r) {
    const wire::PartRange range = section.range(r);
    if (place < range.count) return range.start + uint64_t{place} * range.stride;
    place -= range.count;
  }
  return place;
}

store::PartSpan span_of(const wire::SectionView& section, uint32_t first, uint32_t end) noexcept {
  if (section.head.range_count == 0) {
    return end == UINT32_MAX ? store::PartSpan() : store::PartSpan{first, end - first};
  }
  uint64_t low = UINT64_MAX;
  uint64_t high = 0;
  uint32_t before = 0;  // places of the ranges so far
  for (uint32_t r = 0; r < section.head.range_count; ++r) {
    const wire::PartRange range = section.range(r);
    const uint32_t from = std::max(first, before) - before;
    const uint32_t to = std::min(std::max(end, before) - before, range.count);
    before += range.count;
    if (from >= to) continue;
    low = std::min(low, range.start + uint64_t{from} * range.stride);
    high = std::max(high, range.start + uint64_t{to - 1} * range.stride);
  }
  // What no block has is for the read to find.
  if (low > high || high >= wire::kPartsMax) return {};
  return {static_cast<uint32_t>(low), static_cast<uint32_t>(high - low + 1)};
}

uint32_t end_of_round(const wire::SectionView& section, const wire::GroupShape& shape, uint32_t first,
                      uint64_t bytes) noexcept {
  uint32_t places = places_of(section);
  if (places == 0) places = shape.part_count != 0 ? shape.part_count : wire::kPartsMax;
  uint32_t end = first;
  uint64_t low = UINT64_MAX;
  uint64_t high = 0;
  for (uint64_t sum = 0; end < places; ++end) {
    const uint64_t part = part_at(section, end);
    low = std::min(low, part);
    high = std::max(high, part);
    sum += shape.part_bytes[part % shape.size_count];
    if (end == first) continue;
    if (sum > bytes || high >= wire::kPartsMax) break;
    // What lies between them is read, too.
    if (bytes_between(shape, low, high) > 2 * bytes) break;
  }
  return end;
}

}  // namespace halfstep::shard
