// The path of processors with AVX2: two registers a group. There is no instruction that closes gaps between bytes, so that is
// done eight bytes at a time, by a table of shuffles.
#include <cstring>

#include "compress/kernels.h"

#if defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>

namespace halfstep::compress {
namespace avx2 {
namespace {

#define KERNEL [[gnu::target("avx2,f16c,popcnt")]]
#define INLINE [[gnu::target("avx2,f16c,popcnt"), gnu::always_inline]] inline

// By mask of eight: which bytes to keep, at the front; and where the front's bytes go (0x80: nowhere).
struct Shuffles {
  uint64_t close[256];
  uint64_t open[256];
};
constexpr Shuffles kShuffles = [] {
  Shuffles of{};
  for (uint32_t mask = 0; mask < 256; ++mask) {
    uint32_t kept = 0;
    for (uint64_t i = 0; i < 8; ++i) {
      const bool keep = (mask >> i & 1) != 0;
      of.open[mask] |= uint64_t{keep ? kept : 0x80U} << (8 * i);
      if (keep) of.close[mask] |= i << (8 * kept++);
    }
  }
  return of;
}();

struct V {
  // By code; what is none of them is zero, to be joined with.
  struct Listed {
    INLINE explicit Listed(const uint8_t* listed) noexcept
        : by_code(_mm256_set1_epi32(listed[0] | listed[1] << 8 | listed[2] << 16)) {}
    __m256i by_code;
  };

  __m256i low;
  __m256i high;

  INLINE static __m256i load_half(const uint8_t* from) noexcept {
    return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
  }
  INLINE static void store_half(uint8_t* to, __m256i v) noexcept { _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), v); }
  INLINE static V load(const uint8_t* from) noexcept { return {load_half(from), load_half(from + 32)}; }
  INLINE static void store(uint8_t* to, V v) noexcept {
    store_half(to, v.low);
    store_half(to + 32, v.high);
  }
  INLINE static __m256i half(uint8_t byte) noexcept { return _mm256_set1_epi8(static_cast<char>(byte)); }
  INLINE static V all(uint8_t byte) noexcept { return {half(byte), half(byte)}; }
  INLINE static V plus(V x, V y) noexcept { return {_mm256_add_epi8(x.low, y.low), _mm256_add_epi8(x.high, y.high)}; }
  INLINE static V minus(V x, V y) noexcept { return {_mm256_sub_epi8(x.low, y.low), _mm256_sub_epi8(x.high, y.high)}; }
  INLINE static V either(V x, V y) noexcept { return {_mm256_or_si256(x.low, y.low), _mm256_or_si256(x.high, y.high)}; }
  INLINE static V both(V x, V y) noexcept { return {_mm256_and_si256(x.low, y.low), _mm256_and_si256(x.high, y.high)}; }
  template <int kBits>
  INLINE static V shl(V x) noexcept {
    const V kept = all(static_cast<uint8_t>(0xFF << kBits));
    return both({_mm256_slli_epi16(x.low, kBits), _mm256_slli_epi16(x.high, kBits)}, kept);
  }
  template <int kBits>
  INLINE static V shr(V x) noexcept {
    const V kept = all(static_cast<uint8_t>(0xFF >> kBits));
    return both({_mm256_srli_epi16(x.low, kBits), _mm256_srli_epi16(x.high, kBits)}, kept);
  }
  INLINE static uint64_t signs(V x) noexcept {
    return uint64_t{static_cast<uint32_t>(_mm256_movemask_epi8(x.low))} |
           uint64_t{static_cast<uint32_t>(_mm256_movemask_epi8(x.high))} << 32;
  }
  INLINE static uint64_t equal(V x, V y) noexcept {
    return signs({_mm256_cmpeq_epi8(x.low, y.low), _mm256_cmpeq_epi8(x.high, y.high)});
  }
  // All ones in each byte whose bit is set.
  INLINE static __m256i half_mask(uint32_t mask) noexcept {
    const __m256i byte_of = _mm256_setr_epi64x(0, kSecond, 2 * kSecond, 3 * kSecond);
    const __m256i bit_of = _mm256_set1_epi64x(static_cast<long long>(0x8040201008040201U));
    const __m256i spread = _mm256_shuffle_epi8(_mm256_set1_epi32(static_cast<int>(mask)), byte_of);
    return _mm256_cmpeq_epi8(_mm256_and_si256(spread, bit_of), bit_of);
  }
  INLINE static V from_mask(uint64_t mask) noexcept {
    return {half_mask(static_cast<uint32_t>(mask)), half_mask(static_cast<uint32_t>(mask >> 32))};
  }
  INLINE static V bits(uint64_t mask, uint8_t byte) noexcept { return both(from_mask(mask), all(byte)); }

