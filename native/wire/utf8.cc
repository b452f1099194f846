#include "wire/utf8.h"

namespace halfstep::wire {
namespace {

// What may follow a lead byte: how many continuation bytes, and the bounds of the first of them.
struct Lead {
  uint32_t continuations;
  uint8_t first_min;
  uint8_t first_max;
};

constexpr Lead lead_of(uint8_t byte) noexcept {
  if (byte < 0x80) return {0, 0, 0};
  if (byte >= 0xC2 && byte <= 0xDF) return {1, 0x80, 0xBF};
  if (byte == 0xE0) return {2, 0xA0, 0xBF};  // below: overlong
  if (byte == 0xED) return {2, 0x80, 0x9F};  // above: surrogates
  if (byte >= 0xE1 && byte <= 0xEF) return {2, 0x80, 0xBF};
  if (byte == 0xF0) return {3, 0x90, 0xBF};  // below: overlong
  if (byte >= 0xF1 && byte <= 0xF3) return {3, 0x80, 0xBF};
  if (byte == 0xF4) return {3, 0x80, 0x8F};  // above: beyond U+10FFFF
  return {UINT32_MAX, 0, 0};
}

}  // namespace

bool valid_utf8(ConstBytes text) noexcept {
  size_t at = 0;
  while (at < text.size()) {
    const Lead lead = lead_of(static_cast<uint8_t>(text[at++]));
    if (lead.continuations > text.size() - at) return false;
    for (uint32_t i = 0; i < lead.continuations; ++i, ++at) {
      const auto byte = static_cast<uint8_t>(text[at]);
      const uint8_t min = i == 0 ? lead.first_min : 0x80;
      const uint8_t max = i == 0 ? lead.first_max : 0xBF;
      if (byte < min || byte > max) return false;
    }
  }
  return true;
}

}  // namespace halfstep::wire
