// part_sums.h — the sums of a plain block's parts, as the header of its frame names them.
// They stand behind the frame's entries, in pages that nobody but this store can have made (page.h); the index knows the sum of
// the whole block alone.
// Invariant: a part fits only when the frame of this key, with this checksum, at this place, names its sum.
// Thread: the shard's.
#pragma once

#include "store/catalog/catalog.h"
#include "store/format/page.h"
#include "store/memory/memory.h"

namespace halfstep::store {

class PartSums {
 public:
  // Of the frame's header that are read, from the first one: its entries and the sums of 7,000 parts, where its blocks are
  // large. Where they take more, what is needed may lie beyond, and is not known.
  static constexpr uint32_t kPagesMax = 8;
  static uint32_t pages_of(const Block& block) noexcept { return std::min(block.pages_back, kPagesMax); }
  // Of the segment.
  static uint32_t first_page_of(const Block& block) noexcept { return block.location.page - block.pages_back; }
  static uint64_t place_of(const Places& places, const Block& block) noexcept {
    return places.segment(block.location.segment) + uint64_t{first_page_of(block)} * kPageBytes;
  }
  // Whether it has a header that may name them.
  static bool may_be_known(const Block& block) noexcept {
    return !block.trailer && block.pages_back != 0 && block.pages_back <= block.location.page;
  }

  // Of the block that this extent is read from. `pages`: as many as pages_of() says, read from place_of(); they outlive this.
  PartSums(const Places& places, const HashKey& page_secret, const Segment& segment, const Extent& extent, ConstBytes pages);
  // False: the pages are not what they should be, or do not name this block.
  bool known() const noexcept { return known_; }
  bool fits(uint32_t part, uint32_t crc);

 private:
  static constexpr uint32_t kNone = UINT32_MAX;

  bool find(const Extent& extent);
  ConstBytes page(uint32_t number) const noexcept { return pages_.subspan(size_t{number} * kPageBytes, kPageBytes); }
  bool open(uint32_t number, format::PageKind kind);
  bool sees(uint32_t number, format::PageKind kind);

  const Places& places_;
  const HashKey& page_secret_;
  const Segment& segment_;
  const uint32_t first_page_;
  const ConstBytes pages_;
  format::PageHeader page_;  // of the page that was opened last
  uint32_t opened_ = kNone;
  uint64_t sequence_ = 0;
  uint32_t entry_pages_ = 0;
  uint32_t parts_ = 0;
  uint64_t sums_at_ = 0;  // in the tables
  bool known_ = false;
};

}  // namespace halfstep::store
