// What an outage costs: misses and time, never segments or blocks. All times are of the bed's clock.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <set>

#include "store/durable/blocking_io.h"
#include "store/format/page.h"
#include "store/store_fixture.h"

namespace halfstep::store {
namespace {

constexpr uint32_t kBlockBytes = 256 * KiB;

struct Bed : StoreBed {
  explicit Bed(uint32_t segments = 12, uint64_t seed = 1) : StoreBed(seed, segments, 8 * MiB) {}
  const Counters& counters() const { return store->counters(); }
  Gauges gauges() const { return store->gauges(); }
  Places places() const { return places_of(geometry); }

  // Requests of `op` fail, as long as failing() lasts: those that touch segments, or all that there are.
  void fail(io::Op op, int32_t error, bool segments_only) {
    const Places where = places();
    const uint64_t from = where.segment(0), to = where.segment(geometry.segments);
    engine->set_outage([=](const io::Request& request) {
      const bool in_segment = request.offset >= from && request.offset < to;
      return request.op == op && (in_segment || !segments_only) ? error : 0;
    });
  }
  // Of some segments alone.
  void fail_segments(io::Op op, std::set<uint32_t> numbers) {
    const Places where = places();
    engine->set_outage([=, this](const io::Request& request) {
      if (request.op != op) return 0;
      for (const uint32_t number : numbers) {
        if (request.offset >= where.segment(number) && request.offset < where.segment(number) + kSegmentBytes) return -EIO;
      }
      return 0;
    });
  }
  void end_outage() { engine->set_outage({}); }
  void pass(uint64_t us, uint64_t step_us = 10'000) {
    for (uint64_t at = 0; at < us; at += step_us) {
      pump();
      clock.us += step_us;
    }
  }
  // Persisted, all of them.
  void fill(int count, const std::string& prefix = "a") {
    for (int i = 0; i < count; ++i) ASSERT_TRUE(put(prefix + std::to_string(i), kGroupOpaque, kBlockBytes, true).ok()) << i;
    settle();
  }
  // Where the block lies, by its bytes.
  uint32_t segment_of(const std::string& name) const {
    const Places where = places();
    const std::vector<std::byte> content = bytes_of_key(name, kPageBytes);
    std::vector<std::byte> page(kPageBytes);
    for (uint64_t at = where.segment(0); at < where.segment(geometry.segments); at += kPageBytes) {
      device->read(at, page);
      if (page == content) return static_cast<uint32_t>((at - where.segment(0)) / kSegmentBytes);
    }
    ADD_FAILURE() << name << " is nowhere";
    return 0;
  }
  int readable(int count, const std::string& prefix = "a") {
    int found = 0;
    for (int i = 0; i < count; ++i) found += get(prefix + std::to_string(i), kGroupOpaque).ok() ? 1 : 0;
    return found;
  }
};

// ---- Writes ----------------------------------------------------------------------------------------------------------------

struct WriteCase {
  int32_t error;
  bool segments_only;
  uint64_t us;
};

class WriteOutage : public ::testing::TestWithParam<WriteCase> {};

TEST_P(WriteOutage, CostsNoSegmentAndNoBlock) {
  const auto [error, segments_only, us] = GetParam();
  Bed bed;
  bed.open();
  constexpr int kBlocks = 40;
  bed.fill(kBlocks);
  const uint64_t evicted = bed.counters().blocks_evicted;
  const uint64_t free = bed.gauges().segments_free;
  bed.fail(io::Op::Write, error, segments_only);
  // Who puts meanwhile is told at once that the device takes nothing, once it has been found out.
  StoreBed::Put first;
  ASSERT_TRUE(bed.begin_put(first, "first", kGroupOpaque, kBlockBytes, true).ok());
  bed.pass(1'000'000);
  ASSERT_TRUE(first.done);
  EXPECT_EQ(first.write.status, Status(Code::IoError, error));
  EXPECT_TRUE(bed.gauges().writes_out);
  for (uint64_t left = us; left > 0; left -= std::min<uint64_t>(left, 1'000'000)) {
    StoreBed::Put put;
    ASSERT_EQ(bed.begin_put(put, "b" + std::to_string(left), kGroupOpaque, kBlockBytes, true), Status(Code::IoError, error));
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
  EXPECT_TRUE(bed.put("after", kGroupOpaque, kBlockBytes, true).ok());
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
  Bed bed;
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
  Bed bed;
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
  Bed bed;
  bed.open();
  bed.fill(2);  // into the first segment
  bed.fail_segments(io::Op::Write, {bed.segment_of("a0")});
  StoreBed::Put put;
  ASSERT_TRUE(bed.begin_put(put, "b", kGroupOpaque, kBlockBytes, false).ok());
  bed.pass(5'000'000);
  EXPECT_TRUE(bed.put("c", kGroupOpaque, kBlockBytes, true).ok());
  EXPECT_GT(bed.counters().frames_repeated, 0U);
  EXPECT_EQ(bed.gauges().segments_bad, 0U) << "of one moment";
  bed.reopen();
  EXPECT_TRUE(bed.get("b", kGroupOpaque).ok());
  EXPECT_TRUE(bed.get("c", kGroupOpaque).ok());
  EXPECT_EQ(bed.readable(2), 2);
}

// The last page of a segment is its footer's: no frame lies there.
TEST(WriteOutages, AFooterThatCannotBeWrittenHoldsUpNoPut) {
  Bed bed;
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
    ASSERT_TRUE(bed.put("b" + std::to_string(i), kGroupOpaque, kBlockBytes, true).ok()) << i;
    bed.settle();
  }
  ASSERT_GT(failed, 0U);
  bed.pass(1'000'000);  // nothing else is written that could tell that it is this place alone
  EXPECT_GT(failed, 2U) << "tried again";
  EXPECT_FALSE(bed.gauges().writes_out);
  for (int i = 0; i < 4; ++i) {
    EXPECT_TRUE(bed.put("c" + std::to_string(i), kGroupOpaque, kBlockBytes, true).ok()) << i;
    bed.pass(2'000'000);
  }
  EXPECT_EQ(bed.readable(4, "c"), 4);
}

// A full store has no segment ready most of the time, and nothing is put where a probe could tell.
TEST(WriteOutages, APlaceThatFailsInAFullStoreHoldsUpNoPut) {
  Bed bed;
  bed.open();
  // All of it is of use, so that none is reclaimed before there is need.
  for (int i = 0; i < 200 || (bed.gauges().segments_free > 0 && i < 400); ++i) {
    const std::string name = "b" + std::to_string(i);
    ASSERT_TRUE(bed.put(name, kGroupOpaque, kBlockBytes, true).ok()) << i;
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
  ASSERT_TRUE(bed.begin_put(put, "c", kGroupOpaque, kBlockBytes, false).ok());
  bed.pass(20'000'000);
  EXPECT_NE(place, 0U);
  EXPECT_FALSE(bed.gauges().writes_out) << "of one place";
  EXPECT_TRUE(bed.put("d", kGroupOpaque, kBlockBytes, true).ok());
  bed.reopen();
  EXPECT_TRUE(bed.get("c", kGroupOpaque).ok());
  EXPECT_TRUE(bed.get("d", kGroupOpaque).ok());
}

TEST(WriteOutages, AStartDuringOneWaitsForIt) {
  Bed bed;
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

// ---- What is bad -----------------------------------------------------------------------------------------------------------

// A block of each of three places of one segment rots, is asked for and dropped, and the segment is retired.
void retire_one(Bed& bed, const std::string& prefix) {
  bed.fill(7, prefix);  // a segment takes seven
  bed.fill(2, prefix + "next");
  bed.reopen();
  const uint64_t retired = bed.counters().segments_retired;
  const Places where = bed.places();
  for (int i = 0; i < 3; ++i) {
    const std::vector<std::byte> content = bytes_of_key(prefix + std::to_string(i), kBlockBytes);
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
  Bed bed(16);
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
  Bed bed(16);
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

// ---- Reads -----------------------------------------------------------------------------------------------------------------

TEST(ReadOutage, UnderGetsIsAMissEachTimeAndLosesNoBlock) {
  Bed bed;
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
  Bed bed;
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
  Bed bed;
  bed.open();
  bed.fill(20);
  bed.reopen();
  bed.fail_segments(io::Op::Read, {bed.segment_of("a0")});
  ASSERT_EQ(bed.get("a0", kGroupOpaque), Code::IoError);
  EXPECT_EQ(bed.put("a0", kGroupOpaque, kBlockBytes), Code::Present) << "one moment says nothing";
  bed.clock.us += 61'000'000;
  EXPECT_TRUE(bed.get("a15", kGroupOpaque).ok());
  ASSERT_EQ(bed.get("a0", kGroupOpaque), Code::IoError);
  EXPECT_TRUE(bed.put("a0", kGroupOpaque, kBlockBytes, true).ok());
  EXPECT_TRUE(bed.get("a0", kGroupOpaque).ok());
  bed.reopen();
  EXPECT_TRUE(bed.get("a0", kGroupOpaque).ok()) << "the newer one counts";
}

TEST(ReadOutage, OfTheVictimMakesReclaimWaitForWhatIsHeldAndUsed) {
  Bed bed(8);
  bed.open();
  bed.fill(14);
  for (int i = 0; i < 14; ++i) bed.store->touch(std::vector<IndexKey>{bed.key("a" + std::to_string(i), kGroupOpaque)});
  bed.reopen();
  for (int i = 0; i < 14; ++i) bed.store->touch(std::vector<IndexKey>{bed.key("a" + std::to_string(i), kGroupOpaque)});
  const uint64_t evicted = bed.counters().blocks_evicted;
  bed.fail(io::Op::Read, -EIO, true);
  for (int i = 0; i < 60; ++i) {  // more than there is room for
    StoreBed::Put put;
    (void)bed.begin_put(put, "b" + std::to_string(i), kGroupOpaque, kBlockBytes, false);
    bed.pass(20'000);
  }
  EXPECT_EQ(bed.counters().blocks_evicted, evicted);
  bed.end_outage();
  bed.pass(3'000'000);
  EXPECT_GT(bed.counters().segments_reclaimed, 0U) << "it goes on when it can";
}

// ---- Starts ----------------------------------------------------------------------------------------------------------------

class StartInReadOutage : public ::testing::TestWithParam<bool> {};

TEST_P(StartInReadOutage, ReadsAgainLosesNothingAndSaysSo) {
  Bed bed;
  const bool serves = GetParam();
  if (serves) bed.options.recover_before_us = 0;
  bed.open();
  constexpr int kBlocks = 40;
  bed.fill(kBlocks);
  bed.pass(20'000);
  bed.crash(io::MemoryEngine::Crash::Killed);  // segments without a footer, and a tail to be verified
  const Places where = bed.places();
  const uint64_t from_us = bed.clock.us;
  // The header could be read a moment ago.
  bed.engine->set_outage([&, where](const io::Request& request) {
    const bool header = request.offset < format::kHeaderReserveBytes || request.offset >= where.header(1);
    return request.op == io::Op::Read && !header && bed.clock.us - from_us < 1'000'000 ? -EIO : 0;
  });
  bed.open();
  for (int turns = 0; bed.store->recovering() && turns < 100'000; ++turns) bed.pass(1000, 1000);
  EXPECT_EQ(bed.readable(kBlocks), kBlocks);
  EXPECT_EQ(bed.store->recovery().segments_bad, 0U);
  EXPECT_EQ(bed.store->recovery().segments_unread, 0U);
  EXPECT_EQ(bed.store->recovery().blocks_dropped_corrupt, 0U);
}

TEST_P(StartInReadOutage, OfSomeSegmentsForLongLeavesThemForTheNextStart) {
  Bed bed;
  if (GetParam()) bed.options.recover_before_us = 0;
  bed.open();
  constexpr int kBlocks = 28;
  bed.fill(kBlocks);
  bed.close();
  bed.restart_engine();
  bed.fail_segments(io::Op::Read, {bed.segment_of("a0"), bed.segment_of("a7")});
  bed.open();
  for (int turns = 0; bed.store->recovering() && turns < 1'000'000; ++turns) bed.pass(10'000);
  EXPECT_FALSE(bed.store->recovering());
  EXPECT_EQ(bed.store->recovery().segments_unread, 2U);
  EXPECT_EQ(bed.gauges().segments_unread, 2U);
  EXPECT_EQ(bed.gauges().segments_bad, 0U);
  const auto& notes = bed.store->recovery().notes;
  const bool said = std::any_of(notes.begin(), notes.end(), [](const std::string& note) {
    return note.find("2 segments could not be read whole") != std::string::npos;
  });
  EXPECT_TRUE(said);
  // Others are written over before they are.
  for (int i = 0; i < 60; ++i) (void)bed.put("b" + std::to_string(i), kGroupOpaque, kBlockBytes, false);
  bed.close();
  bed.restart_engine();
  bed.open();
  for (int turns = 0; bed.store->recovering() && turns < 1'000'000; ++turns) bed.pass(10'000);
  EXPECT_EQ(bed.readable(14), 14) << "what is in them is there again";
}

INSTANTIATE_TEST_SUITE_P(Recovery, StartInReadOutage, ::testing::Bool(),
                         [](const auto& each) { return each.param ? "WhileItServes" : "BeforeItServes"; });

// The clock stands still meanwhile: a pause would never end.
TEST(StopInReadOutage, WaitsForNothingThatTheStartWouldAskForAgain) {
  Bed bed;
  bed.options.recover_before_us = 0;
  bed.open();
  constexpr int kBlocks = 28;
  bed.fill(kBlocks);
  bed.close();
  bed.restart_engine();
  const uint64_t from = bed.places().segment(bed.segment_of("a0"));
  const uint64_t tail = from + StoreBed::kSegmentBytes - kPageBytes;  // which is read before anything is served
  bed.engine->set_outage([=](const io::Request& request) {
    return request.op == io::Op::Read && request.offset >= from && request.offset < tail ? -EIO : 0;
  });
  bed.open();
  for (int turns = 0; bed.store->recovery().segments_read_again == 0 && turns < 1'000; ++turns) bed.pump();
  for (int turns = 0; bed.store->recovery().segments_left > 1 && turns < 1'000; ++turns) bed.pump();
  ASSERT_TRUE(bed.store->recovering()) << "all but that one are there";
  ASSERT_EQ(bed.engine->in_flight(), 0U) << "it pauses";
  bed.close();
  bed.restart_engine();
  bed.open();
  for (int turns = 0; bed.store->recovering() && turns < 1'000; ++turns) bed.pump();
  EXPECT_EQ(bed.readable(kBlocks), kBlocks);
}

TEST(UnreadLog, RefusesTheStartAndLosesNothing) {
  Bed bed;
  bed.open();
  bed.fill(10);
  ASSERT_TRUE(bed.remove("a0", kGroupOpaque).ok());
  bed.close();
  const Places where = bed.places();
  bed.restart_engine();
  bed.engine->set_outage([where](const io::Request& request) {
    const bool log = std::ranges::any_of(std::array{0U, 1U}, [&](uint32_t copy) {
      const uint64_t from = where.log(copy, 0, 0);
      return request.offset >= from && request.offset < from + uint64_t{2} * where.log_half_pages * kPageBytes;
    });
    return request.op == io::Op::Read && log ? -EIO : 0;
  });
  const Fault fault = Store::open(*bed.tap, *bed.slots, bed.clock, bed.options, &bed.store);
  EXPECT_EQ(fault.status, Code::IoError);
  EXPECT_NE(fault.what.find("record log"), std::string::npos) << fault.what;
  bed.restart_engine();
  bed.open();
  EXPECT_EQ(bed.readable(10), 9);
  EXPECT_FALSE(bed.store->find(bed.key("a0", kGroupOpaque)).present);
}

// Both copies of the log as they were some time ago.
TEST(OlderLog, IsToldByTheFramesAndTheShardStartsEmpty) {
  Bed bed;
  bed.open();
  bed.fill(10);
  bed.close();
  const Places where = bed.places();
  const uint64_t log_bytes = uint64_t{2} * where.log_half_pages * kPageBytes;
  std::vector<std::byte> logs[2];
  for (uint32_t copy = 0; copy < 2; ++copy) {
    logs[copy].resize(log_bytes);
    bed.device->read(where.log(copy, 0, 0), logs[copy]);
  }
  bed.restart_engine();
  bed.open();
  ASSERT_TRUE(bed.remove("a0", kGroupOpaque).ok());
  bed.fill(20, "b");  // into segments that the old log knows nothing of
  bed.close();
  bed.restart_engine();
  BlockingIo io(*bed.engine);
  PageBuffer pages(2 * where.log_half_pages);
  for (uint32_t copy = 0; copy < 2; ++copy) {
    std::ranges::copy(logs[copy], pages.bytes().begin());
    ASSERT_TRUE(io.write(where.log(copy, 0, 0), pages.bytes()).ok());
  }
  bed.open();
  const auto& notes = bed.store->recovery().notes;
  const bool said = std::any_of(notes.begin(), notes.end(), [](const std::string& note) {
    return note.find("older than the frames") != std::string::npos;
  });
  EXPECT_TRUE(said);
  EXPECT_FALSE(bed.store->find(bed.key("a0", kGroupOpaque)).present) << "it was deleted";
  EXPECT_EQ(bed.gauges().blocks, 0U);
  EXPECT_TRUE(bed.put("c", kGroupOpaque, kBlockBytes, true).ok());
  bed.reopen();
  EXPECT_TRUE(bed.get("c", kGroupOpaque).ok());
  EXPECT_FALSE(bed.store->find(bed.key("a0", kGroupOpaque)).present);
}

// ---- Writers that wait -----------------------------------------------------------------------------------------------------

TEST(StarvedWriter, LooksAtWhatWaitsOnceAFrameAndTellsWhoWaits) {
  Bed bed(4);
  bed.open();
  // All that there is, held for good: leases may not have it all.
  NamespaceInfo info{"default"};
  info.pin_budget_bytes = 64 * MiB;
  ASSERT_TRUE(bed.limit(info).ok());
  int stored = 0;
  for (; stored < 40; ++stored) {
    StoreBed::Put put;
    if (!bed.begin_put(put, "a" + std::to_string(stored), kGroupOpaque, kBlockBytes, false).ok()) break;
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
