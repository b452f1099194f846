// early_reader.h — parts of a large block that is being read whole, handed out as they land.
// Beside the pieces of a plain block the header of its frame is read, and each part is compared with the sum that it names
// (part_sums.h). Of a block with a trailer the pages of that go before all others; it is believed as a read of some parts
// believes it (part_reader.h), and the pieces are verified from then on. So the first layer of many blocks can go when a piece
// of each has landed. The block's own check comes at the end as ever, and decides what memory keeps. Where that fails after
// parts were handed out, the block is read again into other memory: what may be on its way to a client is never written again.
// Invariants: what a reader was told of has been verified, and stays as it is while he pins it; nobody is told after
// complete(); no byte of a block with a trailer is taken for one of a part before the trailer is believed.
// Thread: the shard's.
#pragma once

#include <deque>
#include <optional>
#include <vector>

#include "store/catalog/catalog.h"
#include "store/catalog/names.h"
#include "store/format/shard_media.h"
#include "store/format/transfer.h"
#include "store/memory/memory.h"
#include "store/read/part_sums.h"

namespace halfstep::store {

// Of one extent. Pooled.
struct EarlyRead {
  Slot header;                    // of the frame of a plain block
  std::optional<PartSums> sums;   // once the header has landed
  std::vector<uint32_t> named;    // sums, by a trailer that is believed
  uint64_t trailer_at = 0;        // where its pages begin, on the device
  uint32_t trailer_requests = 0;  // that they still wait for
  uint32_t parts = 0;             // handed out, from the first one on
  bool ended = false;             // no more will be

  bool fits(uint32_t part, uint32_t crc) { return sums ? sums->fits(part, crc) : named[part] == crc; }
};

class EarlyReader {
 public:
  // `on_header`: calls header_landed().
  EarlyReader(const ShardMedia& media, TransferPool& transfers, const Names& names, const Catalog& catalog, Memory& memory,
              void (*on_header)(io::Request& request)) noexcept
      : media_(media), transfers_(transfers), names_(names), catalog_(catalog), memory_(memory), on_header_(on_header) {}

  // Before its pieces are made, which are of so many bytes then. Without effect where it does not pay or memory is short.
  void open(Extent& extent, uint32_t piece_bytes);
  // How much of it comes in such pieces, from its first byte on.
  uint64_t bytes_in_pieces(const Extent& extent) const noexcept;
  // Its pieces are there; submit() submits those of all that began since.
  void begin(Extent& extent);
  void submit();
  void header_landed(Extent& extent, int32_t error);
  // Of a block with a trailer: one of its pieces is there, and whether the others have to wait for the trailer.
  bool awaits_trailer(Extent& extent, const io::Request& landed);
  // Whether its pieces can be verified as they land.
  static bool is_cut(const Extent& extent) noexcept { return !extent.block.trailer || !extent.early->named.empty(); }
  // More of its pieces were verified.
  void look(Extent& extent);
  // All of it was: whether its parts have the sums that its trailer names.
  static bool has_named_sums(const Extent& extent) noexcept;
  // All has landed. True: parts were handed out.
  bool close(Extent& extent);

 private:
  // A block of less is there as soon as its first parts are.
  static constexpr uint32_t kPiecesMin = 4;

  // The next piece of an extent, and the first that is not one of these.
  struct Turn {
    Transfer* next = nullptr;
    Transfer* end = nullptr;
  };

  bool open_header(Extent& extent, EarlyRead& early);
  bool open_trailer_read(Extent& extent, EarlyRead& early);
  void take_trailer(Extent& extent);

  const ShardMedia media_;
  TransferPool& transfers_;
  const Names& names_;
  const Catalog& catalog_;
  Memory& memory_;
  void (*const on_header_)(io::Request& request);
  std::deque<EarlyRead> all_;
  std::vector<EarlyRead*> free_;
  std::vector<Turn> turns_;  // of each extent that begins
  std::vector<std::byte> tail_;
};

}  // namespace halfstep::store
