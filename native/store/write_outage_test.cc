// Writes and flushes that fail for a while, and writers that find no room.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <string>

#include "store/format/page.h"
#include "store/outage_fixture.h"

namespace halfstep::store {
namespace {

struct WriteCase {
  int32_t error;
  bool segments_only;
  uint64_t us;
};

class WriteOutage : public ::testing::TestWithParam<WriteCase> {};

TEST_P(WriteOutage, CostsNoSegmentAndNoBlock) {
  const auto [error, segments_only, us] = GetParam();
  OutageBed bed;
  bed.open();
  constexpr int kBlocks = 40;
  bed.fill(kBlocks);
  const uint64_t evicted = bed.counters().blocks_evicted;
  const uint64_t free = bed.gauges().segments_free;
  bed.fail(io::Op::Write, error, segments_only);
  // Who puts meanwhile is told at once that the device takes nothing, once it has been found out.
  StoreBed::Put first;
  ASSERT_TRUE(bed.begin_put(first, "first", kGroupOpaque, kOutageBlockBytes, true).ok());
  bed.pass(1'000'000);
  ASSERT_TRUE(first.done);
  EXPECT_EQ(first.write.status, Status(Code::IoError, error));
  EXPECT_TRUE(bed.gauges().writes_out);
  for (uint64_t left = us; left > 0; left -= std::min<uint64_t>(left, 1'000'000)) {
    StoreBed::Put put;
    ASSERT_EQ(bed.begin_put(put, "b" + std::to_string(left), kGroupOpaque, kOutageBlockBytes, true),
              Status(Code::IoError, error));
    bed.pass(1'000'000);
  }
  EXPECT_GT(bed.counters().writes_refused, us / 1'000'000);
  bed.end_outage();
  bed.pass(3'000'000);
  EXPECT_FALSE(bed.gauges().writes_out);
  EXPECT_EQ(bed.gauges().segments_bad, 0U);
  EXPECT_EQ(bed.counters().segments_retired, 0U);
  EXPECT_EQ(bed.counters().blocks_evicted, evicted);
  EXPECT_EQ(bed.gauges().segments_free, free) << "no segment was ended for it";
  EXPECT_TRUE(bed.get("first", kGroupOpaque).ok()) << "what was put before is written when it can be";
  EXPECT_TRUE(bed.put("after", kGroupOpaque, kOutageBlockBytes, true).ok());
  EXPECT_EQ(bed.readable(kBlocks), kBlocks);
  bed.reopen();
  EXPECT_EQ(bed.readable(kBlocks), kBlocks);
  EXPECT_TRUE(bed.get("first", kGroupOpaque).ok());
  EXPECT_EQ(bed.gauges().segments_bad, 0U);
}

INSTANTIATE_TEST_SUITE_P(Errors, WriteOutage,
                         ::testing::Values(WriteCase{-ENOSPC, true, 30'000'000}, WriteCase{-EFBIG, true, 120'000'000},
                                           WriteCase{-EIO, true, 120'000'000}, WriteCase{-EIO, false, 30'000'000},
                                           WriteCase{-ENOSPC, false, 120'000'000}, WriteCase{-EDQUOT, true, 30'000'000}));

TEST(WriteOutages, FortyShortOnesUnderPutsCostNothing) {
  OutageBed bed;
  bed.open();
  int stored = 0;
  for (int outage = 0; outage < 40; ++outage) {
    bed.fail(io::Op::Write, -EIO, outage % 2 == 0);
    for (int i = 0; i < 3; ++i) {
      StoreBed::Put put;
      const Status status = bed.begin_put(put, "a" + std::to_string(stored), kGroupPlain, 16384, false);
      stored += status.ok() ? 1 : 0;
      bed.pass(50'000);
    }
    bed.end_outage();
    bed.pass(150'000);
  }
  bed.pass(2'000'000);
  EXPECT_GT(stored, 39);
  EXPECT_EQ(bed.gauges().segments_bad, 0U);
  EXPECT_EQ(bed.counters().writes_failed, 0U);
  EXPECT_EQ(bed.counters().blocks_evicted, 0U);
  EXPECT_EQ(bed.gauges().segments_sealed, bed.counters().segments_sealed) << "none was ended by an error";
  for (int i = 0; i < stored; ++i) EXPECT_TRUE(bed.get("a" + std::to_string(i)).ok()) << i;
  bed.reopen();
  for (int i = 0; i < stored; ++i) EXPECT_TRUE(bed.get("a" + std::to_string(i)).ok()) << i;
}

TEST(WriteOutages, AFlushThatFailsForLongCostsOneSegmentOfAWriter) {
  OutageBed bed;
  bed.open();
  bed.fill(4);
  bed.engine->set_outage([](const io::Request& request) { return request.op == io::Op::Flush ? -EIO : 0; });
  for (int i = 0; i < 60; ++i) {
    StoreBed::Put put;
    (void)bed.begin_put(put, "b" + std::to_string(i), kGroupPlain, 16384, true);
    bed.pass(500'000);
    EXPECT_TRUE(put.write.store_own == nullptr || put.done) << i;
  }
  bed.end_outage();
  bed.pass(2'000'000);
  EXPECT_EQ(bed.gauges().segments_bad, 0U);
  EXPECT_LE(bed.gauges().segments_sealed, 4U);
  EXPECT_TRUE(bed.put("after", kGroupPlain, 16384, true).ok());
  EXPECT_EQ(bed.readable(4), 4);
}

TEST(WriteOutages, APlaceThatFailsAmongOthersIsLeftAndItsBlocksAreWrittenElsewhere) {
  OutageBed bed;
  bed.open();
  bed.fill(2);  // into the first segment
  bed.fail_segments(io::Op::Write, {bed.segment_of("a0")});
  StoreBed::Put put;
  ASSERT_TRUE(bed.begin_put(put, "b", kGroupOpaque, kOutageBlockBytes, false).ok());
  bed.pass(5'000'000);
  EXPECT_TRUE(bed.put("c", kGroupOpaque, kOutageBlockBytes, true).ok());
  EXPECT_GT(bed.counters().frames_repeated, 0U);
  EXPECT_EQ(bed.gauges().segments_bad, 0U) << "of one moment";
  bed.reopen();
  EXPECT_TRUE(bed.get("b", kGroupOpaque).ok());
  EXPECT_TRUE(bed.get("c", kGroupOpaque).ok());
  EXPECT_EQ(bed.readable(2), 2);
}

// As of a thin pool that is full: what was written once may be written again, and what is new may not.
TEST(WriteOutages, AShortageOfOnePlaceForAMomentEndsNoSegment) {
  OutageBed bed;
  bed.open();
  bed.fill(2);
  const Places where = bed.places();
  for (int outage = 0; outage < 10; ++outage) {
    uint64_t from = 0;  // of the segment that is written first
    uint64_t failed = 0;
    uint64_t landed = 0;
    bed.engine->set_outage([&](const io::Request& request) {
      if (request.op != io::Op::Write || request.offset < where.segment(0)) return 0;
      if (from == 0) {
        from = where.segment(static_cast<uint32_t>((request.offset - where.segment(0)) / StoreBed::kSegmentBytes));
      }
      const bool there = request.offset >= from && request.offset < from + StoreBed::kSegmentBytes;
      ++(there ? failed : landed);
      return there ? -ENOSPC : 0;
    });
    StoreBed::Put put;
    ASSERT_TRUE(bed.begin_put(put, "b" + std::to_string(outage), kGroupPlain, 16384, false).ok());
    bed.pass(150'000, 1000);
    EXPECT_GT(failed, 3U);
    EXPECT_LT(failed, 40U) << "tried now and then";
    EXPECT_GT(landed, 2U) << "others say that it is this place alone";
    bed.end_outage();
    bed.pass(1'000'000);
  }
  EXPECT_EQ(bed.gauges().segments_sealed, bed.counters().segments_sealed) << "none was ended by an error";
  for (int i = 0; i < 10; ++i) EXPECT_TRUE(bed.get("b" + std::to_string(i)).ok()) << i;
}

TEST(WriteOutages, AShortageOfTwoPlacesForAMomentEndsNoSegmentWhenOneOfThemLandsFirst) {
  OutageBed bed;
  bed.open();
  bed.fill(1);                 // so that a segment is open
  bed.clock.us += 10'000'000;  // no moment is near the clock's zero
  constexpr int kBlocks = 5;   // one in the first frame, the others in the second
  const uint64_t from = bed.places().segment(bed.segment_of("a0"));
  const uint64_t second_from = from + 2 * (kOutageBlockBytes + 2 * kPageBytes);  // after frames of one block each
  bool first_lands = false;
  uint64_t first_failed = 0, second_failed = 0;
  bed.engine->set_outage([&](const io::Request& request) {
    if (request.op != io::Op::Write || request.offset < from || request.offset >= from + StoreBed::kSegmentBytes) return 0;
    const bool first = request.offset < second_from;
    if (first && first_lands) return 0;
    ++(first ? first_failed : second_failed);
    return -ENOSPC;
  });
  std::array<StoreBed::Put, kBlocks> puts;
  for (int i = 0; i < kBlocks; ++i) {
    ASSERT_TRUE(bed.begin_put(puts[i], "b" + std::to_string(i), kGroupOpaque, kOutageBlockBytes, false).ok()) << i;
    if (i == 0) bed.store->turn();  // both are under way before one fails
  }
  bed.pass(300'000, 1000);
  ASSERT_GT(first_failed, 0U);
  ASSERT_GT(second_failed, 4U) << "others have landed between its tries";
  first_lands = true;
  const uint64_t failed = second_failed;
  bed.pass(300'000, 1000);
  EXPECT_GT(second_failed, failed + 3) << "it is tried now that the first has landed";
  bed.end_outage();
  bed.pass(1'000'000);
  EXPECT_EQ(bed.gauges().segments_sealed, bed.counters().segments_sealed) << "none was ended by an error";
  EXPECT_EQ(bed.readable(kBlocks, "b"), kBlocks);
}

// The last page of a segment is its footer's: no frame lies there.
TEST(WriteOutages, AFooterThatCannotBeWrittenHoldsUpNoPut) {
  OutageBed bed;
  bed.open();
  bed.fill(2);
  const uint64_t last_page = bed.places().segment(bed.segment_of("a0")) + StoreBed::kSegmentBytes - kPageBytes;
  uint64_t failed = 0;
  bed.engine->set_outage([&, last_page](const io::Request& request) {
    const bool there = request.op == io::Op::Write && request.offset <= last_page && last_page < request.offset + request.bytes;
    failed += there ? 1 : 0;
    return there ? -EIO : 0;
  });
  for (int i = 0; failed == 0 && i < 20; ++i) {
    ASSERT_TRUE(bed.put("b" + std::to_string(i), kGroupOpaque, kOutageBlockBytes, true).ok()) << i;
    bed.settle();
  }
  ASSERT_GT(failed, 0U);
  bed.pass(1'000'000);  // nothing else is written that could tell that it is this place alone
  EXPECT_GT(failed, 2U) << "tried again";
  EXPECT_FALSE(bed.gauges().writes_out);
  for (int i = 0; i < 4; ++i) {
    EXPECT_TRUE(bed.put("c" + std::to_string(i), kGroupOpaque, kOutageBlockBytes, true).ok()) << i;
    bed.pass(2'000'000);
  }
  EXPECT_EQ(bed.readable(4, "c"), 4);
}

TEST(WriteOutages, AShortageOfAFootersPlaceForAMomentEndsNoSegment) {
  OutageBed bed;
  bed.open();
  bed.fill(2);
  bed.clock.us += 10'000'000;  // no moment is near the clock's zero
  const uint64_t last_page = bed.places().segment(bed.segment_of("a0")) + StoreBed::kSegmentBytes - kPageBytes;
  uint64_t failed = 0;
  bed.engine->set_outage([&, last_page](const io::Request& request) {
    const bool there = request.op == io::Op::Write && request.offset <= last_page && last_page < request.offset + request.bytes;
    failed += there ? 1 : 0;
    return there ? -ENOSPC : 0;
  });
  int blocks = 0;
  const auto put = [&] { return bed.put("b" + std::to_string(blocks++), kGroupOpaque, kOutageBlockBytes, true); };
  while (failed == 0 && blocks < 20) {
    ASSERT_TRUE(put().ok()) << blocks;
    bed.settle();
  }
  ASSERT_GT(failed, 0U);
  for (int i = 0; i < 8; ++i) {
    ASSERT_TRUE(put().ok()) << "others land";
    bed.pass(50'000, 1000);
  }
  EXPECT_GT(failed, 6U);
  EXPECT_LT(failed, 40U) << "tried now and then";
  bed.end_outage();
  bed.pass(1'000'000);
  EXPECT_GT(bed.counters().segments_sealed, 0U);
  EXPECT_EQ(bed.gauges().segments_sealed, bed.counters().segments_sealed) << "none was ended by an error";
}

// A full store has no segment ready most of the time, and nothing is put where a probe could tell.
TEST(WriteOutages, APlaceThatFailsInAFullStoreHoldsUpNoPut) {
  OutageBed bed;
  bed.open();
  // All of it is of use, so that none is reclaimed before there is need.
  for (int i = 0; i < 200 || (bed.gauges().segments_free > 0 && i < 400); ++i) {
    const std::string name = "b" + std::to_string(i);
    ASSERT_TRUE(bed.put(name, kGroupOpaque, kOutageBlockBytes, true).ok()) << i;
    bed.settle();
    ASSERT_TRUE(bed.get(name, kGroupOpaque).ok()) << i;
  }
  ASSERT_EQ(bed.gauges().segments_free, 0U);
  const uint64_t from = bed.places().segment(0), to = bed.places().segment(bed.geometry.segments);
  uint64_t place = 0;  // the first that is written from here on
  bed.engine->set_outage([&](const io::Request& request) {
    if (request.op != io::Op::Write || request.offset < from || request.offset >= to) return 0;
    if (place == 0) place = request.offset;
    return request.offset <= place && place < request.offset + request.bytes ? -EIO : 0;
  });
  StoreBed::Put put;
  ASSERT_TRUE(bed.begin_put(put, "c", kGroupOpaque, kOutageBlockBytes, false).ok());
  bed.pass(20'000'000);
  EXPECT_NE(place, 0U);
  EXPECT_FALSE(bed.gauges().writes_out) << "of one place";
  EXPECT_TRUE(bed.put("d", kGroupOpaque, kOutageBlockBytes, true).ok());
  bed.reopen();
  EXPECT_TRUE(bed.get("c", kGroupOpaque).ok());
  EXPECT_TRUE(bed.get("d", kGroupOpaque).ok());
}

TEST(WriteOutages, AStartDuringOneWaitsForIt) {
  OutageBed bed;
  bed.open();
  bed.fill(4);
  bed.close();
  bed.restart_engine();
  bed.fail(io::Op::Write, -EIO, false);
  const uint64_t from_us = bed.clock.us;
  bed.clock.on_pause = [&] {
    if (bed.clock.us - from_us >= 1'000'000) bed.end_outage();
  };
  bed.open();
  bed.clock.on_pause = {};
  EXPECT_EQ(bed.readable(4), 4);
}

TEST(StarvedWriter, LooksAtWhatWaitsOnceAFrameAndTellsWhoWaits) {
  OutageBed bed(4);
  bed.open();
  // All that there is, held for good: leases may not have it all.
  NamespaceInfo info{"default"};
  info.pin_budget_bytes = 64 * MiB;
  ASSERT_TRUE(bed.limit(info).ok());
  int stored = 0;
  for (; stored < 40; ++stored) {
    StoreBed::Put put;
    if (!bed.begin_put(put, "a" + std::to_string(stored), kGroupOpaque, kOutageBlockBytes, false).ok()) break;
    EXPECT_TRUE(bed.change("a" + std::to_string(stored), kGroupOpaque, 1, 0, &Store::hold).ok());
    bed.pass(1000, 100);
  }
  StoreBed::Put waits;
  const Status status = bed.begin_put(waits, "waits", kGroupPlain, 16384, true);
  bed.pass(500'000, 1000);
  if (status.ok()) {
    ASSERT_TRUE(waits.done) << "not at its deadline";
    EXPECT_EQ(waits.write.status, Status(Code::Throttled, kThrottledSpace));
  } else {
    EXPECT_EQ(status, Status(Code::Throttled, kThrottledSpace));
  }
  const uint64_t walks = bed.counters().pending_walks;
  for (int turns = 0; turns < 1000; ++turns) bed.pump();
  EXPECT_LE(bed.counters().pending_walks - walks, 1U);
}

}  // namespace
}  // namespace halfstep::store
