#include "store/read/stager.h"

#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "store/memory/staged_blocks.h"
#include "store/store_fixture.h"

namespace halfstep::store {
namespace stager_test {

constexpr uint32_t kBlockBytes = 64 * KiB;
constexpr uint64_t kKeepUs = 1'000'000;

// Blocks on flash, none of them in memory; a quarter of 8 MiB less the store's own is for staged ones.
class StageBed : public StoreBed {
 public:
  explicit StageBed(uint64_t arena_bytes = 16 * MiB) : StoreBed(11, 16, arena_bytes) {
    open();
    for (int i = 0; i < kBlocks; ++i) EXPECT_EQ(put(name(i), kGroupOpaque, kBlockBytes, true), Code::Ok);
    reopen();
    reads_before_ = engine->counters().reads;
  }
  static constexpr int kBlocks = 100;
  static std::string name(int number) { return "k" + std::to_string(number); }

  struct Asked {
    Stage stage;
    int number = 0;
    std::vector<int>* ended = nullptr;
    bool done = false;
  };
  Asked& stage(int number, uint8_t priority = 0, bool follow = false, uint64_t keep_us = kKeepUs) {
    Asked& asked = asked_.emplace_back();
    asked.stage.key = key(name(number), kGroupOpaque);
    asked.stage.component = wire::Component::of(kGroupOpaque, 0, 0);
    asked.stage.priority = priority;
    asked.stage.follow = follow;
    asked.stage.keep_us = keep_us;
    asked.stage.owner = &asked;
    asked.number = number;
    asked.ended = &ended_;
    asked.stage.done = [](Stage& stage) {
      auto& self = *static_cast<Asked*>(stage.owner);
      EXPECT_FALSE(self.done) << "done twice";
      self.done = true;
      self.ended->push_back(self.number);
    };
    store->stage(asked.stage);
    return asked;
  }
  // Turns in which so little time passes that nothing that is kept comes to its end.
  void turns(int count) {
    for (int i = 0; i < count; ++i) {
      pump();
      clock.us -= 90;
    }
  }
  Asked& staged(int number, uint8_t kind = 0) {
    Asked& asked = stage(number);
    asked.stage.kind = kind;
    for (int i = 0; i < 1000 && !asked.done; ++i) turns(1);
    EXPECT_TRUE(asked.done);
    return asked;
  }
  uint64_t device_reads() const { return engine->counters().reads - reads_before_; }
  const Counters& counters() const { return store->counters(); }
  // From now on blocks come in the order in which their reads began.
  void serve_in_order() {
    faults.shuffle = false;
    reopen();
    reads_before_ = engine->counters().reads;
  }
  // Whose stages are done, in that order.
  const std::vector<int>& ended() const { return ended_; }

