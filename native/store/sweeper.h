// sweeper.h — takes the blocks of scopes that were retired out of the index, some a turn. They are misses at once; this makes
// their segments free without being read, and gives their records' memory back.
// Thread: the shard's.
#pragma once

#include "store/core.h"

namespace halfstep::store {

class Sweeper {
 public:
  explicit Sweeper(Core& core) : core_(core), at_{core.catalog.segment_count(), 0} {}

  // From the first segment on; a scope that is retired meanwhile begins another sweep.
  void begin() noexcept { at_ = {0, 0}; }
  bool busy() const noexcept { return at_.segment < core_.catalog.segment_count(); }
  void turn() {
    for (uint32_t seen = 0; busy() && seen < kBlocksPerTurn; ++seen) {
      const Segment& segment = core_.catalog.segment(at_.segment);
      if (at_.ordinal >= segment.blocks.size()) {
        at_ = {at_.segment + 1, 0};
        continue;
      }
      const Block& block = segment.blocks[at_.ordinal];
      if (block.live && !core_.names.alive(block.scope)) core_.evict(at_, Eviction::DeadScope);
      ++at_.ordinal;
    }
  }

 private:
  static constexpr uint32_t kBlocksPerTurn = 4096;
  Core& core_;
  Location at_;
};

}  // namespace halfstep::store
