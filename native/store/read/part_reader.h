// part_reader.h — some parts of a large block from flash, without the rest of it.
// The sums of a plain block's parts stand in the header of its frame, whose pages nobody but this store can have made (page.h).
// Those pages and the pages of the parts are read side by side, and each part is compared with its own sum. The parts of a
// block with a trailer lie where that says, with the sums that it says: its pages are read first, unless it is known
// (trailer_cache.h), and believed because all sums in it make up the block's checksum. Whatever does not come out as it should,
// for whatever reason, says nothing of the block: it is read whole then, and judged (reader.h). Invariants: a part is handed
// out only when its bytes fit the sum that the frame of this key, with this checksum, at this place, or the trailer of an
// extent with this checksum, names for it; no length of a trailer is used before that; a block that is read in parts is in
// memory for its one reader alone, and nobody finds it by its key. Thread: the shard's.
#pragma once

#include <deque>
#include <span>
#include <vector>

#include "store/catalog/catalog.h"
#include "store/catalog/names.h"
#include "store/format/shard_media.h"
#include "store/format/transfer.h"
#include "store/memory/memory.h"
#include "store/read/trailer_cache.h"

namespace halfstep::store {

class BlockReader;

class PartReader {
 public:
  // What is read for some parts of a block, and lies in memory one after the other; nothing where the block is to be read
  // whole.
  struct Plan {
    uint32_t header_pages = 0;  // that name the sums: of its frame, from the first one, or of its trailer, to the last
    uint32_t first_page = 0;    // of the extent
    uint32_t pages = 0;         // where a trailer is to say which: as many as the parts take unless they are longer than raw
    PartSpan parts;             // those that there are
    uint32_t block_bytes = 0;
    std::span<const PartInfo> known;  // of a block with a trailer, good until the next read ends
    explicit operator bool() const noexcept { return pages != 0; }
    uint64_t header_bytes() const noexcept { return uint64_t{header_pages} * kPageBytes; }
    uint64_t bytes() const noexcept { return header_bytes() + uint64_t{pages} * kPageBytes; }
  };
  // `group`: how the block is cut. Whole: what is small, has a trailer, or is wanted for the most part.
  static Plan plan(const Block& block, const wire::GroupShape* group, PartSpan parts) noexcept;
  // The same, of blocks with a trailer as well.
  Plan plan(const IndexKey& key, const Block& block, wire::Component component, PartSpan parts) const noexcept;

  PartReader(const ShardMedia& media, TransferPool& transfers, const Names& names, Catalog& catalog, Memory& memory,
             BlockReader& reader) noexcept
      : media_(media), pool_(transfers), names_(names), catalog_(catalog), memory_(memory), reader_(reader) {}

  // An extent for it that nobody else finds, not pinned; null when there is no memory.
  Extent* make(const IndexKey& key, const Block& block, const wire::GroupShape& group, const Plan& plan);
  void begin(Extent& extent);  // the reader hears of the end: landed_in_parts()
  // Instead of begin().
  void forget(Extent& extent) noexcept;
  uint32_t in_flight() const noexcept { return in_flight_; }

 private:
  static void cut(Extent& extent, const wire::GroupShape& group, const Plan& plan);
  static void place(Extent& extent) noexcept;
  void read(Extent& extent, uint64_t page, uint64_t at, uint64_t pages);
  void submit();
  static void on_transfer(io::Request& request);
  bool take_trailer(Extent& extent);
  bool sound(Extent& extent) const;
  bool fits_frame(Extent& extent) const;

  const ShardMedia media_;
  TransferPool& pool_;
  const Names& names_;
  Catalog& catalog_;
  Memory& memory_;
  BlockReader& reader_;
  TrailerCache trailers_;
  std::vector<Transfer*> transfers_;  // of the one that begins
  uint32_t in_flight_ = 0;
};

}  // namespace halfstep::store
