// A store that serves while it is being recovered: what is answered before all that is on flash is known.
#include <gtest/gtest.h>

#include <map>

#include "store/format/page.h"
#include "store/twin_fixture.h"

namespace halfstep::store {
namespace recovery_test {

constexpr uint32_t kBlockBytes = 16384;

class ServingRecovery : public testing::Test {
 protected:
  void SetUp() override {
    bed_.open();
    for (uint64_t i = 0; bed_.store->gauges().segments_sealed < 4; ++i) {
      names_.push_back("block " + std::to_string(i));
      ASSERT_EQ(bed_.put(names_.back(), kGroupPlain, kBlockBytes, true), Code::Ok);
    }
  }
  void start() {
    bed_.close();
    bed_.restart_engine();
    bed_.options.recover_before_us = 0;
    bed_.open();
    ASSERT_TRUE(bed_.store->recovering());
    EXPECT_GT(bed_.store->recovery().segments_left, 0U);
  }
  void recover() {
    while (bed_.store->recovering()) bed_.pump();
    EXPECT_EQ(bed_.store->recovery().segments_left, 0U);
  }
  bool there(const std::string& name) { return bed_.store->find(bed_.key(name)).present; }
  // By what it is answered at once.
  Status ask(const std::string& name, void (Store::*verb)(Change&)) {
    change_ = {};
    change_.key = bed_.key(name);
    change_.holder = 7;
    change_.for_s = 100;
    change_.done = [](Change&) {};
    ((*bed_.store).*verb)(change_);
    return change_.status;
  }

  StoreBed bed_{31, 16};
  std::vector<std::string> names_;
  Change change_;
};

TEST_F(ServingRecovery, FindsTheNewestSegmentsFirstAndAllInTheEnd) {
  start();
  EXPECT_FALSE(there(names_.front()));
  while (!there(names_.back())) bed_.pump();
  EXPECT_TRUE(bed_.store->recovering());
  EXPECT_FALSE(there(names_.front()));
  EXPECT_EQ(bed_.get(names_.back()), Code::Ok);
  recover();
  EXPECT_EQ(bed_.store->recovery().blocks, names_.size());
  for (const std::string& name : names_) EXPECT_EQ(bed_.get(name), Code::Ok) << name;
}

TEST_F(ServingRecovery, TakesNothingInBeforeItKnowsAll) {
  start();
  while (!there(names_.back())) bed_.pump();
  StoreBed::Put put;
  EXPECT_EQ(bed_.begin_put(put, "new", kGroupPlain, kBlockBytes, true), Status(Code::Throttled, kThrottledRecovery));
  EXPECT_EQ(bed_.begin_put(put, names_.front(), kGroupPlain, kBlockBytes, true), Status(Code::Throttled, kThrottledRecovery));
  EXPECT_EQ(bed_.begin_put(put, names_.back(), kGroupPlain, kBlockBytes, true), Code::Present);
  EXPECT_EQ(ask(names_.back(), &Store::expire), Status(Code::Throttled, kThrottledRecovery));
  EXPECT_EQ(ask(names_.back(), &Store::hold), Status(Code::Throttled, kThrottledRecovery));
  EXPECT_EQ(ask(names_.front(), &Store::expire), Code::NotFound);
  EXPECT_EQ(bed_.store->counters().throttled_recovering, 4U);
  recover();
  EXPECT_EQ(bed_.put("new"), Code::Ok);
  EXPECT_EQ(bed_.put(names_.front()), Code::Present);
}

TEST_F(ServingRecovery, DeletesWhatItHasNotFoundYet) {
  start();
  ASSERT_FALSE(there(names_.front()));
  EXPECT_EQ(bed_.remove(names_.front()), Code::NotFound);
  recover();
  EXPECT_FALSE(there(names_.front()));
  EXPECT_EQ(bed_.store->recovery().blocks_dropped_deleted, 1U);
  bed_.crash(io::MemoryEngine::Crash::PowerCut);
  bed_.open();
  recover();
  EXPECT_FALSE(there(names_.front()));
  EXPECT_EQ(bed_.get(names_[1]), Code::Ok);
}

TEST_F(ServingRecovery, ReleasesAPinThatItHasNotTakenYet) {
  ASSERT_EQ(bed_.limit({.name = "default", .pin_budget_bytes = 1 * MiB}), Code::Ok);
  ASSERT_EQ(bed_.pin(names_[0], 7), Code::Ok);
  ASSERT_EQ(bed_.pin(names_[1], 7), Code::Ok);
  start();
  EXPECT_EQ(bed_.release(names_[0], 7), Code::Ok);
  recover();
  EXPECT_EQ(bed_.store->recovery().pins, 1U);
  EXPECT_EQ(bed_.store->gauges().pins, 1U);
}

TEST_F(ServingRecovery, GoesOnAfterACrashInItsMiddle) {
  start();
  while (!there(names_.back())) bed_.pump();
  bed_.crash(io::MemoryEngine::Crash::PowerCut);
  bed_.open();
  recover();
  EXPECT_EQ(bed_.store->recovery().blocks, names_.size());
}

TEST_F(ServingRecovery, IsEndedByClose) {
  start();
  bed_.reopen();
  recover();
  EXPECT_EQ(bed_.store->recovery().blocks, names_.size());
}

TEST_F(ServingRecovery, WalksASegmentWhoseFooterIsDamaged) {
  bed_.close();
  const Places places = places_of(bed_.geometry);
  // A page of the footer's entries, not its last one: that the segment is sealed is still said.
  for (uint32_t segment = 0; segment < places.geometry.segments; ++segment) {
    bed_.device->flip_bit(places.segment(segment) + (places.segment_pages() - 2) * uint64_t{kPageBytes} + 200, 5);
  }
  bed_.restart_engine();
  bed_.options.recover_before_us = 0;
  bed_.open();
  ASSERT_TRUE(bed_.store->recovering());
  recover();
  for (const std::string& name : names_) EXPECT_EQ(bed_.get(name), Code::Ok) << name;
}

TEST_F(ServingRecovery, ListsWhatItFoundInADamagedFooterAlone) {
  bed_.close();
  const Places places = places_of(bed_.geometry);
  // A page of each footer, so that what is left of it counts beside the frames, and the header of each first frame.
  for (uint32_t segment = 0; segment < places.geometry.segments; ++segment) {
    bed_.device->flip_bit(places.segment(segment) + (places.segment_pages() - 2) * uint64_t{kPageBytes} + 200, 5);
    bed_.device->flip_bit(places.segment(segment) + 200, 5);
  }
  bed_.restart_engine();
  bed_.open();
  uint64_t found = 0;
  for (const std::string& name : names_) found += there(name) ? 1 : 0;
  EXPECT_GT(found, 0U);
  uint64_t listed = 0;
  bed_.list("default", 0, UINT32_MAX, [&](const Listed&) { ++listed; });
  EXPECT_EQ(listed, found);
}

// A segment without a footer, of frames of one block each, and reads of it that go wrong while media are right.
class Misread : public testing::Test {
 protected:
  static constexpr uint32_t kFrames = 20, kFramePages = 2 + kBlockBytes / kPageBytes;  // entries, table

