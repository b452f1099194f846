#include "store/holds.h"

#include <gtest/gtest.h>

#include <map>

#include "base/prng.h"

namespace halfstep::store {
namespace {

constexpr IndexKey kKey{1, 2};
constexpr auto kNobody = [](const IndexKey&) {};

// A table with names of its own: one namespace, scope 1.
struct Bed {
  explicit Bed(uint64_t holds_max, uint64_t lease_us_max) : holds(holds_max, lease_us_max, {1, 2}, names) {
    HeaderState header;
    header.fixed.next_scope = header.fixed.next_namespace = 2;
    header.namespaces.push_back({{.pin_budget_bytes = 1000, .number = 1}, "default"});
    header.layouts.push_back(std::make_shared<const wire::Layout>());
    header.scopes.push_back({1, 1, 0, 0});
    names.refresh(header);
  }
  Names names;
  Holds holds;
};

TEST(Holds, TheNewestOfAKeyAndAnOwnerWinsAndThereIsNoCount) {
  Bed bed(10, 1'000'000);
  Holds& holds = bed.holds;
  ASSERT_TRUE(holds.take(kKey, 7, 0, 500'000));
  ASSERT_TRUE(holds.take(kKey, 7, 0, 100'000));
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
  ASSERT_TRUE(holds.take(kKey, 1, 0, 500'000));
  ASSERT_TRUE(holds.take(kKey, 2, 0, 500'000));
  holds.release(kKey, 1, last);
  holds.release(kKey, 1, last);
  EXPECT_EQ(lost, 0);
  holds.release_all(2, last);
  EXPECT_EQ(lost, 1);
  EXPECT_FALSE(holds.held(kKey));
}

TEST(Holds, TheTableIsBoundedAndNoLeaseIsLongerThanTheLongest) {
  Bed bed(2, 1000);
  Holds& holds = bed.holds;
  EXPECT_TRUE(holds.take({1, 0}, 1, 0, UINT64_MAX));
  EXPECT_TRUE(holds.take({2, 0}, 1, 0, UINT64_MAX));
  EXPECT_FALSE(holds.take({3, 0}, 1, 0, UINT64_MAX));
  holds.expire(3000, kNobody);
  EXPECT_EQ(holds.size(), 0U);
  EXPECT_EQ(holds.next_due_us(), UINT64_MAX);
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
        ASSERT_TRUE(holds.take({key, 0}, owner, now, until));
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
