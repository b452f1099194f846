// kernels.h — the work on whole groups of 64 values, once for each path (docs/compression.md, sections 3 and 6;
// docs/quantiser.md). What is left of a list after its last whole group is bfx.cc's, ubq.cc's and level.cc's. Invariants: every
// path gives the same bytes. A kernel reads and writes whole vectors: `next` is followed by kSlackBytes of readable and
// writable memory; everything else is exact. Decoding never takes more of `next` than there is, and so never reads beyond the
// slack, whatever the planes say.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "compress/element.h"

namespace halfstep::compress {

inline constexpr size_t kGroup = 64;  // values
inline constexpr size_t kPlanesBytes = 16;
inline constexpr size_t kLanes = 16;  // floats that are worked on at a time, and the partial sums of a sum
inline constexpr size_t kUbqElementsEnd = 3;

// Of all channels, and the first 64 once more, so that a vector can be read at any of them. Null: none are subtracted.
struct Bases {
  const uint8_t* pattern = nullptr;
  uint32_t row_values = 0;
};

struct SplitOut {
  uint8_t* fractions;
  uint8_t* planes;
  uint8_t* next;  // symbols of values that go on
};

struct JoinIn {
  const uint8_t* planes;
  const uint8_t* listed;
  const uint8_t* next;
  size_t next_count;
  const uint8_t* fractions;
  Bases bases;
};

// ---- Of ubq: values are whole levels of a step ----------------------------------------------------------------------------

// The symbol of a level that no byte holds; its true one is in the list of far ones.
inline constexpr uint8_t kFarSymbol = 0x80;

// Of channels, in levels, laid out as those of Bases are. Null: none are subtracted.
struct Offsets {
  const int16_t* pattern = nullptr;
  uint32_t row_values = 0;
};

// Rows that are looked at: `count` of them, row i at values + at(i).
struct Rows {
  const uint8_t* values;
  size_t all;
  size_t count;
  uint32_t row_values;
  size_t at(size_t i) const noexcept { return i * all / count * row_values; }  // in values
};

struct Grid {
  float inverse;  // 1 / step
  float limit;    // of a value times `inverse`; beyond it, and for NaN, the unit is exact
  Offsets offsets;
  uint32_t low_bits;
};

struct LevelsOut {
  uint8_t* low;     // planes of the low bits, group by group
  uint8_t* planes;  // level 1
  uint8_t* next;
  uint8_t* far;  // two bytes each
  size_t far_max;
};

struct LevelsIn {
  const uint8_t* low;
  const uint8_t* planes;
  const uint8_t* listed;
  const uint8_t* next;
  size_t next_count;
  const uint8_t* far;
  size_t far_count;
  float step;
  Offsets offsets;
  uint32_t low_bits;
};

struct Taken {
  size_t next = 0;
  size_t far = 0;
};

// A level sends on more values than there are in the next one.
inline constexpr size_t kTooMany = SIZE_MAX;

struct Kernels {
  std::string_view name;
  // Values into fractions and level 1; returns how many go on.
  std::array<size_t (*)(const uint8_t* values, size_t groups, const uint8_t* listed, Bases bases, SplitOut out), kElementsEnd>
      split;
  // Symbols into a level; returns how many go on.
  size_t (*encode_level)(const uint8_t* symbols, size_t groups, const uint8_t* listed, uint8_t* planes, uint8_t* next);
  // A level into symbols; returns how many it took of `next`, or kTooMany.
  size_t (*decode_level)(const uint8_t* planes, size_t groups, const uint8_t* listed, const uint8_t* next, size_t next_count,
                         uint8_t* symbols);
  // Level 1 and fractions into values, else likewise; `all_bits` gets the OR of all exponents.
  std::array<size_t (*)(const JoinIn& in, size_t groups, uint8_t* values, uint8_t* all_bits), kElementsEnd> join;

  // ubq, by element: Bf16 and Fp16. Sums of channels over some rows; room for row_values and 15 more, which become zero.
  std::array<void (*)(const Rows& rows, float* sums), kUbqElementsEnd> sum_channels;
  // Sums of |value - its channel's centre| of the channels 0, 16, 32, ..., of 1, 17, 33, ..., and so on; centres as the sums
  // lie.
  std::array<void (*)(const Rows& rows, const float* centres, float* lanes), kUbqElementsEnd> sum_distances;
  // Symbols of one group. What is beyond the limit has any.
  std::array<void (*)(const uint8_t* values, const Grid& grid, uint8_t* symbols), kUbqElementsEnd> take_symbols;
  // Values into low bits, level 1 and far ones. False: one is beyond the limit, or there are more far ones than far_max.
  std::array<bool (*)(const uint8_t* values, size_t groups, const uint8_t* listed, const Grid& grid, LevelsOut out, Taken* put),
             kUbqElementsEnd>
      split_levels;
  // And back. False: more go on than there are in the next level, or more are far.
  std::array<bool (*)(const LevelsIn& in, size_t groups, uint8_t* values, Taken* taken), kUbqElementsEnd> join_levels;
};

const Kernels& plain_kernels() noexcept;
// Null: the processor, or what this was built for, has no such instructions.
const Kernels* avx2_kernels() noexcept;
const Kernels* avx512_kernels() noexcept;
// The fastest of them, or the one that HALFSTEP_COMPRESS_PATH names. Asked once; a name that cannot be ends the process with a
// message, because it is set by tests alone.
const Kernels& kernels() noexcept;

}  // namespace halfstep::compress
