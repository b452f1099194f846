// own_memory.h — what a shard's store takes of its pool for itself, at open and for good; the rest is for blocks.
#pragma once

#include <algorithm>
#include <cstdint>

#include "base/slots.h"
#include "store/format/format.h"

namespace halfstep::store {

// Frames in flight at once, of one writer and of all; each has header pages of its own, taken from the arena at open.
inline constexpr uint32_t kFramesInFlightMax = 4;
inline constexpr uint32_t kFrameHeaders = 6;
inline constexpr uint64_t kFrameHeaderBytes = uint64_t{format::kFrameHeaderPagesMax} * kPageBytes;

// Memory for reclaim, taken from the arena at open: what it copies must never wait for what reads and writes hold. A store of
// fewer segments copies nothing: the segment that copies go to would be too large a part of it.
inline constexpr uint32_t kRewriteSegmentsMin = 8;
inline constexpr uint64_t kRewriteBufferBytesMax = 8 * MiB;
inline uint64_t rewrite_buffer_bytes(uint32_t segments, uint64_t pool_bytes) noexcept {
  if (segments < kRewriteSegmentsMin) return 0;
  return std::min(round_down(pool_bytes / 8, kPieceBytesMax), kRewriteBufferBytesMax);
}

inline constexpr uint64_t kOwnMemoryBytesMax = kFrameHeaders * kFrameHeaderBytes + kRewriteBufferBytesMax;
inline uint64_t own_memory_bytes(uint32_t segments, uint64_t pool_bytes) noexcept {
  return kFrameHeaders * kFrameHeaderBytes + rewrite_buffer_bytes(segments, pool_bytes);
}

}  // namespace halfstep::store
