#include "compress/ubq.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "compress/float_environment.h"
#include "compress/kernels.h"
#include "compress/level.h"
#include "compress/ubq_choice.h"

namespace halfstep::compress {
namespace ubq {
namespace {

// More far ones than this cost more than the unit gains.
constexpr size_t far_max(size_t values) noexcept { return values / 32; }

size_t means_bytes(uint32_t row_values, uint32_t mean_bits) noexcept { return (size_t{row_values} * mean_bits + 7) / 8; }

// The offsets of a last group: none beyond its values, so that what is beyond them is zero.
Offsets offsets_of_rest(Offsets offsets, size_t first, uint32_t rest, int16_t* pattern) noexcept {
  if (offsets.pattern == nullptr) return {};
  for (size_t i = 0; i < rest; ++i) pattern[i] = offsets.pattern[(first + i) % offsets.row_values];
  return {pattern, kGroup};
}

// ---- Encoding ------------------------------------------------------------------------------------------------------------

void put_means(const int16_t* pattern, uint32_t row_values, uint32_t bits, uint32_t shift, uint8_t* to) noexcept {
  for (uint32_t c = 0; c < row_values; ++c) {
    const auto mean = static_cast<uint8_t>(pattern[c] >> shift);
    if (bits == 8) {
      to[c] = mean;
    } else {
      to[c / 2] = static_cast<uint8_t>(c % 2 == 0 ? mean & 15 : to[c / 2] | mean << 4);
    }
  }
}

bool put_values(const Kernels& use, ConstBytes raw, Element element, const uint8_t* listed, const Grid& grid, LevelsOut out,
                Taken* put) noexcept {
  const auto* from = reinterpret_cast<const uint8_t*>(raw.data());
  const size_t count = raw.size() / 2;
  const size_t groups = groups_of(count);
  const auto split = use.split_levels[static_cast<size_t>(element)];
  if (!split(from, groups, listed, grid, out, put)) return false;
  const uint32_t rest = rest_of(count);
  if (rest == 0) return true;
  uint8_t last[2 * kGroup] = {};
  uint8_t low[kUbqLowBitsMax * 8];
  int16_t pattern[2 * kGroup] = {};
  LastPlanes whole;
  std::memcpy(last, from + groups * 2 * kGroup, 2 * rest);
  Grid of_rest = grid;
  of_rest.offsets = offsets_of_rest(grid.offsets, groups * kGroup, rest, pattern);
  const LevelsOut to{low, whole.of, out.next + put->next, out.far + 2 * put->far, out.far_max - put->far};
  Taken more;
  if (!split(last, 1, listed, of_rest, to, &more)) return false;
  const uint32_t plane = (rest + 7) / 8;
  uint8_t* low_to = out.low + groups * grid.low_bits * 8;
  for (uint32_t bit = 0; bit < grid.low_bits; ++bit) std::memcpy(low_to + bit * plane, low + 8 * bit, plane);
  put->next += whole.cut(rest, out.planes + groups * kPlanesBytes);
  put->far += more.far;
  return true;
}

// ---- Decoding ------------------------------------------------------------------------------------------------------------

// Where each piece of a unit is; every length has been checked.
struct Pieces {
  UbqHeader header;
  const uint8_t* means = nullptr;
  const uint8_t* low = nullptr;
  const uint8_t* planes[3] = {};
  size_t counts[4] = {};  // values of each level, and of the rest
  const uint8_t* rest = nullptr;
  const uint8_t* far = nullptr;
};

Status read_header(ConstBytes unit, UbqHeader* out) noexcept {
  if (unit.size() < sizeof(UbqHeader)) return Code::Corrupt;
  *out = load_le<UbqHeader>(unit.data());
  const bool known = out->version == kUbqVersion && out->element > 0 && out->element < kUbqElementsEnd;
  const bool rows =
      out->row_values > 0 && out->row_values <= kRowValuesMax && out->values > 0 && out->values % out->row_values == 0;
  // Of NaN neither is true.
  const bool step = out->step >= kUbqStepMin && out->step <= kUbqStepMax;
  const bool low = out->low_bits <= kUbqLowBitsMax;
  const bool means = out->mean_bits == 0 ? out->mean_shift == 0 : out->mean_bits == 4 || out->mean_bits == 8;
  const bool listed = std::find(out->listed, out->listed + 9, kFarSymbol) == out->listed + 9;
  const bool good = known && rows && step && low && means && out->mean_shift <= kUbqMeanShiftMax && listed;
  return good ? Status() : Status(Code::Corrupt);
}

Status take_pieces(ConstBytes unit, size_t raw_bytes, Pieces* out) noexcept {
  if (Status s = read_header(unit, &out->header); !s.ok()) return s;
  const UbqHeader& header = out->header;
  // Equal to the part's length, so that whatever follows from `values` is in proportion to the target.
  const bool consistent = header.second <= header.values && header.third <= header.second && header.far <= header.third;
  if (uint64_t{header.values} * 2 != raw_bytes || !consistent) return Code::Corrupt;
  Reader reader(unit.subspan(sizeof(UbqHeader)));
  const auto take = [&reader](size_t bytes) { return reinterpret_cast<const uint8_t*>(reader.take_bytes(bytes).data()); };
  out->means = take(means_bytes(header.row_values, header.mean_bits));
  out->low = take(header.low_bits * plane_bytes(header.values));
  out->counts[0] = header.values;
  out->counts[1] = header.second;
  out->counts[2] = header.third;
  for (size_t level = 0; level < 3; ++level) out->planes[level] = take(planes_bytes(out->counts[level]));
  const size_t far_bytes = size_t{2} * header.far;
  if (reader.failed() || reader.left() < far_bytes) return Code::Corrupt;
  out->counts[3] = reader.left() - far_bytes;
  if (out->counts[3] > header.third) return Code::Corrupt;
  out->rest = take(out->counts[3]);
  out->far = take(far_bytes);
  return {};
}

// False: a half byte that belongs to no channel is set.
bool get_means(const Pieces& of, int16_t* pattern) noexcept {
  const uint32_t row_values = of.header.row_values;
  const uint32_t bits = of.header.mean_bits;
  for (uint32_t c = 0; c < row_values; ++c) {
    const int mean = bits == 8    ? static_cast<int8_t>(of.means[c])
                     : c % 2 == 0 ? static_cast<int8_t>(of.means[c / 2] << 4) >> 4
                                  : static_cast<int8_t>(of.means[c / 2]) >> 4;
    pattern[c] = static_cast<int16_t>(mean * (1 << of.header.mean_shift));
  }
  for (size_t i = 0; i < kGroup; ++i) pattern[row_values + i] = pattern[i % row_values];
  return bits == 8 || row_values % 2 == 0 || of.means[row_values / 2] >> 4 == 0;
}

bool get_symbols(const Kernels& use, const Pieces& of, size_t level, const uint8_t* next, uint8_t* symbols) noexcept {
  const LevelIn in{of.planes[level], of.counts[level], of.header.listed + kListed * level, next, of.counts[level + 1]};
  return get_level(use, in, symbols);
}

bool get_values(const Kernels& use, const Pieces& of, Offsets offsets, const uint8_t* next, uint8_t* raw) noexcept {
  const size_t groups = groups_of(of.counts[0]);
  const uint32_t low_bits = of.header.low_bits;
  const auto join = use.join_levels[of.header.element];
  LevelsIn in{of.low, of.planes[0],  of.header.listed, next,    of.counts[1],
              of.far, of.header.far, of.header.step,   offsets, low_bits};
  Taken taken;
  if (!join(in, groups, raw, &taken)) return false;
  in.next += taken.next;
  in.next_count -= taken.next;
  in.far += 2 * taken.far;
  in.far_count -= taken.far;
  const uint32_t rest = rest_of(of.counts[0]);
  if (rest == 0) return in.next_count == 0 && in.far_count == 0;
  const LastPlanes last(in.planes + groups * kPlanesBytes, rest);
  if (last.spare_bits(rest)) return false;
  const uint32_t plane = (rest + 7) / 8;
  uint8_t low[kUbqLowBitsMax * 8] = {};
  for (uint32_t bit = 0; bit < low_bits; ++bit) {
    const uint8_t* from = in.low + groups * low_bits * 8 + bit * plane;
    if (load_plane(from, plane) >> rest != 0) return false;
    std::memcpy(low + 8 * bit, from, plane);
  }
  int16_t pattern[2 * kGroup] = {};
  uint8_t values[2 * kGroup];
  in.offsets = offsets_of_rest(offsets, groups * kGroup, rest, pattern);
  in.low = low;
  in.planes = last.of;
  Taken of_rest;
  if (!join(in, 1, values, &of_rest) || of_rest.next != in.next_count || of_rest.far != in.far_count) return false;
  std::memcpy(raw + groups * 2 * kGroup, values, 2 * rest);
  return true;
}

}  // namespace
}  // namespace ubq

size_t ubq_encode_by(const Kernels& use, ConstBytes raw, const UnitShape& shape, Scratch& scratch, Bytes out) {
  const bool known = shape.element == Element::Bf16 || shape.element == Element::Fp16;
  const bool stated =
      shape.row_values > 0 && shape.row_values <= kRowValuesMax && shape.step >= kUbqShareMin && shape.step <= kUbqShareMax;
  const size_t values = raw.size() / 2;
  if (!known || !stated || raw.size() > UINT32_MAX || values < kUbqValuesMin) return 0;
  if (raw.size() % (size_t{2} * shape.row_values) != 0) return 0;
  const size_t limit = ubq_unit_bytes_max(raw.size());
  HALFSTEP_CHECK(out.size() >= limit, out.size(), limit);

  // Area 0: symbols that go on to level 2, and to the rest; far ones. Area 1: centres and offsets, floats first
  // because of their alignment; symbols of level 3.
  const size_t far_at = values + 2 * kGroup;
  const size_t centres_bytes = sizeof(float) * (shape.row_values + kLanes);
  const size_t pattern_bytes = sizeof(int16_t) * (shape.row_values + kGroup);
  scratch.reserve(std::max(far_at + 2 * (ubq::far_max(values) + kGroup), centres_bytes + pattern_bytes));
  auto* centres = reinterpret_cast<float*>(scratch.area(1));
  auto* pattern = reinterpret_cast<int16_t*>(scratch.area(1) + centres_bytes);
  const FloatEnvironment environment;
  const UbqChoice choice = choose_ubq(use, raw, shape, pattern, centres);
  if (choice.step == 0) return 0;

  UbqHeader header;
  header.element = static_cast<uint8_t>(shape.element);
  header.row_values = static_cast<uint16_t>(shape.row_values);
  header.values = static_cast<uint32_t>(values);
  header.step = choice.step;
  std::copy(choice.listed.begin(), choice.listed.end(), header.listed);
  header.low_bits = static_cast<uint8_t>(choice.low_bits);
  header.mean_bits = static_cast<uint8_t>(choice.mean_bits);
  header.mean_shift = static_cast<uint8_t>(choice.mean_shift);

  auto* to = reinterpret_cast<uint8_t*>(out.data());
  size_t at = sizeof(header);
  const size_t means = ubq::means_bytes(shape.row_values, choice.mean_bits);
  const size_t low = choice.low_bits * plane_bytes(values);
  if (at + means + low + planes_bytes(values) > limit) return 0;
  if (means > 0) ubq::put_means(pattern, shape.row_values, choice.mean_bits, choice.mean_shift, to + at);
  at += means;
  Grid grid{choice.inverse, choice.limit, {}, choice.low_bits};
  if (choice.mean_bits > 0) grid.offsets = {pattern, shape.row_values};
  uint8_t* far = scratch.area(0) + far_at;
  Taken put;
  const LevelsOut first{to + at, to + at + low, scratch.area(0), far, ubq::far_max(values)};
  if (!ubq::put_values(use, raw, shape.element, header.listed, grid, first, &put)) return 0;
  at += low + planes_bytes(values);
  header.second = static_cast<uint32_t>(put.next);
  header.far = static_cast<uint32_t>(put.far);
  if (at + planes_bytes(header.second) > limit) return 0;
  header.third =
      static_cast<uint32_t>(put_level(use, scratch.area(0), header.second, header.listed + kListed, to + at, scratch.area(1)));
  at += planes_bytes(header.second);
  if (at + planes_bytes(header.third) > limit) return 0;
  const size_t rest = put_level(use, scratch.area(1), header.third, header.listed + 2 * kListed, to + at, scratch.area(0));
  at += planes_bytes(header.third);
  if (at + rest + 2 * put.far > limit) return 0;
  std::memcpy(to + at, scratch.area(0), rest);
  at += rest;
  std::memcpy(to + at, far, 2 * put.far);
  at += 2 * put.far;
  store_le(out.data(), header);
  return at;
}

Status ubq_decode_by(const Kernels& use, ConstBytes unit, Scratch& scratch, Bytes out) {
  ubq::Pieces of;
  if (Status s = ubq::take_pieces(unit, out.size(), &of); !s.ok()) return s;
  const size_t pattern_bytes = sizeof(int16_t) * (of.header.row_values + kGroup);
  // Kernels read whole vectors: what they take their symbols from lies in the scratch, which has the slack for it.
  scratch.reserve(std::max(of.counts[1] + kGroup, pattern_bytes));
  std::memcpy(scratch.area(0), of.rest, of.counts[3]);
  const bool symbols = ubq::get_symbols(use, of, 2, scratch.area(0), scratch.area(1)) &&
                       ubq::get_symbols(use, of, 1, scratch.area(1), scratch.area(0));
  if (!symbols) return Code::Corrupt;
  Offsets offsets;
  if (of.header.mean_bits > 0) {
    auto* pattern = reinterpret_cast<int16_t*>(scratch.area(1));
    if (!ubq::get_means(of, pattern)) return Code::Corrupt;
    offsets = {pattern, of.header.row_values};
  }
  const FloatEnvironment environment;
  const bool good = ubq::get_values(use, of, offsets, scratch.area(0), reinterpret_cast<uint8_t*>(out.data()));
  return good ? Status() : Status(Code::Corrupt);
}

size_t ubq_encode(ConstBytes raw, const UnitShape& shape, Scratch& scratch, Bytes out) {
  return ubq_encode_by(kernels(), raw, shape, scratch, out);
}

Status ubq_decode(ConstBytes unit, Scratch& scratch, Bytes out) { return ubq_decode_by(kernels(), unit, scratch, out); }

Status ubq_inspect(ConstBytes unit, UnitFacts* out) {
  UbqHeader header;
  if (Status s = ubq::read_header(unit, &header); !s.ok()) return s;
  *out = {.version = header.version,
          .element = static_cast<Element>(header.element),
          .row_values = header.row_values,
          .raw_bytes = uint64_t{header.values} * 2,
          .step = header.step};
  return {};
}

}  // namespace halfstep::compress
