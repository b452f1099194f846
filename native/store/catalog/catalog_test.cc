// What the index says relative to its segments, and what becomes of entries that nothing names any more.
#include "store/catalog/catalog.h"

#include <gtest/gtest.h>

#include <set>

#include "store/store_fixture.h"

namespace halfstep::store {
namespace {

// ---- Expiry marks ----------------------------------------------------------------------------------------------------------

TEST(ExpiryMarks, KeepAMinuteToTheSecondHoweverOldTheSegmentIs) {
  constexpr uint32_t kOpened_s = 1'800'000'000;
  ExpiryMarks marks;
  marks.begin(kOpened_s);
  for (uint32_t page = 0, now_s = kOpened_s; page < 1000; ++page, now_s += 977) {
    marks.pass(page, now_s);
    for (const uint32_t ttl_s : {1U, 2U, 59U, 60U})
      EXPECT_EQ(marks.expiry_s(page, marks.code(page, now_s + ttl_s)), now_s + ttl_s);
  }
}

TEST(ExpiryMarks, RoundDownByLessThanAHundredTwentyEighthOfTheLife) {
  ExpiryMarks marks;
  marks.begin(1000);
  EXPECT_EQ(marks.expiry_s(7, marks.code(7, 0)), 0U);
  for (uint32_t life_s = 1; life_s < 1U << 30; life_s += life_s / 3 + 1) {
    const uint32_t expiry_s = marks.expiry_s(7, marks.code(7, 1000 + life_s));
    EXPECT_LE(expiry_s, 1000 + life_s);
    EXPECT_GT(uint64_t{expiry_s} + life_s / 128 + 1, uint64_t{1000} + life_s);
  }
}

TEST(ExpiryMarks, CountFromTheMarkBeforeTheBlock) {
  ExpiryMarks marks;
  marks.begin(1000);
  marks.pass(10, 100'000);
  marks.pass(20, 100'010);  // too soon for one of its own
  EXPECT_EQ(marks.expiry_s(9, marks.code(9, 1100)), 1100U);
  EXPECT_EQ(marks.expiry_s(10, marks.code(10, 100'060)), 100'060U);
  EXPECT_EQ(marks.expiry_s(20, marks.code(20, 100'060)), 100'060U);
}

// ---- Scope slots -----------------------------------------------------------------------------------------------------------

TEST(ScopeSlots, AreGivenOutAgainOnlyAfterAWholeLap) {
  ScopeSlots slots;
  const uint16_t slot = slots.take(7);
  EXPECT_EQ(slots.take(7), slot);
  EXPECT_EQ(slots.scope(slot), 7U);
  const auto dead = [](uint32_t scope) { return scope != 7; };
  slots.lap_begins([](uint32_t) { return true; });  // it dies while this one is on
  slots.lap_ended();
  EXPECT_EQ(slots.scope(slot), 7U);
  slots.lap_begins(dead);
  EXPECT_NE(slots.take(8), slot);
  slots.lap_ended();
  EXPECT_EQ(slots.scope(slot), 0U);
  EXPECT_EQ(slots.take(9), slot);
}

TEST(ScopeSlots, RunOutAt65535) {
  ScopeSlots slots;
  for (uint32_t scope = 1; scope <= UINT16_MAX; ++scope) ASSERT_NE(slots.take(scope), ScopeSlots::kNone);
  EXPECT_EQ(slots.take(UINT16_MAX + 1), ScopeSlots::kNone);
}

TEST(ScopeSlots, TellTheKindsOfAScopeApartAndGoWithIt) {
  ScopeSlots slots;
  const uint16_t raw = slots.take(7, 0, 0);
  const uint16_t coded = slots.take(7, 0, 2);
  const uint16_t other_group = slots.take(7, 3, 2);
  EXPECT_EQ(slots.take(7, 0, 2), coded);
  EXPECT_EQ((std::set<uint16_t>{raw, coded, other_group}).size(), 3U);
  for (const uint16_t slot : {raw, coded, other_group}) EXPECT_EQ(slots.scope(slot), 7U);
  EXPECT_EQ(slots.kind(other_group).group, 3U);
  EXPECT_EQ(slots.kind(other_group).codecs, 2U);
  slots.lap_begins([](uint32_t scope) { return scope != 7; });
  slots.lap_ended();
  for (const uint16_t slot : {raw, coded, other_group}) EXPECT_EQ(slots.scope(slot), 0U);
  const uint16_t again = slots.take(8, 1, 4);
  EXPECT_EQ(slots.scope(again), 8U);
  EXPECT_NE(slots.take(9), again);
}

TEST(ScopeSlots, OfMoreKindsThanAScopeMayHaveAreOfAny) {
  ScopeSlots slots;
  const uint16_t raw = slots.take(1, 0, 0);
  uint16_t last = ScopeSlots::kNone;
  for (uint32_t kind = 1; kind <= ScopeSlots::kScopeKindsMax; ++kind) last = slots.take(1, 0, kind);
  EXPECT_TRUE(slots.kind(last).any);
  EXPECT_EQ(slots.take(1, 9, uint64_t{1} << 40), last);
  EXPECT_EQ(slots.take(1, 0, 0), raw) << "those that it has are still told apart";
  EXPECT_FALSE(slots.kind(raw).any);
}

TEST(ScopeSlots, KeepPlaceForScopesThatHaveNone) {
  ScopeSlots slots;
  uint32_t scope = 0;
  for (size_t taken = 0; taken < ScopeSlots::kKindsMax; taken += 16) {
    ++scope;
    for (uint16_t group = 0; group < 16; ++group) ASSERT_NE(slots.take(scope, group), ScopeSlots::kNone);
  }
  const uint16_t more = slots.take(scope, 16);
  EXPECT_EQ(slots.scope(more), scope);
  EXPECT_TRUE(slots.kind(more).any);
  const uint16_t of_another = slots.take(scope + 1, 16);
  EXPECT_EQ(slots.scope(of_another), scope + 1);
  EXPECT_FALSE(slots.kind(of_another).any);
}

// ---- The catalog -----------------------------------------------------------------------------------------------------------

class CatalogTest : public testing::Test {
 protected:
  static constexpr uint64_t kSegmentBytes = 2 * MiB;

  CatalogTest() { make(128); }
  void make(uint64_t buckets) {
    Catalog::Setup setup{4, kSegmentBytes, nullptr};
    ASSERT_TRUE(index::BlockIndex::create(buckets * sizeof(index::Bucket), true, &setup.index).ok());
    catalog = std::make_unique<Catalog>(std::move(setup), names);
    for (Segment& segment : catalog->segments()) catalog->begin(segment, 1000);
  }
  static format::Entry entry_of(uint64_t number, uint32_t page) {
    format::Entry entry;
    const Hash128 key = keyed_hash({1, 2}, object_bytes(number));
    entry.key_low = key.low;
    entry.key_high = key.high;
    entry.stored_bytes = entry.raw_bytes = kPageBytes;
    entry.parts = 1;
    entry.page = page;
    entry.pages_back = 1;
    entry.checksum = static_cast<uint32_t>(number * 0x9E3779B1U);
    entry.scope = 1;
    return entry;
  }
  static IndexKey key_of(const format::Entry& entry) { return {entry.key_low, entry.key_high}; }
  format::Entry add(uint32_t segment, uint64_t number, uint32_t page) {
    const format::Entry entry = entry_of(number, page);
    catalog->note(catalog->segment(segment), entry, 1000);
    EXPECT_TRUE(catalog->add(catalog->segment(segment), entry, {}, false).ok());
    return entry;
  }

  Names names;
  std::unique_ptr<Catalog> catalog;
};

TEST_F(CatalogTest, SaysOfABlockWhatWasStored) {
  const format::Entry entry = add(2, 77, 300);
  const Block block = catalog->find(key_of(entry));
  ASSERT_TRUE(block);
  EXPECT_EQ(block.location, (Location{2, 300, 0}));
  EXPECT_EQ(block.extent_bytes(), kPageBytes);
  EXPECT_EQ(block.checksum(key_of(entry)), entry.checksum);
  EXPECT_EQ(block.scope, 1U);
  EXPECT_EQ(block.expiry_s, 0U);
  EXPECT_NE(block.checksum({entry.key_low, entry.key_high ^ 1}), entry.checksum);
}

TEST_F(CatalogTest, AVoidedSegmentHasNoLiveBlockAtOnceAndItsEntriesGoWithTheSweep) {
  for (uint64_t i = 0; i < 100; ++i) add(static_cast<uint32_t>(i % 2), i, static_cast<uint32_t>(1 + i));
  ASSERT_EQ(catalog->live_blocks(), 100U);
  catalog->void_segment(catalog->segment(0));
  EXPECT_EQ(catalog->live_blocks(), 50U);
  EXPECT_EQ(catalog->live_bytes(), 50 * kPageBytes);
  for (uint64_t i = 0; i < 100; ++i) EXPECT_EQ(bool(catalog->find(key_of(entry_of(i, 1)))), i % 2 == 1);
  uint64_t seen = 0;
  while (!catalog->sweep(10, [&](const Block&) { return ++seen == 0; })) {
  }
  EXPECT_EQ(seen, 50U);
  EXPECT_EQ(catalog->live_blocks(), 50U);
}

// Whatever happens to a segment, what still_live() remembers says the same as the index does.
TEST_F(CatalogTest, WhatWasSeenToBeLiveIsSoUntilItIsNot) {
  struct Seen {
    IndexKey key;
    Location location;
    uint64_t seen = Catalog::kNotSeen;
  };
  Prng prng(11);
  std::vector<Seen> all;
  std::array<uint32_t, 4> next_page = {1, 1, 1, 1};
  uint64_t live = 0, looks_saved = 0;
  const auto place = [&](uint32_t segment, uint64_t number) {
    const format::Entry entry = add(segment, number, next_page[segment]++);
    all.push_back({key_of(entry), catalog->location_of(catalog->segment(segment), entry)});
  };
  for (int step = 0; step < 4000; ++step) {
    const auto segment = static_cast<uint32_t>(prng.below(4));
    const uint64_t number = prng.below(60);
    const format::Entry known = entry_of(number, 0);
    const Block block = catalog->find(key_of(known));
    switch (prng.below(40)) {
      case 0:
        catalog->void_segment(catalog->segment(segment));
        Catalog::release(catalog->segment(segment));
        next_page[segment] = 1;
        break;
      case 1: (void)catalog->drop(key_of(known), block.location); break;
      case 2: {
        format::Entry copy = entry_of(number, next_page[segment]++);
        catalog->note(catalog->segment(segment), copy, 1000);
        if (!catalog->move(key_of(known), block.location, copy, catalog->segment(segment), false)) break;
        all.push_back({key_of(copy), catalog->location_of(catalog->segment(segment), copy)});
        break;
      }
      case 3: (void)catalog->sweep(8, [&](const Block&) { return prng.chance(0.3); }); break;
      case 4: place(segment, number); break;  // in the place of what is there, too
      default: (void)catalog->touch(key_of(known)); break;
    }
    if (next_page[segment] >= kSegmentBytes / kPageBytes) next_page[segment] = 1;
    if (all.size() > 200) all.erase(all.begin(), all.begin() + 100);
    for (Seen& one : all) {
      const bool expected = catalog->live(one.key, one.location);
      looks_saved += !catalog->unseen(one.location, one.seen);
      ASSERT_EQ(catalog->still_live(one.key, one.location, one.seen), expected) << "step " << step;
      live += expected;
    }
  }
  EXPECT_GT(live, 10'000U);
  EXPECT_GT(looks_saved, live / 2) << "it is for saving looks at the index";
}

TEST_F(CatalogTest, AStaleEntryGivesWayToTheSameKey) {
  add(0, 1, 5);
  catalog->void_segment(catalog->segment(0));
  const format::Entry again = add(1, 1, 9);
  EXPECT_EQ(catalog->find(key_of(again)).location, (Location{1, 9, 0}));
  EXPECT_EQ(catalog->live_blocks(), 1U);
}

TEST_F(CatalogTest, NoStaleEntryLivesAgainWhenTheReuseCountComesRound) {
  const format::Entry old = add(0, 1, 5);
  for (int use = 0; use < 600; ++use) {
    catalog->void_segment(catalog->segment(0));
    Catalog::release(catalog->segment(0));
    ASSERT_FALSE(catalog->find(key_of(old))) << "after " << use;
    add(0, 2 + static_cast<uint64_t>(use), 5);
  }
  EXPECT_EQ(catalog->live_blocks(), 1U);
}

TEST_F(CatalogTest, MoveTakesTouchesAndHoldsAlongAndOnlyFromWhereTheIndexSays) {
  const format::Entry original = add(0, 1, 5);
  catalog->set_held(key_of(original), true);
  format::Entry copy = original;
  copy.page = 40;
  catalog->note(catalog->segment(3), copy, 1000);
  EXPECT_FALSE(catalog->move(key_of(original), {0, 6, 0}, copy, catalog->segment(3), false));
  EXPECT_TRUE(catalog->move(key_of(original), {0, 5, 0}, copy, catalog->segment(3), true));
  const Block moved = catalog->find(key_of(original));
  EXPECT_EQ(moved.location, (Location{3, 40, 0}));
  EXPECT_TRUE(moved.held);
  EXPECT_EQ(moved.touch_class, kTouchedOnce);
  EXPECT_EQ(catalog->segment(0).live_blocks, 0U);
  EXPECT_EQ(catalog->segment(0).held_blocks, 0U);
  EXPECT_EQ(catalog->segment(3).held_pages, 1U);
}

TEST_F(CatalogTest, SaysTheLengthsThatNothingElseInMemoryTells) {
  format::Entry ragged = entry_of(5, 17);
  ragged.flags = format::kEntryTrailer;
  ragged.stored_bytes = ragged.raw_bytes = 1234;
  catalog->note(catalog->segment(1), ragged, 1000);
  ASSERT_TRUE(catalog->add(catalog->segment(1), ragged, {}, false).ok());
  EXPECT_EQ(catalog->block_bytes(catalog->find(key_of(ragged)), {}), 1234U);
}

TEST_F(CatalogTest, TakesAtMost32BytesABlockAllTold) {
  constexpr uint32_t kSegments = 64, kBlocksPerSegment = 4000, kPages = 64;  // of 256 KiB
  constexpr uint64_t kBlocks = uint64_t{kSegments} * kBlocksPerSegment;
  Catalog::Setup setup{kSegments, GiB, nullptr};
  ASSERT_TRUE(index::BlockIndex::create(index::BlockIndex::bytes_for(kBlocks), true, &setup.index).ok());
  catalog = std::make_unique<Catalog>(std::move(setup), names);
  for (uint64_t i = 0; i < kBlocks; ++i) {
    format::Entry entry = entry_of(i, static_cast<uint32_t>(1 + i % kBlocksPerSegment * kPages));
    entry.stored_bytes = entry.raw_bytes = kPages * kPageBytes;
    Segment& segment = catalog->segment(static_cast<uint32_t>(i / kBlocksPerSegment));
    catalog->note(segment, entry, 1000);
    ASSERT_TRUE(catalog->add(segment, entry, {}, false).ok());
  }
  EXPECT_EQ(catalog->live_blocks(), kBlocks);
  EXPECT_LE(catalog->memory_bytes(), 32 * kBlocks);
}

TEST_F(CatalogTest, RefusesWhatDoesNotFitAndFindsTheRest) {
  make(4);
  uint64_t refused = 0;
  for (uint64_t i = 0; i < 40; ++i) {
    const format::Entry entry = entry_of(i, static_cast<uint32_t>(1 + i));
    refused += catalog->add(catalog->segment(0), entry, {}, false).ok() ? 0 : 1;
  }
  EXPECT_EQ(refused + catalog->live_blocks(), 40U);
  EXPECT_LE(catalog->live_blocks(), 20U);
  EXPECT_TRUE(catalog->index_full());
}

// ---- A store with an index for less than it holds
// -----------------------------------------------------------------------------

TEST(FullIndex, MakesRoomByReclaimAndNeverFailsARead) {
  StoreBed bed(5, 16);
  bed.options.index_bytes = 40 * sizeof(index::Bucket);
  bed.open();
  uint64_t throttled = 0;
  for (int i = 0; i < 600; ++i) {
    const std::string name = "block " + std::to_string(i);
    Status status = bed.put(name);
    for (int tries = 0; status == Code::Throttled && tries < 1000; ++tries) {
      ++throttled;
      bed.pump();
      status = bed.put(name);
    }
    ASSERT_TRUE(status.ok()) << name;
    bed.settle();
    EXPECT_LE(bed.store->gauges().blocks, 200U);
    const bool there = bed.store->find(bed.key(name)).present;
    EXPECT_EQ(bed.get(name), there ? Code::Ok : Code::NotFound);
  }
  EXPECT_GT(bed.store->counters().index_full + bed.store->counters().segments_reclaimed, 0U);
  EXPECT_GT(bed.store->gauges().blocks, 50U);
  EXPECT_EQ(bed.store->gauges().index_bytes, 40 * sizeof(index::Bucket));
  EXPECT_EQ(throttled > 0, bed.store->counters().index_full > 0);
}

TEST(FullIndex, OfARestartLeavesOutWhatDoesNotFit) {
  StoreBed bed(6, 16);
  bed.open();
  for (int i = 0; i < 300; ++i) ASSERT_EQ(bed.put("block " + std::to_string(i)), Code::Ok);
  bed.options.index_bytes = 20 * sizeof(index::Bucket);
  bed.reopen();
  EXPECT_LE(bed.store->recovery().blocks, 100U);
  EXPECT_GT(bed.store->recovery().blocks, 80U);
  EXPECT_EQ(bed.store->recovery().blocks + bed.store->recovery().blocks_dropped_index_full, 300U);
}

// ---- A block that the index takes for another's
// --------------------------------------------------------------------------------

TEST(FalseMatch, VerifiesNothingAndCostsNobodyHisBlock) {
  StoreBed bed(7);
  bed.open();
  ASSERT_EQ(bed.put("mine", kGroupPlain, 16384, true), Code::Ok);
  bed.reopen();  // so that it is on flash alone
  const IndexKey mine = bed.key("mine");
  const IndexKey stranger{mine.low, mine.high ^ 0x8000'0001U};
  EXPECT_TRUE(bed.store->find(stranger).present);  // as far as the index can tell
  EXPECT_EQ(bed.get(stranger).status, Code::NotFound);
  EXPECT_EQ(bed.store->counters().misses_collision, 1U);
  EXPECT_EQ(bed.get("mine"), Code::Ok);
}

}  // namespace
}  // namespace halfstep::store