  // packus works in each half of a register by itself: the quarters come out as 0 2 1 3.
  INLINE static __m256i even(__m256i p, __m256i q) noexcept {
    const __m256i bytes = _mm256_set1_epi16(0xFF);
    return _mm256_permute4x64_epi64(_mm256_packus_epi16(_mm256_and_si256(p, bytes), _mm256_and_si256(q, bytes)), 0xD8);
  }
  INLINE static __m256i odd(__m256i p, __m256i q) noexcept {
    return _mm256_permute4x64_epi64(_mm256_packus_epi16(_mm256_srli_epi16(p, 8), _mm256_srli_epi16(q, 8)), 0xD8);
  }
  INLINE static void split16(const uint8_t* from, V* low, V* high) noexcept {
    const __m256i x[4] = {load_half(from), load_half(from + 32), load_half(from + 64), load_half(from + 96)};
    *low = {even(x[0], x[1]), even(x[2], x[3])};
    *high = {odd(x[0], x[1]), odd(x[2], x[3])};
  }
  INLINE static void join_half(uint8_t* to, __m256i low, __m256i high) noexcept {
    const __m256i l = _mm256_permute4x64_epi64(low, 0xD8);
    const __m256i h = _mm256_permute4x64_epi64(high, 0xD8);
    store_half(to, _mm256_unpacklo_epi8(l, h));
    store_half(to + 32, _mm256_unpackhi_epi8(l, h));
  }
  INLINE static void join16(uint8_t* to, V low, V high) noexcept {
    join_half(to, low.low, high.low);
    join_half(to + 64, low.high, high.high);
  }
  INLINE static void store_halves(uint8_t* to, V v) noexcept {
    store_half(to, _mm256_or_si256(v.low, _mm256_slli_epi16(v.high, 4)));  // both have no more than four bits
  }
  INLINE static V load_halves(const uint8_t* from) noexcept {
    const __m256i x = load_half(from);
    return {_mm256_and_si256(x, half(15)), _mm256_and_si256(_mm256_srli_epi16(x, 4), half(15))};
  }
  // The plane of one bit of each byte; and bytes, those of a mask replaced.
  INLINE static uint64_t plane(V x, uint32_t bit) noexcept {
    const __m128i up = _mm_cvtsi32_si128(static_cast<int>(7 - bit));
    return signs({_mm256_sll_epi16(x.low, up), _mm256_sll_epi16(x.high, up)});
  }
  INLINE static V replaced(V x, uint64_t which, uint8_t byte) noexcept {
    const V mask = from_mask(which);
    return {_mm256_blendv_epi8(x.low, half(byte), mask.low), _mm256_blendv_epi8(x.high, half(byte), mask.high)};
  }
  INLINE static size_t compress(V v, uint64_t keep, uint8_t* next) noexcept {
    alignas(32) uint8_t bytes[kGroup];
    store(bytes, v);
    uint8_t* at = next;
    for (size_t i = 0; i < kGroup; i += 8) {
      const auto mask = static_cast<uint8_t>(keep >> i);
      const __m128i shuffle = _mm_cvtsi64_si128(static_cast<long long>(kShuffles.close[mask]));
      const __m128i eight = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(bytes + i));
      _mm_storel_epi64(reinterpret_cast<__m128i*>(at), _mm_shuffle_epi8(eight, shuffle));
      at += __builtin_popcount(mask);
    }
    return static_cast<size_t>(at - next);
  }
  // Eight bytes of which those with a bit come from `*next`, and the others are zero.
  INLINE static __m128i open_eight(uint64_t masks, size_t which, const uint8_t** next) noexcept {
    const auto mask = static_cast<uint8_t>(masks >> (8 * which));
    const __m128i eight = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(*next));
    *next += __builtin_popcount(mask);
    return _mm_shuffle_epi8(eight, _mm_cvtsi64_si128(static_cast<long long>(kShuffles.open[mask])));
  }
  INLINE static __m128i open_sixteen(uint64_t masks, size_t which, const uint8_t** next) noexcept {
    const __m128i first = open_eight(masks, which, next);
    return _mm_unpacklo_epi64(first, open_eight(masks, which + 1, next));
  }
  INLINE static __m256i open_half(uint64_t masks, size_t which, const uint8_t** next) noexcept {
    const __m128i first = open_sixteen(masks, which, next);
    return _mm256_inserti128_si256(_mm256_castsi128_si256(first), open_sixteen(masks, which + 2, next), 1);
  }
  INLINE static V listed_or_next(uint64_t a, uint64_t b, Listed listed, const uint8_t* next) noexcept {
    const V code = either(bits(a, 1), bits(b, 2));
    const uint64_t none = a & b;
    const __m256i low = open_half(none, 0, &next);
    const __m256i high = open_half(none, 4, &next);
    return {_mm256_or_si256(_mm256_shuffle_epi8(listed.by_code, code.low), low),
            _mm256_or_si256(_mm256_shuffle_epi8(listed.by_code, code.high), high)};
  }

  static constexpr long long kSecond = 0x0101010101010101;
};

#include "compress/floats_avx2.inc"
#include "compress/groups.inc"
#include "compress/quantise.inc"

#undef KERNEL
#undef INLINE

}  // namespace
}  // namespace avx2

const Kernels* avx2_kernels() noexcept {
  static constexpr Kernels kTable = avx2::table("avx2");
  // F16C is CPUID.1:ECX[29]; older compilers have no name for it. AVX2's own check says that the registers are saved.
  static const bool has = [] {
    unsigned a = 0, b = 0, c = 0, d = 0;
    const bool halves = __get_cpuid(1, &a, &b, &c, &d) != 0 && (c >> 29 & 1) != 0;
    return halves && __builtin_cpu_supports("avx2") != 0 && __builtin_cpu_supports("popcnt") != 0;
  }();
  return has ? &kTable : nullptr;
}

}  // namespace halfstep::compress

#else

namespace halfstep::compress {
const Kernels* avx2_kernels() noexcept { return nullptr; }
}  // namespace halfstep::compress

#endif
