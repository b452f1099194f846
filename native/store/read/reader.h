// reader.h — blocks from flash into memory, verified.
// A read of a block that is in memory completes at once; reads of one block in flight share one device read; an extent is
// read in pieces and, when plain, verified piece by piece as they land, so that the bytes are still in the cache of the CPU.
// Of a large block on flash of which a few parts are asked for, those alone are read (part_reader.h); of one that is wanted
// part by part, each is handed out as it lands (early_reader.h).
// What fails its check is read once more, with the header of its frame: another key there is a collision (a miss, the block
// stays); the same key is rot (dropped, counted, buried). What the device does not give is a miss, and stays (device_health.h).
// Invariants: nobody sees an extent before its checksum, or parts of it before theirs were right; a window takes memory for all
// of its blocks or for none. Thread: the shard's.
#pragma once

#include <span>
#include <vector>

#include "store/core/core.h"
#include "store/read/early_reader.h"
#include "store/read/part_reader.h"

namespace halfstep::store {

class BlockReader {
 public:
  explicit BlockReader(Core& core)
      : core_(core), parts_(core, *this), early_(core, on_header), frame_header_(format::kFrameHeaderPagesMax) {}

  // Whether the requests of these reads still have to be counted as uses of their blocks.
  enum class Uses : uint8_t { Count, Counted };
  Status begin(std::span<Read* const> window, Uses uses = Uses::Count);
  // Blocks that are being read.
  uint32_t in_flight() const noexcept { return in_flight_ + parts_.in_flight(); }

  // The part reader's.
  PartReader& part_reader() noexcept { return parts_; }
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
  void landed(Extent& extent);
  void read_again(Extent& extent);
  bool verify(Extent& extent);
  void check_next();
  void checked();
  bool given_up(const Extent& extent);
  void finish(Extent& extent, Status status);
  static void on_piece(io::Request& request);
  static void on_header(io::Request& request);

  Core& core_;
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
