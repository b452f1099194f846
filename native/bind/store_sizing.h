// store_sizing.h — a small device that holds as many blocks as a large one would: how big its segments and its blocks must be.
// A replay counts blocks, so the device is scaled down until its segments hold the right number of them; what a frame header
// and a footer take stays a page, whatever the block.
// Invariant: no way to pack a segment holds more than `blocks_per_segment` blocks, so that capacity is never more than asked.
// Thread: any; no state.
#pragma once

#include <algorithm>
#include <cstdint>

#include "base/slots.h"
#include "base/status.h"
#include "store/store.h"

namespace halfstep::bind {

// Fewer segments, or fewer blocks in one, and the store would be all margin.
inline constexpr uint32_t kSizingSegmentsMin = 8;
inline constexpr uint32_t kSizingBlocksPerSegmentMin = 4;
inline constexpr uint64_t kSizingDramBytesMax = 64 * GiB;
inline constexpr uint64_t kSizingCapacityBlocksMin = uint64_t{kSizingSegmentsMin} * kSizingBlocksPerSegmentMin;

struct Sizing {
  store::Geometry geometry;
  uint32_t block_bytes = 0;  // of every block, whole pages
  uint32_t blocks_per_segment = 0;
  uint64_t dram_bytes = 0;  // of the store's memory, for writes and hot blocks together; 0: nobody asked

  uint64_t capacity_blocks() const noexcept { return uint64_t{geometry.segments} * blocks_per_segment; }
  uint64_t dram_blocks() const noexcept { return dram_bytes / SlotPool::held_bytes(block_bytes); }
  // How many blocks to write together. Frames of few blocks would take more header pages than a segment has to spare; this is
  // less than what the segment that is kept ready leaves empty, so that what waits adds nothing to the capacity.
  uint32_t gather_blocks() const noexcept { return std::clamp<uint32_t>(blocks_per_segment / 4, 1, 3 * 31); }
};

// At most `capacity_blocks` in at least `segments` segments (fewer where there would be less than 4 blocks in one), on a device
// of about `device_bytes`; more where the format's smallest segment or page ask for it.
Fault size_store(uint64_t capacity_blocks, uint32_t segments, uint64_t device_bytes, Sizing* out);
// Memory for at most so many blocks of that store. A half of it is the write buffer, which has to take what is gathered.
Fault size_dram(uint64_t dram_blocks, Sizing* sizing);

}  // namespace halfstep::bind
