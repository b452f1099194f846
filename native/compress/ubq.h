// ubq.h — codec 2: an error-bounded quantiser for bf16 and fp16 (docs/quantiser.md, section 2, where the unit is drawn).
// Values become whole multiples of a step, which is the unit's own and stands in its header. Lossy: only a layout that names
// it, with a step, has such parts. Invariants: those of codec.h (encode, decode). No value is off by more than half a step
// and a thousandth of it, and the element's own rounding of what comes out. A part of which that cannot be said is refused by
// the encoder: NaN, infinities, what is too far away.
#pragma once

#include "base/bytes.h"
#include "base/status.h"
#include "compress/unit.h"

namespace halfstep::compress {

inline constexpr uint8_t kUbqVersion = 1;
// A part of fewer values: its header would eat what it gains.
inline constexpr uint32_t kUbqValuesMin = 256;
// Low bits of a level that are not in its symbol; and how far a channel's mean is shifted.
inline constexpr uint32_t kUbqLowBitsMax = 8;
inline constexpr uint32_t kUbqMeanShiftMax = 11;
// What a step may be, as a share of the deviation of a unit: a finer one gains nothing, a coarser one leaves nothing.
inline constexpr float kUbqShareMin = 0x1p-10F;
inline constexpr float kUbqShareMax = 4.0F;
// Of the header's step: all that is computed with it is a normal float32.
inline constexpr float kUbqStepMin = 0x1p-100F;
inline constexpr float kUbqStepMax = 0x1p100F;
// The farthest level. One that is farther away would have stretched the step of all others: the unit is exact.
inline constexpr float kUbqLevelMax = 8191.0F;

struct UbqHeader {
  uint8_t version = kUbqVersion;
  uint8_t element = 0;
  uint16_t row_values = 0;
  uint32_t values = 0;
  uint32_t second = 0;
  uint32_t third = 0;
  uint32_t far = 0;
  float step = 0;
  uint8_t listed[9] = {};
  uint8_t low_bits = 0;
  uint8_t mean_bits = 0;
  uint8_t mean_shift = 0;
};
static_assert(sizeof(UbqHeader) == 36);

// A longer unit gains little more than an exact one does, which has no error.
constexpr size_t ubq_unit_bytes_max(size_t raw_bytes) noexcept { return raw_bytes - (raw_bytes + 2) / 3; }

struct Kernels;

// The same on a path of the caller's choice: what tests compare.
size_t ubq_encode_by(const Kernels& use, ConstBytes raw, const UnitShape& shape, Scratch& scratch, Bytes out);
Status ubq_decode_by(const Kernels& use, ConstBytes unit, Scratch& scratch, Bytes out);

// 0 as well where the shape has no element of these, no row, or no step: it is refused, and the part is exact.
size_t ubq_encode(ConstBytes raw, const UnitShape& shape, Scratch& scratch, Bytes out);
Status ubq_decode(ConstBytes unit, Scratch& scratch, Bytes out);
Status ubq_inspect(ConstBytes unit, UnitFacts* out);

}  // namespace halfstep::compress
