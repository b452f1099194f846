// Namespaces: limits, accounts, the sweep that keeps them, clear, and the list of what there is.
#include <gtest/gtest.h>

#include <set>

#include "store/store_fixture.h"

namespace halfstep::store {
namespace quota_test {

constexpr uint64_t kBlockBytes = 16384;

std::string name_of(uint64_t number) { return "block " + std::to_string(number); }

uint64_t listed(StoreBed& bed, std::string_view name = "default") {
  uint64_t count = 0;
  for (uint64_t cursor = 0;;) {
    cursor = bed.list(name, cursor, 7, [&](const Listed&) { ++count; });
    if (cursor == 0) return count;
  }
}

TEST(Quota, IsNeverPassedAndTheOldestBlocksMakeRoom) {
  StoreBed bed(1, 16);
  bed.open();
  constexpr uint64_t kQuota = 64 * kBlockBytes;
  ASSERT_EQ(bed.limit({"default", kQuota, 0, 0}), Code::Ok);
  uint64_t throttled = 0;
  for (uint64_t i = 0; i < 500; ++i) {
    Status status = bed.put(name_of(i));
    for (int tries = 0; status == Status(Code::Throttled, kThrottledQuota) && tries < 100; ++tries) {
      ++throttled;
      bed.pump();
      status = bed.put(name_of(i));
    }
    ASSERT_EQ(status, Code::Ok) << i;
    ASSERT_LE(bed.account().used_bytes, kQuota) << i;
  }
  EXPECT_GT(throttled, 0U);
  EXPECT_LT(throttled, 500U) << "a sweep frees more than one block";
  EXPECT_EQ(bed.get(name_of(499)), Code::Ok);
  EXPECT_EQ(bed.get(name_of(460)), Code::Ok) << "the youngest stay";
  EXPECT_EQ(bed.get(name_of(0)), Code::NotFound);
  EXPECT_GE(bed.store->counters().blocks_evicted_quota, 436U);
  bed.settle();
  EXPECT_EQ(bed.account().used_bytes, listed(bed) * kBlockBytes);
  bed.reopen();
  bed.settle();
  EXPECT_LE(bed.account().used_bytes, kQuota) << "applied again after a restart";
  EXPECT_EQ(bed.get(name_of(499)), Code::Ok);
}

TEST(Quota, CountsWhatIsBeingFilledAndWhatIsInNoFrameYet) {
  StoreBed bed(2);
  bed.open();
  ASSERT_EQ(bed.limit({"default", 3 * kBlockBytes, 0, 0}), Code::Ok);
  Write filling;
  const std::string name = "filling";
  filling.name = {bed.scope, wire::Component::of(kGroupPlain, 0, 0), as_bytes(name)};
  filling.key = bed.store->key_of(filling.name);
  filling.block_bytes = kBlockBytes;
  filling.done = [](Write&) {};
  ASSERT_EQ(bed.store->begin_write(filling), Code::Ok);
  EXPECT_EQ(bed.account().used_bytes, kBlockBytes);
  StoreBed::Put committed;
  ASSERT_TRUE(bed.begin_put(committed, "committed", kGroupPlain, kBlockBytes, false).ok());
  EXPECT_EQ(bed.account().used_bytes, 2 * kBlockBytes);
  StoreBed::Put removed;
  ASSERT_TRUE(bed.begin_put(removed, "removed", kGroupPlain, kBlockBytes, false).ok());
  StoreBed::Put refused;
  EXPECT_EQ(bed.begin_put(refused, "one too many", kGroupPlain, kBlockBytes, false), Status(Code::Throttled, kThrottledQuota));
  bed.store->abort_write(filling);
  EXPECT_EQ(bed.account().used_bytes, 2 * kBlockBytes);
  EXPECT_EQ(bed.remove("removed"), Code::Ok);
  bed.settle();
  EXPECT_EQ(bed.account().used_bytes, listed(bed) * kBlockBytes);
  EXPECT_LE(bed.account().used_bytes, kBlockBytes);
}

TEST(Quota, ABlockThatIsLargerThanAllOfItIsRefusedForGood) {
  StoreBed bed(3);
  bed.open();
  ASSERT_EQ(bed.limit({"default", kBlockBytes - 1, 0, 0}), Code::Ok);
  EXPECT_EQ(bed.put("large"), Code::TooLarge);
}

TEST(Quota, AccountsAreRightThoughFramesFailAndAreWrittenAgain) {
  StoreBed bed(4, 32);
  bed.open();
  Prng prng(5);
  const Places places = places_of(bed.geometry);
  bed.tap->tap = [&](io::Request& request) {
    const bool frame =
        request.op == io::Op::Write && request.offset >= places.segment(0) && request.offset < places.log(1, 0, 0);
    return frame && prng.chance(0.03) ? TapEngine::Fate::Fail : TapEngine::Fate::Pass;
  };
  for (uint64_t i = 0; i < 300; ++i) {
    (void)!bed.put(name_of(i), kGroupPlain, kBlockBytes, prng.chance(0.3)).ok();
    if (i % 3 == 0) (void)!bed.remove(name_of(prng.below(i + 1))).ok();
    bed.clock.us += 20'000;
  }
  bed.tap->tap = nullptr;
  for (int turns = 0; turns < 1000; ++turns) bed.pump();
  EXPECT_EQ(bed.account().used_bytes, listed(bed) * kBlockBytes);
  EXPECT_EQ(bed.account().used_bytes, bed.store->gauges().bytes_live);
}

TEST(Quota, HeldBlocksStayAndTheOthersGo) {
  StoreBed bed(5, 16);
  bed.open();
  for (uint64_t i = 0; i < 20; ++i) ASSERT_EQ(bed.put(name_of(i)), Code::Ok);
  bed.settle();
  ASSERT_TRUE(bed.store->hold(bed.key(name_of(0)), 7, bed.clock.us + 50'000'000).ok());
  ASSERT_EQ(bed.limit({"default", 4 * kBlockBytes, 0, 0}), Code::Ok);
  bed.settle();
  EXPECT_LE(bed.account().used_bytes, 4 * kBlockBytes);
  EXPECT_EQ(bed.get(name_of(0)), Code::Ok);
  EXPECT_EQ(bed.get(name_of(1)), Code::NotFound);
  EXPECT_EQ(bed.get(name_of(19)), Code::Ok);
}

TEST(Quota, OfOneNamespaceTakesNothingFromAnother) {
  StoreBed bed(6, 16);
  bed.open();
  for (uint64_t i = 0; i < 20; ++i) ASSERT_EQ(bed.put(name_of(i)), Code::Ok);
  const uint32_t first = bed.scope;
  ASSERT_EQ(bed.change_names([&](auto done) {
    bed.store->create_namespace({"tenant", 5 * kBlockBytes, 0, 0}, done);
  }),
            Code::Ok);
  bed.store->register_layout("tenant", test_layout(), [&](Status, uint32_t scope) { bed.scope = scope; });
  bed.settle();
  ASSERT_NE(bed.scope, first);
  for (uint64_t i = 0; i < 50; ++i) {
    for (int tries = 0; !bed.put(name_of(i)).ok() && tries < 100; ++tries) bed.pump();
  }
  EXPECT_LE(bed.account("tenant").used_bytes, 5 * kBlockBytes);
  EXPECT_EQ(bed.account("default").used_bytes, 20 * kBlockBytes);
  EXPECT_EQ(bed.account("tenant").quota_bytes, 5 * kBlockBytes);
}

TEST(Quota, ExpiredBlocksStopCountingWhenTheyAreSwept) {
  StoreBed bed(7, 16);
  bed.open();
  for (uint64_t i = 0; i < 10; ++i) ASSERT_EQ(bed.put(name_of(i), kGroupPlain, kBlockBytes, false, i < 6 ? 10 : 0), Code::Ok);
  bed.settle();
  EXPECT_EQ(bed.account().used_bytes, 10 * kBlockBytes);
  bed.clock.wall += 11;
  bed.clock.us += 11'000'000;
  EXPECT_LE(bed.store->next_turn_us(), bed.clock.us) << "it wakes by itself";
  bed.settle();
  EXPECT_EQ(bed.account().used_bytes, 4 * kBlockBytes);
  EXPECT_EQ(bed.store->counters().blocks_evicted_expired, 6U);
  bed.clock.us += 1'000'000;  // their names follow after a pause
  bed.settle();
  EXPECT_GT(bed.store->next_turn_us(), bed.clock.us + 10'000'000) << "nothing is left that ends";
}

TEST(Limits, SurviveARestartAndGovernPuts) {
  StoreBed bed(8);
  bed.open();
  EXPECT_EQ(bed.limit({"nobody", 1, 1, 1}), Code::NotFound);
  ASSERT_EQ(bed.limit({"default", 1 * MiB, 10, 2 * kBlockBytes}), Code::Ok);
  bed.reopen();
  const NamespaceInfo account = bed.account();
  EXPECT_EQ(account.quota_bytes, 1 * MiB);
  EXPECT_EQ(account.default_ttl_s, 10U);
  EXPECT_EQ(account.pin_budget_bytes, 2 * kBlockBytes);
  ASSERT_EQ(bed.put("short"), Code::Ok);
  bed.clock.wall += 11;
  EXPECT_EQ(bed.get("short"), Code::NotFound);
}

TEST(Clear, DropsOneLayoutAtOnceAndForGood) {
  StoreBed bed(9, 16);
  bed.open();
  for (uint64_t i = 0; i < 10; ++i) ASSERT_EQ(bed.put(name_of(i)), Code::Ok);
  const uint32_t scope = bed.scope;
  bed.register_layout("other");
  ASSERT_EQ(bed.put("of the other"), Code::Ok);
  const auto clear = [&](const wire::LayoutId& id) {
    return bed.change_names([&](auto done) { bed.store->clear("default", id, done); });
  };
  EXPECT_EQ(clear(test_layout("unknown").id()), Code::NotFound);
  ASSERT_EQ(clear(test_layout().id()), Code::Ok);
  EXPECT_EQ(bed.get("of the other"), Code::Ok);
  EXPECT_EQ(bed.store->layout_of(scope), nullptr);
  EXPECT_EQ(bed.account().used_bytes, kBlockBytes) << "they stop counting at once";
  bed.register_layout();
  EXPECT_GT(bed.scope, scope) << "a scope is never used again";
  EXPECT_EQ(bed.scope, bed.store->find_scope("default", test_layout().id()));
  for (uint64_t i = 0; i < 10; ++i) EXPECT_EQ(bed.get(name_of(i)), Code::NotFound);
  ASSERT_EQ(bed.put(name_of(3)), Code::Ok);
  bed.settle();
  EXPECT_EQ(bed.store->counters().blocks_evicted_dead_scope, 10U);
  EXPECT_EQ(bed.store->gauges().blocks, 2U);
  bed.crash(io::MemoryEngine::Crash::Killed);
  bed.open();
  EXPECT_EQ(bed.get(name_of(0)), Code::NotFound);
  EXPECT_EQ(bed.get(name_of(3)), Code::Ok);
}

TEST(Clear, PowerCutAfterAnyWriteIsAllOrNothing) {
  for (uint64_t at = 1;; ++at) {
    SCOPED_TRACE("cut after write " + std::to_string(at));
    StoreBed bed(10);
    bed.open();
    for (uint64_t i = 0; i < 3; ++i) ASSERT_EQ(bed.put(name_of(i), kGroupPlain, kBlockBytes, true), Code::Ok);
    bed.settle();
    const uint64_t before = bed.engine->counters().writes;
    bool done = false;
    bed.store->clear("default", test_layout().id(), [&](Status) { done = true; });
    while (!done && bed.engine->counters().writes - before < at) bed.pump();
    bed.crash(io::MemoryEngine::Crash::PowerCut);
    bed.open();
    uint64_t there = 0;
    for (uint64_t i = 0; i < 3; ++i) there += bed.get(name_of(i)).ok() ? 1 : 0;
    EXPECT_EQ(there, done ? 0U : there == 0 ? 0U : 3U);
    if (done || ::testing::Test::HasFailure()) return;
  }
}

TEST(List, SaysHowLongItTookOutsideOfItsCall) {
  StoreBed bed(12);
  bed.open();
  for (uint64_t i = 0; i < 100; ++i) ASSERT_EQ(bed.put(name_of(i)), Code::Ok);
  bed.settle();
  bed.reopen();  // no roll is in memory: each is read
  struct Taken {
    StoreBed& bed;
    uint64_t us = 0;
    bool in_call = true;
    bool done = false;
  } taken{bed};
  Listing listing;
  listing.name_space = "default";
  listing.limit = 100;
  listing.owner = &taken;
  listing.visit = [](Listing& l, const Listed&) {
    auto& of = *static_cast<Taken*>(l.owner);
    of.bed.clock.us += 7;
    of.us += of.in_call ? 0 : 7;
  };
  listing.done = [](Listing& l) { static_cast<Taken*>(l.owner)->done = true; };
  bed.store->list(listing);
  taken.in_call = false;
  while (!taken.done) bed.pump();
  EXPECT_EQ(listing.listed, 100U);
  EXPECT_GT(taken.us, 0U);
  EXPECT_EQ(listing.later_us, taken.us);
}

TEST(List, ShowsBlocksThatAreInNoFrameYet) {
  StoreBed bed(11);
  bed.open();
  ASSERT_EQ(bed.put("in a frame"), Code::Ok);
  bed.settle();
  StoreBed::Put puts[3];
  const std::string names[3] = {"waiting 0", "waiting 1", "waiting 2"};
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(bed.begin_put(puts[i], names[i], kGroupPlain, kBlockBytes, false).ok());
  std::set<std::string> seen;
  uint64_t cursor = 0;
  do {
    cursor = bed.list("default", cursor, 1, [&](const Listed& block) {
      EXPECT_TRUE(seen.insert(std::string(as_text(block.engine_key))).second) << "listed twice";
      EXPECT_EQ(block.block_bytes, kBlockBytes);
    });
  } while (cursor != 0);
  EXPECT_EQ(seen, (std::set<std::string>{"in a frame", "waiting 0", "waiting 1", "waiting 2"}));
  while (!puts[2].done) bed.pump();
}

}  // namespace quota_test
}  // namespace halfstep::store
