// selection.h — which parts of a block a section asks for, and where each lies among the bytes asked for.
// Invariants: a part is selected at most once; ordinals count the selected parts in the order of the ranges; the bytes of an
// item are its selected parts back to back in that order.
// Thread: set on the submitter's, read on the client's.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/status.h"
#include "peer/halfstep.h"
#include "wire/layout.h"
#include "wire/records.h"

namespace halfstep::peer {

class Selection {
 public:
  static constexpr uint32_t kNone = UINT32_MAX;

  void set_all() noexcept;
  // Refuses empty ranges, parts that the shape does not have, and a part that is selected twice.
  Fault set(std::span<const hs_range> ranges, const wire::GroupShape& shape);

  bool all() const noexcept { return ranges_.empty(); }
  std::span<const wire::PartRange> ranges() const noexcept { return ranges_; }
  // Selected parts of a block that has `parts` of them.
  uint32_t count(uint32_t parts) const noexcept { return all() ? parts : static_cast<uint32_t>(offsets_.size()); }
  // One more than the last selected part; 0 when all are.
  uint32_t part_end() const noexcept { return static_cast<uint32_t>(ordinals_.size()); }
  uint32_t ordinal(uint32_t part) const noexcept {
    if (all()) return part;
    return part < ordinals_.size() ? ordinals_[part] : kNone;
  }
  // Where a selected part starts among the item's bytes, and how many those are, for a block of `block_bytes`.
  uint64_t offset_of(uint32_t part, uint64_t block_bytes, const wire::GroupShape& shape) const noexcept;
  uint64_t bytes_of(uint64_t block_bytes, const wire::GroupShape& shape) const noexcept;

 private:
  // How much shorter the last part of this block is than the shape says, if ranges select it.
  uint64_t missing_bytes(uint64_t block_bytes, const wire::GroupShape& shape, uint32_t* ordinal) const noexcept;

  std::vector<wire::PartRange> ranges_;
  std::vector<uint32_t> ordinals_;  // by part
  std::vector<uint64_t> offsets_;   // by ordinal, with every part at its full size
  uint64_t full_bytes_ = 0;
};

}  // namespace halfstep::peer
