// bfx_fixture.h — parts to code: values like those of a KV cache, of every element, with the hazards of real ones.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <optional>
#include <utility>
#include <vector>

#include "base/prng.h"
#include "base/status.h"
#include "compress/kernels.h"
#include "compress/unit.h"

namespace halfstep::compress {

inline constexpr Element kElements[] = {Element::Bf16, Element::Fp16, Element::E4m3, Element::E5m2};

inline std::vector<const Kernels*> all_kernels() {
  std::vector<const Kernels*> out{&plain_kernels()};
  for (const Kernels* of : {avx2_kernels(), avx512_kernels()}) {
    if (of != nullptr) out.push_back(of);
  }
  return out;
}

// The bits of a value near `x`: enough of a rounding for a test, which is about bits.
inline uint16_t bits_of(Element element, float x) {
  const auto f = std::bit_cast<uint32_t>(x);
  const uint32_t sign = f >> 31;
  if (element == Element::Bf16) return static_cast<uint16_t>(f >> 16);
  const int exponent = static_cast<int>(f >> 23 & 0xFF) - 127;
  const int width = static_cast<int>(exponent_bits(element));
  const int mantissa = element == Element::Fp16 ? 10 : element == Element::E4m3 ? 3 : 2;
  const int biased = exponent + (1 << (width - 1)) - 1;
  if (biased <= 0) return static_cast<uint16_t>(sign << (width + mantissa));
  const int kept = biased >= 1 << width ? (1 << width) - 1 : biased;
  return static_cast<uint16_t>(sign << (width + mantissa) | static_cast<uint32_t>(kept) << mantissa |
                               (f >> (23 - mantissa) & ((1U << mantissa) - 1)));
}

// Sums of uniform numbers, near enough to a bell; channels of `row` differ in size by up to `spread` powers of two.
inline std::vector<std::byte> kv_values(Prng& prng, Element element, size_t count, uint32_t row = 64, int spread = 0) {
  std::vector<std::byte> out(count * value_bytes(element));
  for (size_t i = 0; i < count; ++i) {
    float x = 0;
    for (int k = 0; k < 4; ++k) x += static_cast<float>(prng.below(65536)) / 65536.0F - 0.5F;
    x = std::ldexp(x, spread == 0 ? 0 : static_cast<int>(i % row * 7 % static_cast<uint32_t>(spread + 1)));
    const uint16_t bits = bits_of(element, x);
    std::memcpy(out.data() + i * value_bytes(element), &bits, value_bytes(element));
  }
  return out;
}

inline std::vector<std::byte> noise(Prng& prng, size_t bytes) {
  std::vector<std::byte> out(bytes);
  for (std::byte& byte : out) byte = static_cast<std::byte>(prng.below(256));
  return out;
}

// One to four changes of bits, bytes or the length. Half of them are among the first `first_bytes`: the header and its
// neighbours are where a byte does most.
inline void damage(Prng& prng, size_t first_bytes, std::vector<std::byte>& unit) {
  const uint64_t damages = 1 + prng.below(4);
  for (uint64_t i = 0; i < damages; ++i) {
    const size_t within = prng.below(2) == 0 ? std::min(unit.size(), first_bytes) : unit.size();
    if (within == 0) return;
    const size_t at = prng.below(within);
    switch (prng.below(4)) {
      case 0: unit[at] ^= static_cast<std::byte>(1U << prng.below(8)); break;
      case 1: unit[at] = static_cast<std::byte>(prng.below(256)); break;
      case 2: unit.resize(at); break;
      default: unit.insert(unit.begin() + static_cast<ptrdiff_t>(at), static_cast<std::byte>(prng.below(256)));
    }
  }
}

// `decode(kernels, &back)` on every path: what all of them say; nothing where one says or decodes something else.
template <typename Decode>
std::optional<Status> decode_on_all(Decode&& decode) {
  std::optional<Status> said;
  std::vector<std::byte> first;
  for (const Kernels* use : all_kernels()) {
    std::vector<std::byte> back;
    const Status status = decode(*use, &back);
    if (said && (status != *said || (status.ok() && back != first))) return {};
    said = status;
    first = std::move(back);
  }
  return said;
}

}  // namespace halfstep::compress
