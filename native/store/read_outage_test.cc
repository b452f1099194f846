// Reads that fail for a while, and segments that are bad.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "store/outage_fixture.h"

namespace halfstep::store {
namespace {

TEST(ReadOutage, UnderGetsIsAMissEachTimeAndLosesNoBlock) {
  OutageBed bed;
  bed.open();
  constexpr int kBlocks = 40;
  bed.fill(kBlocks);
  bed.reopen();  // so that memory has none of them
  bed.fail(io::Op::Read, -EIO, false);
  for (int i = 0; i < kBlocks; ++i) {
    EXPECT_EQ(bed.get("a" + std::to_string(i), kGroupOpaque), Code::IoError);
    bed.pass(50'000);
  }
  bed.end_outage();
  EXPECT_GE(bed.counters().misses_io, static_cast<uint64_t>(kBlocks));
  EXPECT_EQ(bed.counters().blocks_evicted, 0U);
  EXPECT_EQ(bed.readable(kBlocks), kBlocks);
  bed.pass(5'000'000);
  EXPECT_EQ(bed.counters().segments_retired, 0U);
  bed.reopen();
  EXPECT_EQ(bed.readable(kBlocks), kBlocks);
  EXPECT_EQ(bed.store->recovery().tombstones, 0U);
}

TEST(ReadOutage, OfOnePlaceThatNeverAnswersIsGivenUpAfterMinutesWhileOthersAnswer) {
  OutageBed bed;
  bed.open();
  constexpr int kBlocks = 40;
  bed.fill(kBlocks);
  bed.reopen();
  bed.fail_segments(io::Op::Read, {bed.segment_of("a0")});
  // Nothing else is read: nobody knows that it is this place alone.
  for (int minutes = 0; minutes < 30; ++minutes) {
    ASSERT_EQ(bed.get("a0", kGroupOpaque), Code::IoError);
    bed.clock.us += 61'000'000;
  }
  EXPECT_EQ(bed.counters().blocks_given_up, 0U);
  int minutes = 0;
  for (; minutes < 29 && bed.counters().blocks_given_up == 0; ++minutes) {
    EXPECT_TRUE(bed.get("a" + std::to_string(10 + minutes), kGroupOpaque).ok()) << "others answer";
    (void)bed.get("a0", kGroupOpaque);
    bed.clock.us += 61'000'000;
  }
  EXPECT_EQ(bed.counters().blocks_given_up, 1U);
  EXPECT_EQ(minutes, 2) << "three moments, of which the first was long ago";
  EXPECT_FALSE(bed.store->find(bed.key("a0", kGroupOpaque)).present);
}

TEST(ReadOutage, ABlockThatFailedAtTwoMomentsIsPutAnew) {
  OutageBed bed;
  bed.open();
  bed.fill(20);
  bed.reopen();
  bed.fail_segments(io::Op::Read, {bed.segment_of("a0")});
  ASSERT_EQ(bed.get("a0", kGroupOpaque), Code::IoError);
  EXPECT_EQ(bed.put("a0", kGroupOpaque, kOutageBlockBytes), Code::Present) << "one moment says nothing";
  bed.clock.us += 61'000'000;
  EXPECT_TRUE(bed.get("a15", kGroupOpaque).ok());
  ASSERT_EQ(bed.get("a0", kGroupOpaque), Code::IoError);
  EXPECT_TRUE(bed.put("a0", kGroupOpaque, kOutageBlockBytes, true).ok());
  EXPECT_TRUE(bed.get("a0", kGroupOpaque).ok());
  bed.reopen();
  EXPECT_TRUE(bed.get("a0", kGroupOpaque).ok()) << "the newer one counts";
}

TEST(ReadOutage, OfTheVictimMakesReclaimWaitForWhatIsHeldAndUsed) {
  OutageBed bed(8);
  bed.open();
  bed.fill(14);
  for (int i = 0; i < 14; ++i) bed.store->touch(std::vector<IndexKey>{bed.key("a" + std::to_string(i), kGroupOpaque)});
  bed.reopen();
  for (int i = 0; i < 14; ++i) bed.store->touch(std::vector<IndexKey>{bed.key("a" + std::to_string(i), kGroupOpaque)});
  const uint64_t evicted = bed.counters().blocks_evicted;
  bed.fail(io::Op::Read, -EIO, true);
  for (int i = 0; i < 60; ++i) {  // more than there is room for
    StoreBed::Put put;
    (void)bed.begin_put(put, "b" + std::to_string(i), kGroupOpaque, kOutageBlockBytes, false);
    bed.pass(20'000);
  }
  EXPECT_EQ(bed.counters().blocks_evicted, evicted);
  bed.end_outage();
  bed.pass(3'000'000);
  EXPECT_GT(bed.counters().segments_reclaimed, 0U) << "it goes on when it can";
}

// A block of each of three places of one segment rots, is asked for and dropped, and the segment is retired.
void retire_one(OutageBed& bed, const std::string& prefix) {
  bed.fill(7, prefix);  // a segment takes seven
  bed.fill(2, prefix + "next");
  bed.reopen();
  const uint64_t retired = bed.counters().segments_retired;
  const Places where = bed.places();
  for (int i = 0; i < 3; ++i) {
    const std::vector<std::byte> content = bytes_of_key(prefix + std::to_string(i), kOutageBlockBytes);
    std::vector<std::byte> page(kPageBytes);
    for (uint64_t at = where.segment(0); at < where.segment(bed.geometry.segments); at += kPageBytes) {
      bed.device->read(at, page);
      if (!std::equal(page.begin(), page.end(), content.begin())) continue;
      bed.device->flip_bit(at + 100, 3);
    }
    EXPECT_EQ(bed.get(prefix + std::to_string(i), kGroupOpaque), Code::Corrupt);
  }
  for (int turns = 0; bed.counters().segments_retired == retired && turns < 100'000; ++turns) bed.pump();
  EXPECT_EQ(bed.counters().segments_retired, retired + 1);
}

TEST(BadSegments, AreShownFromAStartOnAndTriedAgain) {
  OutageBed bed(16);
  bed.open();
  retire_one(bed, "r");
  EXPECT_EQ(bed.gauges().segments_bad, 1U);
  bed.reopen();
  EXPECT_EQ(bed.counters().segments_bad, 1U) << "the start found it";
  bed.settle();
  EXPECT_EQ(bed.counters().segments_tried_again, 1U);
  EXPECT_EQ(bed.gauges().segments_bad, 0U);
}

TEST(BadSegments, AreTriedAgainAfterDays) {
  OutageBed bed(16);
  bed.open();
  retire_one(bed, "r");
  EXPECT_EQ(bed.gauges().segments_bad, 1U);
  for (int half_days = 0; half_days < 8; ++half_days) {  // a clock that jumps further is not believed at once
    bed.clock.wall += 12 * 3600;
    bed.pump();
  }
  bed.pass(120'000'000, 1'000'000);
  EXPECT_EQ(bed.counters().segments_tried_again, 1U);
  EXPECT_EQ(bed.gauges().segments_bad, 0U);
}

}  // namespace
}  // namespace halfstep::store
