// The path of every processor: words of 8 bytes where that pays, else byte by byte.
#include <bit>
#include <cmath>
#include <cstring>

#include "compress/kernels.h"

namespace halfstep::compress {
namespace plain {
namespace {

#define KERNEL
#define INLINE inline

constexpr uint64_t kOnes = 0x0101010101010101U;

// Bit i of `bits` as the lowest bit of byte i, and back.
uint64_t spread(uint64_t bits) noexcept {
  const uint64_t apart = (bits & 0xFF) * kOnes & 0x8040201008040201U;
  return (apart + 0x7F * kOnes) >> 7 & kOnes;
}
uint64_t gather(uint64_t bytes) noexcept { return (bytes & kOnes) * 0x0102040810204080U >> 56; }

struct V {
  struct Listed {
    explicit Listed(const uint8_t* listed) noexcept : of{listed[0], listed[1], listed[2], 0} {}
    uint8_t of[4];
  };

  uint8_t of[kGroup];

  static V load(const uint8_t* from) noexcept {
    V v;
    std::memcpy(v.of, from, kGroup);
    return v;
  }
  static void store(uint8_t* to, const V& v) noexcept { std::memcpy(to, v.of, kGroup); }
  static V all(uint8_t byte) noexcept {
    V v;
    std::memset(v.of, byte, kGroup);
    return v;
  }
  template <typename Operation>
  static V each(const V& x, const V& y, Operation operation) noexcept {
    V v;
    for (size_t i = 0; i < kGroup; ++i) v.of[i] = static_cast<uint8_t>(operation(x.of[i], y.of[i]));
    return v;
  }
  static V plus(const V& x, const V& y) noexcept {
    return each(x, y, [](uint8_t a, uint8_t b) { return a + b; });
  }
  static V minus(const V& x, const V& y) noexcept {
    return each(x, y, [](uint8_t a, uint8_t b) { return a - b; });
  }
  static V either(const V& x, const V& y) noexcept {
    return each(x, y, [](uint8_t a, uint8_t b) { return a | b; });
  }
  static V both(const V& x, const V& y) noexcept {
    return each(x, y, [](uint8_t a, uint8_t b) { return a & b; });
  }
  template <int kBits>
  static V shl(const V& x) noexcept {
    return each(x, x, [](uint8_t a, uint8_t) { return a << kBits; });
  }
  template <int kBits>
  static V shr(const V& x) noexcept {
    return each(x, x, [](uint8_t a, uint8_t) { return a >> kBits; });
  }
  static uint64_t mask(const V& lowest_bits) noexcept {
    uint64_t bits = 0;
    for (size_t i = 0; i < kGroup; i += 8) {
      uint64_t word;
      std::memcpy(&word, lowest_bits.of + i, sizeof(word));
      bits |= gather(word) << i;
    }
    return bits;
  }
  static uint64_t equal(const V& x, const V& y) noexcept {
    return mask(each(x, y, [](uint8_t a, uint8_t b) { return a == b ? 1 : 0; }));
  }
  static uint64_t signs(const V& x) noexcept { return mask(shr<7>(x)); }
  static V bits(uint64_t mask, uint8_t byte) noexcept {
    V v;
    for (size_t i = 0; i < kGroup; i += 8) {
      const uint64_t word = spread(mask >> i) * byte;
      std::memcpy(v.of + i, &word, sizeof(word));
    }
    return v;
  }
  static void split16(const uint8_t* from, V* low, V* high) noexcept {
    for (size_t i = 0; i < kGroup; ++i) {
      low->of[i] = from[2 * i];
      high->of[i] = from[2 * i + 1];
    }
  }
  static void join16(uint8_t* to, const V& low, const V& high) noexcept {
    for (size_t i = 0; i < kGroup; ++i) {
      to[2 * i] = low.of[i];
      to[2 * i + 1] = high.of[i];
    }
  }
  static void store_halves(uint8_t* to, const V& v) noexcept {
    for (size_t i = 0; i < kGroup / 2; ++i) to[i] = static_cast<uint8_t>(v.of[i] | v.of[kGroup / 2 + i] << 4);
  }
  static V load_halves(const uint8_t* from) noexcept {
    V v;
    for (size_t i = 0; i < kGroup / 2; ++i) {
      v.of[i] = from[i] & 15;
      v.of[kGroup / 2 + i] = from[i] >> 4;
    }
    return v;
  }
  // The plane of one bit of each byte; and bytes, those of a mask replaced.
  static uint64_t plane(const V& x, uint32_t bit) noexcept {
    return mask(each(x, x, [bit](uint8_t a, uint8_t) { return a >> bit; }));
  }
  static V replaced(V x, uint64_t which, uint8_t byte) noexcept {
    for (size_t i = 0; i < kGroup; ++i) x.of[i] = (which >> i & 1) != 0 ? byte : x.of[i];
    return x;
  }
  static size_t compress(const V& v, uint64_t keep, uint8_t* next) noexcept {
    size_t count = 0;
    for (size_t i = 0; i < kGroup; ++i) {
      next[count] = v.of[i];
      count += keep >> i & 1;
    }
    return count;
  }
  static V listed_or_next(uint64_t a, uint64_t b, const Listed& listed, const uint8_t* next) noexcept {
    V v;
    uint8_t symbols[4] = {listed.of[0], listed.of[1], listed.of[2], 0};
    for (size_t i = 0; i < kGroup; ++i) {
      const uint64_t code = (a >> i & 1) | (b >> i & 1) << 1;
      symbols[3] = *next;  // there is slack; a branch would be guessed wrong every third time
      v.of[i] = symbols[code];
      next += code == 3 ? 1 : 0;
    }
    return v;
  }
};

#include "compress/floats_plain.inc"
#include "compress/groups.inc"
#include "compress/quantise.inc"

#undef KERNEL
#undef INLINE

}  // namespace
}  // namespace plain

const Kernels& plain_kernels() noexcept {
  static constexpr Kernels kTable = plain::table("plain");
  return kTable;
}

}  // namespace halfstep::compress
