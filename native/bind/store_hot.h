// store_hot.h — the policy of the store's memory alone, over blocks of one size that are numbers: what it would keep if there
// were nothing behind it.
// Invariant: never more blocks than the capacity.
// Thread: one at a time.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "store/memory/hot_policy.h"

namespace halfstep::bind {

class HotBlocks {
 public:
  // `unique_blocks`: every number is below it.
  HotBlocks(uint64_t capacity_blocks, uint32_t unique_blocks);

  // A request's blocks from the root of the prefix chain to its leaf: how many of the first ones are there. Then all are used
  // or come in, from the leaf to the root. Throws std::out_of_range for another number before anything changes.
  uint32_t request(std::span<const int32_t> blocks);
  std::vector<uint8_t> present() const;

  uint64_t inserted() const noexcept { return inserted_; }
  uint64_t evicted() const noexcept { return evicted_; }

 private:
  uint64_t capacity_blocks_;
  store::HotPolicy policy_;
  std::vector<uint32_t> records_;  // of each block; kNone: not there
  uint64_t inserted_ = 0;
  uint64_t evicted_ = 0;
};

}  // namespace halfstep::bind
