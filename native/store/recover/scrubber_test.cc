#include "store/recover/scrubber.h"

#include <deque>

#include "store/account/events.h"
#include "store/store_fixture.h"

namespace halfstep::store {
namespace scrubber_test {

constexpr uint32_t kSegments = 12;
constexpr uint32_t kBlockBytes = 64 * KiB;

// A store that scrubs as fast as the device goes, with some sealed segments.
class ScrubBed : public StoreBed {
 public:
  explicit ScrubBed(uint64_t rate = 1 << 30) : StoreBed(3, kSegments) {
    options.scrub_bytes_per_s = rate;
    options.rewrite_share = 0.5;
    open();
  }
  // As many as fill some segments, which are then sealed by a clean stop.
  void fill(int blocks) {
    for (int i = 0; i < blocks; ++i) ASSERT_EQ(put(name(i), kGroupOpaque, kBlockBytes, true), Code::Ok);
    reopen();
  }
  static std::string name(int number) { return "k" + std::to_string(number); }

  // The place of the first page of this block on the device.
  uint64_t find_on_device(std::string_view of) {
    const std::vector<std::byte> content = bytes_of_key(of, kBlockBytes);
    const Places places = places_of(geometry);
    std::vector<std::byte> page(kPageBytes);
    for (uint64_t at = places.segment(0); at < places.segment(kSegments); at += kPageBytes) {
      device->read(at, page);
      if (std::equal(page.begin(), page.end(), content.begin())) return at;
    }
    ADD_FAILURE() << of << " is not on the device";
    return 0;
  }
  void rot(std::string_view of) { device->flip_bit(find_on_device(of) + 100, 3); }
  const Counters& counters() const { return store->counters(); }
  // Until so many passes are over.
  void scrub(uint64_t passes = 1) {
    const uint64_t until = counters().scrub_passes + passes;
    for (int turns = 0; counters().scrub_passes < until; ++turns) {
      ASSERT_LT(turns, 100'000) << "a pass never ended";
      pump();
      if (engine->in_flight() == 0) clock.us = std::max(clock.us, std::min(store->next_turn_us(), clock.us + 61'000'000));
    }
  }
};

TEST(Scrubber, APassReadsEveryLiveBlockAndDropsNone) {
  ScrubBed bed;
  bed.fill(100);
  bed.scrub();
  EXPECT_EQ(bed.counters().scrub_blocks, 100U);
  EXPECT_GE(bed.counters().scrub_bytes, 100U * kBlockBytes);
  EXPECT_EQ(bed.counters().scrub_dropped_corrupt + bed.counters().scrub_dropped_io + bed.counters().scrub_pages_bad, 0U);
  EXPECT_EQ(bed.store->gauges().blocks, 100U);
}

TEST(Scrubber, DeletedBlocksAreNotRead) {
  ScrubBed bed;
  bed.fill(60);
  for (int i = 0; i < 30; ++i) ASSERT_TRUE(bed.remove(ScrubBed::name(i), kGroupOpaque).ok());
  bed.scrub(1);  // one may have been under way
  const uint64_t before = bed.counters().scrub_blocks;
  bed.scrub(1);
  EXPECT_EQ(bed.counters().scrub_blocks - before, 30U);
}

TEST(Scrubber, RotIsFoundBeforeAnybodyAsksAndStaysAwayOverARestart) {
  ScrubBed bed;
  bed.fill(40);
  bed.rot("k7");
  bed.scrub();
  EXPECT_EQ(bed.counters().scrub_dropped_corrupt, 1U);
  EXPECT_EQ(bed.counters().scrub_blocks, 39U);
  EXPECT_FALSE(bed.store->find(bed.key("k7", kGroupOpaque)).present);
  const Events& events = bed.store->events();
  EXPECT_EQ(events.counted(EventReason::Corrupt), 1U);
  bed.settle();  // its tombstone
  bed.crash(io::MemoryEngine::Crash::PowerCut);
  bed.open();
  EXPECT_FALSE(bed.store->find(bed.key("k7", kGroupOpaque)).present);
  EXPECT_TRUE(bed.store->find(bed.key("k8", kGroupOpaque)).present);
}

TEST(Scrubber, AnErrorThatDoesNotComeAgainLosesNothing) {
  ScrubBed bed;
  bed.fill(40);
  int failed = 0;
  bed.tap->tap = [&](io::Request& request) {
    const bool first = request.op == io::Op::Read && request.bytes >= kBlockBytes && failed == 0;
    failed += first ? 1 : 0;
    return first ? TapEngine::Fate::Fail : TapEngine::Fate::Pass;
  };
  bed.scrub(2);
  EXPECT_EQ(failed, 1);
  EXPECT_EQ(bed.counters().scrub_dropped_io + bed.counters().scrub_dropped_corrupt, 0U);
  EXPECT_EQ(bed.store->gauges().blocks, 40U);
}

TEST(Scrubber, ABlockThatTheDeviceDoesNotReadIsDroppedAloneAndOnlyAfterManyMinutes) {
  ScrubBed bed;
  bed.fill(40);
  const uint64_t place = bed.find_on_device("k7");
  bed.tap->tap = [&](io::Request& request) {
    const bool bad = request.op == io::Op::Read && request.offset <= place && place < request.offset + request.bytes;
    return bad ? TapEngine::Fate::Fail : TapEngine::Fate::Pass;
  };
  bed.scrub(2);
  EXPECT_EQ(bed.counters().scrub_dropped_io, 0U);
  EXPECT_GE(bed.counters().scrub_unread, 1U);
  EXPECT_EQ(bed.store->gauges().blocks, 40U);
  bed.scrub(12);
  EXPECT_EQ(bed.counters().scrub_dropped_io, 1U);
  EXPECT_EQ(bed.store->gauges().blocks, 39U);
  EXPECT_FALSE(bed.store->find(bed.key("k7", kGroupOpaque)).present);
}

TEST(Scrubber, ADamagedFooterIsCountedAndLosesNothing) {
  ScrubBed bed;
  bed.fill(40);
  const Places places = places_of(bed.geometry);
  const uint64_t place = bed.find_on_device("k7");
  const uint64_t number = (place - places.segment(0)) / bed.geometry.segment_bytes;
  bed.device->flip_bit(places.segment(static_cast<uint32_t>(number)) + bed.geometry.segment_bytes - kPageBytes + 40, 1);
  bed.scrub(1);
  EXPECT_GE(bed.counters().scrub_pages_bad, 1U);
  EXPECT_EQ(bed.store->gauges().blocks, 40U);
  EXPECT_EQ(bed.get("k7", kGroupOpaque), Code::Ok);
}

TEST(Scrubber, ASegmentThatForgetsOftenIsEmptiedAndRetired) {
  ScrubBed bed;
  bed.fill(28);  // one segment
  for (const char* name : {"k3", "k9", "k21"}) bed.rot(name);
  for (int i = 0; i < 28; ++i) bed.store->touch(std::vector<IndexKey>{bed.key(ScrubBed::name(i), kGroupOpaque)});
  const uint64_t before =
      bed.store->gauges().segments_free + bed.store->gauges().segments_sealed + bed.store->gauges().segments_open;
  bed.scrub();
  for (int turns = 0; bed.counters().segments_retired == 0 && turns < 100'000; ++turns) bed.pump();
  EXPECT_EQ(bed.counters().scrub_dropped_corrupt, 3U);
  EXPECT_EQ(bed.counters().segments_retired, 1U);
  EXPECT_EQ(bed.counters().segments_bad, 1U);
  EXPECT_EQ(bed.store->gauges().segments_free + bed.store->gauges().segments_sealed + bed.store->gauges().segments_open,
            before - 1);
  EXPECT_EQ(bed.store->gauges().blocks, 25U) << "what was used was moved off";
  for (int i = 0; i < 28; ++i) {
    const bool rotted = i == 3 || i == 9 || i == 21;
    EXPECT_EQ(bed.get(ScrubBed::name(i), kGroupOpaque), rotted ? Code::NotFound : Code::Ok) << i;
  }
  bed.settle();
  bed.crash(io::MemoryEngine::Crash::PowerCut);
  bed.open();
  EXPECT_EQ(bed.store->recovery().segments_bad, 1U);
}

TEST(Scrubber, StaysBelowItsRate) {
  constexpr uint64_t kRate = 1 * MiB;
  ScrubBed bed(kRate);
  bed.fill(100);
  const uint64_t began_us = bed.clock.us;
  bed.scrub();
  const double seconds = static_cast<double>(bed.clock.us - began_us) / 1e6;
  EXPECT_GT(seconds, 5.0) << "6.4 MB and footers";
  EXPECT_LE(static_cast<double>(bed.counters().scrub_bytes), static_cast<double>(kRate) * seconds + 512.0 * 1024);
}

TEST(Scrubber, GivesWayToReadsButNotForEver) {
  ScrubBed bed;
  bed.fill(40);
  // A read that stays on its way: the scrub waits, then goes on.
  struct Held {
    Read read;
    bool done = false;
  } held;
  held.read.key = bed.key("k1", kGroupOpaque);
  held.read.owner = &held;
  held.read.complete = [](Read& read) { static_cast<Held*>(read.owner)->done = true; };
  Read* window[] = {&held.read};
  ASSERT_TRUE(bed.store->begin_reads(window).ok());
  const uint64_t before = bed.counters().scrub_bytes;
  bed.store->turn();
  EXPECT_EQ(bed.counters().scrub_bytes, before) << "somebody waits for a block";
  bed.clock.us += 300'000;
  bed.store->turn();
  EXPECT_GT(bed.counters().scrub_bytes, before) << "and has waited long enough";
  while (!held.done) bed.pump();
  ASSERT_TRUE(held.read.status.ok());
  bed.store->unpin(held.read.resident);
}

TEST(Scrubber, KeepsItsRateThoughSomebodyAlwaysHasTheDevice) {
  constexpr uint64_t kRate = 2 * MiB;
  ScrubBed bed(kRate);
  bed.fill(100);
  const uint64_t until_us = bed.clock.us + 2'000'000;
  std::deque<StoreBed::Put> puts;
  for (int i = 0; bed.clock.us < until_us; bed.clock.us += 5000, ++i) {
    ASSERT_TRUE(bed.begin_put(puts.emplace_back(), "busy" + std::to_string(i), kGroupPlain, 16384, true).ok());
    bed.pump();
  }
  while (!puts.back().done) bed.pump();
  EXPECT_GT(bed.counters().scrub_bytes, kRate * 3 / 2);
  EXPECT_LE(bed.counters().scrub_bytes, kRate * 2 + kRate / 2);
}

TEST(Scrubber, TheAutomaticRateIsAPassInTwoWeeksWithinBounds) {
  EXPECT_EQ(Scrubber::auto_rate(GiB), 256 * KiB);
  EXPECT_EQ(Scrubber::auto_rate(uint64_t{8} << 40), (uint64_t{8} << 40) / (14 * 24 * 3600));
  EXPECT_EQ(Scrubber::auto_rate(uint64_t{1} << 50), 64 * MiB);
}

TEST(Scrubber, ARateOfNothingReadsNothing) {
  ScrubBed bed(0);
  bed.fill(40);
  bed.clock.us += 1'000'000'000;
  bed.settle();
  EXPECT_EQ(bed.counters().scrub_bytes, 0U);
}

}  // namespace scrubber_test
}  // namespace halfstep::store
