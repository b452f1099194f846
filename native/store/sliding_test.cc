// Ends that move on with every use: of blocks that name no TTL, in a namespace whose default TTL slides.
#include <gtest/gtest.h>

#include "store/store_fixture.h"

namespace halfstep::store {
namespace sliding_test {

constexpr uint32_t kTtlS = 1000;
constexpr uint32_t kBlockBytes = 16384;

class SlidingTtl : public testing::Test {
 protected:
  void SetUp() override {
    bed_.open();
    set_ttl(kTtlS, true);
  }
  void set_ttl(uint32_t ttl_s, bool sliding) {
    ASSERT_EQ(bed_.limit({.name = "default", .default_ttl_s = ttl_s, .sliding_ttl = sliding}), Code::Ok);
  }
  void put(const char* name, uint32_t ttl_s = 0) { ASSERT_EQ(bed_.put(name, kGroupPlain, kBlockBytes, true, ttl_s), Code::Ok); }
  void touch(const char* name) {
    const IndexKey key = bed_.key(name);
    bed_.store->touch({&key, 1});
  }
  void pass(uint64_t seconds) {
    bed_.clock.wall += seconds;
    bed_.clock.us += seconds * 1'000'000;
    bed_.settle();
  }
  bool there(const char* name) { return bed_.store->find(bed_.key(name)).present; }

  StoreBed bed_{11, 16};
};

TEST_F(SlidingTtl, EveryUseMovesTheEndAndNothingElseDoes) {
  for (const char* name : {"read", "touched", "put again", "looked at", "left alone"}) put(name);
  put("fixed", kTtlS);
  for (int time = 0; time < 3; ++time) {
    pass(600);
    EXPECT_EQ(bed_.get("read"), Code::Ok);
    touch("touched");
    EXPECT_EQ(bed_.put("put again"), Code::Present);
    if (time == 0) {
      EXPECT_TRUE(there("looked at"));
      EXPECT_EQ(bed_.get("fixed"), Code::Ok);
    }
  }
  for (const char* name : {"read", "touched", "put again"}) EXPECT_TRUE(there(name)) << name;
  for (const char* name : {"looked at", "left alone", "fixed"}) EXPECT_FALSE(there(name)) << name;
  pass(kTtlS + 1);
  EXPECT_EQ(bed_.get("read"), Code::NotFound);
  EXPECT_EQ(bed_.store->gauges().blocks, 0U);
  EXPECT_EQ(bed_.store->counters().blocks_evicted_expired, 6U);
}

TEST_F(SlidingTtl, MovesWhatIsNotInAFrameYet) {
  StoreBed::Put put;
  ASSERT_TRUE(bed_.begin_put(put, "fresh", kGroupPlain, kBlockBytes, true).ok());
  bed_.clock.wall += 600;
  touch("fresh");
  while (!put.done) bed_.pump();
  pass(600);
  EXPECT_EQ(bed_.get("fresh"), Code::Ok);
}

TEST_F(SlidingTtl, WhoeverSaysWhenHasTheLastWord) {
  put("ends");
  put("stays");
  ASSERT_EQ(bed_.expire("ends", 2000), Code::Ok);
  ASSERT_EQ(bed_.expire("stays", 0), Code::Ok);
  pass(1500);
  EXPECT_EQ(bed_.get("ends"), Code::Ok);
  bed_.reopen();
  EXPECT_EQ(bed_.get("ends"), Code::Ok);
  pass(600);
  EXPECT_EQ(bed_.get("ends"), Code::NotFound) << "a get has moved it";
  pass(5 * kTtlS);
  EXPECT_EQ(bed_.get("stays"), Code::Ok);
}

TEST_F(SlidingTtl, AStopKeepsWhatUseHasMovedToAnEndThatIsNeverLate) {
  put("used");
  put("not used");
  pass(900);
  touch("used");
  pass(300);
  bed_.reopen();
  EXPECT_FALSE(there("not used"));
  ASSERT_TRUE(there("used"));
  pass(kTtlS - 300 - kTtlS / 63 - 20);  // its end is on flash in 63rds of the TTL, and in memory in 128ths of what is left
  EXPECT_TRUE(there("used"));
  pass(kTtlS / 63 + 20);
  EXPECT_FALSE(there("used"));
}

TEST_F(SlidingTtl, ACrashForgetsUsesAndNothingMore) {
  put("used");
  pass(500);
  touch("used");
  bed_.crash(io::MemoryEngine::Crash::PowerCut);
  bed_.open();
  EXPECT_TRUE(there("used"));
  pass(kTtlS - 500 + 1);
  EXPECT_FALSE(there("used")) << "its put said so";
}

TEST_F(SlidingTtl, TheNamespaceMayChangeItsMind) {
  put("slides");
  put("slid");
  pass(600);
  set_ttl(10 * kTtlS, true);
  EXPECT_EQ(bed_.get("slides"), Code::Ok);
  set_ttl(kTtlS, false);
  EXPECT_EQ(bed_.get("slid"), Code::Ok);
  pass(500);
  EXPECT_FALSE(there("slid"));
  EXPECT_TRUE(there("slides"));
  set_ttl(1, true);
  EXPECT_EQ(bed_.get("slides"), Code::Ok);
  pass(2);
  EXPECT_TRUE(there("slides")) << "a use never takes from a life";
  EXPECT_TRUE(bed_.account().sliding_ttl);
}

// In every segment somebody is used, so that reclaim has to copy: the copy ends when the original would have.
TEST_F(SlidingTtl, ReclaimTakesTheMovedEndAlong) {
  const auto name = [](uint64_t i) { return "block " + std::to_string(i); };
  for (uint64_t i = 0; bed_.store->counters().blocks_rewritten < 40; ++i) {
    ASSERT_LT(i, 5000U);
    ASSERT_EQ(bed_.put(name(i)), Code::Ok);
    if (i % 4 == 0) pass(1);
    for (uint64_t used = 0; i % 64 == 0 && used <= i; used += 8) touch(name(used).c_str());
  }
  bed_.settle();
  std::vector<std::string> alive;
  for (uint64_t i = 0; i < 400; i += 8) {
    if (there(name(i).c_str())) alive.push_back(name(i));
  }
  ASSERT_GT(alive.size(), 10U) << "written longer ago than their TTL";
  for (int time = 0; time < 3; ++time) {
    for (const std::string& block : alive) EXPECT_EQ(bed_.get(block), Code::Ok) << block;
    if (time == 1) bed_.reopen();
    pass(900);
  }
  pass(101);
  for (const std::string& block : alive) EXPECT_FALSE(there(block.c_str())) << block;
}

}  // namespace sliding_test
}  // namespace halfstep::store
