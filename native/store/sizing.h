// sizing.h — how large a store has to be for so many blocks: what an operator asks before it is made.
// Counted from the format's own numbers, at their worst: each block in a frame of its own, so none is promised in vain.
// Thread: any; nothing is touched.
#pragma once

#include <cstdint>
#include <vector>

#include "base/status.h"
#include "store/format/geometry.h"

namespace halfstep::store {

struct SizedBlocks {
  uint64_t blocks = 0;  // that have to stay, in all
  uint64_t block_bytes = 0;
  uint32_t parts = 1;  // of a block, of equal length
};

struct SizingQuestion {
  std::vector<SizedBlocks> of;
  uint64_t keys = 0;  // engine keys: all blocks of one are in one shard; 0: as many as blocks
  uint32_t key_bytes = 32;
  uint32_t shards = 1;
  uint64_t segment_bytes = 0;           // 0: chosen by size
  uint64_t arena_bytes = 256ULL * MiB;  // of all shards: bounds a block
};

struct Sizing {
  Geometry geometry;         // device_bytes: whole MiB, and hardly more than the least
  uint64_t index_bytes = 0;  // for as many as may be there at most
  uint64_t index_bytes_default = 0;
};

// Of one shard with segments of so many bytes together, where nobody says it.
uint64_t default_index_bytes(uint64_t shard_bytes, uint32_t shards) noexcept;

// Invalid: a block of no bytes or no parts; TooLarge: no store, or no segment, holds it; else what plan_geometry() says.
Fault size_store(const SizingQuestion& question, Sizing* out);

}  // namespace halfstep::store
