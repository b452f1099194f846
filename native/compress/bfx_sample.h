// bfx_sample.h — what an encoder learns from a part before it codes it: element, bases, the nine listed symbols, and what the
// unit will take, roughly (docs/compression.md, section 5).
// Invariants: looks at the same values whatever the path, so that every processor makes the same choice.
#pragma once

#include <array>
#include <cstdint>

#include "base/bytes.h"
#include "compress/unit.h"

namespace halfstep::compress {

struct BfxChoice {
  Element element = Element::Unknown;
  uint32_t row_values = 0;  // of bases, which are below; 0: none
  std::array<uint8_t, 9> listed{};
  uint64_t estimate_bytes = 0;  // of the unit
};

// `bases` gets row_values + 64 bytes where they pay (the pattern of Bases); it has room for kRowValuesMax + 64. At least 256
// values of the element, or of every element where it is unknown.
BfxChoice choose_bfx(ConstBytes raw, const UnitShape& shape, uint8_t* bases);

}  // namespace halfstep::compress
