// crc.h — CRC32C (Castagnoli), the checksum of every part and extent (docs/wire-protocol.md, *Checksums*).
// Source: RFC 3720 appendix B.4 for the polynomial and test vectors; the work is ISA-L's, which picks the CPU's best path.
#pragma once

#include <cstdint>

#include "base/bytes.h"

namespace halfstep {

// crc32c(b, crc32c(a)) == crc32c(a + b); the empty string has 0.
uint32_t crc32c(ConstBytes bytes, uint32_t before = 0) noexcept;

// CRC of a + b from the CRCs of a and b: O(log b_bytes), no bytes touched.
uint32_t crc32c_combine(uint32_t crc_a, uint32_t crc_b, uint64_t b_bytes) noexcept;

// CRC of `count` zero bytes appended to what `before` covers.
uint32_t crc32c_zeros(uint32_t before, uint64_t count) noexcept;

}  // namespace halfstep
