// The store's time under clocks that jump, run backwards or say the impossible.
#include "store/format/store_time.h"

#include <gtest/gtest.h>

#include <string>

#include "store/recover/fsck.h"
#include "store/store_fixture.h"

namespace halfstep::store {
namespace {

constexpr uint64_t kHourUs = 3'600'000'000;

class StoreTimeTest : public ::testing::Test {
 protected:
  void pass(uint64_t seconds) {
    clock.us += seconds * 1'000'000;
    clock.wall += seconds;
  }
  TestClock clock;
};

TEST_F(StoreTimeTest, ItFollowsTheClockAndNeverRunsBackwards) {
  StoreTime time(clock, 0);
  EXPECT_EQ(time.now_s(), clock.wall);
  pass(100);
  EXPECT_EQ(time.now_s(), clock.wall);
  const uint64_t before = time.now_s();
  clock.wall -= 5000;
  EXPECT_EQ(time.now_s(), before);
  pass(10);
  EXPECT_EQ(time.now_s(), before + 10) << "it goes on by the other clock";
  EXPECT_EQ(time.clock_ahead_s(), -5000);
  pass(6000);
  clock.wall += 5000;
  EXPECT_EQ(time.now_s(), clock.wall);
  clock.wall += kJumpS;  // a day is believed
  EXPECT_EQ(time.now_s(), clock.wall);
}

TEST_F(StoreTimeTest, WhatEndsNowIsOverAndWhatNeverEndsIsNot) {
  StoreTime time(clock, 0);
  const auto now_s = static_cast<uint32_t>(clock.wall);
  EXPECT_TRUE(time.expired(now_s));
  EXPECT_FALSE(time.expired(now_s + 1));
  EXPECT_FALSE(time.expired(0));
  pass(1);
  EXPECT_TRUE(time.expired(now_s + 1));
}

TEST_F(StoreTimeTest, AClockThatNoEndCanExpressIsNotTaken) {
  for (const uint64_t wrong :
       {kStoreTimeLimitS, uint64_t{UINT32_MAX} - 1, uint64_t{UINT32_MAX}, uint64_t{1} << 33, UINT64_MAX}) {
    SCOPED_TRACE(wrong);
    TestClock at;
    const uint64_t right = at.wall;
    at.wall = wrong;
    StoreTime time(at, right - 50);
    EXPECT_EQ(time.now_s(), right - 50);
    at.us += 7'000'000;
    EXPECT_EQ(time.now_s(), right - 43);
    at.wall = right;
    EXPECT_EQ(time.now_s(), right);
    time.raise_to(wrong);
    EXPECT_EQ(time.now_s(), right) << "nor what a page says of it";
  }
}

TEST_F(StoreTimeTest, AJumpOfMoreThanADayIsTakenWhenItHasLasted) {
  StoreTime time(clock, 0);
  const uint64_t before = time.now_s();
  clock.wall += 30 * kSecondsADay;
  EXPECT_EQ(time.now_s(), before);
  EXPECT_EQ(time.clock_ahead_s(), static_cast<int64_t>(30 * kSecondsADay));
  pass(kHourUs / 1'000'000 - 1);
  EXPECT_EQ(time.now_s(), before + 3599);
  pass(1);
  EXPECT_EQ(time.now_s(), clock.wall) << "so the machine slept, or its clock was wrong before";
}

TEST_F(StoreTimeTest, AClockThatIsSetRightAgainHasDoneNothing) {
  StoreTime time(clock, 0);
  const uint64_t before = time.now_s();
  for (int tries = 0; tries < 5; ++tries) {
    clock.wall += 400 * kSecondsADay;
    pass(3000);
    (void)time.now_s();
    clock.wall -= 400 * kSecondsADay;
    EXPECT_EQ(time.now_s(), before + 3000 * (tries + 1));
  }
}

TEST_F(StoreTimeTest, EachJumpIsDoubtedByItself) {
  StoreTime time(clock, 0);
  const uint64_t before = time.now_s();
  clock.wall += 2 * kSecondsADay;
  (void)time.now_s();
  pass(3000);
  clock.wall += 5 * kSecondsADay;
  EXPECT_EQ(time.now_s(), before + 3000);
  pass(1000);
  EXPECT_EQ(time.now_s(), before + 4000) << "an hour after the first, not after the second";
  pass(2700);
  EXPECT_EQ(time.now_s(), clock.wall);
}

// ---- The store -------------------------------------------------------------------------------------------------------------

bool said(const StoreBed& bed, const std::string& part) {
  for (const std::string& note : bed.store->recovery().notes) {
    if (note.find(part) != std::string::npos) return true;
  }
  return false;
}

TEST(StoreClock, BlocksWithAnEndSurviveAStartWithAClockBeyondAllEnds) {
  StoreBed bed(3);
  bed.open();
  ASSERT_EQ(bed.put("before", kGroupPlain, 16384, true, 1000), Code::Ok);
  bed.close();
  bed.restart_engine();
  const uint64_t right = bed.clock.wall;
  bed.clock.wall = 5'000'000'000;  // the year 2128
  bed.open();
  EXPECT_TRUE(said(bed, "no end of a block can be expressed")) << "it says so";
  EXPECT_EQ(bed.get("before"), Code::Ok);
  ASSERT_EQ(bed.put("meanwhile", kGroupPlain, 16384, true, 1000), Code::Ok);
  EXPECT_EQ(bed.get("meanwhile"), Code::Ok);
  bed.close();
  bed.restart_engine();
  FsckReport report;
  ASSERT_TRUE(fsck(*bed.engine, bed.clock, {}, &report).ok());
  EXPECT_EQ(report.blocks_live, 2U) << "fsck takes the same time";
  bed.clock.wall = right + 5;
  bed.open();
  EXPECT_EQ(bed.get("before"), Code::Ok);
  EXPECT_EQ(bed.get("meanwhile"), Code::Ok);
  ASSERT_EQ(bed.put("after", kGroupPlain, 16384, true, 10), Code::Ok);
  EXPECT_EQ(bed.get("after"), Code::Ok);
  bed.clock.wall += 11;
  bed.clock.us += 11'000'000;
  EXPECT_FALSE(bed.store->find(bed.key("after")).present) << "ends are counted as ever";
}

TEST(StoreClock, AStoreThatIsAheadOfTheClockSaysSo) {
  StoreBed bed(4);
  bed.open();
  ASSERT_EQ(bed.put("k", kGroupPlain, 16384, true), Code::Ok);
  EXPECT_FALSE(said(bed, "clock"));
  bed.close();
  bed.restart_engine();
  bed.clock.wall -= 7200;
  bed.open();
  EXPECT_TRUE(said(bed, "behind the store's time"));
  EXPECT_EQ(bed.store->gauges().clock_ahead_s, -7200);
}

TEST(StoreClock, AJumpOfTheClockDropsNothingUntilItHasLasted) {
  StoreBed bed(5);
  bed.open();
  for (int i = 0; i < 10; ++i)
    ASSERT_EQ(bed.put("k" + std::to_string(i), kGroupPlain, 16384, true, 3 * kSecondsADay), Code::Ok);
  bed.clock.wall += 30 * kSecondsADay;
  bed.settle();
  for (int i = 0; i < 10; ++i) EXPECT_TRUE(bed.store->find(bed.key("k" + std::to_string(i))).present);
  EXPECT_GT(bed.store->gauges().clock_ahead_s, static_cast<int64_t>(29 * kSecondsADay));
  bed.clock.wall += 3601;
  bed.clock.us += 3601'000'000;
  EXPECT_FALSE(bed.store->find(bed.key("k0")).present);
}

}  // namespace
}  // namespace halfstep::store
