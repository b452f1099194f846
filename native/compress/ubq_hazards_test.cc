// Units with hazards, as many as HALFSTEP_UNITS says (`make bounded-units`: 100,000): outlier channels, sink tokens, constants,
// NaN, infinities, denormals, far offsets. Each has the same bytes and the same values on every path of this processor. No
// value is off by more than half its step and its rounding, and what has no bound is refused and comes back exactly.
#include <gtest/gtest.h>

#include <cstdlib>
#include <map>

#include "compress/bfx.h"
#include "compress/ubq_fixture.h"

namespace halfstep::compress {
namespace {

constexpr uint32_t kUnitsUnlessSaid = 2'000;
constexpr uint32_t kRows[] = {3, 24, 64, 80, 128};
constexpr float kSteps[] = {0.02F, 0.03F, 0.07F, 0.15F, 0.25F, 0.5F, 1.2F};

enum class Hazard : uint32_t {
  None,
  Outlier,
  Sink,
  OutlierAndSink,
  Constant,
  ConstantChannel,
  Nan,
  Infinity,
  Denormals,
  Offsets
};
constexpr uint32_t kHazards = 10;

uint32_t units_wanted() {
  const char* said = std::getenv("HALFSTEP_UNITS");
  return said != nullptr ? static_cast<uint32_t>(std::strtoul(said, nullptr, 10)) : kUnitsUnlessSaid;
}

bool has_no_number(Element element, ConstBytes raw) {
  for (size_t i = 0; i < raw.size() / 2; ++i)
    if (!std::isfinite(value_at(element, raw, i))) return true;
  return false;
}

struct Case {
  UnitShape shape;
  std::vector<std::byte> raw;
};

Case drawn(Prng& prng, Hazard hazard) {
  UbqPart part{.element = kUbqElements[prng.below(2)],
               .row_values = kRows[prng.below(std::size(kRows))],
               .deviation = std::ldexp(1.0F, static_cast<int>(prng.below(9)) - 4)};
  part.rows = 16 + prng.below(49);
  if (part.rows * part.row_values < 256) part.rows = 256 / part.row_values + 1;
  if (hazard == Hazard::Outlier || hazard == Hazard::OutlierAndSink) part.outlier = 30;
  if (hazard == Hazard::Sink || hazard == Hazard::OutlierAndSink) part.sink = 8;
  if (hazard == Hazard::Offsets) part.offset_max = 50;
  Case made{{part.element, part.row_values, kSteps[prng.below(std::size(kSteps))]}, ubq_values(prng, part)};
  const size_t values = made.raw.size() / 2;
  const uint16_t infinity = part.element == Element::Bf16 ? 0x7F80 : 0x7C00;
  const auto set = [&](size_t at, uint16_t bits) { std::memcpy(made.raw.data() + 2 * at, &bits, 2); };
  switch (hazard) {
    case Hazard::Constant:
      for (size_t i = 0; i < values; ++i) put_value(part.element, made.raw, i, 3.5F);
      break;
    case Hazard::ConstantChannel:
      for (size_t i = 0; i < values; i += part.row_values) put_value(part.element, made.raw, i, -2.25F);
      break;
    case Hazard::Nan: set(prng.below(values), static_cast<uint16_t>(infinity | 1 | (prng.below(2) << 15))); break;
    case Hazard::Infinity: set(prng.below(values), static_cast<uint16_t>(infinity | (prng.below(2) << 15))); break;
    case Hazard::Denormals:
      for (size_t i = 0; i < values; i += 1 + prng.below(9))
        set(i, static_cast<uint16_t>(prng.below(0x80) | prng.below(2) << 15));
      break;
    default: break;
  }
  return made;
}

// "" or what is wrong. coded: counts.
std::string judged(const Case& given, bool* coded) {
  std::vector<std::byte> first, first_back;
  Scratch scratch;
  for (const Kernels* use : all_kernels()) {
    std::vector<std::byte> unit(given.raw.size());
    unit.resize(ubq_encode_by(*use, given.raw, given.shape, scratch, unit));
    const bool is_first = use == all_kernels().front();
    if (!is_first && unit != first) return "other bytes on " + std::string(use->name);
    if (unit.empty()) {
      // Refused: the exact codec has it, or it is raw.
      std::vector<std::byte> exact(given.raw.size());
      exact.resize(bfx_encode_by(*use, given.raw, given.shape, scratch, exact));
      if (!is_first && exact != first_back) return "other exact bytes on " + std::string(use->name);
      std::vector<std::byte> back(given.raw.size());
      if (!exact.empty() && (!bfx_decode_by(*use, exact, scratch, back).ok() || back != given.raw))
        return "exact, and came back other";
      first_back = exact;
      continue;
    }
    if (has_no_number(given.shape.element, given.raw)) return "a NaN or an infinity was quantised";
    std::vector<std::byte> back(given.raw.size());
    if (!ubq_decode_by(*use, unit, scratch, back).ok()) return "does not decode on " + std::string(use->name);
    if (is_first) {
      UnitFacts facts;
      if (!ubq_inspect(unit, &facts).ok()) return "has no header";
      if (const auto wrong = beyond_bound(given.shape.element, given.raw, back, facts.step)) return *wrong;
    } else if (back != first_back) {
      return "other values on " + std::string(use->name);
    }
    first = std::move(unit);
    first_back = std::move(back);
    *coded = true;
  }
  return "";
}

TEST(UbqHazards, AreBoundedOrExactAndTheSameOnEveryPath) {
  const uint32_t units = units_wanted();
  ASSERT_GE(units, 100U) << "HALFSTEP_UNITS: fewer than each hazard needs";
  Prng prng(91);
  std::map<uint32_t, uint32_t> coded_of, drawn_of;
  uint64_t values = 0;
  for (uint32_t n = 0; n < units; ++n) {
    const uint32_t hazard = n % kHazards;
    const Case given = drawn(prng, static_cast<Hazard>(hazard));
    bool coded = false;
    ASSERT_EQ(judged(given, &coded), "") << "unit " << n << ", hazard " << hazard << ", seed 91";
    ++drawn_of[hazard];
    coded_of[hazard] += coded ? 1 : 0;
    values += given.raw.size() / 2;
  }
  std::string paths;
  for (const Kernels* use : all_kernels()) paths += std::string(" ") + std::string(use->name);
  printf("%u units, %llu values, paths:%s; coded by hazard:", units, static_cast<unsigned long long>(values), paths.c_str());
  for (const auto& [hazard, count] : coded_of) printf(" %u", count);
  printf("\n");
  for (const auto hazard : {Hazard::Constant, Hazard::Nan, Hazard::Infinity}) {
    EXPECT_EQ(coded_of[static_cast<uint32_t>(hazard)], 0U) << "exact, " << static_cast<uint32_t>(hazard);
  }
  for (const auto hazard : {Hazard::None, Hazard::ConstantChannel, Hazard::Denormals}) {
    EXPECT_GT(coded_of[static_cast<uint32_t>(hazard)], drawn_of[static_cast<uint32_t>(hazard)] * 9 / 10);
  }
  for (const auto hazard : {Hazard::Outlier, Hazard::Sink, Hazard::Offsets}) {
    EXPECT_GT(coded_of[static_cast<uint32_t>(hazard)], drawn_of[static_cast<uint32_t>(hazard)] / 3);
  }
}

}  // namespace
}  // namespace halfstep::compress
