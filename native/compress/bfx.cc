#include "compress/bfx.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "compress/bfx_sample.h"
#include "compress/kernels.h"
#include "compress/level.h"

namespace halfstep::compress {
namespace {

size_t fractions_bytes(Element element, size_t count) noexcept {
  return groups_of(count) * fraction_bytes(element, kGroup) + fraction_bytes(element, static_cast<uint32_t>(count % kGroup));
}

// ---- The last group of a list, of fewer than 64 -----------------------------------------------------------------------------
// It is coded and decoded as a whole group in memory of its own, by the same kernels, and its planes are cut to its length.

// Fractions lie differently in a shorter group: plane by plane, and halves closer together.
void cut_fractions(Element element, uint32_t count, const uint8_t* whole, uint8_t* cut) noexcept {
  const uint32_t plane = (count + 7) / 8;
  const uint32_t head = element == Element::Bf16 || element == Element::Fp16 ? count : 0;
  std::memcpy(cut, whole, head);
  if (element == Element::Bf16) return;
  if (element == Element::E4m3) {
    const uint32_t half = (count + 1) / 2;
    const auto nibble = [whole](uint32_t i) { return i < 32 ? whole[i] & 15 : whole[i - 32] >> 4; };
    for (uint32_t j = 0; j < half; ++j) {
      cut[j] = static_cast<uint8_t>(nibble(j) | (half + j < count ? nibble(half + j) << 4 : 0));
    }
    return;
  }
  const uint8_t* planes = whole + (head == 0 ? 0 : kGroup);
  for (uint32_t p = 0; p < 3; ++p) std::memcpy(cut + head + p * plane, planes + size_t{8} * p, plane);
}

// False: a bit that belongs to no value is set.
bool pad_fractions(Element element, uint32_t count, const uint8_t* cut, uint8_t* whole) noexcept {
  const uint32_t plane = (count + 7) / 8;
  const uint32_t head = element == Element::Bf16 || element == Element::Fp16 ? count : 0;
  std::memcpy(whole, cut, head);
  if (element == Element::Bf16) return true;
  if (element == Element::E4m3) {
    const uint32_t half = (count + 1) / 2;
    for (uint32_t j = 0; j < half; ++j) {
      const uint32_t high = half + j;
      if (high >= count && cut[j] >> 4 != 0) return false;
      const auto put = [whole](uint32_t i, int nibble) {
        uint8_t& byte = whole[i % 32];
        byte = static_cast<uint8_t>(byte | nibble << (i < 32 ? 0 : 4));
      };
      put(j, cut[j] & 15);
      if (high < count) put(high, cut[j] >> 4);
    }
    return true;
  }
  uint8_t* planes = whole + (head == 0 ? 0 : kGroup);
  for (uint32_t p = 0; p < 3; ++p) {
    std::memcpy(planes + size_t{8} * p, cut + head + p * plane, plane);
    if (load_le<uint64_t>(reinterpret_cast<const std::byte*>(planes + size_t{8} * p)) >> count != 0) return false;
  }
  return true;
}

// ---- Encoding ------------------------------------------------------------------------------------------------------------

size_t put_values(const Kernels& use, const uint8_t* raw, size_t count, const BfxChoice& choice, Bases bases,
                  SplitOut out) noexcept {
  const auto element = static_cast<size_t>(choice.element);
  const size_t groups = groups_of(count);
  size_t on = use.split[element](raw, groups, choice.listed.data(), bases, out);
  if (const uint32_t rest = rest_of(count); rest > 0) {
    uint8_t last[2 * kGroup] = {};
    uint8_t fractions[2 * kGroup];
    LastPlanes whole;
    std::memcpy(last, raw + groups * kGroup * value_bytes(choice.element), rest * value_bytes(choice.element));
    if (bases.pattern != nullptr) {
      uint8_t pattern[2 * kGroup];
      for (size_t i = 0; i < kGroup; ++i) pattern[i] = bases.pattern[(groups * kGroup + i) % bases.row_values];
      use.split[element](last, 1, choice.listed.data(), {pattern, kGroup}, {fractions, whole.of, out.next + on});
    } else {
      use.split[element](last, 1, choice.listed.data(), {}, {fractions, whole.of, out.next + on});
    }
    cut_fractions(choice.element, rest, fractions, out.fractions + groups * fraction_bytes(choice.element, kGroup));
    on += whole.cut(rest, out.planes + groups * kPlanesBytes);
  }
  return on;
}

// ---- Decoding ------------------------------------------------------------------------------------------------------------

// Where each piece of a unit is; every length has been checked.
struct Pieces {
  BfxHeader header;
  Element element = Element::Unknown;
  const uint8_t* bases = nullptr;
  const uint8_t* fractions = nullptr;
  const uint8_t* planes[3] = {};
  size_t counts[4] = {};  // values of each level, and of the rest
  const uint8_t* rest = nullptr;
  const uint8_t* tail = nullptr;
};

Status read_header(ConstBytes unit, BfxHeader* out) noexcept {
  if (unit.size() < sizeof(BfxHeader)) return Code::Corrupt;
  *out = load_le<BfxHeader>(unit.data());
  const bool known = out->version == kBfxVersion && out->element > 0 && out->element < kElementsEnd;
  if (!known || out->zero != 0) return Code::Corrupt;
  const auto element = static_cast<Element>(out->element);
  return out->tail_bytes < value_bytes(element) ? Status() : Status(Code::Corrupt);
}

uint64_t raw_bytes_of(const BfxHeader& header) noexcept {
  return uint64_t{header.values} * value_bytes(static_cast<Element>(header.element)) + header.tail_bytes;
}

Status take_pieces(ConstBytes unit, size_t raw_bytes, Pieces* out) noexcept {
  if (Status s = read_header(unit, &out->header); !s.ok()) return s;
  const BfxHeader& header = out->header;
  out->element = static_cast<Element>(header.element);
  // Equal to the part's length, so that whatever follows from `values` is in proportion to the target.
  const bool consistent = header.second <= header.values && header.third <= header.second;
  if (raw_bytes == 0 || raw_bytes_of(header) != raw_bytes || !consistent) return Code::Corrupt;
  Reader reader(unit.subspan(sizeof(BfxHeader)));
  const auto take = [&reader](size_t bytes) { return reinterpret_cast<const uint8_t*>(reader.take_bytes(bytes).data()); };
  out->bases = take(header.row_values);
  out->fractions = take(fractions_bytes(out->element, header.values));
  out->counts[0] = header.values;
  out->counts[1] = header.second;
  out->counts[2] = header.third;
  for (size_t level = 0; level < 3; ++level) out->planes[level] = take(planes_bytes(out->counts[level]));
  if (reader.failed() || reader.left() < header.tail_bytes) return Code::Corrupt;
  out->counts[3] = reader.left() - header.tail_bytes;
  if (out->counts[3] > header.third) return Code::Corrupt;
  out->rest = take(out->counts[3]);
  out->tail = take(header.tail_bytes);
  return {};
}

bool get_symbols(const Kernels& use, const Pieces& of, size_t level, const uint8_t* next, uint8_t* symbols) noexcept {
  const LevelIn in{of.planes[level], of.counts[level], of.header.listed + kListed * level, next, of.counts[level + 1]};
  return get_level(use, in, symbols);
}

// The values after the last whole group. False: as
// get_level(), or an exponent that the element does not have.
bool get_last_values(const Kernels& use, const Pieces& of, JoinIn in, uint32_t rest, uint8_t* raw) noexcept {
  const size_t groups = groups_of(of.counts[0]);
  const LastPlanes last(in.planes + groups * kPlanesBytes, rest);
  uint8_t fractions[2 * kGroup] = {};
  uint8_t pattern[2 * kGroup] = {};
  uint8_t values[2 * kGroup];
  uint8_t symbols[kGroup];
  const uint8_t* cut = in.fractions + groups * fraction_bytes(of.element, kGroup);
  if (last.spare_bits(rest) || !pad_fractions(of.element, rest, cut, fractions)) return false;
  in.planes = last.of;
  in.fractions = fractions;
  if (in.bases.pattern != nullptr) {
    for (size_t i = 0; i < kGroup; ++i) pattern[i] = in.bases.pattern[(groups * kGroup + i) % in.bases.row_values];
    in.bases = {pattern, kGroup};
  }
  uint8_t of_whole = 0;  // with what is beyond the rest, whose symbol is the first listed one
  if (use.join[static_cast<size_t>(of.element)](in, 1, values, &of_whole) != in.next_count) return false;
  std::memcpy(raw + groups * kGroup * value_bytes(of.element), values, rest * value_bytes(of.element));
  use.decode_level(last.of, 1, in.listed, in.next, in.next_count, symbols);
  uint8_t all_bits = 0;
  for (uint32_t i = 0; i < rest; ++i) all_bits |= static_cast<uint8_t>(symbols[i] + pattern[i]);
  return all_bits >> exponent_bits(of.element) == 0;
}

bool get_values(const Kernels& use, const Pieces& of, Bases bases, const uint8_t* next, uint8_t* raw) noexcept {
  JoinIn in{of.planes[0], of.header.listed, next, of.counts[1], of.fractions, bases};
  uint8_t all_bits = 0;
  const size_t taken = use.join[static_cast<size_t>(of.element)](in, groups_of(of.counts[0]), raw, &all_bits);
  if (taken == kTooMany || all_bits >> exponent_bits(of.element) != 0) return false;
  in.next += taken;
  in.next_count -= taken;
  const uint32_t rest = rest_of(of.counts[0]);
  return rest > 0 ? get_last_values(use, of, in, rest, raw) : in.next_count == 0;
}

}  // namespace

size_t bfx_encode_by(const Kernels& use, ConstBytes raw, const UnitShape& shape, Scratch& scratch, Bytes out) {
  const size_t width_max = shape.element == Element::Unknown ? 2 : value_bytes(shape.element);
  if (raw.size() / width_max < kBfxValuesMin || raw.size() > UINT32_MAX) return 0;
  const size_t limit = unit_bytes_max(raw.size());
  HALFSTEP_CHECK(out.size() >= limit, out.size(), limit);
  uint8_t pattern[kRowValuesMax + kGroup];
  const BfxChoice choice = choose_bfx(raw, shape, pattern);
  // Hopeless: noise, or no floats. What is near the limit is tried.
  if (choice.estimate_bytes > raw.size()) return 0;

  const size_t values = raw.size() / value_bytes(choice.element);
  scratch.reserve(values + kGroup);
  BfxHeader header;
  header.element = static_cast<uint8_t>(choice.element);
  header.row_values = static_cast<uint16_t>(choice.row_values);
  header.values = static_cast<uint32_t>(values);
  std::copy(choice.listed.begin(), choice.listed.end(), header.listed);
  header.tail_bytes = static_cast<uint8_t>(raw.size() - values * value_bytes(choice.element));

  const auto* from = reinterpret_cast<const uint8_t*>(raw.data());
  auto* to = reinterpret_cast<uint8_t*>(out.data());
  size_t at = sizeof(header);
  if (at + choice.row_values + fractions_bytes(choice.element, values) + planes_bytes(values) > limit) return 0;
  std::memcpy(to + at, pattern, choice.row_values);
  at += choice.row_values;
  const Bases bases{choice.row_values == 0 ? nullptr : pattern, choice.row_values};
  uint8_t* fractions = to + at;
  at += fractions_bytes(choice.element, values);
  header.second = static_cast<uint32_t>(put_values(use, from, values, choice, bases, {fractions, to + at, scratch.area(0)}));
  at += planes_bytes(values);
  if (at + planes_bytes(header.second) > limit) return 0;
  header.third =
      static_cast<uint32_t>(put_level(use, scratch.area(0), header.second, header.listed + 3, to + at, scratch.area(1)));
  at += planes_bytes(header.second);
  if (at + planes_bytes(header.third) > limit) return 0;
  const size_t rest = put_level(use, scratch.area(1), header.third, header.listed + 6, to + at, scratch.area(0));
  at += planes_bytes(header.third);
  if (at + rest + header.tail_bytes > limit) return 0;
  std::memcpy(to + at, scratch.area(0), rest);
  at += rest;
  std::memcpy(to + at, from + raw.size() - header.tail_bytes, header.tail_bytes);
  at += header.tail_bytes;
  store_le(out.data(), header);
  return at;
}

Status bfx_decode_by(const Kernels& use, ConstBytes unit, Scratch& scratch, Bytes out) {
  Pieces of;
  if (Status s = take_pieces(unit, out.size(), &of); !s.ok()) return s;
  if (of.header.row_values > kRowValuesMax) return Code::Corrupt;
  uint8_t pattern[kRowValuesMax + kGroup];
  Bases bases;
  if (of.header.row_values > 0) {
    bases = {pattern, of.header.row_values};
    std::memcpy(pattern, of.bases, bases.row_values);
    for (size_t i = 0; i < kGroup; ++i) pattern[bases.row_values + i] = pattern[i % bases.row_values];
  }
  // Kernels read whole vectors: what they take their symbols from lies in the scratch, which has the slack for it.
  scratch.reserve(of.counts[1] + kGroup);
  std::memcpy(scratch.area(0), of.rest, of.counts[3]);
  auto* to = reinterpret_cast<uint8_t*>(out.data());
  const bool good = get_symbols(use, of, 2, scratch.area(0), scratch.area(1)) &&
                    get_symbols(use, of, 1, scratch.area(1), scratch.area(0)) &&
                    get_values(use, of, bases, scratch.area(0), to);
  if (!good) return Code::Corrupt;
  std::memcpy(to + out.size() - of.header.tail_bytes, of.tail, of.header.tail_bytes);
  return {};
}

size_t bfx_encode(ConstBytes raw, const UnitShape& shape, Scratch& scratch, Bytes out) {
  return bfx_encode_by(kernels(), raw, shape, scratch, out);
}

Status bfx_decode(ConstBytes unit, Scratch& scratch, Bytes out) { return bfx_decode_by(kernels(), unit, scratch, out); }

Status bfx_inspect(ConstBytes unit, UnitFacts* out) {
  BfxHeader header;
  if (Status s = read_header(unit, &header); !s.ok()) return s;
  *out = {header.version, static_cast<Element>(header.element), header.row_values, raw_bytes_of(header)};
  return {};
}

}  // namespace halfstep::compress
