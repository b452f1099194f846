#include "bind/store_hot.h"

#include <algorithm>
#include <stdexcept>
#include <string>

#include "base/hash.h"

namespace halfstep::bind {

using store::HotPolicy;

HotBlocks::HotBlocks(uint64_t capacity_blocks, uint32_t unique_blocks)
    : capacity_blocks_(std::max<uint64_t>(1, std::min<uint64_t>(capacity_blocks, unique_blocks))),
      policy_(capacity_blocks_),
      records_(unique_blocks, HotPolicy::kNone) {}

uint32_t HotBlocks::request(std::span<const int32_t> blocks) {
  for (const int32_t block : blocks) {
    if (block < 0 || static_cast<size_t>(block) >= records_.size()) {
      throw std::out_of_range("block " + std::to_string(block) + ": must be 0 to " + std::to_string(records_.size()) + " - 1");
    }
  }
  const auto there = [&](int32_t block) { return records_[static_cast<size_t>(block)] != HotPolicy::kNone; };
  const auto hits = std::find_if_not(blocks.begin(), blocks.end(), there) - blocks.begin();
  policy_.begin_moment();
  for (size_t i = blocks.size(); i-- > 0;) {
    uint32_t& record = records_[static_cast<size_t>(blocks[i])];
    if (record != HotPolicy::kNone) {
      policy_.use(record);
      continue;
    }
    if (inserted_ - evicted_ == capacity_blocks_) {
      records_[policy_.evict()] = HotPolicy::kNone;
      ++evicted_;
    }
    const auto block = static_cast<uint32_t>(blocks[i]);
    record = policy_.insert(xxh3_64(object_bytes(block)), 1, block);
    policy_.set_busy(record, false);
    ++inserted_;
  }
  return static_cast<uint32_t>(hits);
}

std::vector<uint8_t> HotBlocks::present() const {
  std::vector<uint8_t> present(records_.size());
  for (size_t i = 0; i < records_.size(); ++i) present[i] = records_[i] != HotPolicy::kNone ? 1 : 0;
  return present;
}

}  // namespace halfstep::bind
