#include "compress/bfx_sample.h"

#include <algorithm>
#include <cstring>

#include "compress/bfx.h"
#include "compress/kernels.h"
#include "compress/level.h"

namespace halfstep::compress {
namespace {

constexpr size_t kSampleGroupsMin = 8;
constexpr size_t kSampleGroupsMax = 64;
constexpr size_t kValuesPerSample = 16;  // at most a sixteenth of a large part is looked at
constexpr size_t kRowsMin = 64;          // with fewer rows bases cost more than they save
constexpr size_t kRowsSummed = 16;

using Counts = SymbolCounts;

uint8_t exponent_at(const uint8_t* raw, Element element, size_t index) noexcept {
  switch (element) {
    case Element::Bf16: return static_cast<uint8_t>(raw[2 * index + 1] << 1 | raw[2 * index] >> 7);
    case Element::Fp16: return raw[2 * index + 1] >> 2 & 31;
    case Element::E4m3: return raw[index] >> 3 & 15;
    default: return raw[index] >> 2 & 31;
  }
}

// Exponents of one group: a loop of its own, which compilers turn into vectors.
template <Element kElement>
void take_exponents(const uint8_t* raw, uint8_t* out) noexcept {
  if constexpr (value_bytes(kElement) == 2) {
    uint16_t values[kGroup];
    std::memcpy(values, raw, sizeof(values));
    constexpr int kShift = kElement == Element::Bf16 ? 7 : 10;
    constexpr uint16_t kMask = (1 << exponent_bits(kElement)) - 1;
    for (size_t j = 0; j < kGroup; ++j) out[j] = static_cast<uint8_t>(values[j] >> kShift & kMask);
  } else {
    for (size_t j = 0; j < kGroup; ++j) out[j] = exponent_at(raw, kElement, j);
  }
}

// Counts symbols of groups that are spread over the part. In four tables: a symbol that comes again and again would else wait
// for its own last count.
template <Element kElement, bool kBases>
size_t count(const uint8_t* raw, size_t groups, const uint8_t* pattern, uint32_t row_values, Counts* out) noexcept {
  const size_t wanted = std::clamp(groups / kValuesPerSample, kSampleGroupsMin, kSampleGroupsMax);
  const size_t taken = std::min(groups, wanted);
  const size_t stride = groups / taken;
  uint16_t tables[4][256] = {};
  static_assert(kSampleGroupsMax * kGroup / 4 <= UINT16_MAX);
  for (size_t i = 0; i < taken; ++i) {
    // A place of its own within each stride, lest all of them show the same channels.
    const size_t first = (i * stride + i * (stride - 1) % stride) * kGroup;
    uint8_t symbols[kGroup];
    take_exponents<kElement>(raw + first * value_bytes(kElement), symbols);
    if constexpr (kBases) {
      const uint8_t* bases = pattern + first % row_values;
      for (size_t j = 0; j < kGroup; ++j) symbols[j] = static_cast<uint8_t>(symbols[j] - bases[j]);
    }
    for (size_t j = 0; j < kGroup; j += 4) {
      for (size_t table = 0; table < 4; ++table) ++tables[table][symbols[j + table]];
    }
  }
  for (size_t s = 0; s < out->size(); ++s) (*out)[s] = uint32_t{tables[0][s]} + tables[1][s] + tables[2][s] + tables[3][s];
  return taken * kGroup;
}

template <bool kBases>
size_t count_of(Element element, const uint8_t* raw, size_t groups, const uint8_t* pattern, uint32_t row_values,
                Counts* out) noexcept {
  switch (element) {
    case Element::Bf16: return count<Element::Bf16, kBases>(raw, groups, pattern, row_values, out);
    case Element::Fp16: return count<Element::Fp16, kBases>(raw, groups, pattern, row_values, out);
    case Element::E4m3: return count<Element::E4m3, kBases>(raw, groups, pattern, row_values, out);
    default: return count<Element::E5m2, kBases>(raw, groups, pattern, row_values, out);
  }
}

// Mean exponents of the channels over some rows.
void find_bases(const uint8_t* raw, Element element, size_t rows, uint32_t row_values, uint8_t* pattern) {
  for (uint32_t channel = 0; channel < row_values; ++channel) {
    uint32_t sum = 0;
    for (size_t i = 0; i < kRowsSummed; ++i) {
      sum += exponent_at(raw, element, i * rows / kRowsSummed * row_values + channel);
    }
    pattern[channel] = static_cast<uint8_t>((sum + kRowsSummed / 2) / kRowsSummed);
  }
  for (size_t i = 0; i < kGroup; ++i) pattern[row_values + i] = pattern[i % row_values];
}

uint64_t scaled(uint64_t bits, size_t values, size_t sample) noexcept { return bits * values / sample / 8; }

BfxChoice choose_for(Element element, ConstBytes raw, uint32_t row_values, uint8_t* pattern) {
  const auto* bytes = reinterpret_cast<const uint8_t*>(raw.data());
  const size_t values = raw.size() / value_bytes(element);
  const size_t groups = values / kGroup;
  const uint64_t fractions = uint64_t{groups + 1} * fraction_bytes(element, kGroup);
  BfxChoice choice{.element = element};
  Counts counts;
  size_t sample = count_of<false>(element, bytes, groups, nullptr, 0, &counts);
  const uint64_t plain = scaled(list_symbols(counts, sample, &choice.listed), values, sample);
  choice.estimate_bytes = sizeof(BfxHeader) + fractions + plain;
  if (row_values == 0 || row_values > kRowValuesMax || values / row_values < kRowsMin) return choice;
  find_bases(bytes, element, values / row_values, row_values, pattern);
  sample = count_of<true>(element, bytes, groups, pattern, row_values, &counts);
  std::array<uint8_t, 9> listed{};
  const uint64_t based = scaled(list_symbols(counts, sample, &listed), values, sample) + row_values;
  if (based >= plain) return choice;
  choice.row_values = row_values;
  choice.listed = listed;
  choice.estimate_bytes = sizeof(BfxHeader) + fractions + based;
  return choice;
}

}  // namespace

BfxChoice choose_bfx(ConstBytes raw, const UnitShape& shape, uint8_t* bases) {
  if (shape.element != Element::Unknown) return choose_for(shape.element, raw, shape.row_values, bases);
  // Without an element a row's values are of no known width.
  BfxChoice best;
  for (uint8_t number = 1; number < kElementsEnd; ++number) {
    const BfxChoice choice = choose_for(static_cast<Element>(number), raw, 0, bases);
    if (best.element == Element::Unknown || choice.estimate_bytes < best.estimate_bytes) best = choice;
  }
  return best;
}

}  // namespace halfstep::compress
