// zstd.h — codec 3: exact, for values of unknown make, by libzstd (docs/compression.md, section 12, where the unit is drawn).
// A unit is a header and one frame of RFC 8878; the frame's bytes are the part's, or its byte planes where those are smaller.
// Invariants: those of codec.h (encode, decode), but that another version of libzstd may write other bytes, which every
// version reads. No memory follows a length that a frame claims: a frame is decoded at once into memory of the part's length,
// and so has no window of its own.
#pragma once

#include "base/bytes.h"
#include "base/status.h"
#include "compress/unit.h"

namespace halfstep::compress {

inline constexpr uint8_t kZstdVersion = 1;
// A part of fewer bytes is raw: headers would eat what it gains.
inline constexpr size_t kZstdBytesMin = 256;
// libzstd's lowest of the usual levels. Higher ones cost several times as much and gain some percent here.
inline constexpr int kZstdLevel = 1;

struct ZstdHeader {
  uint8_t version = kZstdVersion;
  uint8_t element = 0;  // as the encoder was told; 0: nobody knows
  uint8_t planes = 1;   // 1: bytes as they are; 2 or 4: so many byte planes
  uint8_t zero = 0;
  float step = 0;  // always: it is exact
  uint32_t raw_bytes = 0;
};
static_assert(sizeof(ZstdHeader) == 12);

size_t zstd_encode(ConstBytes raw, const UnitShape& shape, Scratch& scratch, Bytes out);
Status zstd_decode(ConstBytes unit, Scratch& scratch, Bytes out);
Status zstd_inspect(ConstBytes unit, UnitFacts* out);

}  // namespace halfstep::compress