  void SetUp() override {
    bed_.open();
    for (uint32_t i = 0; i < kFrames; ++i) {
      names_.push_back("block " + std::to_string(i));
      ASSERT_EQ(bed_.put(names_.back(), kGroupPlain, kBlockBytes, true), Code::Ok);
    }
    bed_.crash(io::MemoryEngine::Crash::PowerCut);
  }
  // The segment that a read begins in the frames of; its number among those of that segment from 0 on.
  void each_read(const std::function<TapEngine::Fate(io::Request&, uint32_t segment, uint32_t number)>& spoil) {
    bed_.tap->tap = [this, spoil](io::Request& request) {
      const Places places = places_of(bed_.geometry);
      for (uint32_t segment = 0; request.op == io::Op::Read && segment < places.geometry.segments; ++segment) {
        const uint64_t first = places.segment(segment);
        if (request.offset < first || request.offset >= first + MiB) continue;
        return spoil(request, segment, reads_[segment]++);
      }
      return TapEngine::Fate::Pass;
    };
  }
  void all_are_there() {
    bed_.open();
    bed_.tap->tap = {};
    EXPECT_EQ(bed_.store->recovery().blocks, kFrames);
    EXPECT_EQ(bed_.store->recovery().segments_bad, 0U);
    for (const std::string& name : names_) EXPECT_EQ(bed_.get(name), Code::Ok) << name;
    bed_.reopen();
    for (const std::string& name : names_) EXPECT_EQ(bed_.get(name), Code::Ok) << name;
  }

