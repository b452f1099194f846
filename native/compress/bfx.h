// bfx.h — codec 1: exact, for bf16, fp16, fp8 e4m3 and e5m2 (docs/compression.md, sections 2 to 5, where the unit is drawn).
// Invariants: those of codec.h (encode, decode); every bit of a value comes back, NaN and denormals too.
#pragma once

#include "base/bytes.h"
#include "base/status.h"
#include "compress/unit.h"

namespace halfstep::compress {

inline constexpr uint8_t kBfxVersion = 1;
// A part of fewer values is raw: a header would eat what it gains.
inline constexpr uint32_t kBfxValuesMin = 256;

struct BfxHeader {
  uint8_t version = kBfxVersion;
  uint8_t element = 0;
  uint16_t row_values = 0;
  uint32_t values = 0;
  uint32_t second = 0;
  uint32_t third = 0;
  uint8_t listed[9] = {};
  uint8_t tail_bytes = 0;
  uint16_t zero = 0;
};
static_assert(sizeof(BfxHeader) == 28);

struct Kernels;

// The same on a path of the caller's choice: what tests compare.
size_t bfx_encode_by(const Kernels& use, ConstBytes raw, const UnitShape& shape, Scratch& scratch, Bytes out);
Status bfx_decode_by(const Kernels& use, ConstBytes unit, Scratch& scratch, Bytes out);

size_t bfx_encode(ConstBytes raw, const UnitShape& shape, Scratch& scratch, Bytes out);
Status bfx_decode(ConstBytes unit, Scratch& scratch, Bytes out);
Status bfx_inspect(ConstBytes unit, UnitFacts* out);

}  // namespace halfstep::compress
