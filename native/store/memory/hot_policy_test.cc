#include "store/memory/hot_policy.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "base/prng.h"

namespace halfstep::store {
namespace {

constexpr uint32_t kNone = HotPolicy::kNone;

// Blocks are numbers: a block's tag follows from it, and it is its own owner.
class Blocks {
 public:
  explicit Blocks(uint64_t capacity_pages) : policy(capacity_pages) {}

  void insert(uint32_t block, uint32_t pages = 1) {
    busy(block, pages);
    policy.set_busy(records.at(block), false);
  }
  void busy(uint32_t block, uint32_t pages = 1) {
    if (block >= records.size()) records.resize(block + 1, kNone);
    records[block] = policy.insert(0x9E37'79B9'7F4A'7C15U * (block + 1), pages, block);
  }
  void use(uint32_t block) { policy.use(records.at(block)); }
  void later(uint32_t block) {
    policy.begin_moment();
    use(block);
  }
  // Others come in until all that is there is about equally old: one or two uses more or less are no matter then.
  void age() {
    for (uint32_t i = 0; i < 110; ++i) insert(kOthers + others_++);
  }
  uint32_t evict() {
    const uint32_t block = policy.evict();
    if (block != kNone) records[block] = kNone;
    return block;
  }
  std::vector<uint32_t> evict_all() {
    std::vector<uint32_t> order;
    for (uint32_t block = evict(); block != kNone; block = evict()) {
      if (block < kOthers) order.push_back(block);
    }
    return order;
  }

  HotPolicy policy;
  std::vector<uint32_t> records;

 private:
  static constexpr uint32_t kOthers = 1000;
  uint32_t others_ = 0;
};

using Order = std::vector<uint32_t>;

TEST(HotPolicy, WhatWasUsedOnceGoesInTheOrderOfUse) {
  Blocks blocks(8);
  for (uint32_t block : {3U, 1U, 0U, 2U}) blocks.insert(block);
  EXPECT_EQ(blocks.evict_all(), (Order{3, 1, 0, 2}));
  EXPECT_EQ(blocks.evict(), kNone);
}

TEST(HotPolicy, TheRootOfAChainOutlivesItsLeaf) {
  Blocks blocks(8);
  for (uint32_t depth = 4; depth-- > 0;) blocks.insert(depth);  // the leaf, 3, first
  for (uint32_t depth = 4; depth-- > 0;) blocks.use(depth);     // the same request again
  EXPECT_EQ(blocks.evict_all(), (Order{3, 2, 1, 0}));
  // Told from the root on and then put right in the same moment, as a window of reads is.
  for (uint32_t depth = 0; depth < 4; ++depth) blocks.insert(depth);
  for (uint32_t depth = 4; depth-- > 0;) blocks.use(depth);
  EXPECT_EQ(blocks.evict_all(), (Order{3, 2, 1, 0}));
}

TEST(HotPolicy, WhatWasUsedTwiceOutlivesWhatCameAfterItOnce) {
  Blocks blocks(1024);
  for (uint32_t block = 0; block < 3; ++block) blocks.insert(block);
  blocks.later(0);
  blocks.later(1);
  blocks.later(0);
  blocks.insert(3);
  blocks.age();
  EXPECT_EQ(blocks.evict_all(), (Order{2, 3, 1, 0})) << "once, once, twice, three times";
}

TEST(HotPolicy, UsesOfOneMomentAreOneUse) {
  Blocks blocks(1024);
  blocks.insert(0);
  blocks.use(0);
  blocks.use(0);
  blocks.insert(1);
  blocks.later(1);
  blocks.use(1);
  blocks.policy.begin_moment();
  blocks.insert(2);
  blocks.insert(3);
  blocks.use(2);
  blocks.age();
  EXPECT_EQ(blocks.evict_all(), (Order{0, 3, 2, 1})) << "1 alone was used twice; 2 went behind 3";
}

TEST(HotPolicy, BusyBlocksStayAndKeepTheirPlace) {
  Blocks blocks(8);
  for (uint32_t block = 0; block < 4; ++block) blocks.insert(block);
  blocks.policy.set_busy(blocks.records[0], true);
  blocks.policy.set_busy(blocks.records[2], true);
  EXPECT_EQ(blocks.evict_all(), (Order{1, 3}));
  blocks.insert(4);
  blocks.policy.set_busy(blocks.records[2], false);
  blocks.policy.set_busy(blocks.records[0], false);
  EXPECT_EQ(blocks.evict_all(), (Order{0, 2, 4})) << "they were older before, and still are";
}

TEST(HotPolicy, WhatIsUsedWhileItIsBusyIsNewAgain) {
  Blocks blocks(8);
  blocks.insert(0);
  blocks.insert(1);
  blocks.policy.set_busy(blocks.records[0], true);
  EXPECT_EQ(blocks.evict(), 1U);
  blocks.use(0);
  blocks.insert(2);
  EXPECT_EQ(blocks.evict(), 2U);
  EXPECT_EQ(blocks.evict(), kNone);
  blocks.policy.set_busy(blocks.records[0], false);
  EXPECT_EQ(blocks.evict(), 0U);
}

TEST(HotPolicy, AGhostThatComesBackWasUsedAgain) {
  Blocks blocks(1024);
  blocks.insert(0);
  EXPECT_EQ(blocks.evict(), 0U);
  EXPECT_EQ(blocks.policy.ghosts(), 1U);
  blocks.policy.begin_moment();
  blocks.insert(0);
  EXPECT_EQ(blocks.policy.ghosts(), 0U);
  blocks.insert(1);
  blocks.age();
  EXPECT_EQ(blocks.evict_all(), (Order{1, 0})) << "0 has been used twice";
}

TEST(HotPolicy, WhatWasRemovedLeavesNoGhostAndWhatWasPutOffDoes) {
  Blocks blocks(1024);
  blocks.insert(0);
  blocks.policy.remove(blocks.records[0]);
  blocks.busy(1);
  blocks.policy.dismiss(blocks.records[1]);
  EXPECT_EQ(blocks.policy.ghosts(), 1U);
  blocks.policy.begin_moment();
  blocks.insert(1);
  blocks.insert(0);
  blocks.age();
  EXPECT_EQ(blocks.evict_all(), (Order{0, 1})) << "0 is as if it had never been there; 1 was asked for twice";
}

TEST(HotPolicy, RemembersFourTimesTheBytesOfMemory) {
  Blocks large(64);
  for (uint32_t block = 0; block < 100; ++block) {
    large.insert(block, 16);
    ASSERT_EQ(large.evict(), block);
  }
  EXPECT_EQ(large.policy.ghosts(), 16U);
  Blocks small(64);
  for (uint32_t block = 0; block < 1000; ++block) {
    small.insert(block);
    if (block < 64) continue;
    EXPECT_EQ(small.evict(), block - 64);
  }
  EXPECT_EQ(small.policy.ghosts(), 256U);
  EXPECT_EQ(small.policy.memory_bytes(), (64 + 256 + 1) * 32U + 64 * 4U) << "the one that came before one gave way is free";
}

// Blocks that are used for a while and then never again, between ever new ones that are used once: an order of use alone keeps
// the new ones, because there are more of them between two uses than memory holds.
TEST(HotPolicy, LearnsThatBlocksOfOneUseAreNotWorthTheirTime) {
  constexpr uint32_t kCapacity = 100, kLoop = 60, kOnce = 200;
  Blocks blocks(kCapacity * 16);
  uint32_t there = 0, hits = 0, next = 0;
  blocks.records.assign(100'000, kNone);
  const auto ask = [&](uint32_t block) {
    if (blocks.records[block] != kNone) {
      blocks.use(block);
      return true;
    }
    while (there >= kCapacity) {
      EXPECT_NE(blocks.evict(), kNone);
      --there;
    }
    blocks.insert(block, 16);
    ++there;
    return false;
  };
  for (uint32_t round = 0; round < 300; ++round) {
    blocks.policy.begin_moment();
    for (uint32_t i = 0; i < kLoop; ++i) hits += ask(i) && round >= 200 ? 1 : 0;
    for (uint32_t i = 0; i < kOnce; ++i) ask(kLoop + next++);
  }
  EXPECT_EQ(hits, kLoop * 100);
}

TEST(HotPolicy, WhatComesAheadOfItsFirstUseHasNotBeenUsed) {
  HotPolicy used(100);
  HotPolicy ahead(100);
  for (HotPolicy* policy : {&used, &ahead}) {
    const uint32_t first = policy->insert(1, 1, 1, policy == &used);
    policy->set_busy(first, false);
    const uint32_t second = policy->insert(2, 1, 2);
    policy->set_busy(second, false);
    policy->begin_moment();
    policy->use(first);  // the first use of one, the second of the other
  }
  EXPECT_EQ(used.evict(), 2U) << "used once, the other twice";
  EXPECT_EQ(ahead.evict(), 2U) << "both once, and this one before";
  const uint32_t never = ahead.insert(3, 1, 3, false);
  ahead.dismiss(never);
  EXPECT_EQ(ahead.ghosts(), 1U) << "of what was never used nothing is remembered";
}

// Whatever happens in whatever order, who is not busy goes exactly once, and who is busy stays.
TEST(HotPolicy, LosesNobodyInAnyOrderOfEvents) {
  constexpr uint32_t kBlocks = 200, kPages = 64;
  Prng prng(1);
  Blocks blocks(kPages);
  blocks.records.assign(kBlocks, kNone);
  std::vector<bool> busy(kBlocks);
  uint32_t there = 0;
  for (int step = 0; step < 200'000; ++step) {
    const auto block = static_cast<uint32_t>(prng.below(kBlocks));
    uint32_t& record = blocks.records[block];
    if (prng.below(16) == 0) blocks.policy.begin_moment();
    if (record == kNone) {
      if (there == kPages) {
        const uint32_t victim = blocks.evict();
        if (victim == kNone) {
          EXPECT_EQ(static_cast<uint32_t>(std::count(busy.begin(), busy.end(), true)), there);
          continue;
        }
        ASSERT_FALSE(busy[victim]);
        --there;
      }
      blocks.busy(block);
      busy[block] = true;
      ++there;
      continue;
    }
    switch (prng.below(8)) {
      case 0:
        blocks.policy.remove(record);
        record = kNone;
        busy[block] = false;
        --there;
        break;
      case 1:
      case 2: blocks.use(block); break;
      default: busy[block] = !busy[block]; blocks.policy.set_busy(record, busy[block]);
    }
  }
  for (uint32_t block = 0; block < kBlocks; ++block) {
    if (blocks.records[block] != kNone && busy[block]) blocks.policy.set_busy(blocks.records[block], false);
  }
  EXPECT_EQ(blocks.evict_all().size(), there);
}

}  // namespace
}  // namespace halfstep::store
