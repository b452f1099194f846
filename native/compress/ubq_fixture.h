// ubq_fixture.h — parts to quantise: values like those of a KV cache, with offsets of channels, outliers and sink tokens; and
// what half a step means.
#pragma once

#include <cmath>
#include <cstring>
#include <optional>
#include <string>
#include <vector>

#include "compress/bfx_fixture.h"
#include "compress/ubq.h"

namespace halfstep::compress {

inline constexpr Element kUbqElements[] = {Element::Bf16, Element::Fp16};

struct UbqPart {
  Element element = Element::Bf16;
  uint32_t row_values = 64;
  size_t rows = 16;
  float offset_max = 0;  // of channels, in deviations
  float outlier = 0;     // the size of every 97th value of a row, in deviations; 0: none
  float sink = 0;        // the first row is so many times larger; 0: it is not
  float deviation = 1.0F;
};

inline double value_of(Element element, uint16_t bits) {
  const bool wide = element == Element::Bf16;
  const int mantissa_bits = wide ? 7 : 10;
  const int exponent_max = wide ? 255 : 31;
  const int exponent = bits >> mantissa_bits & exponent_max;
  const int mantissa = bits & ((1 << mantissa_bits) - 1);
  const double sign = bits >> 15 != 0 ? -1 : 1;
  if (exponent == exponent_max) return mantissa == 0 ? sign * INFINITY : NAN;
  const int bias = exponent_max / 2 + mantissa_bits;
  return exponent == 0 ? sign * std::ldexp(mantissa, 1 - bias)
                       : sign * std::ldexp(mantissa + (1 << mantissa_bits), exponent - bias);
}

inline double value_at(Element element, ConstBytes raw, size_t index) {
  return value_of(element, load_le<uint16_t>(raw.data() + 2 * index));
}

inline void put_value(Element element, std::vector<std::byte>& raw, size_t index, float x) {
  const uint16_t bits = bits_of(element, x);
  std::memcpy(raw.data() + 2 * index, &bits, 2);
}

inline std::vector<std::byte> ubq_values(Prng& prng, const UbqPart& part) {
  std::vector<float> offsets(part.row_values);
  for (float& offset : offsets) offset = part.offset_max * (static_cast<float>(prng.below(2001)) / 1000.0F - 1.0F);
  std::vector<std::byte> raw(2 * part.rows * part.row_values);
  for (size_t i = 0; i < raw.size() / 2; ++i) {
    // Four uniform numbers have together a deviation of sqrt(4 / 12).
    float x = 0;
    for (int k = 0; k < 4; ++k) x += static_cast<float>(prng.below(65536)) / 65536.0F - 0.5F;
    x = x * 1.73F + offsets[i % part.row_values];
    if (part.outlier != 0 && i % part.row_values % 97 == 5) x *= part.outlier;
    if (part.sink != 0 && i < part.row_values) x *= part.sink;
    put_value(part.element, raw, i, x * part.deviation);
  }
  return raw;
}

// What is wrong with a decoded part, if anything is: a value that is off by more than half a step and its own rounding.
inline std::optional<std::string> beyond_bound(Element element, ConstBytes raw, ConstBytes back, float step) {
  const double ulps = element == Element::Bf16 ? 0x1p-8 : 0x1p-11;  // half of one, of a value's size
  const double ulp_min = element == Element::Bf16 ? 0x1p-134 : 0x1p-25;
  for (size_t i = 0; i < raw.size() / 2; ++i) {
    const double x = value_at(element, raw, i);
    const double y = value_at(element, back, i);
    const double bound = double{step} / 2 * (1 + 0x1p-20) + std::max(std::fabs(y) * ulps, ulp_min);
    if (!(std::fabs(x - y) <= bound)) {
      return "value " + std::to_string(i) + ": " + std::to_string(x) + " became " + std::to_string(y) + " at a step of " +
             std::to_string(step);
    }
  }
  return {};
}

}  // namespace halfstep::compress
