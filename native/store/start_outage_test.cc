// Starts and stops while reads fail, and a record log that cannot be read or is not of now.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <string>
#include <vector>

#include "store/durable/blocking_io.h"
#include "store/format/page.h"
#include "store/outage_fixture.h"

namespace halfstep::store {
namespace {

class StartInReadOutage : public ::testing::TestWithParam<bool> {};

TEST_P(StartInReadOutage, ReadsAgainLosesNothingAndSaysSo) {
  OutageBed bed;
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
  OutageBed bed;
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
  for (int i = 0; i < 60; ++i) (void)bed.put("b" + std::to_string(i), kGroupOpaque, kOutageBlockBytes, false);
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
  OutageBed bed;
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
  OutageBed bed;
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
  OutageBed bed;
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
  EXPECT_TRUE(bed.put("c", kGroupOpaque, kOutageBlockBytes, true).ok());
  bed.reopen();
  EXPECT_TRUE(bed.get("c", kGroupOpaque).ok());
  EXPECT_FALSE(bed.store->find(bed.key("a0", kGroupOpaque)).present);
}

}  // namespace
}  // namespace halfstep::store
