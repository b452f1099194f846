#include "store/write/streams.h"

#include <gtest/gtest.h>

#include <map>
#include <set>

#include "store/store_fixture.h"

namespace halfstep::store {
namespace streams_test {

std::string name_of(uint64_t number) { return "block " + std::to_string(number); }

TEST(Streams, ClassesArePowersOfTwoFromAMinuteToADay) {
  EXPECT_EQ(Streams::ttl_class_of(0), 0);
  EXPECT_EQ(Streams::ttl_class_of(1), 1);
  EXPECT_EQ(Streams::ttl_class_of(60), 1);
  EXPECT_EQ(Streams::ttl_class_of(61), 2);
  EXPECT_EQ(Streams::ttl_class_of(120), 2);
  EXPECT_EQ(Streams::ttl_class_of(240), 3);
  EXPECT_EQ(Streams::ttl_class_of(600), 5);
  EXPECT_EQ(Streams::ttl_class_of(512 * 60), 10);
  EXPECT_EQ(Streams::ttl_class_of(86'400), 11);
  EXPECT_EQ(Streams::ttl_class_of(86'401), 0);
  EXPECT_EQ(Streams::ttl_class_of(UINT32_MAX), 0);
}

TEST(Streams, WhatWillNotLiveLongHasAStreamOfItsOwn) {
  EXPECT_EQ(Streams::stream_of(0, 0), kStreamDefault);
  EXPECT_EQ(Streams::stream_of(600, 0), kStreamShort);
  EXPECT_EQ(Streams::stream_of(601, 0), kStreamDefault);
  EXPECT_EQ(Streams::stream_of(0, static_cast<uint8_t>(Hint::FinalTurn)), kStreamShort);
  EXPECT_EQ(Streams::stream_of(0, static_cast<uint8_t>(Hint::Thinking)), kStreamDefault);
  EXPECT_EQ(Streams::stream_of(0, static_cast<uint8_t>(Hint::ToolPause)), kStreamDefault);
  EXPECT_EQ(Streams::stream_of(0, static_cast<uint8_t>(Hint::SystemPrompt)), kStreamDefault);
}

// Which placements were written to which segments, and what was read.
struct Watch {
  explicit Watch(StoreBed& bed) {
    const Places places = places_of(bed.geometry);
    bed.tap->tap = [this, places](io::Request& request) {
      const bool in_segments = request.offset >= places.segment(0) && request.offset < places.segment(places.geometry.segments);
      if (request.op == io::Op::Flush || !in_segments) return TapEngine::Fate::Pass;
      const auto segment = static_cast<uint32_t>((request.offset - places.segment(0)) / places.geometry.segment_bytes);
      if (request.op == io::Op::Write) placements[segment].insert(request.placement);
      if (request.op == io::Op::Write) bytes_written += request.bytes;
      if (request.op == io::Op::Read) bytes_read += request.bytes;
      return TapEngine::Fate::Pass;
    };
  }
  std::map<uint32_t, std::set<uint8_t>> placements;
  uint64_t bytes_written = 0, bytes_read = 0;
};

TEST(Streams, ASegmentHoldsBlocksOfOneStreamAndEveryWriteSaysWhich) {
  StoreBed bed(1, 64, 16 * MiB);
  bed.open();
  Watch watch(bed);
  for (uint64_t i = 0; i < 1500; ++i) {
    ASSERT_EQ(bed.put(name_of(i), kGroupPlain, 16384, false, i % 3 == 0 ? 0 : i % 3 == 1 ? 300 : 7200), Code::Ok);
    EXPECT_LE(bed.store->gauges().segments_open, 4U + 1U);  // and one that waits for its footer
  }
  bed.settle();
  std::map<uint8_t, int> segments;
  for (const auto& [segment, placements] : watch.placements) {
    EXPECT_EQ(placements.size(), 1U) << "segment " << segment;
    ++segments[*placements.begin()];
  }
  EXPECT_GT(segments[kStreamShort], 3);
  EXPECT_GT(segments[kStreamDefault], 6);
}

// The store header, the record log and the touch maps are stream 0, which no segment is.
TEST(Streams, WhatIsNoSegmentIsWrittenToStreamZero) {
  StoreBed bed(5, 12);
  std::map<std::string, std::set<uint8_t>> placements;
  const Places places = places_of(bed.geometry);
  const auto area_of = [&](uint64_t offset) -> std::string {
    if (offset < places.log(0, 0, 0) || offset >= places.header(1)) return "header";
    if (offset < places.touch_map(0) || offset >= places.log(1, 0, 0)) return "log";
    return offset < places.segment(0) ? "touch map" : "segment";
  };
  bed.tap->tap = [&](io::Request& request) {
    if (request.op == io::Op::Write) placements[area_of(request.offset)].insert(request.placement);
    return TapEngine::Fate::Pass;
  };
  bed.open();
  for (uint64_t i = 0; i < 400; ++i) {
    ASSERT_EQ(bed.put(name_of(i), kGroupOpaque, 256 * KiB, false, i % 2 == 0 ? 0 : 300), Code::Ok);
    (void)bed.get(name_of(i / 20 * 20), kGroupOpaque);  // some are used again: reclaim copies them
  }
  ASSERT_EQ(bed.remove(name_of(399), kGroupOpaque), Code::Ok);
  ASSERT_TRUE(bed.store->close().ok());
  EXPECT_GT(bed.store->counters().blocks_rewritten, 0U);
  EXPECT_GT(bed.store->counters().touch_pages, 0U);
  for (const char* area : {"header", "log", "touch map"}) EXPECT_EQ(placements[area], (std::set<uint8_t>{0})) << area;
  EXPECT_EQ(placements["segment"], (std::set<uint8_t>{kStreamDefault, kStreamKept}));
}

// Where events are remembered footers are read, for the names; blocks never.
TEST(Streams, ExpiredSegmentsAreFreeWithoutBeingRead) {
  for (const uint32_t events_max : {0U, 65'536U}) {
    StoreBed bed(2, 64, 16 * MiB);
    bed.options.events_max = events_max;
    bed.open();
    ASSERT_EQ(bed.put("for ever"), Code::Ok);
    // More than the store holds, all of it short-lived: what has expired gives way, and nothing else.
    uint64_t i = 0;
    for (int round = 0; round < 12; ++round) {
      for (int n = 0; n < 1000; ++n) ASSERT_EQ(bed.put(name_of(i++), kGroupPlain, 16384, false, 60), Code::Ok);
      bed.clock.wall += 61;
    }
    Watch watch(bed);
    for (int n = 0; n < 1000; ++n) ASSERT_EQ(bed.put(name_of(i++), kGroupPlain, 16384, false, 60), Code::Ok);
    EXPECT_LE(watch.bytes_read * 25, events_max == 0 ? 0 : watch.bytes_written);
    bed.tap->tap = nullptr;
    EXPECT_EQ(bed.store->counters().blocks_evicted_age, 0U);
    EXPECT_GT(bed.store->counters().blocks_evicted_expired, 4000U);
    EXPECT_EQ(bed.store->counters().blocks_rewritten, 0U);
    EXPECT_EQ(bed.get("for ever"), Code::Ok);
  }
}

TEST(Streams, AClassWithoutAWriterGoesToTheNextLongerOne) {
  StoreBed bed(3, 64, 16 * MiB);
  bed.open();
  Watch watch(bed);
  // Two writers for classes: these take them.
  ASSERT_EQ(bed.put("ten minutes", kGroupPlain, 16384, false, 600), Code::Ok);
  ASSERT_EQ(bed.put("a day", kGroupPlain, 16384, false, 86'400), Code::Ok);
  ASSERT_EQ(bed.put("a minute", kGroupPlain, 16384, false, 60), Code::Ok);          // with the ten minutes
  ASSERT_EQ(bed.put("an hour", kGroupPlain, 16384, false, 3600), Code::Ok);         // with the day
  ASSERT_EQ(bed.put("two days", kGroupPlain, 16384, false, 2 * 86'400), Code::Ok);  // with what lives for ever
  ASSERT_EQ(bed.put("for ever"), Code::Ok);
  bed.settle();
  EXPECT_EQ(bed.store->gauges().segments_open, 3U);
  EXPECT_EQ(watch.placements.size(), 3U);
}

TEST(Streams, SmallStoresSpareTheSegments) {
  StoreBed bed(4, 8);
  bed.open();
  ASSERT_EQ(bed.put("a minute", kGroupPlain, 16384, false, 60), Code::Ok);
  ASSERT_EQ(bed.put("a day", kGroupPlain, 16384, false, 86'400), Code::Ok);
  ASSERT_EQ(bed.put("for ever"), Code::Ok);
  bed.settle();
  EXPECT_EQ(bed.store->gauges().segments_open, 1U);
}

}  // namespace streams_test
}  // namespace halfstep::store
