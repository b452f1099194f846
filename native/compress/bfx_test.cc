#include "compress/bfx.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "compress/bfx_fixture.h"
#include "compress/codec.h"

namespace halfstep::compress {
namespace {

std::vector<std::byte> encode(const Kernels& use, ConstBytes raw, UnitShape shape) {
  Scratch scratch;
  std::vector<std::byte> out(raw.size());
  out.resize(bfx_encode_by(use, raw, shape, scratch, out));
  return out;
}

// Decodes between two walls; a wall that is touched fails the test.
Status decode(const Kernels& use, ConstBytes unit, size_t raw_bytes, std::vector<std::byte>* out) {
  constexpr size_t kWall = 256;
  constexpr std::byte kBrick{0xA5};
  Scratch scratch;
  std::vector<std::byte> memory(raw_bytes + 2 * kWall, kBrick);
  const Status status = bfx_decode_by(use, unit, scratch, Bytes(memory).subspan(kWall, raw_bytes));
  const auto whole = [&](size_t from) {
    return std::all_of(memory.begin() + static_cast<ptrdiff_t>(from), memory.begin() + static_cast<ptrdiff_t>(from + kWall),
                       [](std::byte byte) { return byte == kBrick; });
  };
  EXPECT_TRUE(whole(0) && whole(kWall + raw_bytes)) << "written outside the target";
  out->assign(memory.begin() + kWall, memory.begin() + static_cast<ptrdiff_t>(kWall + raw_bytes));
  return status;
}

void expect_round_trip(const std::vector<std::byte>& raw, UnitShape shape, const std::string& what) {
  std::vector<std::byte> first;
  for (const Kernels* use : all_kernels()) {
    const std::vector<std::byte> unit = encode(*use, raw, shape);
    ASSERT_FALSE(unit.empty()) << what << " on " << use->name << ": it should pay";
    EXPECT_LE(unit.size(), unit_bytes_max(raw.size()));
    if (first.empty()) first = unit;
    ASSERT_EQ(unit, first) << what << ": other bytes on " << use->name;
    std::vector<std::byte> back;
    ASSERT_TRUE(decode(*use, unit, raw.size(), &back).ok()) << what << " on " << use->name;
    ASSERT_EQ(back, raw) << what << " on " << use->name;
  }
}

TEST(Bfx, EveryElementComesBackOnEveryPath) {
  Prng prng(30);
  for (const Element element : kElements) {
    for (const size_t count : {256, 257, 300, 319, 320, 321, 384, 1000, 6144, 6175}) {
      // Of fewer values the others gain less than their header takes.
      if (element != Element::Bf16 && count < 1000) continue;
      expect_round_trip(kv_values(prng, element, count), {element, 64},
                        std::string(element_name(element)) + " x " + std::to_string(count));
    }
  }
}

TEST(Bfx, EveryLengthOfALastGroupComesBack) {
  Prng prng(31);
  for (const Element element : kElements) {
    for (size_t count = 640; count < 704; ++count) {
      expect_round_trip(kv_values(prng, element, count), {element, 0},
                        std::string(element_name(element)) + " x " + std::to_string(count));
    }
  }
}

TEST(Bfx, AnOddByteAtTheEndComesBack) {
  Prng prng(32);
  for (const Element element : {Element::Bf16, Element::Fp16}) {
    std::vector<std::byte> raw = kv_values(prng, element, 513);
    raw.push_back(std::byte{0x5A});
    expect_round_trip(raw, {element, 0}, "odd");
  }
}

TEST(Bfx, BasesAreTakenWhereChannelsDiffer) {
  Prng prng(33);
  Scratch scratch;
  for (const uint32_t row : {24U, 64U, 80U, 96U, 128U, 576U}) {
    for (const Element element : {Element::Bf16, Element::Fp16}) {
      const std::vector<std::byte> raw = kv_values(prng, element, size_t{row} * 200 + 33, row, 12);
      const std::string what = std::string(element_name(element)) + " in rows of " + std::to_string(row);
      expect_round_trip(raw, {element, row}, what);
      UnitFacts facts;
      ASSERT_TRUE(bfx_inspect(encode(plain_kernels(), raw, {element, row}), &facts).ok());
      EXPECT_EQ(facts.row_values, row) << what;
      EXPECT_EQ(facts.raw_bytes, raw.size());
      EXPECT_EQ(facts.element, element);
    }
  }
  UnitFacts facts;
  const std::vector<std::byte> even = kv_values(prng, Element::Bf16, 64 * 200);
  ASSERT_TRUE(bfx_inspect(encode(plain_kernels(), even, {Element::Bf16, 64}), &facts).ok());
  EXPECT_EQ(facts.row_values, 0U) << "bases that save nothing cost 64 bytes";
}

TEST(Bfx, WhatNoArithmeticWouldKeepComesBack) {
  Prng prng(34);
  for (const Element element : kElements) {
    std::vector<std::byte> raw = kv_values(prng, element, 2048);
    // NaN with payloads, infinities, denormals and zeros of both signs: every pattern of bits, in its turn.
    for (size_t i = 0; i < 200; ++i) {
      const auto bits = static_cast<uint16_t>(prng.below(65536));
      std::memcpy(raw.data() + i * 10 * value_bytes(element), &bits, value_bytes(element));
    }
    expect_round_trip(raw, {element, 0}, std::string(element_name(element)));
  }
  expect_round_trip(std::vector<std::byte>(4096), {Element::Bf16, 128}, "zeros");
  expect_round_trip(std::vector<std::byte>(4096), {Element::E4m3, 128}, "zeros");
}

TEST(Bfx, APartThatDoesNotGainIsRaw) {
  Prng prng(35);
  for (const Element element : kElements) {
    for (const Kernels* use : all_kernels()) {
      EXPECT_TRUE(encode(*use, noise(prng, 8192), {element, 64}).empty()) << element_name(element);
      EXPECT_TRUE(encode(*use, kv_values(prng, element, kBfxValuesMin - 1), {element, 0}).empty());
    }
  }
  EXPECT_TRUE(encode(plain_kernels(), {}, {}).empty());
}

TEST(Bfx, FindsTheElementThatNobodyNames) {
  Prng prng(36);
  for (const Element element : {Element::Bf16, Element::Fp16}) {
    const std::vector<std::byte> unit = encode(plain_kernels(), kv_values(prng, element, 6144), {});
    UnitFacts facts;
    ASSERT_TRUE(bfx_inspect(unit, &facts).ok());
    EXPECT_EQ(facts.element, element);
  }
  EXPECT_TRUE(encode(plain_kernels(), noise(prng, 8192), {}).empty());
}

TEST(Bfx, ATargetOfAnotherLengthIsRefused) {
  Prng prng(37);
  const std::vector<std::byte> raw = kv_values(prng, Element::Bf16, 700);
  const std::vector<std::byte> unit = encode(plain_kernels(), raw, {Element::Bf16, 0});
  std::vector<std::byte> back;
  for (const size_t bytes : {size_t{0}, raw.size() - 2, raw.size() - 1, raw.size() + 1, 2 * raw.size()}) {
    EXPECT_EQ(decode(kernels(), unit, bytes, &back), Code::Corrupt) << bytes;
  }
}

TEST(Bfx, EveryCutIsRefused) {
  Prng prng(38);
  for (const Element element : kElements) {
    const std::vector<std::byte> raw = kv_values(prng, element, 645);
    const std::vector<std::byte> unit = encode(plain_kernels(), raw, {element, 0});
    std::vector<std::byte> back;
    for (const Kernels* use : all_kernels()) {
      for (size_t bytes = 0; bytes < unit.size(); ++bytes) {
        ASSERT_EQ(decode(*use, ConstBytes(unit).first(bytes), raw.size(), &back), Code::Corrupt) << bytes << use->name;
      }
    }
  }
}

TEST(Bfx, SpareBitsAreRefused) {
  Prng prng(39);
  for (const Element element : kElements) {
    const std::vector<std::byte> raw = kv_values(prng, element, 641);  // one value in the last group
    std::vector<std::byte> unit = encode(plain_kernels(), raw, {element, 0});
    std::vector<std::byte> back;
    const size_t planes =
        sizeof(BfxHeader) + 10 * fraction_bytes(element, kGroup) + fraction_bytes(element, 1) + 10 * kPlanesBytes;
    for (const size_t at : {planes, planes + 1}) {
      unit[at] ^= std::byte{0x80};
      for (const Kernels* use : all_kernels()) EXPECT_EQ(decode(*use, unit, raw.size(), &back), Code::Corrupt);
      unit[at] ^= std::byte{0x80};
    }
    ASSERT_TRUE(decode(kernels(), unit, raw.size(), &back).ok());
  }
}

// What is damaged is refused or decodes to some bytes, the same on every path, and touches no wall.
TEST(Bfx, DamagedUnitsStayInsideTheirTarget) {
  Prng prng(40);
  uint64_t refused = 0;
  uint64_t decoded = 0;
  for (int round = 0; round < 4000; ++round) {
    const Element element = kElements[prng.below(4)];
    const uint32_t row = value_bytes(element) == 1 || prng.below(2) == 0 ? 0 : 16;
    const std::vector<std::byte> raw = kv_values(prng, element, 2000 + prng.below(1500), 16, row == 0 ? 0 : 8);
    std::vector<std::byte> unit = encode(kernels(), raw, {element, row});
    ASSERT_FALSE(unit.empty());
    damage(prng, 48, unit);
    const auto status =
        decode_on_all([&](const Kernels& use, std::vector<std::byte>* back) { return decode(use, unit, raw.size(), back); });
    ASSERT_TRUE(status.has_value()) << "paths do not agree";
    ++(status->ok() ? decoded : refused);
  }
  EXPECT_GT(refused, 1000U);
  EXPECT_GT(decoded, 100U) << "a changed fraction is another value, which the checksum of the raw bytes finds";
}

TEST(Codecs, AreFoundByNumberAndName) {
  for (const Codec& codec : codecs()) {
    EXPECT_EQ(find_codec(uint32_t{codec.number}), &codec);
    EXPECT_EQ(find_codec(codec.name), &codec);
    EXPECT_NE(kCodecs >> codec.number & 1, 0U);
  }
  EXPECT_EQ(find_codec(63U), nullptr);
  EXPECT_EQ(find_codec("lz4"), nullptr);
  EXPECT_EQ(codecs().size(), static_cast<size_t>(__builtin_popcountll(kCodecs)));
}

TEST(Codecs, RawIsTheBytesAsTheyAre) {
  Scratch scratch;
  const std::vector<std::byte> some(100, std::byte{7});
  std::vector<std::byte> back(100);
  const Codec* raw = find_codec(kRaw);
  ASSERT_TRUE(raw->decode(some, scratch, back).ok());
  EXPECT_EQ(back, some);
  EXPECT_EQ(raw->decode(ConstBytes(some).first(99), scratch, back), Code::Corrupt);
}

}  // namespace
}  // namespace halfstep::compress