  StoreBed bed_{33, 8};
  std::vector<std::string> names_;
  std::map<uint32_t, uint32_t> reads_;
};

TEST_F(Misread, OfAWholeSegmentIsReadAgainBeforeItCountsAsEmpty) {
  each_read([](io::Request& request, uint32_t, uint32_t number) {
    if (number == 0) request.offset = 0;
    return TapEngine::Fate::Pass;
  });
  all_are_there();
}

TEST_F(Misread, ThatFailsTwiceDoesNotGiveTheSegmentUp) {
  // The window, and then its first page alone.
  each_read([](io::Request&, uint32_t, uint32_t number) { return number < 2 ? TapEngine::Fate::Fail : TapEngine::Fate::Pass; });
  all_are_there();
}

TEST_F(Misread, OfTheLastFramesHeaderIsReadAgainBeforeTheWalkEnds) {
  each_read([this](io::Request&, uint32_t segment, uint32_t number) {
    const uint64_t page = (kFrames - 1) * kFramePages;
    if (number < 2) bed_.device->flip_bit(places_of(bed_.geometry).segment(segment) + page * kPageBytes + 100, 2);  // and back
    return TapEngine::Fate::Pass;
  });
  all_are_there();
}

// ---- Two copies of one birth -----------------------------------------------------------------------------------------------

TEST(Twins, ACopyThatAFooterNamesGoesBeforeOneThatWasWalked) {
  TwinBed bed(51);
  bed.make_twins();
  bed.open();
  EXPECT_GT(bed.store->recovery().segments_by_frames, 0U);
  for (uint32_t i = 0; i < TwinBed::kTwins; ++i) {
    EXPECT_EQ(bed.segment_of(TwinBed::twin(i)), bed.original()) << i;
    EXPECT_EQ(bed.get(TwinBed::twin(i)), Code::Ok) << i;
  }
  // What the newer segment says twice is nobody's any more, and it may be used again.
  bed.crash(io::MemoryEngine::Crash::PowerCut);
  bed.open();
  for (uint32_t i = 0; i < TwinBed::kTwins; ++i) EXPECT_EQ(bed.get(TwinBed::twin(i)), Code::Ok) << i;
}

// A start reads a copy wrongly, calls it void in the footer that it writes, and dies before that footer has its last page.
TEST(Twins, NoneIsInThePlaceThatAHalfWrittenFooterCallsVoid) {
  TwinBed bed(52);
  bed.make_twins();
  const Places places = places_of(bed.geometry);
  const uint64_t end = places.segment(bed.newer()) + TwinBed::kSegmentBytes;
  uint64_t misread = 0;
  for (const uint64_t at : bed.offsets_of(TwinBed::twin(0))) misread = bed.segment_at(at) == bed.newer() ? at : misread;
  bed.device->flip_bit(misread + 100, 3);
  bed.tap->tap = [&](io::Request& request) {
    if (request.op != io::Op::Write || request.offset + request.bytes != end) return TapEngine::Fate::Pass;
    request.bytes -= kPageBytes;
    return TapEngine::Fate::LastToArrive;
  };
  (void)!Store::open(*bed.tap, *bed.slots, bed.clock, bed.options, &bed.store).ok();
  ASSERT_TRUE(bed.tap->dead()) << "no footer was written";
  bed.crash(io::MemoryEngine::Crash::Killed);
  bed.device->flip_bit(misread + 100, 3);

  std::vector<std::byte> page(kPageBytes);
  bed.device->read(end - 2 * kPageBytes, page);
  const auto header = load_le<format::PageHeader>(page.data());
  ASSERT_EQ(header.kind, static_cast<uint8_t>(format::PageKind::FooterEntries));
  uint32_t voids = 0;
  for (uint32_t i = 0; i < header.entries; ++i) voids += (entry_at(page, i).flags & format::kEntryVoid) != 0 ? 1 : 0;
  ASSERT_GE(voids, 1U);
  bed.device->read(end - kPageBytes, page);
  ASSERT_NE(load_le<format::PageHeader>(page.data()).generation, header.generation) << "the last page arrived";

  bed.open();
  for (uint32_t i = 0; i < TwinBed::kTwins; ++i) {
    EXPECT_EQ(bed.segment_of(TwinBed::twin(i)), bed.original()) << i;
    EXPECT_EQ(bed.get(TwinBed::twin(i)), Code::Ok) << i;
  }
}

}  // namespace recovery_test
}  // namespace halfstep::store
