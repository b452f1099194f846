// The DRAM tier: write buffer and hot blocks in one arena, and what gives way to whom.
#include "store/memory/memory.h"

#include <gtest/gtest.h>

#include <deque>
#include <optional>

#include "store/memory/block_uses.h"
#include "store/store_fixture.h"

namespace halfstep::store {
namespace memory_test {

constexpr uint32_t kBlockBytes = 16384;

std::string name_of(uint64_t number) { return "block " + std::to_string(number); }

class MemoryTier : public ::testing::Test {
 protected:
  void open(uint64_t arena_bytes = 8 * MiB, uint32_t segments = 16) {
    bed_.emplace(1, segments, arena_bytes);
    bed_->open();
  }
  uint64_t blocks_max() const { return bed_->store->gauges().memory_capacity_bytes / kBlockBytes; }
  const Counters& counters() const { return bed_->store->counters(); }
  // Another request: what it uses was not used in the one before.
  void next_request() { bed_->clock.us += kMomentUs; }
  // Writes so many new blocks and lets them reach flash.
  void put(uint64_t blocks) {
    for (uint64_t i = 0; i < blocks; ++i) ASSERT_EQ(bed_->put(name_of(next_++), kGroupPlain, kBlockBytes), Code::Ok);
    bed_->settle();
  }
  bool in_memory(std::string_view name) {
    const uint64_t before = counters().hits_memory;
    EXPECT_EQ(bed_->get(name), Code::Ok);
    return counters().hits_memory > before;
  }
  Status begin_read(Read& read, std::string_view name) {
    read.key = bed_->key(name);
    read.complete = [](Read& done) { done.owner = &done; };
    Read* window[] = {&read};
    return bed_->store->begin_reads(window);
  }

