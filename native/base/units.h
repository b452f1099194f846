// units.h — sizes and rounding. Numbers elsewhere carry their unit in their names; these make the literals readable.
#pragma once

#include <cstddef>
#include <cstdint>

namespace halfstep {

inline constexpr uint64_t KiB = 1024;
inline constexpr uint64_t MiB = 1024 * KiB;
inline constexpr uint64_t GiB = 1024 * MiB;

// The unit of every flash address and of O_DIRECT alignment (docs/on-flash-format.md).
inline constexpr uint32_t kPageBytes = 4096;

constexpr uint64_t round_up(uint64_t value, uint64_t unit) noexcept { return (value + unit - 1) / unit * unit; }
constexpr uint64_t round_down(uint64_t value, uint64_t unit) noexcept { return value / unit * unit; }
constexpr uint64_t div_up(uint64_t value, uint64_t unit) noexcept { return (value + unit - 1) / unit; }

}  // namespace halfstep
