// Holds, expiry, quotas, namespaces, listing, windows of reads, failing reads, and who owns the store.
#include <gtest/gtest.h>

#include <set>

#include "store/durable/blocking_io.h"
#include "store/format/header.h"
#include "store/format/page.h"
#include "store/format/store_time.h"
#include "store/store_fixture.h"

namespace halfstep::store {
namespace life_test {

std::string name_of(uint64_t number) { return "block " + std::to_string(number); }

TEST(Life, ThousandsOfLiveTombstonesMakeRoomByReclaimingTheOldestSegments) {
  StoreBed bed(1, 8);
  bed.open();
  // A half holds 32 pages of 62 records: more deletes than that, of blocks that were written after each other.
  for (uint64_t i = 0; i < 4000; ++i) {
    ASSERT_EQ(bed.put(name_of(i), kGroupByte, 1), Code::Ok) << i;
    ASSERT_EQ(bed.remove(name_of(i), kGroupByte), Code::Ok) << i;
  }
  ASSERT_EQ(bed.put("the last one"), Code::Ok);
  EXPECT_GT(bed.store->counters().segments_reclaimed, 0U);
  bed.reopen();
  for (uint64_t i = 0; i < 4000; ++i) ASSERT_FALSE(bed.store->find(bed.key(name_of(i), kGroupByte)).present) << i;
}

// The index may end a block early by its steps; the copy in memory does not know better.
TEST(Life, MatchAndGetAgreeOnTheEndOfABlockThatIsInMemory) {
  StoreBed bed;
  bed.open();
  for (uint64_t i = 0; i < 8; ++i)
    ASSERT_EQ(bed.put(name_of(i), kGroupPlain, 16384, true, 2000 + static_cast<uint32_t>(i)), Code::Ok);
  bed.clock.wall += 500;
  for (uint64_t i = 0; i < 8; ++i) ASSERT_EQ(bed.expire(name_of(i), 30 + i), Code::Ok);
  for (int second = 0; second < 45; ++second, ++bed.clock.wall) {
    for (uint64_t i = 0; i < 8; ++i) {
      const bool found = bed.store->find(bed.key(name_of(i))).present;
      ASSERT_EQ(bed.get(name_of(i)), found ? Code::Ok : Code::NotFound) << i << " after " << second << " s";
    }
  }
}

TEST(Life, MatchAndGetAgreeOnTheEndOfABlockThatWasPutAndWrittenMeanwhile) {
  StoreBed bed;
  bed.open();
  ASSERT_EQ(bed.put("sets the mark that the others count from", kGroupPlain, 16384, true, 1000), Code::Ok);
  bed.clock.wall += 60;
  for (uint32_t i = 0; i < 8; ++i) ASSERT_EQ(bed.put(name_of(i), kGroupPlain, 16384, true, 200 + i), Code::Ok);
  bed.clock.wall += 190;
  bool ended_early = false;
  for (uint32_t second = 0; second < 20; ++second, ++bed.clock.wall) {
    for (uint32_t i = 0; i < 8; ++i) {
      const bool found = bed.store->find(bed.key(name_of(i))).present;
      ASSERT_EQ(bed.get(name_of(i)), found ? Code::Ok : Code::NotFound) << i << " after " << second << " s";
      ended_early |= !found && 190 + second < 200 + i;
    }
  }
  EXPECT_TRUE(ended_early) << "or it says nothing";
}

TEST(Life, HeldBlocksOutliveReclaimUntilTheirHoldEnds) {
  StoreBed bed(2, 6);
  bed.open();
  ASSERT_EQ(bed.put("held"), Code::Ok);
  bed.settle();
  ASSERT_TRUE(bed.store->hold(bed.key("held"), 42, bed.clock.us + 50'000'000).ok());
  EXPECT_EQ(bed.store->hold(bed.key("absent"), 42, bed.clock.us + 50'000'000), Code::NotFound);
  for (uint64_t i = 0; i < 2000; ++i) ASSERT_EQ(bed.put(name_of(i)), Code::Ok);
  EXPECT_EQ(bed.get("held"), Code::Ok);
  EXPECT_EQ(bed.release_all(42), Code::Ok);
  EXPECT_EQ(bed.store->gauges().holds, 0U);
  for (uint64_t i = 2000; i < 5000; ++i) ASSERT_EQ(bed.put(name_of(i)), Code::Ok);
  EXPECT_EQ(bed.get("held"), Code::NotFound);
}

TEST(Life, AStoreFullOfHeldBlocksThrottlesWritesAndRecoversWhenLeasesEnd) {
  StoreBed bed(3, 4);
  bed.options.lease_ms_max = 1000;
  bed.options.lease_share = 1;
  bed.open();
  Status status;
  uint64_t written = 0;
  std::vector<std::unique_ptr<StoreBed::Put>> puts;
  std::vector<std::string> names;
  names.reserve(5000);
  for (; written < 5000; ++written) {
    names.push_back(name_of(written));
    puts.push_back(std::make_unique<StoreBed::Put>());
    status = bed.begin_put(*puts.back(), names.back(), kGroupPlain, 16384, false);
    for (int i = 0; i < 6; ++i) bed.pump();
    if (!status.ok()) break;
    ASSERT_TRUE(bed.store->hold(bed.key(names.back()), 1 + written % 3, bed.clock.us + 1'000'000).ok());
    (void)!bed.store->hold(bed.key(names.front()), 9, bed.clock.us + 1'000'000).ok();
    for (uint64_t i = 0; i < written; i += 7)
      (void)!bed.store->hold(bed.key(names[i]), 1 + i % 3, bed.clock.us + 1'000'000).ok();
  }
  ASSERT_EQ(status, Status(Code::Throttled, kThrottledSpace));
  bed.clock.us += 3'000'000;
  bed.settle();
  EXPECT_EQ(bed.put("after the leases"), Code::Ok);
}

TEST(Life, ExpiredBlocksAreMissesAndStayAwayAfterARestartEvenIfTheClockRunsBack) {
  StoreBed bed(4);
  bed.open();
  ASSERT_EQ(bed.put("short", kGroupPlain, 16384, true, 10), Code::Ok);
  ASSERT_EQ(bed.put("long", kGroupPlain, 16384, true, 1000), Code::Ok);
  EXPECT_EQ(bed.get("short"), Code::Ok);
  bed.clock.wall += 11;
  EXPECT_EQ(bed.get("short"), Code::NotFound);
  EXPECT_FALSE(bed.store->find(bed.key("short")).present);
  EXPECT_EQ(bed.store->counters().misses_expired, 1U);
  bed.close();
  bed.clock.wall -= 100;
  bed.restart_engine();
  bed.open();
  EXPECT_EQ(bed.store->recovery().blocks_dropped_expired, 1U);
  EXPECT_EQ(bed.get("short"), Code::NotFound);
  EXPECT_EQ(bed.get("long"), Code::Ok);
  EXPECT_EQ(bed.put("short"), Code::Ok);  // its successor
  EXPECT_EQ(bed.get("short"), Code::Ok);
}

TEST(Life, NamespacesKeepTheirQuotaAndTakeTheirBlocksWithThem) {
  StoreBed bed(5);
  bed.open();
  std::vector<Status> answers;
  const auto note = [&](Status status) { answers.push_back(status); };
  bed.store->create_namespace({"tenant", 64 * KiB, 0}, note);
  bed.settle();
  uint32_t scope = 0;
  bed.store->register_layout("tenant", test_layout(), [&](Status status, uint32_t got) {
    note(status);
    scope = got;
  });
  bed.settle();
  ASSERT_EQ(answers, std::vector<Status>(2));
  EXPECT_NE(scope, bed.scope);
  ASSERT_EQ(bed.put("shared name"), Code::Ok);
  bed.scope = scope;
  EXPECT_EQ(bed.get("shared name"), Code::NotFound);  // the same engine key in another namespace
  for (int i = 0; i < 4; ++i) EXPECT_EQ(bed.put(name_of(i)), Code::Ok);
  bed.settle();
  EXPECT_EQ(bed.put("one too many"), Status(Code::Throttled, kThrottledQuota));
  bed.store->delete_namespace("tenant", note);
  bed.settle();
  EXPECT_EQ(bed.get(name_of(0)), Code::NotFound);
  EXPECT_EQ(bed.store->layout_of(scope), nullptr);
  EXPECT_EQ(bed.store->counters().blocks_evicted_quota + bed.store->counters().blocks_evicted_dead_scope, 4U);
  bed.crash(io::MemoryEngine::Crash::Killed);
  bed.open();
  EXPECT_EQ(bed.store->recovery().blocks_dropped_dead_scope, 4U);
  EXPECT_EQ(bed.get("shared name"), Code::Ok);
  // The number is never used again.
  bed.store->create_namespace({"tenant", 0, 0}, note);
  bed.settle();
  bed.store->register_layout("tenant", test_layout(), [&](Status, uint32_t got) { EXPECT_GT(got, scope); });
  bed.settle();
}

TEST(Life, ListsEveryBlockOnceWithItsKeyInPagesAndAfterARestart) {
  StoreBed bed(6);
  bed.open();
  std::set<std::string> expected;
  for (uint64_t i = 0; i < 100; ++i) {
    const std::string name = i % 2 == 0 ? name_of(i) : std::string(200, 'k') + std::to_string(i);
    ASSERT_EQ(bed.put(name), Code::Ok);
    expected.insert(name);
  }
  bed.settle();
  for (int start = 0; start < 2; ++start) {
    std::set<std::string> seen;
    uint64_t cursor = 0;
    do {
      uint32_t page = 0;
      cursor = bed.list("default", cursor, 7, [&](const Listed& listed) {
        ++page;
        EXPECT_TRUE(seen.insert(std::string(as_text(listed.engine_key))).second);
        EXPECT_EQ(listed.block_bytes, 16384U);
        EXPECT_EQ(listed.parts, 4U);
        EXPECT_EQ(listed.layout, test_layout().id());
      });
      EXPECT_LE(page, 7U);
    } while (cursor != 0);
    EXPECT_EQ(seen, expected);
    bed.reopen();
  }
}

TEST(Life, CodedPartsComeBackAsTheyWereStored) {
  StoreBed bed(7);
  bed.open();
  std::vector<PartInfo> coded;
  for (uint32_t p = 0; p < 4; ++p) coded.push_back({0, 1000 + p, 4096, 0, 0xABC0 + p, static_cast<uint8_t>(p == 0 ? 3 : 5)});
  StoreBed::Put put;
  ASSERT_TRUE(bed.begin_put(put, "coded", kGroupPlain, 16384, true, coded).ok());
  while (!put.done) bed.pump();
  for (int start = 0; start < 2; ++start) {
    const StoreBed::Got got = bed.get(bed.key("coded"));
    ASSERT_TRUE(got.status.ok());
    ASSERT_EQ(got.parts.size(), 4U);
    EXPECT_EQ(got.bytes, bytes_of_key("coded", 1000 + 1001 + 1002 + 1003));
    for (uint32_t p = 0; p < 4; ++p) {
      EXPECT_EQ(got.parts[p].raw_crc, 0xABC0 + p);
      EXPECT_EQ(got.parts[p].raw_bytes, 4096U);
      EXPECT_EQ(got.parts[p].codec, p == 0 ? 3 : 5);
    }
    bed.reopen();
  }
}

TEST(Life, WrongLengthsAreRefusedBeforeMemoryIsTaken) {
  StoreBed bed(8);
  bed.open();
  EXPECT_EQ(bed.put("short by one", kGroupPlain, 16383), Code::Invalid);
  EXPECT_EQ(bed.put("empty", kGroupOpaque, 0), Code::Invalid);
  EXPECT_EQ(bed.put("too large", kGroupOpaque, bed.geometry.block_bytes_max + 1), Code::TooLarge);
  EXPECT_EQ(bed.put("no such group", 9, 16384), Code::Invalid);
  EXPECT_EQ(bed.store->gauges().memory_resident_bytes, 0U);
}

struct Waiting {
  StoreBed* bed = nullptr;
  int completed = 0;
  std::vector<Resident*> residents;
};
std::vector<Read> reads_of(StoreBed& bed, Waiting& waiting, const std::vector<std::string>& names, uint32_t group) {
  std::vector<Read> reads(names.size());
  for (size_t i = 0; i < names.size(); ++i) {
    reads[i].key = bed.key(names[i], group);
    reads[i].component = wire::Component::of(group, 0, 0);
    reads[i].owner = &waiting;
    reads[i].complete = [](Read& read) {
      auto& w = *static_cast<Waiting*>(read.owner);
      ++w.completed;
      if (read.status.ok()) w.residents.push_back(read.resident);
    };
  }
  return reads;
}
std::vector<Read*> pointers(std::vector<Read>& reads) {
  std::vector<Read*> out;
  for (Read& read : reads) out.push_back(&read);
  return out;
}

TEST(Life, AWindowOfReadsTakesMemoryForAllOrForNone) {
  StoreBed bed(9, 16, 8 * MiB);
  bed.open();
  std::vector<std::string> names;
  for (uint64_t i = 0; i < 36; ++i) {
    names.push_back(name_of(i));
    ASSERT_EQ(bed.put(names.back(), kGroupOpaque, 256 * KiB, true), Code::Ok);
  }
  bed.reopen();
  int relief = 0;
  bed.store->set_on_memory([&] { ++relief; });
  Waiting waiting{&bed, 0, {}};
  std::vector<Read> all = reads_of(bed, waiting, names, kGroupOpaque);
  EXPECT_EQ(bed.store->begin_reads(pointers(all)), Code::TooLarge);
  EXPECT_EQ(waiting.completed, 0);
  EXPECT_EQ(bed.store->gauges().memory_pinned_bytes, 0U);

  const std::vector<std::string> first(names.begin(), names.begin() + 12), second(names.begin() + 12, names.begin() + 24),
      third(names.begin() + 24, names.begin() + 32);
  std::vector<Read> a = reads_of(bed, waiting, first, kGroupOpaque);
  std::vector<Read> b = reads_of(bed, waiting, second, kGroupOpaque);
  std::vector<Read> c = reads_of(bed, waiting, third, kGroupOpaque);
  ASSERT_TRUE(bed.store->begin_reads(pointers(a)).ok());
  ASSERT_TRUE(bed.store->begin_reads(pointers(b)).ok());
  bed.settle();
  EXPECT_EQ(waiting.completed, 24);
  EXPECT_EQ(bed.store->begin_reads(pointers(c)), Code::Throttled);
  EXPECT_EQ(waiting.completed, 24);
  for (Resident* resident : waiting.residents) bed.store->unpin(resident);
  waiting.residents.clear();
  bed.settle();
  EXPECT_EQ(relief, 1);
  ASSERT_TRUE(bed.store->begin_reads(pointers(c)).ok());
  bed.settle();
  EXPECT_EQ(waiting.completed, 32);
  EXPECT_EQ(waiting.residents.size(), 8U);
  for (Resident* resident : waiting.residents) bed.store->unpin(resident);
}

TEST(Life, ReadsOfOneBlockShareOneDeviceRead) {
  StoreBed bed(10);
  bed.open();
  ASSERT_EQ(bed.put("popular"), Code::Ok);
  bed.reopen();
  Waiting waiting{&bed, 0, {}};
  std::vector<Read> reads = reads_of(bed, waiting, {"popular", "popular", "absent", "popular"}, kGroupPlain);
  const uint64_t before = bed.engine->counters().reads;
  ASSERT_TRUE(bed.store->begin_reads(pointers(reads)).ok());
  EXPECT_EQ(waiting.completed, 1);  // the miss
  bed.settle();
  EXPECT_EQ(waiting.completed, 4);
  EXPECT_EQ(bed.engine->counters().reads - before, 1U);
  for (Resident* resident : waiting.residents) bed.store->unpin(resident);
}

TEST(Life, AReadThatFailsOnceIsReadAgainAndOneThatFailsMoreOftenIsAMissAndStays) {
  StoreBed bed(11);
  bed.open();
  ASSERT_EQ(bed.put("shaky"), Code::Ok);
  ASSERT_EQ(bed.put("dead"), Code::Ok);
  bed.reopen();
  bed.engine->inject({io::Op::Read, 0, 0, UINT64_MAX, -EIO, 1});
  EXPECT_EQ(bed.get("shaky"), Code::Ok);
  bed.engine->inject({io::Op::Read, 0, 0, UINT64_MAX, -EIO, 3});
  EXPECT_EQ(bed.get("dead"), Code::IoError);
  EXPECT_EQ(bed.store->counters().misses_io, 1U);
  EXPECT_EQ(bed.get("dead"), Code::Ok);
  EXPECT_EQ(bed.get("shaky"), Code::Ok);
  bed.settle();
  bed.reopen();
  EXPECT_EQ(bed.get("dead"), Code::Ok);
}

TEST(Life, WrongBitsOnTheWayFromTheDeviceNeverReachAnybody) {
  StoreBed bed(12);
  bed.open();
  for (uint64_t i = 0; i < 60; ++i) ASSERT_EQ(bed.put(name_of(i), i % 2 == 0 ? kGroupPlain : kGroupRagged, 16384), Code::Ok);
  bed.reopen();
  io::MemoryFaults faults;
  faults.bit_flip_chance = 0.3;
  faults.misdirected_read_chance = 0.1;
  bed.engine->set_faults(faults);
  uint64_t hits = 0;
  for (uint64_t i = 0; i < 60; ++i) hits += bed.get(name_of(i), i % 2 == 0 ? kGroupPlain : kGroupRagged).ok() ? 1 : 0;
  EXPECT_GT(hits, 40U);
  EXPECT_LT(hits, 60U);
  EXPECT_EQ(bed.store->counters().misses_corrupt, 60 - hits);
}

TEST(Life, AnotherOwnerOfTheStoreStopsThisOne) {
  StoreBed bed(13);
  bed.open();
  ASSERT_EQ(bed.put("before"), Code::Ok);
  bed.settle();
  SlotPool other_slots(*bed.arena);
  std::unique_ptr<Arena> arena;
  ASSERT_TRUE(Arena::create(8 * MiB, false, &arena).ok());
  SlotPool slots(*arena);
  std::unique_ptr<Store> other;
  ASSERT_TRUE(Store::open(*bed.engine, slots, bed.clock, bed.options, &other).ok());
  Status status;
  bed.store->create_namespace({"late", 0, 0}, [&](Status answer) { status = answer; });
  bed.settle();
  EXPECT_EQ(status, Code::Closed);
  EXPECT_EQ(bed.put("after"), Code::Closed);
  // Nothing is written any more, so nobody may wait for it.
  EXPECT_EQ(bed.remove("before"), Code::Closed);
  EXPECT_EQ(bed.expire("before", 100), Code::Closed);
  EXPECT_EQ(bed.pin("before", 7), Code::Closed);
  EXPECT_EQ(bed.release("before", 7), Code::Closed);
  EXPECT_EQ(bed.release_all(7), Code::Closed);
  EXPECT_EQ(bed.store->close(), Code::Closed);
  ASSERT_TRUE(other->close().ok());
}

TEST(Life, ManyDeletesReclaimWhatIsEmptyAndLeaveTheLivingAlone) {
  StoreBed bed(14, 64, 16 * MiB);
  bed.open();
  for (uint64_t i = 0; i < 1650; ++i) ASSERT_EQ(bed.put(name_of(i), kGroupByte, 1), Code::Ok);
  for (uint64_t i = 0; i < 200; ++i) ASSERT_EQ(bed.put("keeper " + name_of(i), kGroupPlain, 16384, true), Code::Ok);
  bed.settle();
  for (uint64_t i = 0; i < 1650; ++i) ASSERT_EQ(bed.remove(name_of(i), kGroupByte), Code::Ok);
  for (uint64_t i = 0; i < 50; ++i) {
    ASSERT_EQ(bed.put("short-lived", kGroupByte, 1), Code::Ok);
    ASSERT_EQ(bed.remove("short-lived", kGroupByte), Code::Ok);
  }
  bed.settle();
  for (int start = 0; start < 2; ++start) {
    for (uint64_t i = 0; i < 200; ++i) ASSERT_TRUE(bed.store->find(bed.key("keeper " + name_of(i))).present) << i;
    for (uint64_t i = 0; i < 1650; ++i) ASSERT_FALSE(bed.store->find(bed.key(name_of(i), kGroupByte)).present) << i;
    bed.crash(io::MemoryEngine::Crash::PowerCut);
    bed.open();
  }
}

TEST(Life, APersistInASegmentThatEndedIsAnsweredBeforeTheSegmentIsReclaimed) {
  StoreBed bed(15, 4, 16 * MiB);
  bed.options.lease_ms_max = 60'000;
  bed.open();
  uint64_t next = 0;
  std::vector<std::string> names;
  while (bed.store->gauges().segments_sealed < 3 && next < 2000) {
    names.push_back(name_of(next++));
    ASSERT_EQ(bed.put(names.back()), Code::Ok);
    bed.settle();
    ASSERT_TRUE(bed.store->hold(bed.key(names.back()), 7, bed.clock.us + 59'000'000).ok());
  }
  for (uint64_t i = next - 6; i < next; ++i) ASSERT_EQ(bed.release(names[i], 7), Code::Ok);
  StoreBed::Put persisted;
  ASSERT_TRUE(bed.begin_put(persisted, "persisted", kGroupPlain, 16384, true).ok());
  bed.store->turn();
  bool failing = true;
  bed.tap->tap = [&](io::Request& request) {
    const bool frame = request.op == io::Op::Write && request.bytes > kPageBytes && request.offset > 3 * MiB;
    return failing && frame ? TapEngine::Fate::Fail : TapEngine::Fate::Pass;
  };
  std::vector<std::string> large;
  for (uint64_t i = 0; i < 5; ++i) large.push_back("large " + name_of(i));
  std::vector<StoreBed::Put> puts(5);
  for (uint64_t i = 0; i < 5; ++i) ASSERT_TRUE(bed.begin_put(puts[i], large[i], kGroupOpaque, 250 * KiB, false).ok());
  bed.store->turn();
  bed.engine->flush_submissions();
  bed.pump();
  failing = false;
  for (int turns = 0; turns < 2000 && !persisted.done; ++turns) {
    bed.pump();
    bed.clock.us += 30'000;
  }
  EXPECT_TRUE(persisted.done);
  bed.close();
}

TEST(Life, ADeletedExpiredBlockStaysAwayThoughTheClockGoesBack) {
  StoreBed bed(16);
  bed.open();
  ASSERT_EQ(bed.put("short", kGroupPlain, 16384, true, 10), Code::Ok);
  bed.clock.wall += 11;
  ASSERT_FALSE(bed.store->find(bed.key("short")).present);
  EXPECT_EQ(bed.remove("short"), Code::NotFound);
  bed.crash(io::MemoryEngine::Crash::PowerCut);
  bed.clock.wall -= 100;
  bed.open();
  EXPECT_FALSE(bed.store->find(bed.key("short")).present);
}

TEST(Life, ADeleteOfWhatIsNotThereWaitsOnlyForThoseBeforeIt) {
  StoreBed bed(17, 64, 16 * MiB);
  bed.open();
  constexpr size_t kCount = 600;
  for (uint64_t i = 0; i < kCount; ++i) ASSERT_EQ(bed.put(name_of(i), kGroupByte, 1), Code::Ok);
  bed.settle();
  std::vector<Remove> removes(kCount);
  int answered = 0;
  bool absent_answered = false;
  Remove absent;
  absent.key = bed.key("absent");
  absent.owner = &absent_answered;
  absent.done = [](Remove& r) { *static_cast<bool*>(r.owner) = true; };
  size_t started = 0;
  for (; started < kCount && !absent_answered; ++started) {
    Remove& remove = removes[started];
    remove.key = bed.key(name_of(started), kGroupByte);
    remove.owner = &answered;
    remove.done = [](Remove& r) { ++*static_cast<int*>(r.owner); };
    bed.store->remove(remove);
    if (started == 3) bed.store->remove(absent);
    bed.pump();
    if (absent_answered) {
      EXPECT_GE(answered, 4);
    }
  }
  EXPECT_TRUE(absent_answered);
  EXPECT_LT(started, kCount / 2);
  EXPECT_EQ(absent.status, Code::NotFound);
  bed.settle();
}

TEST(Life, TimeGoesOnAfterTheClockJumpedAheadAndBack) {
  StoreBed bed(18);
  bed.open();
  bed.clock.wall += 315'360'000;
  ASSERT_EQ(bed.put("as it jumped"), Code::Ok);
  bed.clock.us += kBelievedAfterUs;  // and it lasted
  ASSERT_EQ(bed.put("during the jump"), Code::Ok);
  bed.clock.wall -= 315'360'000;
  ASSERT_EQ(bed.put("short", kGroupPlain, 16384, true, 10), Code::Ok);
  EXPECT_TRUE(bed.store->find(bed.key("short")).present);
  bed.clock.wall += 11;
  bed.clock.us += 11'000'000;
  EXPECT_FALSE(bed.store->find(bed.key("short")).present);
}

TEST(Life, AnotherOwnerIsSeenByItsStartNumberHoweverManyChangesThisOneMade) {
  StoreBed bed(19);
  bed.open();
  const uint64_t end = bed.geometry.device_bytes - format::kHeaderReserveBytes;
  std::vector<std::byte> before(format::kHeaderReserveBytes);
  std::unique_ptr<Arena> arena;
  ASSERT_TRUE(Arena::create(8 * MiB, false, &arena).ok());
  SlotPool slots(*arena);
  std::unique_ptr<Store> other;
  ASSERT_TRUE(Store::open(*bed.engine, slots, bed.clock, bed.options, &other).ok());
  bed.device->read(0, before);
  other.reset();
  // A whole copy of the other start with a sequence below ours, as after a race of the two.
  HeaderState theirs;
  ASSERT_TRUE(decode_header(before, &theirs).ok());
  theirs.fixed.sequence = 1;
  std::vector<std::byte> image;
  ASSERT_TRUE(encode_header(theirs, &image).ok());
  PageBuffer pages(static_cast<uint32_t>(image.size() / kPageBytes));
  std::memcpy(pages.bytes().data(), image.data(), image.size());
  BlockingIo io(*bed.engine);
  for (const uint64_t at : {uint64_t{0}, end}) ASSERT_TRUE(io.write(at, pages.bytes()).ok());
  Status status;
  bed.store->create_namespace({"late", 0, 0}, [&](Status answer) { status = answer; });
  bed.settle();
  EXPECT_EQ(status, Code::Closed);
  EXPECT_EQ(bed.put("after"), Code::Closed);
}

TEST(Life, CloseAnswersEverybodyThoughEverythingIsHeld) {
  StoreBed bed(20, 4, 16 * MiB);
  bed.options.lease_ms_max = 60'000;
  bed.options.lease_share = 1;
  bed.open();
  std::vector<std::unique_ptr<StoreBed::Put>> puts;
  std::vector<std::string> names;
  names.reserve(5000);
  Status status;
  while (status.ok() && names.size() < 5000) {
    names.push_back(name_of(names.size()));
    puts.push_back(std::make_unique<StoreBed::Put>());
    status = bed.begin_put(*puts.back(), names.back(), kGroupPlain, 16384, true);
    for (int turns = 0; turns < 6; ++turns) bed.pump();
    if (status.ok()) {
      ASSERT_TRUE(bed.store->hold(bed.key(names.back()), 7, bed.clock.us + 59'000'000).ok());
    }
  }
  ASSERT_EQ(status, Status(Code::Throttled, kThrottledSpace));
  puts.pop_back();
  EXPECT_TRUE(bed.store->close().ok());
  for (const auto& put : puts) EXPECT_TRUE(put->done && put->write.status.ok());
  bed.restart_engine();
  bed.open();
  EXPECT_EQ(bed.get(names[puts.size() - 1]), Code::Ok);
}

TEST(Life, CloseSaysThatSomeBlocksFoundNoSegment) {
  StoreBed bed(22, 4);
  bed.open();
  for (uint64_t i = 0; i < 700; ++i) ASSERT_EQ(bed.put(name_of(i)), Code::Ok);
  bed.crash(io::MemoryEngine::Crash::Killed);
  // None of its segments can be read, so all are left for the next start.
  const Places places = places_of(bed.geometry);
  bed.tap->tap = [&](const io::Request& request) {
    const bool segment = request.offset >= places.segment(0) && request.offset < places.segments_end();
    return request.op == io::Op::Read && segment ? TapEngine::Fate::Fail : TapEngine::Fate::Pass;
  };
  bed.open();
  bed.settle();
  ASSERT_EQ(bed.store->recovery().segments_unread, 4U);
  StoreBed::Put lost;
  ASSERT_EQ(bed.begin_put(lost, "lost", kGroupPlain, 16384, false), Code::Ok);
  bed.settle();
  EXPECT_TRUE(lost.done && lost.write.status.ok()) << "it is in memory";
  EXPECT_EQ(bed.store->close(), Code::NoSpace);
}

TEST(Life, AnotherOwnerSeenWhileClosingIsLeftAlone) {
  StoreBed bed(21);
  bed.open();
  std::unique_ptr<Arena> arena;
  ASSERT_TRUE(Arena::create(8 * MiB, false, &arena).ok());
  SlotPool slots(*arena);
  std::unique_ptr<Store> other;
  ASSERT_TRUE(Store::open(*bed.engine, slots, bed.clock, bed.options, &other).ok());
  EXPECT_EQ(bed.store->close(), Code::Closed);
  ASSERT_TRUE(other->close().ok());
}

TEST(Life, ADeviceThatFailsForASecondCostsNoLivingBlocks) {
  StoreBed bed(22, 16);
  bed.open();
  uint64_t next = 0;
  while (bed.store->counters().segments_reclaimed == 0) ASSERT_EQ(bed.put(name_of(next++), kGroupPlain, 16384, true), Code::Ok);
  bed.settle();
  const uint64_t before = bed.store->gauges().blocks;
  const Places places = places_of(bed.geometry);
  const uint64_t until_us = bed.clock.us + 1'000'000;
  uint64_t failed = 0;
  bed.tap->tap = [&](io::Request& request) {
    const bool frame =
        request.op == io::Op::Write && request.offset >= places.segment(0) && request.offset < places.log(1, 0, 0);
    if (!frame || bed.clock.us >= until_us) return TapEngine::Fate::Pass;
    ++failed;
    return TapEngine::Fate::Fail;
  };
  for (uint64_t i = 0; bed.clock.us < until_us; ++i) {
    (void)!bed.put("during " + name_of(i)).ok();
    bed.pump();  // one that is refused at once takes no time
  }
  for (int turns = 0; turns < 10'000; ++turns) bed.pump();
  EXPECT_EQ(bed.put("after", kGroupPlain, 16384, true), Code::Ok);
  EXPECT_GT(failed, 3U);
  EXPECT_GT(bed.store->gauges().blocks, before * 3 / 4);
}

}  // namespace life_test
}  // namespace halfstep::store
