#include "base/crc.h"

#include <gtest/gtest.h>
#if defined(__x86_64__)
#include <cpuid.h>
#endif

#include <algorithm>
#include <vector>

#include "base/prng.h"

namespace halfstep {
namespace {

std::vector<std::byte> random_bytes(Prng& prng, size_t count) {
  std::vector<std::byte> out(count);
  prng.fill(out);
  return out;
}

// RFC 3720, appendix B.4; the last is the check value of every CRC catalogue.
TEST(Crc32c, MatchesTheVectorsOfRfc3720) {
  std::vector<std::byte> bytes(32);
  EXPECT_EQ(crc32c(bytes), 0x8A9136AAU);
  std::fill(bytes.begin(), bytes.end(), std::byte{0xFF});
  EXPECT_EQ(crc32c(bytes), 0x62A8AB43U);
  for (size_t i = 0; i < 32; ++i) bytes[i] = static_cast<std::byte>(i);
  EXPECT_EQ(crc32c(bytes), 0x46DD794EU);
  std::reverse(bytes.begin(), bytes.end());
  EXPECT_EQ(crc32c(bytes), 0x113FDB5CU);
  const unsigned char iscsi_read[48] = {0x01, 0xC0, 0, 0, 0, 0, 0, 0, 0,    0, 0, 0,    0, 0, 0, 0,
                                        0x14, 0,    0, 0, 0, 0, 4, 0, 0,    0, 0, 0x14, 0, 0, 0, 0x18,
                                        0x28, 0,    0, 0, 0, 0, 0, 0, 0x02, 0, 0, 0,    0, 0, 0, 0};
  EXPECT_EQ(crc32c(object_bytes(iscsi_read)), 0xD9963A56U);
  EXPECT_EQ(crc32c(as_bytes("123456789")), 0xE3069283U);
  EXPECT_EQ(crc32c({}), 0U);
}

TEST(Crc32c, AgreesWithABitwiseOneAtEveryLengthAndAlignment) {
  const auto bitwise = [](ConstBytes bytes) {
    uint32_t state = ~0U;
    for (const std::byte b : bytes) {
      state ^= static_cast<uint32_t>(b);
      for (int i = 0; i < 8; ++i) state = (state >> 1) ^ ((state & 1U) != 0 ? 0x82F63B78U : 0U);
    }
    return ~state;
  };
  Prng prng(11);
  const std::vector<std::byte> bytes = random_bytes(prng, 700);
  const ConstBytes all(bytes);
  for (size_t start = 0; start < 16; ++start) {
    for (size_t count = 0; count + start <= bytes.size(); count += count < 80 ? 1 : 37) {
      ASSERT_EQ(crc32c(all.subspan(start, count)), bitwise(all.subspan(start, count))) << start << "+" << count;
    }
  }
}

TEST(Crc32c, ContinuesAndCombinesOverRandomSplits) {
  Prng prng(12);
  for (int round = 0; round < 300; ++round) {
    const std::vector<std::byte> bytes = random_bytes(prng, prng.below(200'000));
    const size_t cut = prng.below(bytes.size() + 1);
    const ConstBytes all(bytes);
    const uint32_t whole = crc32c(all);
    const uint32_t a = crc32c(all.first(cut));
    const uint32_t b = crc32c(all.subspan(cut));
    ASSERT_EQ(crc32c(all.subspan(cut), a), whole);
    ASSERT_EQ(crc32c_combine(a, b, all.size() - cut), whole);
  }
}

TEST(Crc32c, CombinesManyPartsInOrder) {
  Prng prng(13);
  const std::vector<std::byte> bytes = random_bytes(prng, 1 << 20);
  const ConstBytes all(bytes);
  uint32_t combined = 0;
  for (size_t at = 0; at < all.size();) {
    const size_t count = std::min<size_t>(prng.below(70'000), all.size() - at);
    combined = crc32c_combine(combined, crc32c(all.subspan(at, count)), count);
    at += count;
  }
  EXPECT_EQ(combined, crc32c(all));
}

TEST(Crc32c, AppendsZerosWithoutTouchingThem) {
  Prng prng(14);
  for (int round = 0; round < 200; ++round) {
    std::vector<std::byte> bytes = random_bytes(prng, prng.below(5000));
    const uint32_t before = crc32c(bytes);
    const size_t zeros = prng.below(100'000);
    bytes.resize(bytes.size() + zeros);
    ASSERT_EQ(crc32c_zeros(before, zeros), crc32c(bytes)) << zeros << " zeros";
  }
  EXPECT_EQ(crc32c_zeros(0x12345678, 0), 0x12345678U);
}

TEST(Crc32c, CombinesLengthsBeyondFourGiB) {
  // a + 2^33 zeros, once by combining with the zeros' own CRC, once by appending.
  const uint64_t count = (uint64_t{1} << 33) + 12345;
  const uint32_t a = crc32c(as_bytes("a block"));
  EXPECT_EQ(crc32c_combine(a, crc32c_zeros(0, count), count), crc32c_zeros(a, count));
}

#if defined(__x86_64__)
// Whether the upper halves of YMM or ZMM registers hold anything, as the processor tells it.
bool upper_halves_in_use() {
  constexpr uint32_t kUpperHalves = 0x04 | 0x40;
  uint32_t in_use = 0;
  uint32_t unused = 0;
  __asm__ volatile("xgetbv" : "=a"(in_use), "=d"(unused) : "c"(1));
  return (in_use & kUpperHalves) != 0;
}

bool tells_of_upper_halves() {
  constexpr uint32_t kXgetbvWithOne = 4;
  uint32_t features = 0;
  uint32_t b = 0;
  uint32_t c = 0;
  uint32_t d = 0;
  if (!__builtin_cpu_supports("avx") || __get_cpuid_count(0xD, 1, &features, &b, &c, &d) == 0) return false;
  if ((features & kXgetbvWithOne) == 0) return false;
  __asm__ volatile("vzeroupper" ::: "xmm0");
  return !upper_halves_in_use();  // some say that they are, always
}

// Not of the result: whoever calls it pays for a state of the vector registers that it leaves behind.
TEST(Crc32c, LeavesNoUpperHalvesInUse) {
  if (!tells_of_upper_halves()) GTEST_SKIP() << "this processor does not tell which of its registers are in use";
  const std::vector<std::byte> bytes(64 * 1024, std::byte{1});
  for (const size_t count : {0U, 1U, 28U, 255U, 256U, 4096U, 65536U}) {
    volatile uint32_t crc = crc32c(ConstBytes(bytes).first(count));
    (void)crc;
    EXPECT_FALSE(upper_halves_in_use()) << "after " << count << " bytes";
  }
}
#endif

}  // namespace
}  // namespace halfstep
