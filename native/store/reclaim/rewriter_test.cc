// What reclaim keeps and how: copies of touched and held blocks, moved only when they are on media.
#include "store/reclaim/rewriter.h"

#include <gtest/gtest.h>

#include <set>

#include "store/memory/own_memory.h"
#include "store/rewriter_fixture.h"

namespace halfstep::store {
namespace {

TEST(Rewriter, KeepsWhatWasTouchedAndLetsTheRestGo) {
  StoreBed bed(1, kSegments);
  bed.open();
  std::vector<std::string> used, unused;
  for (uint64_t i = 0; i < 60; ++i) {
    const std::string name = i % 2 == 0 ? name_of(i) : long_name_of(i);
    ASSERT_EQ(bed.put(name, i % 5 == 0 ? kGroupRagged : kGroupPlain, i % 5 == 0 ? 9000 : 16384), Code::Ok);
    if (i % 5 != 0) (i % 10 == 1 ? used : unused).push_back(name);
  }
  touch(bed, used);
  ASSERT_EQ(bed.get(name_of(0), kGroupRagged), Code::Ok);  // a get touches, too
  fill_segment(bed);
  reclaim_first_segment(bed, unused.front());
  bed.settle();
  EXPECT_GE(bed.store->counters().blocks_rewritten, used.size());
  EXPECT_GE(bed.store->counters().blocks_evicted_age, unused.size());
  for (int start = 0; start < 2; ++start) {
    for (const std::string& name : used) EXPECT_EQ(bed.get(name), Code::Ok) << name;
    for (const std::string& name : unused) EXPECT_EQ(bed.get(name), Code::NotFound) << name;
    EXPECT_EQ(bed.get(name_of(0), kGroupRagged), Code::Ok);
    bed.reopen();
  }
}

TEST(Rewriter, CopiesInSmallStepsWhileNobodyWaits) {
  StoreBed bed(20, kSegments);
  bed.options.policy = "seg-fifo";  // the first segment goes first
  bed.options.lease_ms_max = 1'000'000'000;
  bed.open();
  std::vector<std::string> used;
  for (uint64_t i = 0; i < 80; ++i) {
    ASSERT_EQ(bed.put(used.emplace_back(name_of(i))), Code::Ok);
    ASSERT_TRUE(bed.store->hold(bed.key(used.back()), 7, bed.clock.us + 900'000'000'000).ok());
  }
  fill_segment(bed);
  const Counters& counters = bed.store->counters();
  for (uint64_t i = 0; counters.bytes_rewritten == 0; ++i) {
    ASSERT_LT(i, 2 * kCapacityBlocks);
    churn(bed, i, 1);
  }
  // Nobody puts any more, and nobody waits: a chunk in 20 ms.
  constexpr uint64_t kChunkBytes = 256 * KiB;
  const uint64_t before = counters.bytes_rewritten;
  EXPECT_LE(before, kChunkBytes);
  const auto pump_for = [&](uint64_t us) {
    for (const uint64_t until = bed.clock.us + us; bed.clock.us < until;) bed.pump();
  };
  pump_for(15'000);
  EXPECT_LE(counters.bytes_rewritten - before, 2 * kChunkBytes);
  pump_for(35'000);
  EXPECT_LE(counters.bytes_rewritten - before, 4 * kChunkBytes);
  EXPECT_LT(counters.blocks_rewritten, used.size());
  pump_for(150'000);
  EXPECT_GE(counters.blocks_rewritten, used.size());
  for (const std::string& name : used) EXPECT_EQ(bed.get(name), Code::Ok) << name;
}

// The sooner the copies begin, the fewer of them stand before the gets of a moment; what is not copied is there until its room
// is needed.
TEST(Rewriter, CopiesBeginEarlyAndTheRestOfTheVictimStaysUntilTheLastQuarter) {
  StoreBed bed(21, kSegments);
  bed.options.policy = "seg-fifo";  // the first segment goes first, and keeps what is held
  bed.options.lease_ms_max = 1'000'000'000;
  bed.open();
  std::vector<std::string> used;
  for (uint64_t i = 0; i < 20; ++i) {
    ASSERT_EQ(bed.put(used.emplace_back(name_of(i))), Code::Ok);
    ASSERT_TRUE(bed.store->hold(bed.key(used.back()), 7, bed.clock.us + 900'000'000'000).ok());
  }
  fill_segment(bed);
  const IndexKey unused = bed.key("filler " + name_of(0));
  const Counters& counters = bed.store->counters();
  uint64_t puts = 0;
  const auto put_until = [&](const auto& happened) {
    while (!happened()) {
      ASSERT_LT(puts, 2 * kCapacityBlocks);
      ASSERT_EQ(bed.put("churn " + name_of(puts++)), Code::Ok);
      bed.settle();
    }
  };
  put_until([&] { return counters.blocks_rewritten > 0; });
  EXPECT_TRUE(bed.store->find(unused).present);
  const uint64_t begun_at = puts;
  put_until([&] { return !bed.store->find(unused).present; });
  EXPECT_GT((puts - begun_at) * 16384, StoreBed::kSegmentBytes / 4);
  EXPECT_EQ(counters.blocks_rewritten, used.size()) << "nothing is copied twice";
  for (const std::string& name : used) EXPECT_EQ(bed.get(name), Code::Ok) << name;
}

TEST(Rewriter, WhatNobodyUsesStaysUntilTheLastQuarter) {
  StoreBed bed(22, kSegments);
  bed.options.policy = "seg-fifo";
  bed.open();
  fill_segment(bed);
  const IndexKey first = bed.key("filler " + name_of(0));
  uint64_t sealed = 0;
  uint64_t puts_since = 0;
  for (uint64_t i = 0; bed.store->find(first).present; ++i) {
    ASSERT_LT(i, 2 * kCapacityBlocks);
    puts_since = bed.store->gauges().segments_sealed > sealed ? 0 : puts_since + 1;
    sealed = bed.store->gauges().segments_sealed;
    ASSERT_EQ(bed.put("churn " + name_of(i)), Code::Ok);
    bed.settle();
  }
  EXPECT_GT(puts_since * 16384 * 3 / 2, StoreBed::kSegmentBytes * 5 / 8) << "a put and its frame's header";
  EXPECT_EQ(bed.store->counters().blocks_rewritten, 0U);
}

TEST(Rewriter, CopiesAreListedAsTheirOriginalsWere) {
  StoreBed bed(2, kSegments);
  bed.open();
  const std::set<std::string> names = {"short", long_name_of(1)};
  bed.clock.wall += 50;
  const uint64_t created_s = bed.clock.wall;
  for (const std::string& name : names) {
    ASSERT_EQ(bed.put(name, kGroupPlain, 16384, false, name == "short" ? 100'000 : 0), Code::Ok);
  }
  bed.clock.wall += 50;
  touch(bed, {names.begin(), names.end()});
  fill_segment(bed);
  reclaim_first_segment(bed);
  ASSERT_GE(bed.store->counters().blocks_rewritten, 2U);
  for (int start = 0; start < 2; ++start) {
    std::set<std::string> seen;
    bed.list("default", 0, UINT32_MAX, [&](const Listed& listed) {
      const std::string name(as_text(listed.engine_key));
      if (names.count(name) == 0) return;
      EXPECT_TRUE(seen.insert(name).second) << "twice: " << name;
      EXPECT_EQ(listed.created_s, created_s);
      EXPECT_EQ(listed.expiry_s, name == "short" ? created_s + 100'000 : 0);
      EXPECT_EQ(listed.parts, 4U);
    });
    EXPECT_EQ(seen, names);
    bed.reopen();
  }
}

TEST(Rewriter, WhatIsNotTouchedAgainGoesTheSecondTime) {
  StoreBed bed(3, kSegments);
  bed.open();
  ASSERT_EQ(bed.put("once"), Code::Ok);
  touch(bed, {"once"});
  fill_segment(bed);
  reclaim_first_segment(bed);
  ASSERT_TRUE(bed.store->find(bed.key("once")).present);
  churn(bed, 10'000, 3 * kCapacityBlocks);
  EXPECT_FALSE(bed.store->find(bed.key("once")).present);
}

// Memory answers the gets, and the index hears of them all the same as often as they count.
TEST(Rewriter, KeepsWhatIsReadFromMemoryAgainAndAgain) {
  StoreBed bed(5, kSegments);
  bed.open();
  ASSERT_EQ(bed.put("hot"), Code::Ok);
  bed.settle();
  const Counters& counters = bed.store->counters();
  const uint64_t flash = counters.hits_flash;
  for (uint64_t i = 0; i < 4 * kCapacityBlocks; ++i) {
    churn(bed, 10'000 + i, 1);
    ASSERT_EQ(bed.get("hot"), Code::Ok) << i;
  }
  EXPECT_EQ(counters.hits_flash, flash);
  EXPECT_GE(counters.blocks_rewritten, 3U);
  bed.reopen();
  EXPECT_EQ(bed.get("hot"), Code::Ok);
}

// Nobody can tell any more what is in a segment that is reclaimed: it leaves the index as a whole, and memory has some of it
// still. That is gone for gets as it is for find().
TEST(Rewriter, WhatLeftFlashIsNotReadFromMemory) {
  StoreBed bed(6, kSegments);
  bed.options.policy = "seg-fifo";  // keeps nothing by itself
  bed.open();
  constexpr uint64_t kHot = 20;
  for (uint64_t i = 0; i < kHot; ++i) ASSERT_EQ(bed.put(name_of(i)), Code::Ok);
  bed.settle();
  bed.tap->tap = [](io::Request& request) {
    const bool get = request.op == io::Op::Read && request.io_class == io::IoClass::Demand;
    return get ? TapEngine::Fate::Fail : TapEngine::Fate::Pass;
  };
  const Counters& counters = bed.store->counters();
  const auto present = [&](uint64_t i) { return bed.store->find(bed.key(name_of(i))).present; };
  for (uint64_t round = 0; present(0); ++round) {
    ASSERT_LT(round, 2 * kCapacityBlocks);
    for (uint64_t i = 0; i < kHot && round % 4 == 0; ++i)
      ASSERT_EQ(bed.get(name_of(i)), present(i) ? Code::Ok : Code::NotFound);
    churn(bed, round, 1);
    for (uint64_t i = 0; i < kHot; ++i) {
      if (!present(i)) {
        ASSERT_EQ(bed.get(name_of(i)), Code::NotFound) << i << ", round " << round;
      }
    }
  }
  EXPECT_EQ(counters.hits_flash, 0U) << "else memory had nothing that flash did not have";
  EXPECT_GT(counters.hits_memory, kHot);
}

TEST(Rewriter, HeldBlocksAreCopiedForAsLongAsTheyAreHeld) {
  StoreBed bed(4, kSegments);
  bed.options.policy = "seg-fifo";  // keeps nothing by itself
  bed.options.lease_ms_max = 1'000'000'000;
  bed.open();
  constexpr uint64_t kHeld = 200;
  for (uint64_t i = 0; i < kHeld; ++i) {
    ASSERT_EQ(bed.put(name_of(i)), Code::Ok);
    ASSERT_TRUE(bed.store->hold(bed.key(name_of(i)), 7, bed.clock.us + 900'000'000'000).ok());
    churn(bed, 1000 * i, 5);
  }
  churn(bed, 1'000'000, 4 * kCapacityBlocks);
  EXPECT_GE(bed.store->counters().blocks_rewritten, kHeld);
  for (uint64_t i = 0; i < kHeld; ++i) EXPECT_EQ(bed.get(name_of(i)), Code::Ok) << i;
  ASSERT_EQ(bed.release_all(7), Code::Ok);
  churn(bed, 2'000'000, 2 * kCapacityBlocks);
  uint64_t gone = 0;
  for (uint64_t i = 0; i < kHeld; ++i) gone += bed.store->find(bed.key(name_of(i))).present ? 0 : 1;
  EXPECT_GT(gone, kHeld / 4);  // the others are in the open segment of copies
}

TEST(Rewriter, AStoreFullOfHeldBlocksThrottlesWritesAndGoesOnWhenTheyAreReleased) {
  StoreBed bed(5, kSegments);
  bed.options.lease_ms_max = 1'000'000'000;
  bed.options.lease_share = 1;
  bed.open();
  Status status;
  std::vector<std::unique_ptr<StoreBed::Put>> puts;
  std::vector<std::string> names;
  names.reserve(5000);
  while (status.ok() && names.size() < 5000) {
    names.push_back(name_of(names.size()));
    puts.push_back(std::make_unique<StoreBed::Put>());
    status = bed.begin_put(*puts.back(), names.back(), kGroupPlain, 16384, false);
    for (int turns = 0; turns < 6; ++turns) bed.pump();
    if (status.ok()) {
      ASSERT_TRUE(bed.store->hold(bed.key(names.back()), 7, bed.clock.us + 900'000'000'000).ok());
    }
  }
  ASSERT_EQ(status.code(), Code::Throttled);
  EXPECT_GT(names.size(), kCapacityBlocks / 2);
  for (size_t i = 0; i + 1 < names.size(); ++i) ASSERT_TRUE(bed.store->find(bed.key(names[i])).present) << names[i];
  ASSERT_EQ(bed.release_all(7), Code::Ok);
  bed.clock.us += 1'000'000;
  bed.settle();
  churn(bed, 0, kCapacityBlocks);
}

TEST(Rewriter, ABlockThatRottedIsDroppedNotCopied) {
  StoreBed bed(6, kSegments);
  bed.open();
  ASSERT_EQ(bed.put("good", kGroupPlain, 16384, true), Code::Ok);
  ASSERT_EQ(bed.put("rotten", kGroupPlain, 16384, true), Code::Ok);
  // Looked for by its first page.
  const std::vector<std::byte> content = bytes_of_key("rotten", 16384);
  const Places places = places_of(bed.geometry);
  std::vector<std::byte> page(kPageBytes);
  uint64_t found = 0;
  for (uint64_t at = places.segment(0); at < places.segment(kSegments) && found == 0; at += kPageBytes) {
    bed.device->read(at, page);
    if (std::equal(page.begin(), page.end(), content.begin())) found = at;
  }
  ASSERT_NE(found, 0U);
  bed.device->flip_bit(found + 100, 3);
  touch(bed, {"good", "rotten"});
  fill_segment(bed);
  reclaim_first_segment(bed);
  EXPECT_EQ(bed.store->counters().blocks_evicted_unreadable, 1U);
  EXPECT_EQ(bed.get("good"), Code::Ok);
  EXPECT_EQ(bed.get("rotten"), Code::NotFound);
  bed.crash(io::MemoryEngine::Crash::PowerCut);
  bed.open();
  EXPECT_EQ(bed.get("rotten"), Code::NotFound);
}

TEST(Rewriter, ReadsThatFailForAMomentLoseNothing) {
  StoreBed bed(7, kSegments);
  bed.open();
  std::vector<std::string> used;
  for (uint64_t i = 0; i < 10; ++i) {
    used.push_back(name_of(i));
    ASSERT_EQ(bed.put(used.back()), Code::Ok);
  }
  touch(bed, used);
  fill_segment(bed);
  uint32_t failed = 0;
  bed.tap->tap = [&](io::Request& request) {
    if (request.op != io::Op::Read || failed >= 1) return TapEngine::Fate::Pass;
    ++failed;
    return TapEngine::Fate::Fail;
  };
  reclaim_first_segment(bed);
  EXPECT_EQ(failed, 1U);
  bed.tap->tap = nullptr;
  for (const std::string& name : used) EXPECT_EQ(bed.get(name), Code::Ok) << name;
  EXPECT_EQ(bed.store->counters().blocks_evicted_unreadable, 0U);
}

TEST(Rewriter, BlocksLargerThanItsBufferBorrowMemory) {
  StoreBed bed(11, kSegments, 2 * MiB);
  bed.open();
  ASSERT_LT(rewrite_buffer_bytes(kSegments, 2 * MiB), 248 * KiB + kFrameHeaderBytes);
  const std::vector<std::string> large = {"large", "large with a trailer"};
  ASSERT_EQ(bed.put("small"), Code::Ok);
  ASSERT_EQ(bed.put(large[0], kGroupOpaque, 248 * KiB), Code::Ok);
  ASSERT_EQ(bed.put(large[1], kGroupOpaque, 248 * KiB - 100), Code::Ok);
  touch(bed, {"small"});
  fill_segment(bed);
  const IndexKey filler = bed.key("filler " + name_of(0));
  for (uint64_t i = 0; bed.store->find(filler).present; ++i) {
    ASSERT_LT(i, 2 * kCapacityBlocks);
    ASSERT_EQ(bed.put("churn " + name_of(i)), Code::Ok);
    if (i % 2 == 0) touch(bed, {"churn " + name_of(i)});
    if (i % 100 == 0) touch(bed, large, kGroupOpaque);
  }
  bed.reopen();
  EXPECT_EQ(bed.get("small"), Code::Ok);
  for (const std::string& name : large) EXPECT_EQ(bed.get(name, kGroupOpaque), Code::Ok) << name;
}

// Whatever is read while its segment is reclaimed arrives, or is an honest miss.
TEST(Rewriter, ReadersAndReclaimDoNotWaitForEachOther) {
  StoreBed bed(8, kSegments);
  bed.open();
  io::MemoryFaults faults;
  faults.delay_polls_max = 12;
  bed.engine->set_faults(faults);
  Prng prng(5);
  uint64_t hits = 0;
  for (uint64_t i = 0; i < 3 * kCapacityBlocks; ++i) {
    ASSERT_EQ(bed.put(name_of(i)), Code::Ok);
    const uint64_t old = i - std::min(i, prng.below(2 * kCapacityBlocks));
    const Status status = bed.get(name_of(old));
    ASSERT_TRUE(status.ok() || status == Code::NotFound);
    hits += status.ok() ? 1 : 0;
  }
  EXPECT_GT(hits, kCapacityBlocks);
  EXPECT_GT(bed.store->counters().hits_flash, 0U);
  EXPECT_GT(bed.store->counters().blocks_rewritten, 0U);
}

TEST(Rewriter, TheCountersAddUpToWhatTheDeviceGot) {
  StoreBed bed(9, kSegments);
  bed.open();
  bed.settle();
  const auto sum = [&] {
    const Counters& c = bed.store->counters();
    return c.bytes_user + c.bytes_rewritten + c.bytes_padding + c.bytes_metadata;
  };
  const uint64_t device_before = bed.engine->counters().write_bytes;
  const uint64_t sum_before = sum();
  Prng prng(6);
  for (uint64_t i = 0; i < 2 * kCapacityBlocks; ++i) {
    const bool ragged = i % 7 == 0;
    ASSERT_EQ(
        bed.put(name_of(i), ragged ? kGroupRagged : kGroupPlain, ragged ? 5000 : 16384, i % 11 == 0, i % 3 == 0 ? 300 : 0),
        Code::Ok);
    const uint64_t old = i - std::min(i, prng.below(kCapacityBlocks));
    touch(bed, {name_of(old)});
    if (i % 13 == 0) (void)!bed.remove(name_of(old)).ok();
    if (i % 500 == 0) {
      bed.register_layout("model " + std::to_string(i));
      bed.register_layout();
    }
    bed.clock.us += 100'000;
  }
  bed.settle();
  EXPECT_GT(bed.store->counters().bytes_rewritten, 0U);
  EXPECT_GT(bed.store->counters().touch_pages, 0U);
  EXPECT_EQ(sum() - sum_before, bed.engine->counters().write_bytes - device_before);
}

TEST(Rewriter, RewritesStayWithinTheirShareThoughEverythingIsTouched) {
  StoreBed bed(10, 64, 16 * MiB);
  bed.open();
  Prng prng(7);
  Counters before;
  for (uint64_t i = 0; i < 40'000; ++i) {
    if (i == 20'000) before = bed.store->counters();  // the age limit has come down by then
    ASSERT_EQ(bed.put(name_of(i)), Code::Ok);
    for (int t = 0; t < 2; ++t) touch(bed, {name_of(i - std::min(i, prng.below(9000)))});
  }
  const uint64_t user = bed.store->counters().bytes_user - before.bytes_user;
  const uint64_t rewritten = bed.store->counters().bytes_rewritten - before.bytes_rewritten;
  EXPECT_GT(rewritten, user * 5 / 100);
  EXPECT_LT(rewritten, user * 12 / 100);
  EXPECT_LT(bed.store->gauges().age_limit, 1.0);
}

TEST(Rewriter, AStoreFullOfUsedBlocksKeepsItsShareOfThemAndWhatIsHeld) {
  StoreBed bed(23, 64, 16 * MiB);
  bed.options.lease_ms_max = 1'000'000'000;
  bed.open();
  constexpr uint64_t kBlocks = 4800;
  constexpr uint64_t kCapacity = 64 * StoreBed::kSegmentBytes;
  for (uint64_t i = 0; i < kBlocks; ++i) ASSERT_EQ(bed.put(name_of(i)), Code::Ok);
  for (uint64_t i = 0; i < kBlocks; ++i) touch(bed, {name_of(i)});
  const uint64_t held = 1'000;
  for (uint64_t i = 0; i < held; i += 50) {
    ASSERT_TRUE(bed.store->hold(bed.key(name_of(i)), 7, bed.clock.us + 900'000'000'000).ok()) << i;
  }
  const Counters before = bed.store->counters();
  for (uint64_t i = 0; i < kBlocks; ++i) ASSERT_EQ(bed.put("new " + name_of(i)), Code::Ok);
  const uint64_t user = bed.store->counters().bytes_user - before.bytes_user;
  const uint64_t rewritten = bed.store->counters().bytes_rewritten - before.bytes_rewritten;
  EXPECT_GT(rewritten, user / 10);
  // Nearly all of it, were it not for the bound: three times a tenth of every quarter, in the first one at once.
  EXPECT_LT(rewritten, user * 4 / 10 + kCapacity / 12);
  for (uint64_t i = 0; i < held; i += 50) EXPECT_EQ(bed.get(name_of(i)), Code::Ok) << i;
}

}  // namespace
}  // namespace halfstep::store