 private:
  uint64_t reads_before_ = 0;
  std::vector<int> ended_;
  std::deque<Asked> asked_;
};

TEST(Stager, AStagedBlockIsReadFromMemoryAndCountedAsUsed) {
  StageBed bed;
  EXPECT_EQ(bed.staged(3).stage.status, Code::Ok);
  EXPECT_TRUE(bed.staged(3).stage.was_there);
  EXPECT_EQ(bed.counters().staged, 1U);
  EXPECT_EQ(bed.store->gauges().staged_bytes, kBlockBytes);
  const uint64_t reads = bed.device_reads();
  EXPECT_EQ(bed.get(bed.name(3), kGroupOpaque), Code::Ok);
  EXPECT_EQ(bed.device_reads(), reads);
  EXPECT_EQ(bed.counters().staged_used, 1U);
  EXPECT_EQ(bed.counters().hits_memory, 1U);
  EXPECT_EQ(bed.counters().hits_flash, 0U) << "bringing a block is no hit";
  EXPECT_EQ(bed.store->gauges().staged_bytes, 0U);
  EXPECT_EQ(bed.store->gauges().memory_pinned_bytes, 0U);
}

TEST(Stager, WhatIsNotThereIsSaidToBeAbsent) {
  StageBed bed;
  EXPECT_EQ(bed.staged(1000).stage.status, Code::NotFound);
  EXPECT_EQ(bed.store->gauges().staged_bytes, 0U);
  EXPECT_EQ(bed.remove(bed.name(1), kGroupOpaque), Code::Ok);
  EXPECT_EQ(bed.staged(1).stage.status, Code::NotFound);
}

TEST(Stager, WhatNobodyReadsIsKeptForItsTimeAndNoLonger) {
  StageBed bed;
  bed.staged(3);
  EXPECT_EQ(bed.store->gauges().memory_pinned_bytes, kBlockBytes);
  EXPECT_LE(bed.store->next_turn_us(), bed.clock.us + kKeepUs);
  bed.clock.us += kKeepUs;
  bed.pump();
  EXPECT_EQ(bed.store->gauges().memory_pinned_bytes, 0U);
  EXPECT_EQ(bed.store->gauges().staged_bytes, 0U);
  EXPECT_EQ(bed.counters().staged_unused, 1U);
  EXPECT_EQ(bed.counters().staged_used, 0U);
}

TEST(Stager, AGetThatComesWhileItsBlockIsOnItsWaySharesTheRead) {
  StageBed bed;
  StageBed::Asked& asked = bed.stage(5);
  std::vector<const io::Request*> ahead;
  bed.tap->tap = [&](io::Request& request) {
    if (request.io_class == io::IoClass::Prefetch) ahead.push_back(&request);
    return TapEngine::Fate::Pass;
  };
  bed.store->turn();  // begins it
  EXPECT_EQ(bed.get(bed.name(5), kGroupOpaque), Code::Ok);
  EXPECT_TRUE(asked.done);
  EXPECT_EQ(ahead.size(), 1U);
  EXPECT_EQ(bed.tap->hurried, ahead) << "it waits behind nobody any more";
  EXPECT_EQ(bed.device_reads(), 1U);
  EXPECT_EQ(bed.counters().staged_late, 1U);
  EXPECT_EQ(bed.counters().staged_used, 0U);
  EXPECT_EQ(bed.store->gauges().staged_bytes, 0U) << "its reader has it: nothing is kept";
  EXPECT_EQ(bed.store->gauges().memory_pinned_bytes, 0U);
}

TEST(Stager, BytesAreCountedByWhatTheyWereBroughtForAndHowTheyEnd) {
  constexpr uint8_t kWindow = 1, kTurn = 3, kNamed = 4;
  StageBed bed;
  bed.staged(3, kWindow);
  bed.staged(3, kTurn);  // it is there already: the first one's
  EXPECT_EQ(bed.get(bed.name(3), kGroupOpaque), Code::Ok);
  bed.stage(5).stage.kind = kTurn;
  bed.store->turn();  // begins it
  EXPECT_EQ(bed.get(bed.name(5), kGroupOpaque), Code::Ok);
  bed.staged(7, kNamed);
  bed.clock.us += kKeepUs;
  bed.pump();
  EXPECT_EQ(bed.get(bed.name(7), kGroupOpaque), Code::Ok) << "too late to be its first reader";
  using Kinds = std::array<std::array<uint64_t, 4>, wire::kPrefetchKinds>;
  Kinds kinds{};
  for (size_t kind = 0; kind < kinds.size(); ++kind) {
    const Counters::StagedOfKind& of = bed.counters().staged_kinds[kind];
    kinds[kind] = {of.bytes / kBlockBytes, of.used_bytes / kBlockBytes, of.late_bytes / kBlockBytes,
                   of.unused_bytes / kBlockBytes};
  }
  EXPECT_EQ(kinds, (Kinds{{{}, {1, 1, 0, 0}, {}, {1, 0, 1, 0}, {1, 0, 0, 1}}}));
  EXPECT_EQ(bed.counters().staged_bytes, 3 * uint64_t{kBlockBytes});
}

TEST(Stager, TwoWhoAskForOneBlockReadItOnce) {
  StageBed bed;
  StageBed::Asked& first = bed.stage(5);
  StageBed::Asked& second = bed.stage(5);
  while (!first.done || !second.done) bed.turns(1);
  EXPECT_EQ(bed.device_reads(), 1U);
  EXPECT_EQ(bed.store->gauges().staged_bytes, kBlockBytes);
  EXPECT_EQ(bed.get(bed.name(5), kGroupOpaque), Code::Ok);
  EXPECT_EQ(bed.store->gauges().staged_bytes, 0U);
  EXPECT_EQ(bed.store->gauges().memory_pinned_bytes, 0U);
}

TEST(Stager, BeyondItsShareOfMemoryItSaysSoAtOnce) {
  StageBed bed;
  const uint64_t share = bed.store->gauges().memory_capacity_bytes / 4;
  std::vector<StageBed::Asked*> all;
  for (int i = 0; i < StageBed::kBlocks; ++i) all.push_back(&bed.stage(i));
  bed.turns(2000);
  uint64_t ok = 0;
  for (const StageBed::Asked* asked : all) {
    ASSERT_TRUE(asked->done);
    if (asked->stage.status.ok()) {
      ++ok;
    } else {
      EXPECT_EQ(asked->stage.status, Code::Throttled);
    }
  }
  EXPECT_EQ(ok, share / kBlockBytes);
  EXPECT_LE(bed.store->gauges().staged_bytes, share);
}

TEST(Stager, WhoFollowsAChainGetsTheRestAsTheReaderComes) {
  StageBed bed;
  std::vector<StageBed::Asked*> all;
  for (int i = 0; i < StageBed::kBlocks; ++i) all.push_back(&bed.stage(i, 0, true));
  for (int i = 0; i < StageBed::kBlocks; ++i) {
    for (int turn = 0; turn < 1000 && !all[i]->done; ++turn) bed.turns(1);
    ASSERT_TRUE(all[i]->done) << i;
    EXPECT_EQ(all[i]->stage.status, Code::Ok);
    EXPECT_EQ(bed.get(bed.name(i), kGroupOpaque), Code::Ok);
  }
  EXPECT_EQ(bed.counters().staged_used + bed.counters().staged_late, uint64_t{StageBed::kBlocks});
  EXPECT_EQ(bed.counters().staged_unused, 0U);
  EXPECT_EQ(bed.device_reads(), uint64_t{StageBed::kBlocks});
}

TEST(Stager, TheMoreUrgentComeFirstAndEqualsInTurn) {
  StageBed bed;
  bed.serve_in_order();
  for (int i = 0; i < 30; ++i) bed.stage(i, static_cast<uint8_t>(i % 3 == 0 ? 255 : i % 3 == 1 ? 70 : 5));
  bed.turns(100);
  std::vector<int> expected;
  for (const int rest : {2, 1, 0}) {
    for (int i = rest; i < 30; i += 3) expected.push_back(i);
  }
  EXPECT_EQ(bed.ended(), expected);
}

// However many there are: a request's keys come in one call, behind tens of thousands of others.
TEST(Stager, AnUrgentOneIsPutBeforeOthersWithoutALookAtThem) {
  StageBed bed;
  bed.serve_in_order();
  StageBed::Asked* others[] = {&bed.stage(1, 9), &bed.stage(2, 9)};
  for (StageBed::Asked* other : others) other->stage.priority = 0;
  bed.stage(3, 5);
  for (StageBed::Asked* other : others) other->stage.priority = 9;
  bed.turns(100);
  EXPECT_EQ(bed.ended(), (std::vector<int>{3, 1, 2}));
}

TEST(Stager, WhatIsWithdrawnIsNotRead) {
  StageBed bed;
  StageBed::Asked& kept = bed.stage(1);
  StageBed::Asked& other = bed.stage(2);
  EXPECT_TRUE(bed.store->withdraw(other.stage));
  while (!kept.done) bed.turns(1);
  bed.turns(100);
  EXPECT_FALSE(other.done);
  EXPECT_EQ(bed.device_reads(), 1U);
  EXPECT_FALSE(bed.store->withdraw(kept.stage)) << "it is done";
}

TEST(Stager, WhatIsRottenIsSaidToBeAndTakesNoRoom) {
  StageBed bed;
  bed.tap->tap = [](io::Request& request) {
    return request.op == io::Op::Read ? TapEngine::Fate::Fail : TapEngine::Fate::Pass;
  };
  EXPECT_EQ(bed.staged(7).stage.status, Code::IoError);
  EXPECT_EQ(bed.store->gauges().staged_bytes, 0U);
  EXPECT_EQ(bed.counters().staged, 0U);
}

TEST(Stager, ADeletedBlockIsNotServedFromWhereItWasStaged) {
  StageBed bed;
  bed.staged(3);
  EXPECT_EQ(bed.remove(bed.name(3), kGroupOpaque), Code::Ok);
  EXPECT_EQ(bed.get(bed.name(3), kGroupOpaque), Code::NotFound);
  bed.clock.us += kKeepUs;
  bed.settle();
  EXPECT_EQ(bed.store->gauges().staged_bytes, 0U);
  EXPECT_EQ(bed.store->gauges().memory_pinned_bytes, 0U);
  EXPECT_EQ(bed.put(bed.name(3), kGroupOpaque, kBlockBytes, true), Code::Ok);
  EXPECT_EQ(bed.get(bed.name(3), kGroupOpaque), Code::Ok);
}

TEST(Stager, AStopEndsWhatIsLeft) {
  StageBed bed;
  std::vector<StageBed::Asked*> all;
  for (int i = 0; i < StageBed::kBlocks; ++i) all.push_back(&bed.stage(i, 0, true));
  bed.turns(3);
  ASSERT_TRUE(bed.store->close().ok());
  for (const StageBed::Asked* asked : all) EXPECT_TRUE(asked->done);
  EXPECT_EQ(bed.store->gauges().staged_bytes, 0U);
  EXPECT_EQ(bed.store->gauges().memory_pinned_bytes, 0U);
}

// Takes the writes' share of memory and then, unless it is to be left, what is left for reads; what comes is given back at
// once, in the turns after.
class FullMemory {
 public:
  explicit FullMemory(StageBed& bed, bool reads_too = true) : bed_(bed) {
    Status status;
    for (int i = 0; status.ok(); ++i) {
      status = bed.begin_put(puts_.emplace_back(), "new" + std::to_string(i), kGroupOpaque, kBlockBytes, false);
    }
    EXPECT_EQ(status, Status(Code::Throttled, kThrottledMemory));
    if (!reads_too) return;
    // The last ones of all: those before are staged where there is room.
    for (status = {}; next_ > 0; --next_) {
      status = begin_reads(next_ - 1, 1);
      if (!status.ok()) break;
    }
    EXPECT_EQ(status, Code::Throttled);
  }
  Status begin_reads(const std::vector<std::string>& names) {
    std::vector<Read*> window;
    for (const std::string& name : names) {
      Read& read = reads_.emplace_back();
      read.key = bed_.key(name, kGroupOpaque);
      read.component = wire::Component::of(kGroupOpaque, 0, 0);
      read.owner = &bed_;
      read.complete = [](Read& done) { static_cast<StageBed*>(done.owner)->store->unpin(done.resident); };
      window.push_back(&read);
    }
    return bed_.store->begin_reads(window);
  }
  Status begin_reads(int first, int count) {
    std::vector<std::string> names;
    for (int i = 0; i < count; ++i) names.push_back(StageBed::name(first + i));
    return begin_reads(names);
  }
  // Which nobody has in memory.
  int absent() const { return next_ - 1; }

