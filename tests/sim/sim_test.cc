// What the simulator promises of itself: the same seed gives the same run, a shrunk history still fails and is short, a crash
// leaves no request without its one answer, what excuses a lost block was hit, and excuses no other.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>

#include "sim/crash_engine.h"
#include "sim/farm.h"
#include "sim/model.h"
#include "sim/placements.h"
#include "sim/run.h"
#include "sim/sharded_store.h"
#include "sim/shrink.h"
#include "sim/world.h"
#include "store/format/page.h"

namespace halfstep::sim {
namespace {

TEST(Run, TheSameSeedGivesTheSameTraceWhateverRanBefore) {
  constexpr uint64_t kSeeds = 60;
  std::vector<uint64_t> first;
  for (uint64_t seed = 0; seed < kSeeds; ++seed) first.push_back(run(make_history(seed, {})).trace);
  for (uint64_t seed = kSeeds; seed-- > 0;) EXPECT_EQ(run(make_history(seed, {})).trace, first[seed]) << "seed " << seed;
  std::sort(first.begin(), first.end());
  EXPECT_EQ(std::unique(first.begin(), first.end()), first.end()) << "two seeds did the same";
}

// A second of the processor's is not enough for so many steps; the clock's seconds are nothing to it.
TEST(Run, ThatTakesMoreOfTheProcessorThanItMayIsStuck) {
  const std::optional<Violation> violation = run_apart(make_history(1, {.steps = 200'000, .faults = 0}), 1);
  ASSERT_TRUE(violation.has_value());
  EXPECT_EQ(violation->rule, Rule::Stuck);
  EXPECT_EQ(violation->what, "the run does not end");
  EXPECT_FALSE(run_apart(make_history(1, {}), 60).has_value());
}

// Of a rule that asked too much: a block whose end came while it was read again, a victim that was picked long before it went,
// a name that was put anew while its damaged block was read again, one whose end came in the turn that it was read in, a put
// for whose segment a roll was read page by page, and one that was removed while its damaged block was read again.
TEST(Run, WhatWasCalledAFaultOnceAndWasNoneIsNone) {
  for (const uint64_t seed : {45455U, 68366U, 71070U, 73315U, 76683U, 77437U}) {
    const Outcome outcome = run(make_history(seed, {}));
    EXPECT_FALSE(outcome.violation.has_value()) << "seed " << seed << ": " << outcome.violation->what;
  }
}

TEST(History, HasNoFaultThatWasNotAskedFor) {
  HistoryOptions options;
  options.faults = bit_of(FaultKind::PowerCut);
  for (uint64_t seed = 0; seed < 50; ++seed) {
    const History history = make_history(seed, options);
    EXPECT_EQ(history.profile.faults & ~options.faults, 0U);
    EXPECT_GE(history.ops.size(), options.steps);
    for (const Op& op : history.ops) EXPECT_TRUE(op.kind != OpKind::Rot && op.kind != OpKind::Jump);
  }
}

TEST(Shrink, LeavesOutAllThatTheFailureDoesNotNeed) {
  const History whole = make_history(5, {});
  ASSERT_GT(std::count_if(whole.ops.begin(), whole.ops.end(), [](const Op& op) { return op.kind == OpKind::Put; }), 1);
  // Two puts with something settled in between.
  const Replay replay = [](const History& history) -> std::optional<Violation> {
    int stage = 0;
    for (const Op& op : history.ops) {
      if (op.kind == (stage == 1 ? OpKind::Settle : OpKind::Put)) ++stage;
    }
    if (stage < 3) return {};
    return Violation{Rule::PersistLost, {}, static_cast<uint32_t>(history.ops.size())};
  };
  ASSERT_TRUE(replay(whole).has_value());
  const History shrunk = shrink(whole, *replay(whole), replay, 10'000);
  EXPECT_EQ(shrunk.ops.size(), 3U);
  EXPECT_EQ(shrunk.profile.faults & ~(bit_of(FaultKind::Kill) | bit_of(FaultKind::PowerCut) | bit_of(FaultKind::WriteError) |
                                      bit_of(FaultKind::FlushError) | bit_of(FaultKind::NoSpace) | bit_of(FaultKind::BitRot)),
            0U);
  EXPECT_TRUE(replay(shrunk).has_value());
}

// That the rule of hints has something to look at; that it fails of stores without hints, halfstep_sim_mutants shows.
TEST(Hints, WhatWasGivenUpIsLookedAtWhileOthersAreEvicted) {
  for (uint64_t seed = 0; seed < 4; ++seed) {
    const Outcome outcome = run(make_hint_history(seed));
    EXPECT_FALSE(outcome.violation.has_value()) << "seed " << seed << ": " << outcome.violation->what;
    EXPECT_GT(outcome.tally.hint_looks, 0U) << "seed " << seed << ": no segment was ever given up whole";
    EXPECT_GT(outcome.tally.blocks_evicted, 0U) << "seed " << seed;
  }
}

TEST(CrashEngine, AnswersEveryRequestOnceWhereverItDies) {
  for (uint64_t events = 0; events < 12; ++events) {
    io::MemoryDevice device(1 * MiB);
    io::MemoryConfig config;
    config.faults.delay_polls_max = 2;
    io::MemoryEngine memory(config, {&device});
    CrashEngine engine(memory, [](const io::Request&) {});
    engine.arm(CrashEngine::Crash::PowerCut, events);
    store::PageBuffer buffer(1);
    io::Request requests[5];
    int answers[5] = {};
    for (int i = 0; i < 5; ++i) {
      requests[i].op = io::Op::Write;
      requests[i].offset = static_cast<uint64_t>(i) * kPageBytes;
      requests[i].data = buffer.bytes().data();
      requests[i].bytes = kPageBytes;
      requests[i].owner = &answers[i];
      requests[i].complete = [](io::Request& done) { ++*static_cast<int*>(done.owner); };
      engine.submit(requests[i]);
    }
    for (int turn = 0; turn < 8; ++turn) {
      engine.flush_submissions();
      engine.poll();
    }
    EXPECT_EQ(engine.dead(), true);
    EXPECT_EQ(engine.in_flight(), 0U);
    for (int i = 0; i < 5; ++i) EXPECT_EQ(answers[i], 1) << "death after " << events << " events";
  }
}

// A segment with one frame of two blocks in it.
class PlacementsTest : public ::testing::Test {
 protected:
  PlacementsTest() {
    store::Geometry geometry{4 * MiB, store::format::kSegmentBytesMin, 4, 1, 256 * KiB};
    while (!store::places_of(geometry).valid()) geometry.device_bytes += MiB;
    places = store::places_of(geometry);
    placements = std::make_unique<Placements>(places);
    write(store::format::PageKind::FrameEntries, 0, 1);
  }
  void write(store::format::PageKind kind, uint32_t place, uint32_t pages_of_header) {
    store::PageBuffer page(1);
    store::format::PageHeader header;
    header.kind = static_cast<uint8_t>(kind);
    header.generation = 7;
    header.place = place;
    header.page_count = pages_of_header;
    header.entries = kind == store::format::PageKind::FooterTail ? 0 : 2;
    for (uint32_t i = 0; i < header.entries; ++i) {
      store::format::Entry entry;
      entry.key_low = i + 1;
      entry.page = 1 + i;
      entry.parts = 1;
      entry.stored_bytes = kPageBytes;
      store_le(store::page_body(page.bytes()).data() + i * sizeof(entry), entry);
    }
    store::seal_page({}, header, page.bytes());
    const uint64_t offset = places.segment(0) + uint64_t{place} * kPageBytes;
    placements->wrote(offset, page.bytes());
    written[offset].assign(page.bytes().begin(), page.bytes().end());
  }
  void write_footer() {
    const uint32_t pages = places.segment_pages();
    write(store::format::PageKind::FooterEntries, pages - 2, 2);
    write(store::format::PageKind::FooterTail, pages - 1, 2);
  }
  void hit(uint32_t page) { placements->hit({places.segment(0) + uint64_t{page} * kPageBytes + 17, 1}); }

  const store::IndexKey one{1, 0}, two{2, 0};
  store::Places places;
  std::unique_ptr<Placements> placements;
  std::map<uint64_t, std::vector<std::byte>> written;  // by offset
};

TEST_F(PlacementsTest, AHitInABlockExcusesThatBlockAlone) {
  EXPECT_FALSE(placements->excuses(one));
  hit(1);
  EXPECT_TRUE(placements->excuses(one));
  EXPECT_FALSE(placements->excuses(two));
}

TEST_F(PlacementsTest, AHitInTheOnlyDescriptionExcusesWhatItDescribes) {
  hit(0);
  EXPECT_TRUE(placements->excuses(one));
  EXPECT_TRUE(placements->excuses(two));
}

TEST_F(PlacementsTest, AHitInOneOfTwoDescriptionsExcusesNothing) {
  write_footer();
  hit(0);
  EXPECT_FALSE(placements->excuses(one));
  hit(places.segment_pages() - 1);
  EXPECT_TRUE(placements->excuses(one)) << "without its tail nobody finds the footer";
}

TEST_F(PlacementsTest, AFooterThatNeverArrivedDescribesNothing) {
  write_footer();
  hit(0);
  placements->process_ended([this](uint64_t offset, Bytes page) { std::ranges::copy(written[offset], page.begin()); });
  EXPECT_FALSE(placements->excuses(one));
  placements->process_ended([](uint64_t, Bytes page) { std::ranges::fill(page, std::byte{}); });
  EXPECT_TRUE(placements->excuses(one));
}

// The logs of two shards, each with one record written.
class PlacementsOfShards : public ::testing::Test {
 protected:
  PlacementsOfShards() {
    store::Geometry geometry{4 * MiB, store::format::kSegmentBytesMin, 8, 2, 256 * KiB};
    while (!store::places_of(geometry).valid()) geometry.device_bytes += MiB;
    places = store::places_of(geometry);
    placements = std::make_unique<Placements>(places);
  }
  static store::PageBuffer log_page(uint32_t shard, uint64_t epoch) {
    store::PageBuffer page(1);
    store::format::PageHeader header;
    header.kind = static_cast<uint8_t>(store::format::PageKind::RecordLog);
    header.generation = epoch;
    header.shard = shard;
    header.entries = 1;
    store::seal_page({}, header, page.bytes());
    return page;
  }
  void write_log(uint32_t shard, uint64_t epoch) {
    for (uint32_t copy = 0; copy < 2; ++copy) placements->wrote(places.log(copy, shard, 0), log_page(shard, epoch).bytes());
  }
  // In the half that is the other one than write_log()'s: a hit is one of the whole copy.
  void hit(uint32_t copy, uint32_t shard) { placements->hit({places.log(copy, shard, 1) + 17, 1}); }

  store::Places places;
  std::unique_ptr<Placements> placements;
};

TEST_F(PlacementsOfShards, ALogIsLostWhenBothCopiesOfOneShardsWereHit) {
  hit(0, 0);
  hit(1, 1);
  EXPECT_FALSE(placements->log_lost(0));
  EXPECT_FALSE(placements->log_lost(1)) << "of each there is another copy";
  hit(1, 0);
  EXPECT_TRUE(placements->log_lost(0));
  EXPECT_FALSE(placements->log_lost(1));
  placements->opening();
  EXPECT_TRUE(placements->log_lost(0)) << "until both copies are written anew";
  placements->opened();
  EXPECT_FALSE(placements->log_lost(0));
}

TEST_F(PlacementsOfShards, AWriteThatFailedCountsAsAHitOfThatShardsLogAlone) {
  placements->unwritten({places.log(0, 1, 0), kPageBytes});
  placements->unwritten({places.log(1, 0, 0), kPageBytes});
  EXPECT_FALSE(placements->log_lost(0));
  EXPECT_FALSE(placements->log_lost(1));
  placements->unwritten({places.log(1, 1, 0), kPageBytes});
  EXPECT_TRUE(placements->log_lost(1));
  EXPECT_FALSE(placements->log_lost(0));
}

TEST_F(PlacementsOfShards, RecordsOfEveryShardAreTargetsWhateverTheOthersEpoch) {
  write_log(0, 3);
  write_log(1, 9);
  const auto seen = [this] {
    std::set<uint64_t> offsets;
    for (uint64_t seed = 0; seed < 300; ++seed) {
      Prng prng(seed);
      const std::optional<Range> target = placements->target(prng);
      for (uint32_t half = 0; half < 8 && target.has_value(); ++half) {
        const uint64_t log = places.log(half & 1, half >> 1 & 1, half >> 2);
        if (target->touches({log, kPageBytes})) offsets.insert(log);
      }
    }
    return offsets;
  };
  const std::set<uint64_t> all = {places.log(0, 0, 0), places.log(1, 0, 0), places.log(0, 1, 0), places.log(1, 1, 0)};
  EXPECT_EQ(seen(), all);
  // What was written before is nothing any more, of that shard.
  placements->wrote(places.log(0, 0, 1), log_page(0, 4).bytes());
  EXPECT_EQ(seen(), (std::set<uint64_t>{places.log(0, 0, 1), places.log(0, 1, 0), places.log(1, 1, 0)}));
}

// One key, put and persisted, in a store of two shards that has been killed since.
class ModelTest : public PlacementsOfShards {
 protected:
  ModelTest() {
    history.profile.shards = 2;
    history.profile.keys = 1;
    model = std::make_unique<Model>(history, *placements, clock);
    model->set_scope(key(), 1, {1, 2});
    put();
  }
  Key& key() { return model->keys()[0]; }
  void put() {
    model->persisted(key(), model->committed(key(), make_version(key().group, false, 1, 64 * KiB), 0, false));
    model->process_died();
  }
  // Found, and not to be read.
  bool may_miss() {
    model->read_missed(key(), model->expect(key(), true), Code::Corrupt);
    return !model->violation().has_value();
  }

  History history;
  SimClock clock;
  std::unique_ptr<Model> model;
};

TEST_F(ModelTest, WhatIsFoundMayBeAMissOnceTheLogOfItsShardWasLost) {
  model->log_was_lost(1 - shard_of(key().index_key, 2));
  EXPECT_FALSE(may_miss());
  model = std::make_unique<Model>(history, *placements, clock);
  model->set_scope(key(), 1, {1, 2});
  put();
  model->log_was_lost(shard_of(key().index_key, 2));
  EXPECT_TRUE(may_miss());
}

TEST_F(ModelTest, ALogThatWasLostExcusesNothingThatWasPersistedSince) {
  model->log_was_lost(shard_of(key().index_key, 2));
  put();
  EXPECT_FALSE(may_miss());
}

TEST_F(ModelTest, WhatIsFoundMayBeAMissOnceItMayHaveExpired) {
  model->time().sample(clock);
  (void)model->committed(key(), make_version(key().group, false, 2, 64 * KiB), 7, false);
  const Expectation found = model->expect(key(), true);
  clock.us += 8'000'000;
  model->time().sample(clock);
  model->read_missed(key(), found, Code::NotFound);
  EXPECT_FALSE(model->violation().has_value());
  // Bytes that do not come are no expiry.
  EXPECT_FALSE(may_miss());
}

// Only where bytes of media were hit something is read again, and only a remove takes it away meanwhile: a put does not.
TEST_F(ModelTest, WhatIsFoundMayBeAMissOnceItWasRemovedAndMediaWereHit) {
  const auto misses = [&](bool hit, bool removed) {
    model = std::make_unique<Model>(history, *placements, clock);
    model->set_scope(key(), 1, {1, 2});
    put();
    const Expectation found = model->expect(key(), true);
    if (hit) placements->hit({0, 1});
    if (removed) {
      (void)model->remove_begun(key());
    } else {
      (void)model->committed(key(), make_version(key().group, false, 2, 64 * KiB), 0, false);
    }
    model->read_missed(key(), found, Code::NotFound);
    return !model->violation().has_value();
  };
  EXPECT_FALSE(misses(false, true));  // first: a hit stays
  EXPECT_TRUE(misses(true, true));
  EXPECT_FALSE(misses(true, false));
}

TEST_F(ModelTest, WhatIsFoundIsNoMissAtOnceHoweverNearItsEndIs) {
  model->time().sample(clock);
  (void)model->committed(key(), make_version(key().group, false, 2, 64 * KiB), 1, false);
  model->read_missed(key(), model->expect(key(), true), Code::NotFound);
  EXPECT_TRUE(model->violation().has_value());
}

TEST_F(ModelTest, WhatIsFoundAndHasItsTimeIsNoMiss) {
  model->time().sample(clock);
  (void)model->committed(key(), make_version(key().group, false, 2, 64 * KiB), 60, false);
  const Expectation found = model->expect(key(), true);
  clock.us += 8'000'000;
  model->time().sample(clock);
  model->read_missed(key(), found, Code::NotFound);
  EXPECT_TRUE(model->violation().has_value());
}

}  // namespace
}  // namespace halfstep::sim
