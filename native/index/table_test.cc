#include "index/table.h"

#include <gtest/gtest.h>

#include <map>
#include <utility>

#include "base/prng.h"

namespace halfstep::index {
namespace {

Hash128 key_of(uint64_t low, uint64_t high = 0) { return {low, high}; }

TEST(Table, FindsWhatWasPutAndNothingElse) {
  Table table;
  EXPECT_EQ(table.find(key_of(1)), Table::kNone);
  EXPECT_EQ(table.put(key_of(1), 10), Table::kNone);
  EXPECT_EQ(table.put(key_of(1, 1), 11), Table::kNone);
  EXPECT_EQ(table.find(key_of(1)), 10U);
  EXPECT_EQ(table.find(key_of(1, 1)), 11U);
  EXPECT_EQ(table.find(key_of(1, 2)), Table::kNone);
  EXPECT_EQ(table.put(key_of(1), 12), 10U);
  EXPECT_EQ(table.size(), 2U);
}

TEST(Table, ReplacesAndErasesOnlyTheExpectedValue) {
  Table table;
  table.put(key_of(7), 1);
  EXPECT_FALSE(table.replace(key_of(7), 2, 3));
  EXPECT_FALSE(table.replace(key_of(8), 2, 3));
  EXPECT_TRUE(table.replace(key_of(7), 1, 3));
  EXPECT_FALSE(table.erase(key_of(7), 1));
  EXPECT_EQ(table.find(key_of(7)), 3U);
  EXPECT_TRUE(table.erase(key_of(7), 3));
  EXPECT_FALSE(table.erase(key_of(7)));
  EXPECT_EQ(table.size(), 0U);
}

TEST(Table, KeepsFollowersReachableWhenAProbeChainWrapsAroundTheEnd) {
  Table table;
  for (uint64_t high = 0; high < 20; ++high) table.put(key_of(63, high), high);  // 64 slots: all but the first one wrap
  for (uint64_t high = 0; high < 20; high += 2) EXPECT_TRUE(table.erase(key_of(63, high)));
  for (uint64_t high = 0; high < 20; ++high) {
    EXPECT_EQ(table.find(key_of(63, high)), high % 2 == 0 ? Table::kNone : high);
  }
}

TEST(Table, AgreesWithAMapUnderRandomWork) {
  constexpr uint64_t kSeed = 20261121;
  SCOPED_TRACE(kSeed);
  Prng prng(kSeed);
  Table table;
  std::map<std::pair<uint64_t, uint64_t>, uint64_t> model;
  for (int step = 0; step < 40'000; ++step) {
    // Few low values: chains are long, and erasing has to move whole runs.
    const Hash128 key = key_of(prng.below(97), prng.below(40));
    const auto at = model.find({key.low, key.high});
    const uint64_t expected = at == model.end() ? Table::kNone : at->second;
    ASSERT_EQ(table.find(key), expected);
    switch (prng.below(3)) {
      case 0:
      case 1: {
        const uint64_t value = prng.below(1'000'000);
        ASSERT_EQ(table.put(key, value), expected);
        model[{key.low, key.high}] = value;
        break;
      }
      default: ASSERT_EQ(table.erase(key), expected != Table::kNone); model.erase({key.low, key.high});
    }
    ASSERT_EQ(table.size(), model.size());
  }
  size_t seen = 0;
  table.for_each([&](const Hash128& key, uint64_t value) {
    ++seen;
    EXPECT_EQ((model[{key.low, key.high}]), value);
  });
  EXPECT_EQ(seen, model.size());
}

TEST(Table, HoldsWhatItWasMadeForWithoutGrowing) {
  Table table(100'000);
  const size_t before = table.memory_bytes();
  Prng prng(1);
  for (uint64_t i = 0; i < 100'000; ++i) table.put(key_of(prng.next(), prng.next()), i);
  EXPECT_EQ(table.memory_bytes(), before);
}

}  // namespace
}  // namespace halfstep::index
