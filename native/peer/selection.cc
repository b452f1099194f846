#include "peer/selection.h"

#include <string>

namespace halfstep::peer {

void Selection::set_all() noexcept {
  ranges_.clear();
  ordinals_.clear();
  offsets_.clear();
  full_bytes_ = 0;
}

Fault Selection::set(std::span<const hs_range> ranges, const wire::GroupShape& shape) {
  set_all();
  const uint32_t parts_max = shape.part_count != 0 ? shape.part_count : wire::kPartsMax;
  for (const hs_range& range : ranges) {
    const std::string text = "range of parts " + std::to_string(range.start) + " + i * " + std::to_string(range.stride) +
                             ", i < " + std::to_string(range.count) + ": ";
    if (range.count == 0 || range.stride == 0) return {Code::Invalid, text + "count and stride must be at least 1"};
    const uint64_t last = range.start + uint64_t{range.count - 1} * range.stride;
    if (last >= parts_max) return {Code::Invalid, text + "the group has at most " + std::to_string(parts_max) + " parts"};
    if (last >= ordinals_.size()) ordinals_.resize(last + 1, kNone);
    for (uint32_t i = 0; i < range.count; ++i) {
      const uint32_t part = range.start + i * range.stride;
      if (ordinals_[part] != kNone) return {Code::Invalid, text + "part " + std::to_string(part) + " is selected twice"};
      ordinals_[part] = static_cast<uint32_t>(offsets_.size());
      offsets_.push_back(full_bytes_);
      full_bytes_ += shape.part_bytes[part % shape.size_count];
    }
    ranges_.push_back({range.start, range.count, range.stride});
  }
  return {};
}

uint64_t Selection::missing_bytes(uint64_t block_bytes, const wire::GroupShape& shape, uint32_t* ordinal_out) const noexcept {
  const uint32_t parts = shape.parts_of(block_bytes);
  if (parts == 0) return 0;
  *ordinal_out = ordinal(parts - 1);
  if (*ordinal_out == kNone) return 0;
  return shape.part_bytes[(parts - 1) % shape.size_count] - shape.bytes_of(parts - 1, block_bytes);
}

uint64_t Selection::offset_of(uint32_t part, uint64_t block_bytes, const wire::GroupShape& shape) const noexcept {
  if (all()) return shape.offset_of(part);
  uint32_t shorter = kNone;
  const uint64_t missing = missing_bytes(block_bytes, shape, &shorter);
  const uint32_t at = ordinals_[part];
  return offsets_[at] - (missing != 0 && shorter < at ? missing : 0);
}

uint64_t Selection::bytes_of(uint64_t block_bytes, const wire::GroupShape& shape) const noexcept {
  if (all()) return block_bytes;
  uint32_t shorter = kNone;
  return full_bytes_ - missing_bytes(block_bytes, shape, &shorter);
}

}  // namespace halfstep::peer
