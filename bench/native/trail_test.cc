#include "trail.h"

#include <gtest/gtest.h>

#include <map>
#include <set>

namespace halfstep::bench {
namespace {

constexpr uint64_t kBatch = 4;

TEST(Walk, GoesThroughAllInOneOrderOverAndOver) {
  Walk walk(20, kBatch, 7);
  Walk same(20, kBatch, 7);
  Walk other(20, kBatch, 8);
  std::vector<uint64_t> turn;
  bool differs = false;
  for (int i = 0; i < 20; ++i) {
    turn.push_back(*walk.next());
    EXPECT_EQ(*same.next(), turn.back());
    differs = differs || *other.next() != turn.back();
  }
  EXPECT_TRUE(differs) << "the seed draws the order";
  for (const uint64_t first : turn) EXPECT_EQ(*walk.next(), first);
  EXPECT_FALSE(std::ranges::is_sorted(turn));
  std::ranges::sort(turn);
  for (uint64_t i = 0; i < 20; ++i) EXPECT_EQ(turn[i], i * kBatch);
}

TEST(Anywhere, ComesToEveryBatchInAnOrderOfTheSeed) {
  Anywhere anywhere(8, kBatch, 7);
  Anywhere same(8, kBatch, 7);
  std::map<uint64_t, uint64_t> came;
  for (int i = 0; i < 800; ++i) {
    const uint64_t first = *anywhere.next();
    EXPECT_EQ(*same.next(), first);
    EXPECT_EQ(first % kBatch, 0U);
    ++came[first / kBatch];
  }
  ASSERT_EQ(came.size(), 8U);
  EXPECT_EQ(came.rbegin()->first, 7U);
  for (const auto& [batch, times] : came) EXPECT_GT(times, 50U) << batch;
}

class TrailTest : public testing::Test {
 protected:
  void put(uint64_t count, bool whole = true) {
    for (uint64_t i = 0; i < count; ++i) trail_.add(kBatch * puts_++, whole);
  }
  // Which put it is of.
  uint64_t next() {
    const auto first = trail_.next();
    EXPECT_TRUE(first.has_value());
    return first.value_or(0) / kBatch;
  }
  static constexpr Trail::Reach kReach{.nearest = 10, .width = 30, .farthest = 55};
  Trail trail_{kReach, 3};
  uint64_t puts_ = 0;
};

TEST_F(TrailTest, HasNothingBeforeEnoughWasPut) {
  EXPECT_FALSE(trail_.next().has_value());
  put(kReach.nearest);
  EXPECT_FALSE(trail_.ready());
  EXPECT_FALSE(trail_.next().has_value());
  put(1);
  EXPECT_TRUE(trail_.ready());
  EXPECT_EQ(next(), 0U);
}

TEST_F(TrailTest, NothingComesTooEarlyOrTooLateHoweverManyArePut) {
  put(kReach.nearest + kReach.width);
  Prng prng(5);
  std::map<uint64_t, uint64_t> came;  // put -> the get that had it last
  uint64_t again = 0;
  for (uint64_t get = 0; get < 5000; ++get) {
    if (prng.chance(0.4)) put(1 + prng.below(3));
    const uint64_t one = next();
    EXPECT_GE(puts_ - one, kReach.nearest + 1) << "it may still be in memory";
    EXPECT_LE(puts_ - one, kReach.farthest) << "it may have been reclaimed";
    const auto before = came.find(one);
    if (before != came.end()) {
      ++again;
      EXPECT_GE(get - before->second, kReach.width / 3) << "memory may know it again";
    }
    came[one] = get;
  }
  EXPECT_GT(again, 100U);
}

TEST_F(TrailTest, WhatWasNotStoredWholeIsNeverAskedFor) {
  std::set<uint64_t> whole;
  for (uint64_t i = 0; i < 60; ++i) {
    if (i % 3 != 0) whole.insert(puts_);
    put(1, i % 3 != 0);
  }
  for (int get = 0; get < 200; ++get) EXPECT_TRUE(whole.contains(next()));
}

TEST_F(TrailTest, SaysSoWhereNothingIsInReach) {
  put(kReach.farthest + 20, false);
  EXPECT_TRUE(trail_.ready());
  EXPECT_FALSE(trail_.next().has_value());
  put(kReach.nearest + 1);
  EXPECT_EQ(next(), kReach.farthest + 20);
}

}  // namespace
}  // namespace halfstep::bench
