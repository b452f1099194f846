// hash_many.cc — keyed_hash of many messages. A SipHash is one long chain of dependent instructions, so eight messages go side
// by side: two groups of four in AVX2 registers, where the CPU has them (asked at run time), else one after the other, whose
// chains an out-of-order CPU overlaps by itself.
// Invariants: bit for bit what keyed_hash says.
#include <algorithm>
#include <array>

#include "base/check.h"
#include "base/hash.h"
#include "base/sip.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace halfstep {
namespace {

#if defined(__x86_64__)

#define HALFSTEP_AVX2 [[gnu::target("avx2"), gnu::always_inline]] inline

constexpr size_t kLanes = 4;
constexpr size_t kGroup = 2 * kLanes;
// Fewer are done sooner one by one.
constexpr size_t kGroupMin = 4;

struct Sip4 {
  HALFSTEP_AVX2 explicit Sip4(const HashKey& key) noexcept {
    v0 = all(key.k0 ^ Sip::kInit0);
    v1 = all(key.k1 ^ Sip::kInit1);
    v2 = all(key.k0 ^ Sip::kInit2);
    v3 = all(key.k1 ^ Sip::kInit3);
  }

  HALFSTEP_AVX2 static __m256i all(uint64_t word) noexcept { return _mm256_set1_epi64x(static_cast<long long>(word)); }

  template <int kBits>
  HALFSTEP_AVX2 static __m256i rotated(__m256i x) noexcept {
    if constexpr (kBits == 32) return _mm256_shuffle_epi32(x, 0xB1);
    return _mm256_or_si256(_mm256_slli_epi64(x, kBits), _mm256_srli_epi64(x, 64 - kBits));
  }

  HALFSTEP_AVX2 void round() noexcept {
    v0 = _mm256_add_epi64(v0, v1);
    v2 = _mm256_add_epi64(v2, v3);
    v1 = _mm256_xor_si256(rotated<13>(v1), v0);
    v3 = _mm256_xor_si256(rotated<16>(v3), v2);
    v0 = rotated<32>(v0);
    v2 = _mm256_add_epi64(v2, v1);
    v0 = _mm256_add_epi64(v0, v3);
    v1 = _mm256_xor_si256(rotated<17>(v1), v2);
    v3 = _mm256_xor_si256(rotated<21>(v3), v0);
    v2 = rotated<32>(v2);
  }

  __m256i v0, v1, v2, v3;
};

// Both groups take each step together: while one waits for its own last result, the other goes on.
struct Sip8 {
  HALFSTEP_AVX2 explicit Sip8(const HashKey& key) noexcept : a(key), b(key) {}

  HALFSTEP_AVX2 void rounds(int count) noexcept {
    for (int i = 0; i < count; ++i) {
      a.round();
      b.round();
    }
  }
  HALFSTEP_AVX2 void absorb(const std::array<uint64_t, kGroup>& words) noexcept {
    const __m256i for_a = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(words.data()));
    const __m256i for_b = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(words.data() + kLanes));
    a.v3 = _mm256_xor_si256(a.v3, for_a);
    b.v3 = _mm256_xor_si256(b.v3, for_b);
    rounds(2);
    a.v0 = _mm256_xor_si256(a.v0, for_a);
    b.v0 = _mm256_xor_si256(b.v0, for_b);
  }
  HALFSTEP_AVX2 static void fold(const Sip4& state, uint64_t* out) noexcept {
    const __m256i folded = _mm256_xor_si256(_mm256_xor_si256(state.v0, state.v1), _mm256_xor_si256(state.v2, state.v3));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(out), folded);
  }
  HALFSTEP_AVX2 void squeeze(std::array<uint64_t, kGroup>* out) noexcept {
    rounds(4);
    fold(a, out->data());
    fold(b, out->data() + kLanes);
  }
  HALFSTEP_AVX2 void finish(std::array<uint64_t, kGroup>* low, std::array<uint64_t, kGroup>* high) noexcept {
    a.v2 = _mm256_xor_si256(a.v2, Sip4::all(Sip::kFinish));
    b.v2 = _mm256_xor_si256(b.v2, Sip4::all(Sip::kFinish));
    squeeze(low);
    a.v1 = _mm256_xor_si256(a.v1, Sip4::all(Sip::kFinishHigh));
    b.v1 = _mm256_xor_si256(b.v1, Sip4::all(Sip::kFinishHigh));
    squeeze(high);
  }

  Sip4 a, b;
};

// Of one number of whole words, kGroupMin to kGroup of them; lanes without a message repeat the first.
[[gnu::target("avx2")]] void hash_group(const HashKey& key, std::span<const ConstBytes> messages, Hash128* out) noexcept {
  std::array<const std::byte*, kGroup> from;
  std::array<uint64_t, kGroup> words;
  std::array<uint64_t, kGroup> last;
  for (size_t lane = 0; lane < kGroup; ++lane) {
    const ConstBytes message = messages[lane < messages.size() ? lane : 0];
    from[lane] = message.data();
    last[lane] = Sip::last_word(message);
  }
  Sip8 state(key);
  const size_t whole = messages[0].size() / 8 * 8;
  for (size_t at = 0; at < whole; at += 8) {
    for (size_t lane = 0; lane < kGroup; ++lane) words[lane] = load_le<uint64_t>(from[lane] + at);
    state.absorb(words);
  }
  state.absorb(last);
  std::array<uint64_t, kGroup> low;
  std::array<uint64_t, kGroup> high;
  state.finish(&low, &high);
  for (size_t lane = 0; lane < messages.size(); ++lane) out[lane] = {low[lane], high[lane]};
}

#undef HALFSTEP_AVX2

#endif

}  // namespace

void keyed_hash_many(const HashKey& key, std::span<const ConstBytes> messages, std::span<Hash128> out) noexcept {
  HALFSTEP_CHECK(out.size() >= messages.size(), out.size(), messages.size());
  size_t at = 0;
#if defined(__x86_64__)
  const bool wide = __builtin_cpu_supports("avx2") != 0;
  while (wide && messages.size() - at >= kGroupMin) {
    const size_t words = messages[at].size() / 8;
    const size_t bound = std::min(kGroup, messages.size() - at);
    size_t count = 1;
    while (count < bound && messages[at + count].size() / 8 == words) ++count;
    if (count >= kGroupMin) {
      hash_group(key, messages.subspan(at, count), &out[at]);
    } else {
      for (size_t i = at; i < at + count; ++i) out[i] = keyed_hash(key, messages[i]);
    }
    at += count;
  }
#endif
  for (; at < messages.size(); ++at) out[at] = keyed_hash(key, messages[at]);
}

}  // namespace halfstep
