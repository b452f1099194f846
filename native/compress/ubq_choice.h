// ubq_choice.h — what the quantiser learns from a part before it codes it: its step, its channels' offsets, how many low bits
// stand apart, and the nine listed symbols (docs/quantiser.md, section 5).
// Invariants: float32 operations in a stated order, so that every processor makes the same choice.
#pragma once

#include <array>
#include <cstdint>

#include "base/bytes.h"
#include "compress/kernels.h"
#include "compress/unit.h"

namespace halfstep::compress {

struct UbqChoice {
  float step = 0;     // 0: the part is not to be quantised
  float inverse = 0;  // 1 / step
  float limit = 0;    // of a value times `inverse`
  uint32_t low_bits = 0;
  uint32_t mean_bits = 0;  // 0: there are no means
  uint32_t mean_shift = 0;
  std::array<uint8_t, 9> listed{};
};

// `pattern` has room for row_values + 64, `centres` for row_values + 16; the pattern is filled where there are means. The shape
// is one that ubq codes, the part whole rows of it, at least a group.
UbqChoice choose_ubq(const Kernels& use, ConstBytes raw, const UnitShape& shape, int16_t* pattern, float* centres);

}  // namespace halfstep::compress