  std::optional<StoreBed> bed_;
  uint64_t next_ = 0;
};

TEST(Extent, AGetLooksAtThreeLinesOfIt) {
  const Extent extent;
  const auto line_of = [&](const void* member) {
    return (static_cast<const std::byte*>(member) - reinterpret_cast<const std::byte*>(&extent)) / 64;
  };
  for (const void* member :
       {static_cast<const void*>(&extent.key), static_cast<const void*>(&extent.state), static_cast<const void*>(&extent.pins),
        static_cast<const void*>(&extent.record), static_cast<const void*>(&extent.location())}) {
    EXPECT_EQ(line_of(member), 1);
  }
  const auto third = line_of(&extent.entry.scope);
  EXPECT_EQ(line_of(&extent.entry.expiry_s), third);
  EXPECT_EQ(line_of(&extent.departed_seen), third);
  EXPECT_EQ(line_of(&extent.counts_from), third);
}

TEST(Extent, OfAnotherPlaceTheIndexHasToBeAskedAnew) {
  Extent extent;
  extent.departed_seen = 7;
  extent.counts_from = 9;
  extent.set_location({3, 4, 5});
  EXPECT_EQ(extent.location(), (Location{3, 4, 5}));
  EXPECT_EQ(extent.departed_seen, Catalog::kNotSeen);
  EXPECT_EQ(extent.counts_from, 0U);
}

TEST_F(MemoryTier, ABlockThatIsBeingWrittenIsReadFromTheWriteBuffer) {
  open();
  StoreBed::Put put;
  ASSERT_EQ(bed_->begin_put(put, "fresh", kGroupPlain, kBlockBytes, true), Code::Ok);
  // Committed, and no request of the device has even been made.
  EXPECT_EQ(bed_->engine->in_flight(), 0U);
  Read read;
  ASSERT_EQ(begin_read(read, "fresh"), Code::Ok);
  ASSERT_EQ(read.owner, &read) << "answered inside the call";
  ASSERT_EQ(read.status, Code::Ok);
  EXPECT_FALSE(put.done);
  EXPECT_EQ(counters().hits_memory, 1U);
  // While its frame is under way, too.
  bed_->pump();
  EXPECT_GT(bed_->engine->in_flight(), 0U);
  EXPECT_TRUE(in_memory("fresh"));
  bed_->store->unpin(read.resident);
  bed_->settle();
  EXPECT_TRUE(put.done);
  EXPECT_EQ(counters().hits_flash, 0U);
}

// Whether the index is asked or memory answers: the same is found.
TEST_F(MemoryTier, WhatIsToBeReadIsFoundAsByAnybody) {
  open();
  ASSERT_EQ(bed_->put("on flash alone", kGroupPlain, kBlockBytes), Code::Ok);
  bed_->settle();
  bed_->reopen();
  ASSERT_EQ(bed_->put("in memory", kGroupPlain, kBlockBytes), Code::Ok);
  ASSERT_EQ(bed_->put("ends", kGroupPlain, kBlockBytes, false, 5), Code::Ok);
  bed_->settle();
  StoreBed::Put dirty;
  ASSERT_EQ(bed_->begin_put(dirty, "dirty", kGroupPlain, kBlockBytes, false), Code::Ok);
  std::vector<Sought> sought;
  for (const char* name : {"on flash alone", "in memory", "ends", "dirty", "absent"}) {
    sought.emplace_back(bed_->key(name), wire::Component::of(kGroupPlain, 0, 0));
  }
  const auto present = [&](bool to_read) {
    std::vector<Found> found(sought.size());
    for (Sought& one : sought) one.to_read = to_read;
    bed_->store->find_many(sought, found);
    std::vector<bool> out;
    for (const Found& one : found) {
      out.push_back(one.present);
      EXPECT_EQ(one.block_bytes, one.present ? kBlockBytes : 0);
      EXPECT_EQ(one.memory_bytes, one.present ? kBlockBytes : 0);
    }
    return out;
  };
  EXPECT_EQ(present(true), (std::vector<bool>{true, true, true, true, false}));
  EXPECT_EQ(present(false), present(true));
  bed_->clock.wall += 10;
  EXPECT_EQ(present(true), (std::vector<bool>{true, true, false, true, false})) << "memory has it still";
  EXPECT_EQ(present(false), present(true));
  bed_->settle();
}

TEST_F(MemoryTier, CacheIsAnsweredByTheBufferAndPersistByMedia) {
  open();
  bool written = false, flushed = false;
  bed_->tap->tap = [&](io::Request& request) {
    written = written || request.op == io::Op::Write;
    flushed = flushed || request.op == io::Op::Flush;
    return TapEngine::Fate::Pass;
  };
  StoreBed::Put cache;
  ASSERT_EQ(bed_->begin_put(cache, "cache", kGroupPlain, kBlockBytes, false), Code::Ok);
  bed_->store->turn();
  EXPECT_TRUE(cache.done) << "its frame cannot have landed";
  EXPECT_FALSE(flushed);
  StoreBed::Put persist;
  ASSERT_EQ(bed_->begin_put(persist, "persist", kGroupPlain, kBlockBytes, true), Code::Ok);
  while (!flushed) {
    EXPECT_FALSE(persist.done);
    bed_->pump();
  }
  EXPECT_TRUE(written);
  EXPECT_FALSE(persist.done) << "the flush has only been asked for";
  bed_->settle();
  EXPECT_TRUE(persist.done);
}

TEST_F(MemoryTier, AFullWriteBufferShedsWritesAndHoldsUpNoRead) {
  open();
  put(blocks_max());
  bed_->reopen();  // nothing is in memory
  // Nothing is written as long as the store is given no turn: the buffer fills up.
  std::deque<StoreBed::Put> puts;
  Status status;
  while (status.ok()) status = bed_->begin_put(puts.emplace_back(), name_of(next_++), kGroupPlain, kBlockBytes, false);
  EXPECT_EQ(status, Status(Code::Throttled, kThrottledMemory));
  EXPECT_EQ(counters().writes_throttled, 1U);
  EXPECT_NEAR(static_cast<double>(puts.size()) / static_cast<double>(blocks_max()), bed_->options.write_share, 0.02);
  // Reads find the rest of memory, from flash and from the buffer.
  std::deque<Read> reads(blocks_max() / 3);
  for (size_t i = 0; i < reads.size(); ++i) ASSERT_EQ(begin_read(reads[i], name_of(i)), Code::Ok) << i;
  for (size_t turns = 0; turns < 10'000 && counters().hits_flash < reads.size(); ++turns) {
    bed_->engine->flush_submissions();
    bed_->engine->poll();
  }
  EXPECT_EQ(counters().hits_flash, reads.size()) << "without one turn of the store";
  for (Read& read : reads) bed_->store->unpin(read.resident);
  EXPECT_EQ(counters().writes_committed, puts.size() - 1);
  bed_->settle();
  EXPECT_EQ(bed_->put(name_of(next_++)), Code::Ok) << "it is empty again";
}

TEST_F(MemoryTier, WhatWasReadAgainOutlivesWhatWasWrittenOnce) {
  open();
  put(20);
  next_request();
  for (uint64_t i = 0; i < 10; ++i) ASSERT_EQ(bed_->get(name_of(i)), Code::Ok);
  put(blocks_max() - 1);
  uint64_t twice = 0, once = 0;
  const uint64_t flash = counters().hits_flash;
  for (uint64_t i = 0; i < 10; ++i) twice += in_memory(name_of(i)) ? 1 : 0;
  EXPECT_EQ(counters().hits_flash, flash + 10 - twice);
  for (uint64_t i = 10; i < 20; ++i) once += in_memory(name_of(i)) ? 1 : 0;
  EXPECT_EQ(twice, 10U);
  EXPECT_EQ(once, 0U);
}

TEST_F(MemoryTier, AWindowOfReadsIsUsedFromItsLeafToItsRoot) {
  open();
  put(16);
  bed_->reopen();
  std::deque<Read> reads(16);
  std::vector<Read*> window;
  for (size_t i = 0; i < reads.size(); ++i) {
    reads[i].key = bed_->key(name_of(i));
    reads[i].complete = [](Read&) {};
    window.push_back(&reads[i]);
  }
  ASSERT_EQ(bed_->store->begin_reads(window), Code::Ok);
  bed_->settle();
  for (Read& read : reads) bed_->store->unpin(read.resident);
  // The second half, which follows the first one in the chain, has to go before it.
  put(blocks_max() - 8);
  uint64_t roots = 0;
  for (uint64_t i = 0; i < 4; ++i) roots += in_memory(name_of(i)) ? 1 : 0;
  EXPECT_EQ(roots, 4U);
  EXPECT_FALSE(in_memory(name_of(15)));
}

TEST_F(MemoryTier, NothingOfAWindowMakesRoomForTheRestOfIt) {
  open();
  const uint64_t all = blocks_max();
  put(2 * all);
  next_request();
  for (uint64_t i = 0; i < all; ++i) ASSERT_EQ(bed_->get(name_of(i)), Code::Ok);
  next_request();
  // What comes from flash stands before what is in memory, and would be given its room: it is the next to go.
  std::deque<Read> reads(17);
  std::vector<Read*> window;
  for (size_t i = 0; i < reads.size(); ++i) {
    reads[i].key = bed_->key(name_of(i < 16 ? all + i : 4));
    reads[i].complete = [](Read&) {};
    window.push_back(&reads[i]);
  }
  const uint64_t memory = counters().hits_memory;
  const uint64_t flash = counters().hits_flash;
  ASSERT_EQ(bed_->store->begin_reads(window), Code::Ok);
  EXPECT_EQ(counters().hits_memory, memory + 1);
  bed_->settle();
  EXPECT_EQ(counters().hits_flash, flash + 16);
  for (const Read& read : reads) {
    EXPECT_EQ(read.status, Code::Ok);
    bed_->store->unpin(read.resident);
  }
}

TEST_F(MemoryTier, AWindowThatNamesTwiceWhatTheSweepHasTakenMissesTwice) {
  open();
  ASSERT_EQ(bed_->put("expired", kGroupPlain, kBlockBytes, true, 10), Code::Ok);
  ASSERT_EQ(bed_->put("kept", kGroupPlain, kBlockBytes, true), Code::Ok);
  // The sweep goes through the index, where there are no keys: memory is not told.
  for (int i = 0; i < 100; ++i) {
    bed_->clock.us += 1'000'000;
    bed_->clock.wall += 1;
    bed_->settle();
  }
  ASSERT_EQ(counters().blocks_evicted_expired, 1U);
  const uint64_t resident = bed_->store->gauges().memory_resident_bytes;
  std::deque<Read> reads(5);
  std::vector<Read*> window;
  for (size_t i = 0; i < reads.size(); ++i) {
    reads[i].key = bed_->key(i % 2 == 0 ? "expired" : "kept");
    reads[i].complete = [](Read&) {};
    window.push_back(&reads[i]);
  }
  const uint64_t misses = counters().misses_absent;
  ASSERT_EQ(bed_->store->begin_reads(window), Code::Ok);
  EXPECT_EQ(counters().misses_absent, misses + 3);
  EXPECT_EQ(bed_->store->gauges().memory_resident_bytes, resident - kBlockBytes) << "memory had it, and let it go once";
  for (size_t i = 0; i < reads.size(); ++i) {
    EXPECT_EQ(reads[i].status, i % 2 == 0 ? Code::NotFound : Code::Ok) << i;
    if (reads[i].status.ok()) bed_->store->unpin(reads[i].resident);
  }
}

TEST_F(MemoryTier, WhatIsBeingSentStaysHoweverMuchComesIn) {
  open();
  put(1);
  Read read;
  ASSERT_EQ(begin_read(read, name_of(0)), Code::Ok);
  put(3 * blocks_max());
  std::vector<std::byte> seen;
  read.resident->slot().for_range(0, kBlockBytes, [&](Bytes piece) { seen.insert(seen.end(), piece.begin(), piece.end()); });
  EXPECT_EQ(seen, bytes_of_key(name_of(0), kBlockBytes));
  bed_->store->unpin(read.resident);
  EXPECT_EQ(bed_->store->gauges().memory_pinned_bytes, 0U);
}

TEST_F(MemoryTier, AnExpiryThatIsChangedHoldsForWhatIsInMemory) {
  open();
  const auto pass = [&](uint64_t seconds) {
    bed_->clock.us += seconds * 1'000'000;
    bed_->clock.wall += seconds;
  };
  ASSERT_EQ(bed_->put("longer", kGroupPlain, kBlockBytes, true, 10), Code::Ok);
  ASSERT_EQ(bed_->put("shorter", kGroupPlain, kBlockBytes, true, 1000), Code::Ok);
  bed_->settle();
  ASSERT_EQ(bed_->expire("longer", 1000), Code::Ok);
  ASSERT_EQ(bed_->expire("shorter", 10), Code::Ok);
  pass(11);
  EXPECT_EQ(bed_->get("longer"), Code::Ok);
  EXPECT_EQ(bed_->get("shorter"), Code::NotFound);
  EXPECT_TRUE(bed_->store->find(bed_->key("longer")).present);
  EXPECT_FALSE(bed_->store->find(bed_->key("shorter")).present);
}

}  // namespace memory_test
}  // namespace halfstep::store
