// Touches outlive a restart: after a clean stop all of them, after a crash those of the last pass, and none from a bad page.
#include "store/segment/touch_map.h"

#include <gtest/gtest.h>

#include "store/store_fixture.h"

namespace halfstep::store {
namespace touch_map_test {

constexpr uint32_t kSegments = 16;
constexpr uint64_t kCapacityBlocks = kSegments * StoreBed::kSegmentBytes / 16384;

std::string name_of(uint64_t number) { return "block " + std::to_string(number); }

class TouchMapTest : public ::testing::Test {
 protected:
  void SetUp() override {
    bed.open();
    for (uint64_t i = 0; i < 60; ++i) ASSERT_EQ(bed.put(name_of(i), kGroupPlain, 16384, true), Code::Ok);
    for (uint64_t i = 0; i < 40; ++i) ASSERT_EQ(bed.put("filler " + name_of(i)), Code::Ok);
  }
  void touch(uint64_t number) {
    const IndexKey key = bed.key(name_of(number));
    bed.store->touch({&key, 1});
  }
  void touch_some() {
    for (uint64_t i = 0; i < 60; i += 3) touch(i);
  }
  // Until a block that nobody used is gone; so much of what is written is used that no segment of it is the cheapest to
  // reclaim.
  void churn() {
    for (uint64_t i = 0; i < 2 * kCapacityBlocks && bed.store->find(bed.key(name_of(1))).present; ++i) {
      const std::string name = "churn " + name_of(churned_++);
      ASSERT_EQ(bed.put(name), Code::Ok);
      const IndexKey key = bed.key(name);
      if (i % 3 == 0) bed.store->touch({&key, 1});
    }
    ASSERT_FALSE(bed.store->find(bed.key(name_of(1))).present);
  }
  uint64_t survivors() {
    uint64_t there = 0;
    for (uint64_t i = 0; i < 60; ++i) {
      const bool present = bed.store->find(bed.key(name_of(i))).present;
      EXPECT_TRUE(!present || i % 3 == 0) << i << " was never used and is still there";
      there += present ? 1 : 0;
    }
    return there;
  }
  void pass_over() {
    bed.clock.us += TouchMap::kPassEveryUs;
    bed.settle();
  }

  StoreBed bed{1, kSegments};
  uint64_t churned_ = 0;
};

TEST_F(TouchMapTest, ACleanStopKeepsEveryTouch) {
  touch_some();
  bed.reopen();
  churn();
  EXPECT_EQ(survivors(), 20U);
}

TEST_F(TouchMapTest, TouchesOfThePassBeforeACrashAreKept) {
  touch_some();
  pass_over();
  bed.engine->crash(io::MemoryEngine::Crash::Killed);
  bed.restart_engine();
  bed.open();
  churn();
  EXPECT_EQ(survivors(), 20U);
}

TEST_F(TouchMapTest, TouchesSinceThePassAreLostWithACrashAndNothingElse) {
  touch_some();
  bed.settle();
  bed.crash(io::MemoryEngine::Crash::PowerCut);
  bed.open();
  for (uint64_t i = 0; i < 60; ++i) EXPECT_TRUE(bed.store->find(bed.key(name_of(i))).present);
  churn();
  EXPECT_EQ(survivors(), 0U);
}

TEST_F(TouchMapTest, ABadPageMeansUntouched) {
  touch_some();
  bed.close();
  const Places places = places_of(bed.geometry);
  for (uint32_t segment = 0; segment < kSegments; ++segment) bed.device->flip_bit(places.touch_map(segment) + 200, 1);
  bed.restart_engine();
  bed.open();
  for (uint64_t i = 0; i < 60; ++i) EXPECT_EQ(bed.get(name_of(i)), Code::Ok);
  bed.crash(io::MemoryEngine::Crash::Killed);  // before those gets are written down
  bed.open();
  churn();
  EXPECT_EQ(survivors(), 0U);
}

TEST_F(TouchMapTest, APageOfAnEarlierLifeOfItsSegmentMeansUntouched) {
  touch_some();
  pass_over();
  churn();
  for (uint64_t i = 0; i < 2 * kCapacityBlocks; ++i) ASSERT_EQ(bed.put("other " + name_of(i)), Code::Ok);
  bed.crash(io::MemoryEngine::Crash::Killed);
  bed.open();
  // Every ordinal that was touched is another block's now.
  const uint64_t before = bed.store->counters().blocks_rewritten;
  for (uint64_t i = 0; i < kCapacityBlocks + 300; ++i) ASSERT_EQ(bed.put("more " + name_of(i)), Code::Ok);
  EXPECT_EQ(bed.store->counters().blocks_rewritten, before);
}

TEST_F(TouchMapTest, PagesAreWrittenAtMostEveryHalfMinuteAndOnlyThoseThatChanged) {
  const Places places = places_of(bed.geometry);
  uint64_t writes = 0;
  bed.tap->tap = [&](io::Request& request) {
    const bool map = request.offset >= places.touch_map(0) && request.offset < places.segment(0);
    if (request.op == io::Op::Write && map) ++writes;
    return TapEngine::Fate::Pass;
  };
  pass_over();
  EXPECT_EQ(writes, 0U) << "nothing was touched";
  for (int second = 0; second < 300; ++second) {
    touch(0);
    bed.clock.us += 1'000'000;
    bed.settle();
  }
  // One page, however often its block is used.
  EXPECT_GE(writes, 1U);
  EXPECT_LE(writes, 300U * 1'000'000 / TouchMap::kPassEveryUs + 1);
}

}  // namespace touch_map_test
}  // namespace halfstep::store
