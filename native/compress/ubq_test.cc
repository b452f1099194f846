#include "compress/ubq.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cfenv>

#include "compress/codec.h"
#include "compress/ubq_fixture.h"

namespace halfstep::compress {
namespace ubq_test {

std::vector<std::byte> encode(const Kernels& use, ConstBytes raw, UnitShape shape) {
  Scratch scratch;
  std::vector<std::byte> out(raw.size());
  out.resize(ubq_encode_by(use, raw, shape, scratch, out));
  return out;
}

// Decodes between two walls; a wall that is touched fails the test.
Status decode(const Kernels& use, ConstBytes unit, size_t raw_bytes, std::vector<std::byte>* out) {
  static const std::vector<std::byte> wall(256, std::byte{0xA5});
  static Scratch scratch;
  std::vector<std::byte> memory(raw_bytes + 2 * wall.size());
  std::memcpy(memory.data(), wall.data(), wall.size());
  std::memcpy(memory.data() + wall.size() + raw_bytes, wall.data(), wall.size());
  const Status status = ubq_decode_by(use, unit, scratch, Bytes(memory).subspan(wall.size(), raw_bytes));
  const bool touched = std::memcmp(memory.data(), wall.data(), wall.size()) != 0 ||
                       std::memcmp(memory.data() + wall.size() + raw_bytes, wall.data(), wall.size()) != 0;
  EXPECT_FALSE(touched) << "written outside the target";
  memory.resize(wall.size() + raw_bytes);
  memory.erase(memory.begin(), memory.begin() + static_cast<ptrdiff_t>(wall.size()));
  *out = std::move(memory);
  return status;
}

UbqHeader header_of(ConstBytes unit) { return load_le<UbqHeader>(unit.data()); }

// The unit: the same on every path, which all decode it to the same bytes, none off by more than half a step.
std::vector<std::byte> expect_bounded(const std::vector<std::byte>& raw, UnitShape shape, const std::string& what) {
  std::vector<std::byte> first;
  std::vector<std::byte> first_back;
  for (const Kernels* use : all_kernels()) {
    const std::vector<std::byte> unit = encode(*use, raw, shape);
    EXPECT_FALSE(unit.empty()) << what << " on " << use->name << ": it should pay";
    if (unit.empty()) return unit;
    EXPECT_LE(unit.size(), ubq_unit_bytes_max(raw.size()));
    std::vector<std::byte> back;
    EXPECT_TRUE(decode(*use, unit, raw.size(), &back).ok()) << what << " on " << use->name;
    if (first.empty()) {
      first = unit;
      first_back = back;
      UnitFacts facts;
      EXPECT_TRUE(ubq_inspect(unit, &facts).ok());
      EXPECT_EQ(facts.element, shape.element);
      EXPECT_EQ(facts.row_values, shape.row_values);
      EXPECT_EQ(facts.raw_bytes, raw.size());
      EXPECT_GT(facts.step, 0);
      EXPECT_EQ(beyond_bound(shape.element, raw, back, facts.step).value_or(""), "") << what;
    }
    EXPECT_EQ(unit, first) << what << ": other bytes on " << use->name;
    EXPECT_EQ(back, first_back) << what << ": other values on " << use->name;
  }
  return first;
}

void expect_exact(ConstBytes raw, UnitShape shape, const std::string& what) {
  for (const Kernels* use : all_kernels()) EXPECT_TRUE(encode(*use, raw, shape).empty()) << what << " on " << use->name;
}

TEST(Ubq, NoValueIsOffByMoreThanHalfAStep) {
  Prng prng(50);
  for (const Element element : kUbqElements) {
    for (const uint32_t row : {1U, 3U, 16U, 24U, 64U, 80U, 128U, 576U}) {
      for (const float step : {0.02F, 0.1F, 0.25F, 1.0F, 2.0F}) {
        const size_t rows = std::max<size_t>(16, 640 / row + 1);
        const std::string what =
            std::string(element_name(element)) + " in rows of " + std::to_string(row) + ", step " + std::to_string(step);
        expect_bounded(ubq_values(prng, {.element = element, .row_values = row, .rows = rows}), {element, row, step}, what);
      }
    }
  }
}

TEST(Ubq, EveryLengthOfALastGroupIsCoded) {
  Prng prng(51);
  for (const Element element : kUbqElements) {
    for (size_t rows = 640; rows < 704; ++rows) {
      const UbqPart part{.element = element, .row_values = 1, .rows = rows, .offset_max = 4};
      expect_bounded(ubq_values(prng, part), {element, 1, 0.1F}, std::to_string(rows));
    }
  }
}

TEST(Ubq, AStepIsAShareOfTheDeviationOfTheUnit) {
  Prng prng(52);
  for (const float deviation : {0.001F, 1.0F, 300.0F}) {
    const UbqPart part{.row_values = 128, .rows = 64, .offset_max = 20, .deviation = deviation};
    const std::vector<std::byte> unit = encode(kernels(), ubq_values(prng, part), {Element::Bf16, 128, 0.1F});
    ASSERT_FALSE(unit.empty());
    EXPECT_NEAR(header_of(unit).step / deviation, 0.1, 0.005) << "offsets of channels are no deviation";
  }
}

TEST(Ubq, GainsWhatItsStepPromises) {
  Prng prng(53);
  const struct {
    size_t rows;
    float step;
    double ratio;
  } cases[] = {{16, 0.1F, 2.6}, {256, 0.1F, 2.75}, {256, 0.25F, 3.6}, {256, 0.5F, 4.6}};
  for (const auto& [rows, step, ratio] : cases) {
    const std::vector<std::byte> raw = ubq_values(prng, {.row_values = 384, .rows = rows});
    const std::vector<std::byte> unit = encode(kernels(), raw, {Element::Bf16, 384, step});
    ASSERT_FALSE(unit.empty());
    EXPECT_GT(static_cast<double>(raw.size()) / static_cast<double>(unit.size()), ratio) << rows << " rows, step " << step;
  }
}

TEST(Ubq, MeansOfChannelsAreTakenWhereTheyPay) {
  Prng prng(54);
  const auto bits = [&](float offset_max, size_t rows) {
    const UbqPart part{.row_values = 128, .rows = rows, .offset_max = offset_max};
    const std::vector<std::byte> unit =
        expect_bounded(ubq_values(prng, part), {Element::Bf16, 128, 0.1F}, "offsets to " + std::to_string(offset_max));
    return unit.empty() ? 99U : uint32_t{header_of(unit).mean_bits};
  };
  EXPECT_EQ(bits(0, 16), 0U) << "means that save nothing cost 64 bytes";
  EXPECT_EQ(bits(3, 16), 4U);
  EXPECT_EQ(bits(3, 256), 8U) << "of more rows they are a smaller share";
  EXPECT_EQ(bits(60, 32), 8U) << "four bits are too coarse for such";
}

TEST(Ubq, OutlierChannelsAndSinkTokensAreCoded) {
  Prng prng(55);
  for (const Element element : kUbqElements) {
    const UnitShape shape{element, 192, 0.1F};
    const UbqPart part{.element = element, .row_values = 192, .rows = 16};
    for (UbqPart hazard : {part, part, part}) {
      hazard.outlier = 40;
      expect_bounded(ubq_values(prng, hazard), shape, "outlier channels");
      hazard.sink = 10;
      expect_bounded(ubq_values(prng, hazard), shape, "outlier channels and a sink token");
      hazard.outlier = 0;
      expect_bounded(ubq_values(prng, hazard), shape, "a sink token");
    }
    std::vector<std::byte> raw = ubq_values(prng, part);
    for (const size_t at : {0, 700, 3071}) put_value(element, raw, at, at == 700 ? -600.0F : 600.0F);
    const std::vector<std::byte> unit = expect_bounded(raw, shape, "three values far away");
    ASSERT_FALSE(unit.empty());
    EXPECT_EQ(header_of(unit).far, 3U) << "their symbols have two bytes";
    EXPECT_LT(unit.size(), raw.size() / 2) << "and the others are as short as before";
  }
}

TEST(Ubq, WhatNoStepFitsIsExact) {
  Prng prng(56);
  for (const Element element : kUbqElements) {
    const UnitShape shape{element, 64, 0.1F};
    const UbqPart part{.element = element, .rows = 16};
    const std::vector<std::byte> good = ubq_values(prng, part);
    ASSERT_FALSE(encode(kernels(), good, shape).empty());
    const uint16_t infinity = element == Element::Bf16 ? 0x7F80 : 0x7C00;
    for (const uint16_t bits : {infinity, static_cast<uint16_t>(infinity | 0x8000), static_cast<uint16_t>(infinity | 1)}) {
      for (const size_t at : {size_t{0}, size_t{63}, size_t{500}, good.size() / 2 - 1}) {
        std::vector<std::byte> raw = good;
        std::memcpy(raw.data() + 2 * at, &bits, 2);
        expect_exact(raw, shape, "NaN or infinite: " + std::to_string(bits));
      }
    }
    std::vector<std::byte> raw = good;
    put_value(element, raw, 100, 50000.0F);
    expect_exact(raw, shape, "one value would have stretched the step of all others");
    expect_exact(std::vector<std::byte>(2048), shape, "zeros");
    for (size_t i = 0; i < raw.size() / 2; ++i) put_value(element, raw, i, 3.5F);
    expect_exact(raw, shape, "a constant");
    for (size_t i = 0; i < raw.size() / 2; ++i) put_value(element, raw, i, static_cast<float>(i % 64));
    expect_exact(raw, shape, "constant channels");
  }
  std::vector<std::byte> denormals = noise(prng, 2048);
  for (size_t i = 1; i < denormals.size(); i += 2) denormals[i] &= std::byte{0x80};
  expect_exact(denormals, {Element::Bf16, 64, 0.1F}, "the step would be none");
}

TEST(Ubq, DenormalsAndTheLargestHalvesAreCoded) {
  Prng prng(57);
  std::vector<std::byte> halves = noise(prng, 4096);
  for (size_t i = 1; i < halves.size(); i += 2) halves[i] &= std::byte{0x83};
  expect_bounded(halves, {Element::Fp16, 64, 0.25F}, "denormals of fp16, which float32 has as normal ones");
  std::vector<std::byte> some = ubq_values(prng, {.rows = 32});
  for (size_t i = 0; i < 32; ++i) put_value(Element::Bf16, some, i * 31, 1e-39F);
  expect_bounded(some, {Element::Bf16, 64, 0.1F}, "denormals among others");
  std::vector<std::byte> large = ubq_values(prng, {.element = Element::Fp16, .rows = 32, .deviation = 20000.0F});
  std::vector<std::byte> back;
  const std::vector<std::byte> unit = encode(kernels(), large, {Element::Fp16, 64, 0.1F});
  if (!unit.empty()) {
    ASSERT_TRUE(decode(kernels(), unit, large.size(), &back).ok());
    EXPECT_EQ(beyond_bound(Element::Fp16, large, back, header_of(unit).step).value_or(""), "");
  }
  const uint16_t largest = 0x7BFF;
  std::memcpy(large.data() + 200, &largest, 2);
  expect_exact(large, {Element::Fp16, 64, 0.1F}, "half a step more would be infinite");
}

TEST(Ubq, WhatIsNotStatedIsRefused) {
  Prng prng(58);
  const std::vector<std::byte> raw = ubq_values(prng, {.rows = 16});
  const UnitShape good{Element::Bf16, 64, 0.1F};
  ASSERT_FALSE(encode(kernels(), raw, good).empty());
  for (const Element element : {Element::Unknown, Element::E4m3, Element::E5m2})
    expect_exact(raw, {element, 64, 0.1F}, "element");
  for (const uint32_t row : {0U, 60U, kRowValuesMax + 1}) expect_exact(raw, {Element::Bf16, row, 0.1F}, "row");
  for (const float step : {0.0F, -1.0F, NAN, INFINITY, 1e30F, 1e-30F}) expect_exact(raw, {Element::Bf16, 64, step}, "step");
  expect_exact(ConstBytes(raw).first(raw.size() - 1), good, "half a value");
  expect_exact(ConstBytes(raw).first(128 * 3), good, "few values");
  expect_exact({}, good, "nothing");
}

TEST(Ubq, TheProcessMayRoundAndFlushAsItLikes) {
  Prng prng(59);
  const std::vector<std::byte> raw = ubq_values(prng, {.element = Element::Fp16, .rows = 37, .offset_max = 2});
  const UnitShape shape{Element::Fp16, 64, 0.1F};
  for (const Kernels* use : all_kernels()) {
    const std::vector<std::byte> unit = encode(*use, raw, shape);
    std::vector<std::byte> back;
    ASSERT_TRUE(decode(*use, unit, raw.size(), &back).ok());
    for (const int rounding : {FE_UPWARD, FE_TOWARDZERO}) {
      ASSERT_EQ(std::fesetround(rounding), 0);
      const std::vector<std::byte> other = encode(*use, raw, shape);
      std::vector<std::byte> other_back;
      const Status status = decode(*use, unit, raw.size(), &other_back);
      const int left = std::fegetround();
      std::fesetround(FE_TONEAREST);
      EXPECT_EQ(left, rounding) << "it is the caller's again";
      EXPECT_EQ(other, unit) << use->name;
      EXPECT_TRUE(status.ok() && other_back == back) << use->name;
    }
  }
}

TEST(Ubq, ATargetOfAnotherLengthIsRefused) {
  Prng prng(60);
  const std::vector<std::byte> raw = ubq_values(prng, {.rows = 16});
  const std::vector<std::byte> unit = encode(kernels(), raw, {Element::Bf16, 64, 0.1F});
  std::vector<std::byte> back;
  for (const size_t bytes : {size_t{0}, raw.size() - 2, raw.size() - 1, raw.size() + 1, raw.size() + 2, 2 * raw.size()}) {
    EXPECT_EQ(decode(kernels(), unit, bytes, &back), Code::Corrupt) << bytes;
  }
}

TEST(Ubq, EveryCutIsRefused) {
  Prng prng(61);
  for (const Element element : kUbqElements) {
    const std::vector<std::byte> raw = ubq_values(prng, {.element = element, .row_values = 43, .rows = 15, .offset_max = 9});
    const std::vector<std::byte> unit = encode(kernels(), raw, {element, 43, 0.1F});
    ASSERT_FALSE(unit.empty());
    std::vector<std::byte> back;
    for (const Kernels* use : all_kernels()) {
      for (size_t bytes = 0; bytes < unit.size(); ++bytes) {
        ASSERT_EQ(decode(*use, ConstBytes(unit).first(bytes), raw.size(), &back), Code::Corrupt) << bytes << use->name;
      }
    }
  }
}

// Each is a unit but for one field.
TEST(Ubq, AHeaderThatLiesIsRefused) {
  Prng prng(62);
  const std::vector<std::byte> raw = ubq_values(prng, {.row_values = 43, .rows = 15, .offset_max = 3});
  const std::vector<std::byte> unit = encode(kernels(), raw, {Element::Bf16, 43, 0.1F});
  ASSERT_FALSE(unit.empty());
  ASSERT_EQ(header_of(unit).mean_bits, 4U);
  std::vector<std::byte> back;
  const auto refuses = [&](const auto& lie, const char* what) {
    UbqHeader header = header_of(unit);
    lie(header);
    std::vector<std::byte> other = unit;
    store_le(other.data(), header);
    EXPECT_EQ(decode(kernels(), other, raw.size(), &back), Code::Corrupt) << what;
  };
  refuses([](UbqHeader& of) { of.version = 2; }, "version");
  for (const uint32_t element : {0U, 3U, 4U, 255U}) {
    refuses([=](UbqHeader& of) { of.element = static_cast<uint8_t>(element); }, "element");
  }
  for (const uint32_t row : {0U, 44U, 65535U}) {
    refuses([=](UbqHeader& of) { of.row_values = static_cast<uint16_t>(row); }, "row");
  }
  refuses([](UbqHeader& of) { of.values += of.row_values; }, "values");
  refuses([](UbqHeader& of) { of.second = of.values + 1; }, "second");
  refuses([](UbqHeader& of) { of.second = UINT32_MAX; }, "second");
  refuses([](UbqHeader& of) { of.third = of.second + 1; }, "third");
  refuses([](UbqHeader& of) { of.far = 1; }, "far");
  refuses([](UbqHeader& of) { of.far = UINT32_MAX; }, "far");
  for (const float step : {0.0F, -0.1F, NAN, INFINITY, 0x1p-101F, 0x1p101F, 1e-45F}) {
    refuses([=](UbqHeader& of) { of.step = step; }, "step");
  }
  refuses([](UbqHeader& of) { of.listed[4] = kFarSymbol; }, "listed");
  refuses([](UbqHeader& of) { of.low_bits = 9; }, "low bits");
  for (const uint32_t bits : {1U, 5U, 8U, 16U}) {
    refuses([=](UbqHeader& of) { of.mean_bits = static_cast<uint8_t>(bits); }, "mean bits");
  }
  refuses([](UbqHeader& of) { of.mean_shift = 12; }, "mean shift");
  ASSERT_TRUE(decode(kernels(), unit, raw.size(), &back).ok());
}

TEST(Ubq, SpareBitsAreRefused) {
  Prng prng(63);
  // 43 channels: the last mean has half a byte to spare. 645 values: five in the last group.
  const std::vector<std::byte> raw = ubq_values(prng, {.row_values = 43, .rows = 15, .offset_max = 3});
  std::vector<std::byte> unit = encode(kernels(), raw, {Element::Bf16, 43, 0.1F});
  ASSERT_EQ(header_of(unit).mean_bits, 4U);
  const size_t low = sizeof(UbqHeader) + 22;
  const size_t low_end = low + size_t{header_of(unit).low_bits} * 81;
  std::vector<std::byte> back;
  for (const size_t at : {low - 1, low_end - 1, low_end + 10 * kPlanesBytes, low_end + 10 * kPlanesBytes + 1}) {
    unit[at] ^= std::byte{0x80};
    for (const Kernels* use : all_kernels()) EXPECT_EQ(decode(*use, unit, raw.size(), &back), Code::Corrupt) << at << use->name;
    unit[at] ^= std::byte{0x80};
  }
  ASSERT_TRUE(decode(kernels(), unit, raw.size(), &back).ok());
}

// What is damaged is refused or decodes to some bytes, the same on every path, and touches no wall.
TEST(Ubq, AHundredThousandDamagedUnitsStayInsideTheirTarget) {
  constexpr size_t kUnits = 100;
  constexpr int kDamagesEach = 1000;
  Prng prng(64);
  uint64_t refused = 0;
  uint64_t decoded = 0;
  for (size_t number = 0; number < kUnits; ++number) {
    const Element element = kUbqElements[number % 2];
    const auto row = static_cast<uint32_t>(1 + prng.below(40));
    const UbqPart part{.element = element,
                       .row_values = row,
                       .rows = (300 + prng.below(300)) / row + 1,
                       .offset_max = number % 3 == 0 ? 0.0F : 5.0F,
                       .outlier = number % 5 == 0 ? 60.0F : 0.0F};
    const std::vector<std::byte> raw = ubq_values(prng, part);
    const std::vector<std::byte> good = encode(kernels(), raw, {element, row, number % 4 == 0 ? 0.3F : 0.1F});
    ASSERT_FALSE(good.empty());
    for (int round = 0; round < kDamagesEach; ++round) {
      std::vector<std::byte> unit = good;
      damage(prng, 56, unit);
      const auto status =
          decode_on_all([&](const Kernels& use, std::vector<std::byte>* back) { return decode(use, unit, raw.size(), back); });
      ASSERT_TRUE(status.has_value()) << "paths do not agree";
      ++(status->ok() ? decoded : refused);
    }
  }
  EXPECT_EQ(refused + decoded, uint64_t{kUnits} * kDamagesEach);
  EXPECT_GT(refused, 10000U);
  EXPECT_GT(decoded, 5000U) << "a changed level is another value, which the checksum of the raw bytes finds";
}

TEST(Codecs, OneOfThemIsLossy) {
  for (const Codec& codec : codecs()) {
    EXPECT_EQ(codec.lossy, codec.name == "ubq") << codec.name;
    EXPECT_EQ(codec.lossy, (kLossyCodecs >> codec.number & 1) != 0) << codec.name;
  }
}

}  // namespace ubq_test
}  // namespace halfstep::compress
