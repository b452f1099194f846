#include "base/prng.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <vector>

namespace halfstep {
namespace {

// The reference xoshiro256** seeded by splitmix64 from 0: what both authors' code prints first.
TEST(Prng, MatchesTheReferenceImplementation) {
  Prng prng(0);
  EXPECT_EQ(prng.next(), 0x99EC5F36CB75F2B4U);
  EXPECT_EQ(prng.next(), 0xBF6E1F784956452AU);
  EXPECT_EQ(prng.next(), 0x1A5F849D4933E6E0U);
}

TEST(Prng, RepeatsFromItsSeedAlone) {
  Prng a(5);
  Prng b(5);
  Prng c(6);
  bool differs = false;
  for (int i = 0; i < 100; ++i) {
    const uint64_t value = a.next();
    EXPECT_EQ(value, b.next());
    differs |= value != c.next();
  }
  EXPECT_TRUE(differs);
}

TEST(Prng, BelowReachesEveryValueAndNeverItsBound) {
  Prng prng(7);
  std::array<int, 10> seen{};
  for (int i = 0; i < 1000; ++i) {
    const uint64_t value = prng.below(10);
    ASSERT_LT(value, 10U);
    ++seen[value];
  }
  EXPECT_GT(*std::min_element(seen.begin(), seen.end()), 0);
  EXPECT_EQ(prng.below(1), 0U);
  EXPECT_FALSE(prng.chance(0));
  EXPECT_TRUE(prng.chance(1));
}

TEST(Prng, FillsEveryByteAndNoMore) {
  for (size_t count = 0; count < 40; ++count) {
    std::vector<std::byte> bytes(count + 8, std::byte{0xEE});
    std::vector<bool> changed(count);
    for (uint64_t seed = 0; seed < 8; ++seed) {
      Prng(seed).fill(Bytes(bytes).first(count));
      for (size_t i = 0; i < count; ++i) changed[i] = changed[i] || bytes[i] != std::byte{0xEE};
    }
    EXPECT_TRUE(std::all_of(changed.begin(), changed.end(), [](bool b) { return b; })) << count;
    EXPECT_TRUE(std::all_of(bytes.begin() + static_cast<ptrdiff_t>(count), bytes.end(), [](std::byte b) {
      return b == std::byte{0xEE};
    })) << count;
  }
}

TEST(SystemRandom, FillsMoreThanOneCallsWorthAndNeverTheSame) {
  // getrandom answers at most 32 MiB - 1 a call.
  std::vector<std::byte> first(33 << 20);
  ASSERT_TRUE(system_random(first).ok());
  const Bytes tail = Bytes(first).last(64);
  EXPECT_FALSE(std::all_of(tail.begin(), tail.end(), [](std::byte b) { return b == std::byte{0}; }));
  std::array<std::byte, 32> a{};
  std::array<std::byte, 32> b{};
  ASSERT_TRUE(system_random(a).ok());
  ASSERT_TRUE(system_random(b).ok());
  EXPECT_NE(a, b);
}

}  // namespace
}  // namespace halfstep
