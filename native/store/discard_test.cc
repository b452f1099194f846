// Reclaimed segments are discarded: when, how fast, and what gives way to whom.
#include <gtest/gtest.h>

#include <set>
#include <string>

#include "store/store_fixture.h"

namespace halfstep::store {
namespace {

// A store on a device that takes discards, watched: what is discarded must be nobody's.
class DiscardBed : public StoreBed {
 public:
  explicit DiscardBed(uint64_t bytes_per_s = Options().discard_bytes_per_s) : StoreBed(1, 12) {
    options.discard_bytes_per_s = bytes_per_s;
    device->take_discards();
    restart_engine();
  }
  void open() {
    empty_.clear();  // recovery reads everything
    watch();
    StoreBed::open();
  }
  // Rounds through the whole store.
  void fill(int rounds) {
    for (int i = 0; i < rounds * 80; ++i) EXPECT_TRUE(put("block " + std::to_string(written_++), kGroupOpaque, 256 * KiB).ok());
  }
  const Counters& counters() const { return store->counters(); }

 private:
  void watch() {
    tap->tap = [this, places = places_of(geometry)](io::Request& request) {
      const bool in_segments = request.offset >= places.segment(0) && request.offset < places.segment(geometry.segments);
      if (request.op == io::Op::Flush || !in_segments) {
        EXPECT_NE(request.op, io::Op::Discard) << "what is no segment is never empty";
        return TapEngine::Fate::Pass;
      }
      const auto segment = static_cast<uint32_t>((request.offset - places.segment(0)) / kSegmentBytes);
      if (request.op == io::Op::Discard) {
        EXPECT_LE(request.offset + request.bytes, places.segment(segment + 1));
        EXPECT_EQ(request.placement, 0U);
        empty_.insert(segment);
      } else if (request.op == io::Op::Write) {
        empty_.erase(segment);
      } else {
        EXPECT_EQ(empty_.count(segment), 0U) << "segment " << segment << " was discarded and is read";
      }
      return TapEngine::Fate::Pass;
    };
  }
  int written_ = 0;
  std::set<uint32_t> empty_;
};

TEST(Discard, EmptiesSegmentsBeforeTheyAreWrittenAgain) {
  DiscardBed bed;
  bed.open();
  EXPECT_TRUE(bed.store->gauges().discards);
  bed.fill(1);
  for (int round = 0; round < 20; ++round) {
    bed.settle();  // time for a discard
    for (int i = 0; i < 4; ++i) {
      ASSERT_TRUE(bed.put("again " + std::to_string(round * 4 + i), kGroupOpaque, 256 * KiB).ok());
    }
  }
  EXPECT_GT(bed.counters().segments_discarded, 5U);
  EXPECT_GE(bed.counters().bytes_discarded, bed.counters().segments_discarded * StoreBed::kSegmentBytes);
  EXPECT_EQ(bed.counters().bytes_discarded, bed.engine->counters().discard_bytes);
  EXPECT_EQ(bed.counters().discards_failed, 0U);
  EXPECT_TRUE(bed.get("again 79", kGroupOpaque).ok());
  bed.close();
}

TEST(Discard, KeepsItsRate) {
  constexpr uint64_t kBytesPerS = 1 * MiB;
  DiscardBed bed(kBytesPerS);
  bed.open();
  const uint64_t began_us = bed.clock.us;
  const uint64_t before = bed.counters().bytes_discarded;
  uint64_t last = before;
  while (bed.clock.us < began_us + 1'500'000) {
    bed.pump();
    const uint64_t bytes = bed.counters().bytes_discarded;
    EXPECT_LE(bytes - before, kBytesPerS * (bed.clock.us - began_us) / 1'000'000 + StoreBed::kSegmentBytes / 8);
    EXPECT_LE(bytes - last, StoreBed::kSegmentBytes / 8) << "more than one part at once";
    last = bytes;
  }
  EXPECT_GT(last, kBytesPerS) << "of the segment that is made ready while nobody writes";
}

TEST(Discard, AWriterThatWantsASegmentGetsItAsItIs) {
  DiscardBed slow(1 * KiB);
  slow.open();
  DiscardBed none(0);
  none.open();
  slow.fill(3);
  none.fill(3);
  EXPECT_GT(slow.counters().discards_skipped, 20U);
  EXPECT_EQ(slow.counters().segments_discarded, 0U);
  EXPECT_EQ(slow.counters().writes_throttled, none.counters().writes_throttled);
  // Longer by no more than what was under way when somebody came: a part lands within a turn or two.
  EXPECT_LT(slow.clock.us, none.clock.us + none.clock.us / 10);
  slow.close();
}

TEST(Discard, IsOffWhereTheDeviceTakesNoneOrNoneAreWanted) {
  DiscardBed none(0);
  none.open();
  none.fill(2);
  EXPECT_FALSE(none.store->gauges().discards);
  EXPECT_EQ(none.engine->counters().discards, 0U);
  EXPECT_EQ(none.counters().discards_skipped, 0U);
  StoreBed file(1, 12);
  file.open();
  EXPECT_FALSE(file.store->gauges().discards);
}

TEST(Discard, FailuresInARowSwitchItOffAndHurtNothingElse) {
  DiscardBed bed;
  io::MemoryEngine::Rule rule;
  rule.op = io::Op::Discard;
  bed.engine->inject(rule);
  bed.open();
  for (int round = 0; round < 60; ++round) {
    bed.settle();
    for (int i = 0; i < 4; ++i) {
      ASSERT_TRUE(bed.put("block " + std::to_string(round * 4 + i), kGroupOpaque, 256 * KiB).ok());
    }
  }
  EXPECT_EQ(bed.counters().discards_failed, 3U);
  EXPECT_FALSE(bed.store->gauges().discards);
  EXPECT_EQ(bed.counters().bytes_discarded, 0U);
  EXPECT_TRUE(bed.get("block 239", kGroupOpaque).ok());
  bed.close();
}

TEST(Discard, ADeviceThatSaysThatItTakesNoneIsAskedOnce) {
  DiscardBed bed;
  io::MemoryEngine::Rule rule;
  rule.op = io::Op::Discard;
  rule.error = -EOPNOTSUPP;
  bed.engine->inject(rule);
  bed.open();
  bed.fill(2);
  bed.settle();
  EXPECT_EQ(bed.counters().discards_failed, 1U);
  EXPECT_FALSE(bed.store->gauges().discards);
}

TEST(Discard, ACloseWaitsForThePartUnderWayAndForNoMore) {
  DiscardBed bed(64 * KiB);
  bed.open();
  for (int turns = 0; bed.engine->counters().discards == 0 && turns < 1000; ++turns) bed.pump();
  ASSERT_GT(bed.engine->counters().discards, 0U);
  const uint64_t before_us = bed.clock.us;
  bed.close();
  EXPECT_EQ(bed.clock.us, before_us);
  EXPECT_EQ(bed.engine->in_flight(), 0U);
  bed.restart_engine();
  bed.open();
  bed.fill(1);
}

}  // namespace
}  // namespace halfstep::store
