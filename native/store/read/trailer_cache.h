// trailer_cache.h — what trailers said of the blocks that were last read in parts: the next parts of them take one read less.
// A ring of parts, the oldest tables first: a new one takes the place of those that it needs.
// Invariants: what is found was believed (extent_layout.h, open_trailer()) of the block of this key, at this place, with this
// checksum; all memory that there ever is, kPartsMax parts and kBlocksMax blocks, is taken by the first table.
// Thread: the shard's.
#pragma once

#include <span>
#include <vector>

#include "index/table.h"
#include "store/catalog/catalog.h"
#include "store/format/part_table.h"

namespace halfstep::store {

class TrailerCache {
 public:
  static constexpr uint32_t kPartsMax = 64 * 1024;  // 1.5 MiB
  static constexpr uint32_t kBlocksMax = 4096;
  static_assert(kPartsMax >= wire::kPartsMax, "the table of any one block finds room");

  // Of the whole block, offsets as in its extent; empty: not known. Good until the next keep().
  std::span<const PartInfo> find(const IndexKey& key, const Block& block) const noexcept;
  void keep(const IndexKey& key, const Block& block, std::span<const PartInfo> parts);

 private:
  struct Entry {
    IndexKey key;
    Location location;
    uint32_t bound_checksum = 0;
    uint32_t first = 0;  // of its parts in the ring
    uint32_t count = 0;
  };

  void drop_oldest() noexcept;
  uint32_t make_room(uint32_t count) noexcept;

  std::vector<PartInfo> parts_;
  std::vector<Entry> entries_;  // a ring as well
  uint32_t oldest_ = 0;
  uint32_t blocks_ = 0;     // from the oldest on
  uint32_t next_part_ = 0;  // behind the parts of the youngest
  index::Table by_key_;     // the youngest entry of each
};

}  // namespace halfstep::store
