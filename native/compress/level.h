// level.h — a level of three listed symbols (docs/compression.md, section 3): what bfx and ubq units have in common.
// Its last group, of fewer than 64, is coded and decoded as a whole one in memory of its own, by the same kernels, and its
// planes are cut to its length.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "compress/kernels.h"

namespace halfstep::compress {

inline constexpr size_t kListed = 3;  // of a level

constexpr size_t groups_of(size_t count) noexcept { return count / kGroup; }
constexpr uint32_t rest_of(size_t count) noexcept { return static_cast<uint32_t>(count % kGroup); }
// One plane, and the two of a level.
constexpr size_t plane_bytes(size_t count) noexcept { return groups_of(count) * (kPlanesBytes / 2) + (count % kGroup + 7) / 8; }
constexpr size_t planes_bytes(size_t count) noexcept { return 2 * plane_bytes(count); }

inline uint64_t load_plane(const uint8_t* from, uint32_t bytes) noexcept {
  uint64_t plane = 0;
  std::memcpy(&plane, from, bytes);
  return plane;
}

// Planes of a last group, both to their full 8 bytes.
struct LastPlanes {
  uint8_t of[kPlanesBytes] = {};
  LastPlanes() = default;
  LastPlanes(const uint8_t* cut, uint32_t count) noexcept {
    const uint32_t bytes = (count + 7) / 8;
    std::memcpy(of, cut, bytes);
    std::memcpy(of + 8, cut + bytes, bytes);
  }
  uint64_t a() const noexcept { return load_plane(of, 8); }
  uint64_t b() const noexcept { return load_plane(of + 8, 8); }
  bool spare_bits(uint32_t count) const noexcept { return (a() | b()) >> count != 0; }
  // Bits of what is beyond `count` go; returns how many of the rest go on.
  size_t cut(uint32_t count, uint8_t* to) noexcept {
    const uint64_t valid = (uint64_t{1} << count) - 1;
    const uint64_t first = a() & valid;
    const uint64_t second = b() & valid;
    const uint32_t bytes = (count + 7) / 8;
    std::memcpy(to, &first, bytes);
    std::memcpy(to + bytes, &second, bytes);
    return static_cast<size_t>(__builtin_popcountll(first & second));
  }
};

using SymbolCounts = std::array<uint32_t, 256>;

// The most frequent nine, of equals the lowest first, filled up with the lowest that were not seen: a symbol is listed once, or
// a level would have two codes for it. Returns what three levels and the rest take, in bits, of `total` symbols.
uint64_t list_symbols(const SymbolCounts& counts, uint64_t total, std::array<uint8_t, 9>* listed) noexcept;

// Symbols into a level; returns how many go on. `next` has room for all of them and the slack.
size_t put_level(const Kernels& use, const uint8_t* symbols, size_t count, const uint8_t* listed, uint8_t* planes,
                 uint8_t* next) noexcept;

struct LevelIn {
  const uint8_t* planes;
  size_t count;
  const uint8_t* listed;
  const uint8_t* next;  // followed by the slack
  size_t next_count;
};

// `symbols` has room for a whole last group. False: spare bits, or not as many values go on as there are in the next list.
bool get_level(const Kernels& use, const LevelIn& in, uint8_t* symbols) noexcept;

}  // namespace halfstep::compress
