// reader.h — blocks from flash into memory, verified.
// A read of a block that is in memory completes at once; reads of one block in flight share one device read; an extent is
// read in pieces and, when plain, verified piece by piece as they land, so that the bytes are still in the cache of the CPU.
// One with a trailer is, too, where its trailer comes first (early_reader.h), else when all of it is there. Of a large block on
// flash of which a few parts are asked for, those alone are read (part_reader.h); of one that is wanted part by part, each is
// handed out as it lands (early_reader.h). What fails its check is read once more, with the header of its frame: another key
// there is a collision (a miss, the block stays); the same key is rot (dropped, counted, buried). What the device does not give
// is a miss, and stays (device_health.h). Invariants: nobody sees an extent before its checksum, or parts of it before theirs
// were right; a window takes memory for all of its blocks or for none. Thread: the shard's.
#pragma once

#include <span>
#include <vector>

#include "base/clock.h"
#include "store/account/evictor.h"
#include "store/catalog/catalog.h"
#include "store/catalog/device_health.h"
#include "store/catalog/names.h"
#include "store/durable/tombstones.h"
#include "store/format/page.h"
#include "store/format/report.h"
#include "store/format/shard_media.h"
#include "store/format/store_time.h"
#include "store/format/transfer.h"
#include "store/memory/block_uses.h"
#include "store/memory/memory.h"
#include "store/memory/staged_blocks.h"
#include "store/read/early_reader.h"
#include "store/read/part_reader.h"

namespace halfstep::store {

class BlockReader {
 public:
  struct Needs {
    ShardMedia media;
    TransferPool& transfers;
    Catalog& catalog;
    Memory& memory;
    StagedBlocks& staged;
    const Names& names;
    BlockUses& uses;
    UnreadBlocks& unread;
    Evictor& evictor;
    Tombstones& tombstones;
    const Clock& clock;
    StoreTime& store_time;
    Counters& counters;
  };
  explicit BlockReader(const Needs& needs)
      : media_(needs.media),
        transfers_(needs.transfers),
        catalog_(needs.catalog),
        memory_(needs.memory),
        staged_(needs.staged),
        names_(needs.names),
        uses_(needs.uses),
        unread_(needs.unread),
        evictor_(needs.evictor),
        tombstones_(needs.tombstones),
        clock_(needs.clock),
        store_time_(needs.store_time),
        counters_(needs.counters),
        parts_(needs.media, needs.transfers, needs.names, needs.catalog, needs.memory, *this),
        early_(needs.media, needs.transfers, needs.names, needs.catalog, needs.memory, on_header),
        frame_header_(format::kFrameHeaderPagesMax) {}

  // Whether the requests of these reads still have to be counted as uses of their blocks.
  enum class Uses : uint8_t { Count, Counted };
  Status begin(std::span<Read* const> window, Uses uses = Uses::Count);
  // Blocks that are being read.
  uint32_t in_flight() const noexcept { return in_flight_ + parts_.in_flight(); }

  // The part reader's.
  PartReader& part_reader() noexcept { return parts_; }
  const PartReader& part_reader() const noexcept { return parts_; }
  void landed_in_parts(Extent& extent, bool sound);

 private:
  Extent* resolve(Read& read, Extent* extent);
  Extent* make(Read& read, const Block& block);
  uint64_t held_bytes(const Read& read, const Block& block) const noexcept;
  void read_whole(Read& read);
  uint64_t bytes_read_together(std::span<Read* const> missing) const noexcept;
  Status refuse(std::span<Read* const> window, bool relief_pending) noexcept;
  void undo(std::span<Read* const> window) noexcept;
  void submit(Extent& extent);
  void cut(Extent& extent);
  void hurry(Extent& extent) noexcept;
  void take_pieces(Extent& extent, bool cut);
  void landed(Extent& extent);
  void read_again(Extent& extent);
  bool verify(Extent& extent);
  void check_next();
  void checked();
  bool given_up(const Extent& extent);
  void finish(Extent& extent, Status status);
  static void on_piece(io::Request& request);
  static void on_header(io::Request& request);

  const ShardMedia media_;
  TransferPool& transfers_;
  Catalog& catalog_;
  Memory& memory_;
  StagedBlocks& staged_;
  const Names& names_;
  BlockUses& uses_;
  UnreadBlocks& unread_;
  Evictor& evictor_;
  Tombstones& tombstones_;
  const Clock& clock_;
  StoreTime& store_time_;
  Counters& counters_;
  PartReader parts_;
  EarlyReader early_;
  std::vector<Extent*> fresh_;     // of the window being taken
  std::vector<Read*> missing_;     // of it, not in memory
  std::vector<Extent*> to_check_;  // mismatched twice, waiting for the one buffer below
  PageBuffer frame_header_;
  io::Request check_;
  bool checking_ = false;
  uint32_t in_flight_ = 0;
};

}  // namespace halfstep::store
