#include "store/account/holds.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <vector>

#include "base/prng.h"
#include "store/format/options.h"

namespace halfstep::store {
namespace {

constexpr IndexKey kKey{1, 2};
constexpr auto kNobody = [](const IndexKey&) {};

constexpr Status kTooManyHolds{Code::Throttled, kThrottledHolds};
constexpr Status kTooManyBytes{Code::Throttled, kThrottledLeases};

// A table with names of its own: so many namespaces, scope and number of each the same; 900 bytes for all leases.
struct Bed {
  explicit Bed(uint64_t holds_max, uint64_t lease_us_max, uint32_t namespaces = 1)
      : names(900), holds(holds_max, lease_us_max, {1, 2}, names) {
    header.fixed.next_scope = header.fixed.next_namespace = namespaces + 1;
    header.layouts.push_back(std::make_shared<const wire::Layout>());
    for (uint32_t number = 1; number <= namespaces; ++number) {
      header.namespaces.push_back({{.pin_budget_bytes = 1000, .number = number}, "tenant " + std::to_string(number)});
      header.scopes.push_back({number, number, 0, 0});
    }
    names.refresh(header);
  }
  Status take(uint64_t key, uint64_t owner = 1, uint32_t scope = 1, uint64_t bytes = 0) {
    return holds.take({key, scope}, owner, 0, UINT64_MAX, {scope, bytes});
  }
  HeaderState header;
  Names names;
  Holds holds;
};

TEST(Holds, TheNewestOfAKeyAndAnOwnerWinsAndThereIsNoCount) {
  Bed bed(10, 1'000'000);
  Holds& holds = bed.holds;
  ASSERT_TRUE(holds.take(kKey, 7, 0, 500'000, {1, 0}).ok());
  ASSERT_TRUE(holds.take(kKey, 7, 0, 100'000, {1, 0}).ok());
  EXPECT_EQ(holds.size(), 1U);
  holds.expire(200'000, kNobody);
  EXPECT_FALSE(holds.held(kKey));
}

TEST(Holds, AKeyStaysHeldUntilItsLastOwnerLetsGo) {
  Bed bed(10, 1'000'000);
  Holds& holds = bed.holds;
  int lost = 0;
  const auto last = [&](const IndexKey& key) {
    EXPECT_EQ(key, kKey);
    ++lost;
  };
  ASSERT_TRUE(holds.take(kKey, 1, 0, 500'000, {1, 0}).ok());
  ASSERT_TRUE(holds.take(kKey, 2, 0, 500'000, {1, 0}).ok());
  holds.release(kKey, 1, last);
  holds.release(kKey, 1, last);
  EXPECT_EQ(lost, 0);
  holds.release_all(2, last);
  EXPECT_EQ(lost, 1);
  EXPECT_FALSE(holds.held(kKey));
}

TEST(Holds, NoLeaseIsLongerThanTheLongest) {
  Bed bed(4, 1000);
  ASSERT_TRUE(bed.take(1).ok());
  bed.holds.expire(3000, kNobody);
  EXPECT_EQ(bed.holds.size(), 0U);
  EXPECT_EQ(bed.holds.next_due_us(), UINT64_MAX);
}

TEST(Holds, ANamespaceTakesNoMoreOfTheTableThanItLeavesToOthers) {
  Bed bed(100, 1'000'000, 3);
  uint64_t taken[3] = {0, 0, 0};
  for (uint32_t scope = 1; scope <= 3; ++scope) {
    while (bed.take(taken[scope - 1], 1, scope).ok()) ++taken[scope - 1];
    EXPECT_EQ(bed.take(1000, 1, scope), kTooManyHolds);
  }
  EXPECT_EQ(taken[0], 50U);
  EXPECT_EQ(taken[1], 25U);
  EXPECT_GE(taken[2], 12U);
  // What it has already is renewed as ever, and what it gives back is there for whoever asks next.
  EXPECT_TRUE(bed.take(0, 1, 1).ok());
  bed.holds.release_all(1, kNobody);
  EXPECT_EQ(bed.holds.of_namespace(1), 0U);
  EXPECT_TRUE(bed.take(1000, 1, 3).ok());
}

TEST(Holds, OfAClearedLayoutStillTakeTheirPlacesInTheTable) {
  Bed bed(10, 1'000'000, 1);
  for (uint64_t key = 0; key < 5; ++key) ASSERT_TRUE(bed.take(key).ok());
  bed.header.scopes[0].scope = bed.header.fixed.next_scope++;
  bed.names.refresh(bed.header);
  EXPECT_EQ(bed.take(100, 1, bed.header.scopes[0].scope), kTooManyHolds);
}

TEST(Holds, LeasedBytesOfOneNamespaceEndAtHalfAndThoseOfAllBelowThreeQuarters) {
  Bed bed(1'000'000, 1'000'000, 5);
  uint64_t all = 0;
  for (uint32_t scope = 1; scope <= 5; ++scope) {
    uint64_t keys = 0;
    while (bed.take(keys, 1, scope, 10).ok()) ++keys;
    EXPECT_EQ(bed.take(1'000'000, 1, scope, 10), kTooManyBytes);
    EXPECT_EQ(bed.names.leased_bytes(scope), keys * 10);
    if (scope == 1) {
      EXPECT_EQ(keys * 10, 600U) << "two thirds, alone";
    }
    EXPECT_TRUE(scope > 3 || keys > 0) << scope;
    all += keys * 10;
  }
  EXPECT_LE(all, 900U);
}

TEST(Holds, ANamespaceLeasesAtMostHalfOfItsQuota) {
  Bed bed(1000, 1'000'000);
  bed.header.namespaces[0].record.quota_bytes = 100;
  bed.names.refresh(bed.header);
  uint64_t keys = 0;
  while (bed.take(keys, 1, 1, 10).ok()) ++keys;
  EXPECT_EQ(keys, 5U);
  EXPECT_EQ(bed.take(99, 1, 1, 10), kTooManyBytes);
}

TEST(Holds, ABlockIsLeasedOnceHoweverManyOwnersLeaseItUntilTheLastLetsGo) {
  Bed bed(1000, 1'000'000);
  for (uint64_t owner = 1; owner <= 5; ++owner) ASSERT_TRUE(bed.take(1, owner, 1, 600).ok());
  EXPECT_EQ(bed.names.leased_bytes(1), 600U);
  for (uint64_t owner = 1; owner <= 4; ++owner) bed.holds.release({1, 1}, owner, kNobody);
  EXPECT_EQ(bed.names.leased_bytes(1), 600U);
  bed.holds.expire(10'000'000, kNobody);
  EXPECT_EQ(bed.names.leased_bytes(1), 0U);
}

// Who asks for the pins of a key meets none of the leases that every session has on it.
TEST(Holds, PinsOfAKeyStandApartFromItsLeases) {
  Bed bed(4'000, 1'000'000);  // a namespace has half of it
  for (uint64_t owner = 1; owner <= 1'000; ++owner) ASSERT_TRUE(bed.take(1, owner).ok());
  ASSERT_TRUE(bed.holds.pin({1, 1}, 500, 0, Holds::kNoEnd, {1, 0}));  // a lease until now
  ASSERT_TRUE(bed.holds.pin({1, 1}, 2'000, 0, Holds::kNoEnd, {1, 0}));
  for (uint64_t owner = 1'001; owner <= 1'100; ++owner) ASSERT_TRUE(bed.take(1, owner).ok());
  std::vector<bool> kinds;
  bed.holds.for_each_of({1, 1}, [&](bool persistent, uint64_t) {
    kinds.push_back(persistent);
    return true;
  });
  ASSERT_EQ(kinds.size(), 1'101U);
  EXPECT_EQ(std::count(kinds.begin(), kinds.begin() + 2, true), 2) << "first, without a walk through the others";
  EXPECT_EQ(std::count(kinds.begin(), kinds.end(), true), 2);
  size_t keys = 0;
  bed.holds.for_each_key([&](const IndexKey&) { ++keys; });
  EXPECT_EQ(keys, 1U);
  bed.holds.unpin_all({1, 1}, kNobody);
  EXPECT_FALSE(bed.holds.pinned({1, 1}));
  EXPECT_TRUE(bed.holds.held({1, 1}));
  EXPECT_EQ(bed.holds.size(), 1'099U);
  std::vector<Names::Account> accounts;
  bed.holds.check_invariants(accounts);
}

TEST(Holds, ALeaseThatBecomesAPinLeavesTheBudgetOfLeases) {
  Bed bed(1000, 1'000'000);
  ASSERT_TRUE(bed.take(1, 7, 1, 600).ok());
  ASSERT_TRUE(bed.holds.pin({1, 1}, 7, 0, Holds::kNoEnd, {1, 600}));
  EXPECT_EQ(bed.names.leased_bytes(1), 0U);
  EXPECT_EQ(bed.names.pinned_bytes(1), 600U);
  ASSERT_TRUE(bed.take(1, 8, 1, 600).ok());
  EXPECT_EQ(bed.names.leased_bytes(1), 600U);
  bed.holds.release_all(7, kNobody);
  EXPECT_EQ(bed.names.pinned_bytes(1), 0U);
  EXPECT_EQ(bed.names.leased_bytes(1), 600U);
}

class RandomHolds : public testing::TestWithParam<uint64_t> {};
INSTANTIATE_TEST_SUITE_P(Owners, RandomHolds, testing::Values(5, 300));

TEST_P(RandomHolds, AgreeWithAMap) {
  constexpr uint64_t kSeed = 20261121;
  SCOPED_TRACE(kSeed);
  constexpr uint64_t kLeaseUs = 100'000;
  const uint64_t keys = 100 / GetParam() + 2;
  Prng prng(kSeed);
  Bed bed(1000, kLeaseUs);
  Holds& holds = bed.holds;
  std::map<std::pair<uint64_t, uint64_t>, uint64_t> model;  // key, owner -> until
  uint64_t now = 0;
  for (int step = 0; step < 50'000; ++step) {
    const uint64_t key = prng.below(keys), owner = prng.below(GetParam());
    switch (prng.below(8)) {
      case 0:
        holds.release({key, 0}, owner, kNobody);
        model.erase({key, owner});
        break;
      case 1:
        if (prng.chance(0.1)) {
          holds.release_all(owner, kNobody);
          std::erase_if(model, [&](const auto& hold) { return hold.first.second == owner; });
        }
        break;
      case 2:
        now += prng.below(prng.chance(0.02) ? 3 * kLeaseUs : 3000);
        holds.expire(now, kNobody);
        break;
      default: {
        const uint64_t until = now + prng.below(kLeaseUs);
        ASSERT_TRUE(holds.take({key, 0}, owner, now, until, {1, 0}).ok());
        model[{key, owner}] = until;
      }
    }
    // What is due may linger for a tick or two; nothing goes before its time.
    const uint64_t slack = 3 * (kLeaseUs / 254 + 1);
    std::map<uint64_t, bool> must, may;
    for (const auto& [pair, until] : model) {
      must[pair.first] = must[pair.first] || until > now;
      may[pair.first] = may[pair.first] || until + slack > now;
    }
    if (must[key]) {
      ASSERT_TRUE(holds.held({key, 0})) << step;
    }
    if (step % 8 == 2 && !may[key]) {
      holds.expire(now, kNobody);
      ASSERT_FALSE(holds.held({key, 0})) << step;
    }
  }
}

}  // namespace
}  // namespace halfstep::store
