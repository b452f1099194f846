// early_reader.h — parts of a large block that is being read whole, handed out as they land.
// Beside the pieces of the block the header of its frame is read, and each part is compared with the sum that it names
// (part_sums.h): so the first layer of many blocks can go when a piece of each has landed. The block's own check comes at the
// end as ever, and decides what memory keeps. Where that fails after parts were handed out, the block is read again into other
// memory: what may be on its way to a client is never written again.
// Invariants: what a reader was told of has been verified, and stays as it is while he pins it; nobody is told after
// complete(). Thread: the shard's.
#pragma once

#include <deque>
#include <optional>
#include <vector>

#include "store/core/core.h"
#include "store/read/part_sums.h"

namespace halfstep::store {

// Of one extent. Pooled.
struct EarlyRead {
  Slot header;
  std::optional<PartSums> sums;  // once the header has landed
  uint32_t parts = 0;            // handed out, from the first one on
  bool ended = false;            // no more will be
};

class EarlyReader {
 public:
  // `on_header`: calls header_landed().
  EarlyReader(Core& core, void (*on_header)(io::Request& request)) : core_(core), on_header_(on_header) {}

  // Before its pieces are made, which are of so many bytes then. Without effect where it does not pay or memory is short.
  void open(Extent& extent, uint32_t piece_bytes);
  // Its pieces are there; submit() submits those of all that began since.
  void begin(Extent& extent);
  void submit();
  void header_landed(Extent& extent, int32_t error);
  // More of its pieces were verified.
  void look(Extent& extent);
  // All has landed. True: parts were handed out.
  bool close(Extent& extent);

 private:
  // A block of less is there as soon as its first parts are.
  static constexpr uint32_t kPiecesMin = 4;

  Core& core_;
  void (*const on_header_)(io::Request& request);
  std::deque<EarlyRead> all_;
  std::vector<EarlyRead*> free_;
  std::vector<Transfer*> next_;  // of each extent that begins, the next piece
};

}  // namespace halfstep::store