 private:
  StageBed& bed_;
  std::deque<StoreBed::Put> puts_;
  std::deque<Read> reads_;
  int next_ = StageBed::kBlocks;
};

TEST(Stager, AGetThatFindsNoMemoryForAllOfItsBlocksUsesUpNone) {
  StageBed bed(8 * MiB);
  bed.staged(3);
  StageBed::Asked& coming = bed.stage(4);
  bed.store->turn();  // begins it
  FullMemory full(bed);
  EXPECT_EQ(full.begin_reads({bed.name(3), bed.name(4), bed.name(full.absent())}), Code::Throttled);
  EXPECT_EQ(bed.store->gauges().staged_bytes, 2 * kBlockBytes);
  for (int i = 0; i < 1000 && bed.store->gauges().memory_pinned_bytes > 2 * kBlockBytes; ++i) bed.turns(1);
  EXPECT_TRUE(coming.done);
  EXPECT_EQ(bed.store->gauges().staged_bytes, 2 * kBlockBytes);
  EXPECT_EQ(bed.store->gauges().memory_pinned_bytes, 2 * kBlockBytes);
  EXPECT_EQ(bed.counters().staged_used, 0U);
  EXPECT_EQ(bed.counters().staged_late, 0U);
  const uint64_t reads = bed.device_reads();
  for (const int number : {3, 4}) EXPECT_EQ(bed.get(bed.name(number), kGroupOpaque), Code::Ok);
  EXPECT_EQ(bed.device_reads(), reads);
  EXPECT_EQ(bed.counters().staged_used, 2U);
  EXPECT_EQ(bed.store->gauges().staged_bytes, 0U);
}

TEST(Stager, WhoAsksForABlockThatIsOnItsWayHasItKeptForAsLong) {
  for (const bool longest_first : {false, true}) {
    StageBed bed;
    StageBed::Asked& first = bed.stage(5, 0, false, longest_first ? 60 * kKeepUs : 1'000);
    bed.store->turn();  // begins it
    StageBed::Asked& second = bed.stage(5, 0, false, longest_first ? 1'000 : 60 * kKeepUs);
    while (!first.done || !second.done) bed.turns(1);
    EXPECT_EQ(second.stage.status, Code::Ok);
    EXPECT_FALSE(first.stage.was_there);
    EXPECT_FALSE(second.stage.was_there) << "it was on its way";
    EXPECT_TRUE(bed.staged(5).stage.was_there);
    bed.clock.us += 10 * kKeepUs;
    bed.pump();
    EXPECT_EQ(bed.store->gauges().staged_bytes, kBlockBytes);
    bed.clock.us += 50 * kKeepUs;
    bed.pump();
    EXPECT_EQ(bed.store->gauges().staged_bytes, 0U);
    EXPECT_EQ(bed.counters().staged_unused, 1U);
  }
}

TEST(Stager, AnEarlierEndOfTheSameBlockEndsNothing) {
  StageBed bed;
  bed.stage(5, 0, false, 60 * kKeepUs);
  bed.turns(100);
  bed.stage(5, 0, false, 1'000);
  bed.turns(100);
  bed.clock.us += 10 * kKeepUs;
  bed.pump();
  EXPECT_EQ(bed.store->gauges().staged_bytes, kBlockBytes);
}

TEST(Stager, WhoAsksForABlockThatIsOnItsWayNeedsNoRoomOfItsOwn) {
  StageBed bed;
  const int last = static_cast<int>(bed.store->gauges().memory_capacity_bytes / 4 / kBlockBytes) - 1;
  for (int i = 0; i < last; ++i) bed.stage(i);
  bed.turns(1000);
  StageBed::Asked& first = bed.stage(last);
  bed.store->turn();  // begins it: the last that there is room for
  StageBed::Asked& second = bed.stage(last);
  StageBed::Asked& another = bed.stage(last + 1);
  bed.turns(1000);
  EXPECT_EQ(first.stage.status, Code::Ok);
  EXPECT_EQ(second.stage.status, Code::Ok);
  EXPECT_EQ(another.stage.status, Code::Throttled);
  EXPECT_EQ(bed.store->gauges().staged_bytes, static_cast<uint64_t>(last + 1) * kBlockBytes);
}

TEST(Stager, WhoAsksAfterAGetForWhatIsStillOnItsWayHasItKept) {
  StageBed bed;
  bed.stage(5);
  bed.store->turn();  // begins it
  Read read;
  read.key = bed.key(bed.name(5), kGroupOpaque);
  read.component = wire::Component::of(kGroupOpaque, 0, 0);
  read.owner = &bed;
  read.complete = [](Read& done) { static_cast<StageBed*>(done.owner)->store->unpin(done.resident); };
  Read* window[] = {&read};
  ASSERT_EQ(bed.store->begin_reads(window), Code::Ok);
  StageBed::Asked& again = bed.stage(5);
  bed.store->turn();
  while (!again.done) bed.turns(1);
  EXPECT_EQ(bed.counters().staged_late, 1U);
  EXPECT_EQ(bed.store->gauges().staged_bytes, kBlockBytes);
  EXPECT_EQ(bed.get(bed.name(5), kGroupOpaque), Code::Ok);
  EXPECT_EQ(bed.counters().staged_used, 1U);
  EXPECT_EQ(bed.device_reads(), 1U);
  EXPECT_EQ(bed.store->gauges().memory_pinned_bytes, 0U);
}

// How much is staged when everybody has asked for everything.
uint64_t stage_all(StageBed& bed) {
  for (int i = 0; i < StageBed::kBlocks; ++i) bed.stage(i);
  bed.turns(1000);
  return bed.store->gauges().staged_bytes;
}

TEST(Stager, ReadsFindRoomBesideAFullWriteBufferAndAllThatIsStaged) {
  for (const double write_share : {0.1, 0.5, 0.9}) {
    StageBed bed;
    bed.options.write_share = write_share;
    bed.reopen();
    EXPECT_GT(stage_all(bed), 0U) << write_share;
    FullMemory full(bed, false);
    EXPECT_EQ(full.begin_reads(StageBed::kBlocks - 1, 1), Code::Ok) << write_share;
    bed.turns(1000);
  }
}

TEST(Stager, ALargestBlockFindsRoomBesideAFullWriteBufferAndAllThatIsStaged) {
  for (const uint64_t spare : {32 * KiB, 512 * KiB}) {
    StageBed bed(8 * MiB);
    const uint32_t largest = bed.store->geometry().block_bytes_max;
    ASSERT_EQ(bed.put("largest", kGroupOpaque, largest, true), Code::Ok);
    const uint64_t rest = SlotPool::held_bytes(largest + format::trailer_bytes(wire::kPartsMax)) + spare;
    bed.options.write_share = 1 - static_cast<double>(rest) / static_cast<double>(bed.store->gauges().memory_capacity_bytes);
    bed.reopen();
    if (spare < kBlockBytes) {
      EXPECT_EQ(bed.staged(3).stage.status, Code::TooLarge) << "there never is room for it";
    } else {
      EXPECT_GT(stage_all(bed), 0U);
    }
    FullMemory full(bed, false);
    EXPECT_EQ(full.begin_reads(std::vector<std::string>{"largest"}), Code::Ok);
    bed.turns(1000);
  }
}

TEST(Stager, AWindowOfReadsThatWhatIsStagedStandsInTheWayOfIsToBeCut) {
  StageBed bed(8 * MiB);
  const uint64_t staged = stage_all(bed);
  FullMemory full(bed, false);
  const uint64_t half = bed.store->gauges().memory_capacity_bytes / 2;
  const auto fits = static_cast<int>((half - staged) / kBlockBytes);
  const int first = StageBed::kBlocks - fits - 1;
  EXPECT_EQ(full.begin_reads(first, fits + 1), Code::TooLarge);
  EXPECT_EQ(full.begin_reads(first, fits), Code::Ok);
  bed.turns(1000);
}

// What is read in time leaves nothing behind.
TEST(Stager, ALongRunOfPrefetchesKeepsItsBooks) {
  StageBed bed;
  for (int round = 0; round < 30; ++round) {
    for (int i = 0; i < 20; ++i) bed.stage((round * 7 + i) % StageBed::kBlocks, 0, false, 3600 * kKeepUs);
    bed.turns(60);
    for (int i = 0; i < 20; ++i) EXPECT_EQ(bed.get(bed.name((round * 7 + i) % StageBed::kBlocks), kGroupOpaque), Code::Ok);
    bed.turns(10);
    EXPECT_EQ(bed.store->gauges().staged_bytes, 0U) << round;
    EXPECT_EQ(bed.store->gauges().memory_pinned_bytes, 0U) << round;
  }
}

TEST(StagedBlocks, HoweverManyComeToTheirEndOneTurnLetsGoOfSomeAndTheNextIsDueAtOnce) {
  constexpr uint64_t kBlocks = 2500, kBytes = 4096, kAtOnceMax = 1024;
  std::unique_ptr<Arena> arena;
  ASSERT_TRUE(Arena::create(32 * MiB, false, &arena).ok());
  SlotPool slots(*arena);
  Memory memory(slots, 0, 0.5);
  Counters counters;
  StagedBlocks staged(memory, counters, 64 * KiB);
  for (uint64_t i = 0; i < kBlocks; ++i) {
    Extent* extent = memory.make({i, i}, kBytes, ExtentState::Reading);
    ASSERT_NE(extent, nullptr);
    memory.list(*extent, false);
    memory.pin(*extent);
    memory.set_state(*extent, ExtentState::Clean);
    staged.reserve(kBytes);
    staged.keep(*extent, 100, 0);
  }
  uint64_t turns = 0;
  for (uint64_t let_go = 0; let_go < kBlocks; ++turns) {
    ASSERT_LE(staged.next_due_us(), 100U);
    staged.turn(100);
    EXPECT_LE(counters.staged_unused, let_go + kAtOnceMax);
    ASSERT_GT(counters.staged_unused, let_go);
    let_go = counters.staged_unused;
    EXPECT_EQ(staged.next_due_us(), let_go < kBlocks ? 0 : UINT64_MAX) << "what is overdue is due now";
  }
  EXPECT_EQ(turns, 3U);
  EXPECT_EQ(staged.bytes(), 0U);
  EXPECT_EQ(memory.pinned_bytes(), 0U);
}

}  // namespace stager_test
}  // namespace halfstep::store
