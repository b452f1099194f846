// codec.h — the codecs that there are, by number (docs/compression.md, section 1). One file each; a unit is one part of a
// block. Invariants: encode() of the same bytes gives the same unit on every processor; decode() writes inside its target and
// nowhere else, whatever the unit says, and what it does not refuse has exactly the target's length. Thread: any, each with a
// Scratch of its own.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "base/bytes.h"
#include "base/status.h"
#include "compress/unit.h"

namespace halfstep::compress {

struct Codec {
  uint8_t number;
  std::string_view name;
  // What decoding gives is not what was encoded.
  bool lossy;
  // Writes the unit to the front of `out`, which has unit_bytes_max() of the part; returns its bytes. 0: it does not pay, and
  // the part is raw.
  size_t (*encode)(ConstBytes raw, const UnitShape& shape, Scratch& scratch, Bytes out);
  // Corrupt: no unit of a part of out.size() bytes.
  Status (*decode)(ConstBytes unit, Scratch& scratch, Bytes out);
  // Corrupt: no header.
  Status (*inspect)(ConstBytes unit, UnitFacts* out);
};

// All of them, by number. find: null where this build has none of that number or name.
std::span<const Codec> codecs() noexcept;
const Codec* find_codec(uint32_t number) noexcept;
const Codec* find_codec(std::string_view name) noexcept;

}  // namespace halfstep::compress
