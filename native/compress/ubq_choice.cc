#include "compress/ubq_choice.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "compress/level.h"
#include "compress/ubq.h"

namespace halfstep::compress {
namespace ubq {
namespace {

constexpr size_t kRowsMax = 64;        // that are looked at for the step
constexpr float kRmsOfSpread = 1.25F;  // of a bell: sqrt(pi / 2), nearly
constexpr size_t kSampleGroupsMin = 8;
constexpr size_t kSampleGroupsMax = 32;
constexpr size_t kValuesPerSample = 16;
constexpr float kSpreadPerSymbol = 1.6F;  // mean distance of a symbol from zero that three levels take well
constexpr uint64_t kFarBits = 3 * 2 + 8 + 16;

// To nearest, of equals the even one; |x| below 2^22.
float nearest(float x) noexcept { return (x + 0x1.8p23F) - 0x1.8p23F; }

// log2 of what is at least 1, in 2^-10: what its bits say, a straight line between powers of two. Sums of kRowValuesMax of them
// have room in 32 bits.
uint32_t log2_of(float x) noexcept { return (std::bit_cast<uint32_t>(x) - std::bit_cast<uint32_t>(1.0F)) >> 13; }

// The mean distance of a value from its channel's centre: of sixteen parts of the channels, the one in the middle. So a few
// channels, or values, that are far larger than the others widen no step.
float spread_of(const Kernels& use, Element element, const Rows& rows, const float* centres) noexcept {
  std::array<float, kLanes> lanes{};
  use.sum_distances[static_cast<size_t>(element)](rows, centres, lanes.data());
  const size_t parts = std::min<size_t>(kLanes, rows.row_values);
  for (size_t lane = 0; lane < parts; ++lane) {
    const size_t channels = (rows.row_values - lane + kLanes - 1) / kLanes;
    lanes[lane] = lanes[lane] * (1.0F / static_cast<float>(rows.count * channels));
    // No order is defined with a NaN among them.
    if (!(lanes[lane] <= kUbqStepMax)) return 0;
  }
  std::sort(lanes.begin(), lanes.begin() + static_cast<ptrdiff_t>(parts));
  return lanes[parts / 2];
}

// By 2^-shift, exactly.
float shifted(float x, uint32_t shift) noexcept { return x * std::bit_cast<float>((127 - shift) << 23); }

struct Means {
  float saved_bits = 0;
  uint32_t bits = 0;
  uint32_t shift = 0;
};

// What means of so many bits would save of the values' bits, and their own counted.
Means means_of(uint32_t bits, float gain_bits, float largest, float fraction, size_t values, uint32_t row_values) noexcept {
  const float top = static_cast<float>((1U << (bits - 1)) - 1) + 0.25F;
  Means out{.bits = bits};
  while (out.shift < kUbqMeanShiftMax && shifted(largest, out.shift) > top) ++out.shift;
  if (shifted(largest, out.shift) > top) return {};
  // A mean that is off by up to half a unit of its own widens its channel.
  const float coarse = fraction * static_cast<float>(1U << out.shift);
  const float lost_bits = coarse * coarse * 0.06F * static_cast<float>(values);
  out.saved_bits = gain_bits - lost_bits - static_cast<float>(bits * row_values);
  return out;
}

// Fills the pattern where means pay.
void choose_means(const float* centres, float deviation, float fraction, size_t values, uint32_t row_values, UbqChoice* choice,
                  int16_t* pattern) noexcept {
  const float scale = 1.0F / deviation;
  uint32_t gain = 0;
  int32_t largest_bits = 0;  // floats that are not negative are in the order of their bits; so this becomes vectors
  for (uint32_t c = 0; c < row_values; ++c) {
    const float ratio = centres[c] * scale;
    gain += log2_of(1.0F + ratio * ratio);
    largest_bits = std::max(largest_bits, std::bit_cast<int32_t>(centres[c]) & INT32_MAX);
  }
  const float largest = std::bit_cast<float>(largest_bits) * choice->inverse;
  // Half of the logarithm, for each row.
  const float gain_bits = static_cast<float>(gain) * 0x1p-11F * static_cast<float>(values / row_values);
  Means best;
  for (const uint32_t bits : {4U, 8U}) {
    const Means means = means_of(bits, gain_bits, largest, fraction, values, row_values);
    if (means.saved_bits > best.saved_bits) best = means;
  }
  if (best.bits == 0) return;
  choice->mean_bits = best.bits;
  choice->mean_shift = best.shift;
  const float to_mean = shifted(choice->inverse, best.shift);
  for (uint32_t c = 0; c < row_values; ++c) {
    pattern[c] = static_cast<int16_t>(static_cast<int32_t>(nearest(centres[c] * to_mean)) * (1 << best.shift));
  }
  for (size_t i = 0; i < kGroup; ++i) pattern[row_values + i] = pattern[i % row_values];
}

// Counts symbols of groups that are spread over the part.
SymbolCounts count_symbols(const Kernels& use, const uint8_t* raw, Element element, size_t groups, const Grid& grid,
                           uint32_t row_values) noexcept {
  const size_t taken = std::min(groups, std::clamp(groups / kValuesPerSample, kSampleGroupsMin, kSampleGroupsMax));
  const size_t stride = groups / taken;
  // In four tables: a symbol that comes again and again would else wait for its own last count.
  uint16_t tables[4][256] = {};
  static_assert(kSampleGroupsMax * kGroup / 4 <= UINT16_MAX);
  for (size_t i = 0; i < taken; ++i) {
    // A place of its own within each stride, lest all of them show the same channels.
    const size_t first = (i * stride + i * (stride - 1) % stride) * kGroup;
    Grid of = grid;
    if (of.offsets.pattern != nullptr) of.offsets.pattern += first % row_values;
    uint8_t symbols[kGroup];
    use.take_symbols[static_cast<size_t>(element)](raw + 2 * first, of, symbols);
    for (size_t j = 0; j < kGroup; j += 4) {
      for (size_t table = 0; table < 4; ++table) ++tables[table][symbols[j + table]];
    }
  }
  SymbolCounts counts;
  for (size_t s = 0; s < counts.size(); ++s) counts[s] = uint32_t{tables[0][s]} + tables[1][s] + tables[2][s] + tables[3][s];
  return counts;
}

// With one low bit more. What was far is still.
SymbolCounts folded(const SymbolCounts& counts) noexcept {
  SymbolCounts out{};
  for (uint32_t half = 0; half < 64; ++half) {
    out[half] = counts[2 * half] + counts[2 * half + 1];
    out[192 + half] = counts[128 + 2 * half] + counts[129 + 2 * half];
  }
  out[192] -= counts[kFarSymbol];
  out[kFarSymbol] = counts[kFarSymbol];
  return out;
}

void choose_symbols(SymbolCounts counts, uint32_t low_bits, UbqChoice* choice) noexcept {
  uint64_t total = 0;
  for (const uint32_t count : counts) total += count;
  uint64_t best = UINT64_MAX;
  for (uint32_t tried = 0; tried < 2 && low_bits <= kUbqLowBitsMax; ++tried, ++low_bits, counts = folded(counts)) {
    SymbolCounts near = counts;
    const uint64_t far = near[kFarSymbol];
    near[kFarSymbol] = 0;
    std::array<uint8_t, 9> listed{};
    const uint64_t bits = total * low_bits + far * kFarBits + list_symbols(near, total - far, &listed);
    if (bits >= best) continue;
    best = bits;
    choice->low_bits = low_bits;
    choice->listed = listed;
  }
}

}  // namespace
}  // namespace ubq

// Not inlined: the caller has set the rounding, which no compiler knows to be a condition of these operations.
[[gnu::noinline]] UbqChoice choose_ubq(const Kernels& use, ConstBytes raw, const UnitShape& shape, int16_t* pattern,
                                       float* centres) {
  const auto element = static_cast<size_t>(shape.element);
  const auto* bytes = reinterpret_cast<const uint8_t*>(raw.data());
  const size_t values = raw.size() / 2;
  const Rows rows{bytes, values / shape.row_values, std::min(values / shape.row_values, ubq::kRowsMax), shape.row_values};
  use.sum_channels[element](rows, centres);
  // One row is no mean of itself.
  const float share = rows.count > 1 ? 1.0F / static_cast<float>(rows.count) : 0.0F;
  for (uint32_t c = 0; c < shape.row_values; ++c) centres[c] = centres[c] * share;
  const float spread = ubq::spread_of(use, shape.element, rows, centres);
  const float deviation = spread * ubq::kRmsOfSpread;
  UbqChoice choice;
  const float step = deviation * shape.step;
  if (!(step >= kUbqStepMin && step <= kUbqStepMax)) return choice;
  choice.inverse = 1.0F / step;
  const float largest = shape.element == Element::Bf16 ? 0x1.FEp127F : 65504.0F;
  choice.limit = std::min(kUbqLevelMax, (largest - step) * choice.inverse);
  choice.step = step;
  if (rows.count > 1) ubq::choose_means(centres, deviation, shape.step, values, shape.row_values, &choice, pattern);

  Grid grid{choice.inverse, choice.limit, {}, 0};
  if (choice.mean_bits > 0) grid.offsets = {pattern, shape.row_values};
  const float mean_level = 1.0F / (ubq::kRmsOfSpread * shape.step);
  while (grid.low_bits < kUbqLowBitsMax && ubq::shifted(mean_level, grid.low_bits) > ubq::kSpreadPerSymbol) ++grid.low_bits;
  const SymbolCounts counts = ubq::count_symbols(use, bytes, shape.element, values / kGroup, grid, shape.row_values);
  ubq::choose_symbols(counts, grid.low_bits, &choice);
  return choice;
}

}  // namespace halfstep::compress
