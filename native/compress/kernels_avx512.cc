// The path of processors with AVX-512 VBMI2, whose compress and expand move bytes: a register a group.
#include <cstring>

#include "compress/kernels.h"

#if defined(__x86_64__)
#include <immintrin.h>

namespace halfstep::compress {
namespace avx512 {
namespace {

#define TARGET "avx512f,avx512bw,avx512vl,avx512vbmi,avx512vbmi2,popcnt,bmi,bmi2"
#define KERNEL [[gnu::target(TARGET)]]
#define INLINE [[gnu::target(TARGET), gnu::always_inline]] inline

// The even and the odd bytes of two registers, and two registers of bytes in turn from two others.
struct Orders {
  alignas(64) uint8_t even[64];
  alignas(64) uint8_t odd[64];
  alignas(64) uint8_t first[64];
  alignas(64) uint8_t second[64];
};
constexpr Orders kOrders = [] {
  Orders of{};
  for (uint8_t i = 0; i < 64; ++i) {
    of.even[i] = static_cast<uint8_t>(2 * i);
    of.odd[i] = static_cast<uint8_t>(2 * i + 1);
    of.first[i] = static_cast<uint8_t>((i & 1) * 64 + i / 2);
    of.second[i] = static_cast<uint8_t>(of.first[i] + 32);
  }
  return of;
}();

struct V {
  struct Listed {
    INLINE explicit Listed(const uint8_t* listed) noexcept
        : first(all(listed[0]).of), second(all(listed[1]).of), third(all(listed[2]).of) {}
    __m512i first;
    __m512i second;
    __m512i third;
  };

  __m512i of;

  INLINE static V load(const uint8_t* from) noexcept { return {_mm512_loadu_si512(from)}; }
  INLINE static void store(uint8_t* to, V v) noexcept { _mm512_storeu_si512(to, v.of); }
  INLINE static V all(uint8_t byte) noexcept { return {_mm512_set1_epi8(static_cast<char>(byte))}; }
  INLINE static V plus(V x, V y) noexcept { return {_mm512_add_epi8(x.of, y.of)}; }
  INLINE static V minus(V x, V y) noexcept { return {_mm512_sub_epi8(x.of, y.of)}; }
  INLINE static V either(V x, V y) noexcept { return {_mm512_or_si512(x.of, y.of)}; }
  INLINE static V both(V x, V y) noexcept { return {_mm512_and_si512(x.of, y.of)}; }
  template <int kBits>
  INLINE static V shl(V x) noexcept {
    return both({_mm512_slli_epi16(x.of, kBits)}, all(static_cast<uint8_t>(0xFF << kBits)));
  }
  template <int kBits>
  INLINE static V shr(V x) noexcept {
    return both({_mm512_srli_epi16(x.of, kBits)}, all(static_cast<uint8_t>(0xFF >> kBits)));
  }
  INLINE static uint64_t signs(V x) noexcept { return _mm512_movepi8_mask(x.of); }
  INLINE static uint64_t equal(V x, V y) noexcept { return _mm512_cmpeq_epi8_mask(x.of, y.of); }
  INLINE static V bits(uint64_t mask, uint8_t byte) noexcept { return {_mm512_maskz_mov_epi8(mask, all(byte).of)}; }
  INLINE static void split16(const uint8_t* from, V* low, V* high) noexcept {
    const __m512i x = _mm512_loadu_si512(from);
    const __m512i y = _mm512_loadu_si512(from + 64);
    low->of = _mm512_permutex2var_epi8(x, _mm512_load_si512(kOrders.even), y);
    high->of = _mm512_permutex2var_epi8(x, _mm512_load_si512(kOrders.odd), y);
  }
  INLINE static void join16(uint8_t* to, V low, V high) noexcept {
    _mm512_storeu_si512(to, _mm512_permutex2var_epi8(low.of, _mm512_load_si512(kOrders.first), high.of));
    _mm512_storeu_si512(to + 64, _mm512_permutex2var_epi8(low.of, _mm512_load_si512(kOrders.second), high.of));
  }
  INLINE static void store_halves(uint8_t* to, V v) noexcept {
    // With a mask of all: gcc 12 warns of the other forms, in its own headers.
    const __m256i low = _mm512_maskz_extracti64x4_epi64(0xFF, v.of, 0);
    const __m256i high = _mm512_maskz_extracti64x4_epi64(0xFF, v.of, 1);
    const __m256i packed = _mm256_or_si256(low, _mm256_slli_epi16(high, 4));  // both have no more than four bits
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), packed);
  }
  INLINE static V load_halves(const uint8_t* from) noexcept {
    const __m512i x = _mm512_maskz_broadcast_i64x4(0xFF, _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
    return both({_mm512_mask_srli_epi64(x, 0xF0, x, 4)}, all(15));
  }
  // The plane of one bit of each byte; and bytes, those of a mask replaced.
  INLINE static uint64_t plane(V x, uint32_t bit) noexcept {
    return _mm512_test_epi8_mask(x.of, all(static_cast<uint8_t>(1U << bit)).of);
  }
  INLINE static V replaced(V x, uint64_t which, uint8_t byte) noexcept {
    return {_mm512_mask_mov_epi8(x.of, which, all(byte).of)};
  }
  INLINE static size_t compress(V v, uint64_t keep, uint8_t* next) noexcept {
    // Into a register first: to memory the instruction is many times slower on some processors.
    _mm512_storeu_si512(next, _mm512_maskz_compress_epi8(keep, v.of));
    return static_cast<size_t>(__builtin_popcountll(keep));
  }
  INLINE static V listed_or_next(uint64_t a, uint64_t b, Listed listed, const uint8_t* next) noexcept {
    __m512i v = _mm512_mask_mov_epi8(listed.first, a, listed.second);
    v = _mm512_mask_mov_epi8(v, b, listed.third);
    return {_mm512_mask_expand_epi8(v, a & b, _mm512_loadu_si512(next))};
  }
};

#include "compress/floats_avx512.inc"
#include "compress/groups.inc"
#include "compress/quantise.inc"

#undef KERNEL
#undef INLINE
#undef TARGET

}  // namespace
}  // namespace avx512

const Kernels* avx512_kernels() noexcept {
  static constexpr Kernels kTable = avx512::table("avx512");
  static const bool has = __builtin_cpu_supports("avx512bw") != 0 && __builtin_cpu_supports("avx512vl") != 0 &&
                          __builtin_cpu_supports("avx512vbmi") != 0 && __builtin_cpu_supports("avx512vbmi2") != 0 &&
                          __builtin_cpu_supports("bmi2") != 0;
  return has ? &kTable : nullptr;
}

}  // namespace halfstep::compress

#else

namespace halfstep::compress {
const Kernels* avx512_kernels() noexcept { return nullptr; }
}  // namespace halfstep::compress

#endif
