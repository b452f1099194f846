// element.h — what a value is made of, and how its bits fall apart into exponent and fraction (docs/compression.md).
#pragma once

#include <cstdint>
#include <string_view>

namespace halfstep::compress {

// The numbers are those of a unit's header.
enum class Element : uint8_t { Unknown = 0, Bf16 = 1, Fp16 = 2, E4m3 = 3, E5m2 = 4 };
inline constexpr uint32_t kElementsEnd = 5;

constexpr uint32_t value_bytes(Element element) noexcept {
  return element == Element::Bf16 || element == Element::Fp16 ? 2 : 1;
}

constexpr uint32_t exponent_bits(Element element) noexcept {
  switch (element) {
    case Element::Bf16: return 8;
    case Element::E4m3: return 4;
    default: return 5;
  }
}

// Bytes of the fractions of `count` values, at most 64: one group of a unit.
constexpr uint32_t fraction_bytes(Element element, uint32_t count) noexcept {
  const uint32_t plane = (count + 7) / 8;
  switch (element) {
    case Element::Bf16: return count;
    case Element::Fp16: return count + 3 * plane;
    case Element::E4m3: return (count + 1) / 2;
    default: return 3 * plane;
  }
}

// "bf16", "fp16", "e4m3", "e5m2"; "unknown" for the rest. And back; Unknown for any other text.
std::string_view element_name(Element element) noexcept;
Element element_of(std::string_view name) noexcept;

}  // namespace halfstep::compress
