// expiry.h — when a block expires, in the 12 bits of an index entry: seconds from the creation of its segment.
// A code is exponent 5 | mantissa 7. Exponent 0 says the mantissa itself; exponent e > 0 says (128 + mantissa) << (e - 1), so
// that the steps are a 128th of the value at most and codes are in the order of what they say. 0 is "never".
// Invariants: rounding is down, so a block may go up to 0.8 % of its life early and never lives on; the one exception is 0
// seconds, which become 1, because a block that is past its time must not read as one that has none.
#pragma once

#include <bit>
#include <cstdint>

namespace halfstep::index {

inline constexpr uint16_t kExpiryNever = 0;
inline constexpr unsigned kExpiryMantissaBits = 7;
inline constexpr uint16_t kExpiryCodeMax = 0xFFF;

constexpr uint16_t expiry_code(uint32_t seconds) noexcept {
  constexpr uint32_t kHidden = 1U << kExpiryMantissaBits;
  if (seconds == 0) return 1;
  if (seconds < kHidden) return static_cast<uint16_t>(seconds);
  const unsigned shift = static_cast<unsigned>(std::bit_width(seconds)) - (kExpiryMantissaBits + 1);
  return static_cast<uint16_t>((shift + 1) << kExpiryMantissaBits | ((seconds >> shift) - kHidden));
}

// Of a code that is not kExpiryNever. 64 bits: the format's last codes say more seconds than 32 hold.
constexpr uint64_t expiry_seconds(uint16_t code) noexcept {
  constexpr uint64_t kHidden = 1U << kExpiryMantissaBits;
  const unsigned exponent = code >> kExpiryMantissaBits;
  const uint64_t mantissa = code & (kHidden - 1);
  return exponent == 0 ? mantissa : (kHidden + mantissa) << (exponent - 1);
}

static_assert(expiry_code(UINT32_MAX) <= kExpiryCodeMax);
static_assert(expiry_seconds(expiry_code(1U << 20)) == 1U << 20);

}  // namespace halfstep::index
