// part_reader.h — some parts of a large block from flash, without the rest of it.
// The sums of a plain block's parts stand in the header of its frame, whose pages nobody but this store can have made (page.h).
// Those pages and the pages of the parts are read side by side, and each part is compared with its own sum. Whatever does not
// come out as it should, for whatever reason, says nothing of the block: it is read whole then, and judged (reader.h).
// Invariants: a part is handed out only when its bytes fit the sum that the frame of this key, with this checksum, at this
// place, names for it; a block that is read in parts is in memory for its one reader alone, and nobody finds it by its key.
// Thread: the shard's.
#pragma once

#include <deque>
#include <vector>

#include "store/core/core.h"

namespace halfstep::store {

class BlockReader;

class PartReader {
 public:
  // What is read for some parts of a block, and lies in memory one after the other; nothing where the block is to be read
  // whole.
  struct Plan {
    uint32_t header_pages = 0;  // of its frame, from the first one
    uint32_t first_page = 0;    // of the extent
    uint32_t pages = 0;
    PartSpan parts;  // those that there are
    explicit operator bool() const noexcept { return pages != 0; }
    uint64_t header_bytes() const noexcept { return uint64_t{header_pages} * kPageBytes; }
    uint64_t bytes() const noexcept { return header_bytes() + uint64_t{pages} * kPageBytes; }
  };
  // `group`: how the block is cut. Whole: what is small, has a trailer, or is wanted for the most part.
  static Plan plan(const Block& block, const wire::GroupShape* group, PartSpan parts) noexcept;

  PartReader(Core& core, BlockReader& reader) : core_(core), reader_(reader) {}

  // An extent for it that nobody else finds, not pinned; null when there is no memory.
  Extent* make(const IndexKey& key, const Block& block, const wire::GroupShape& group, const Plan& plan);
  void begin(Extent& extent);  // the reader hears of the end: landed_in_parts()
  // Instead of begin().
  void forget(Extent& extent) noexcept;
  uint32_t in_flight() const noexcept { return in_flight_; }

 private:
  void read(Extent& extent, uint64_t device_offset, uint64_t at, uint64_t bytes);
  static void on_transfer(io::Request& request);
  bool sound(Extent& extent) const;

  Core& core_;
  BlockReader& reader_;
  std::vector<Transfer*> transfers_;  // of the one that begins
  uint32_t in_flight_ = 0;
};

}  // namespace halfstep::store
