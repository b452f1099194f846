// prefetch_kind.h — what a prefetch is for: a number in its Until, by which a daemon counts the bytes that it brings.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "wire/records.h"

namespace halfstep::wire {

// UntilRecord::flags of a prefetch, to a server that shows kFeaturePrefetchKind.
inline constexpr uint32_t kUntilKindShift = 8;
// In the order of docs/wire-protocol.md; the first one: not said. As metrics name them.
inline constexpr std::array<const char*, 5> kPrefetchKindNames = {"other", "window", "layers", "turn", "named"};
inline constexpr size_t kPrefetchKinds = kPrefetchKindNames.size();

// Larger numbers, of later versions, say nothing.
inline uint8_t prefetch_kind_of(const UntilRecord& until) noexcept {
  const auto kind = static_cast<uint8_t>((until.flags & kUntilKindMask) >> kUntilKindShift);
  return kind < kPrefetchKinds ? kind : 0;
}

}  // namespace halfstep::wire
