#include "compress/zstd.h"

#include <gtest/gtest.h>
#include <zstd.h>

#include <algorithm>
#include <string>

#include "compress/bfx_fixture.h"
#include "compress/codec.h"

namespace halfstep::compress {
namespace {

std::vector<std::byte> encode(ConstBytes raw, UnitShape shape = {}) {
  Scratch scratch;
  std::vector<std::byte> out(raw.size());
  out.resize(zstd_encode(raw, shape, scratch, out));
  return out;
}

// Decodes between two walls; a wall that is touched fails the test.
Status decode(ConstBytes unit, size_t raw_bytes, std::vector<std::byte>* out) {
  constexpr size_t kWall = 256;
  constexpr std::byte kBrick{0xA5};
  Scratch scratch;
  std::vector<std::byte> memory(raw_bytes + 2 * kWall, kBrick);
  const Status status = zstd_decode(unit, scratch, Bytes(memory).subspan(kWall, raw_bytes));
  const auto is_whole = [&](ConstBytes wall) {
    return std::ranges::all_of(wall, [](std::byte byte) { return byte == kBrick; });
  };
  EXPECT_TRUE(is_whole(ConstBytes(memory).first(kWall)) && is_whole(ConstBytes(memory).last(kWall)))
      << "written outside the target";
  out->assign(memory.begin() + kWall, memory.end() - kWall);
  return status;
}

std::vector<std::byte> floats32(Prng& prng, size_t count) {
  std::vector<std::byte> out(count * 4);
  for (size_t i = 0; i < count; ++i) {
    const float x = static_cast<float>(prng.below(65536)) / 65536.0F - 0.5F;
    std::memcpy(out.data() + 4 * i, &x, 4);
  }
  return out;
}

std::vector<std::byte> texts(size_t bytes) {
  std::vector<std::byte> out;
  for (uint32_t i = 0; out.size() < bytes; ++i) {
    for (const char c : "entry " + std::to_string(i * i) + ": nothing of note; ") out.push_back(static_cast<std::byte>(c));
  }
  out.resize(bytes);
  return out;
}

uint32_t planes_of(ConstBytes unit) { return load_le<ZstdHeader>(unit.data()).planes; }

TEST(Zstd, ValuesOfAnyMakeComeBack) {
  Prng prng(50);
  for (const size_t bytes : {size_t{2000}, size_t{2001}, size_t{4099}, size_t{65536}, size_t{300'003}}) {
    for (const std::vector<std::byte>& raw : {texts(bytes), std::vector<std::byte>(bytes), floats32(prng, bytes / 4 + 1)}) {
      const std::vector<std::byte> unit = encode(raw);
      if (unit.empty()) continue;
      EXPECT_LE(unit.size(), unit_bytes_max(raw.size()));
      std::vector<std::byte> back;
      ASSERT_TRUE(decode(unit, raw.size(), &back).ok()) << bytes;
      ASSERT_EQ(back, raw) << bytes;
      EXPECT_EQ(encode(raw), unit) << "another unit of the same bytes";
    }
    EXPECT_FALSE(encode(texts(bytes)).empty());
  }
}

TEST(Zstd, BytePlanesAreTakenWhereTheyPay) {
  Prng prng(51);
  EXPECT_EQ(planes_of(encode(texts(8192))), 1U);
  EXPECT_EQ(planes_of(encode(kv_values(prng, Element::Bf16, 8192))), 2U);
  EXPECT_EQ(planes_of(encode(floats32(prng, 8192))), 4U);
}

TEST(Zstd, AUnitSaysWhatItIs) {
  Prng prng(52);
  const std::vector<std::byte> unit = encode(kv_values(prng, Element::Fp16, 4096), {Element::Fp16, 128});
  UnitFacts facts;
  ASSERT_TRUE(zstd_inspect(unit, &facts).ok());
  EXPECT_EQ(facts.version, kZstdVersion);
  EXPECT_EQ(facts.element, Element::Fp16);
  EXPECT_EQ(facts.raw_bytes, 8192U);
  EXPECT_EQ(facts.step, 0.0F);
  EXPECT_EQ(zstd_inspect(ConstBytes(unit).first(11), &facts), Code::Corrupt);
}

TEST(Zstd, APartThatDoesNotGainIsRaw) {
  Prng prng(53);
  EXPECT_TRUE(encode(noise(prng, 8192)).empty());
  EXPECT_TRUE(encode(texts(kZstdBytesMin - 1)).empty());
  EXPECT_TRUE(encode({}).empty());
  // Of 100 bytes 2 are saved: less than 3 %.
  std::vector<std::byte> raw = noise(prng, 100'000);
  std::fill_n(raw.begin() + 50'000, 2'000, std::byte{0});
  EXPECT_TRUE(encode(raw).empty());
  std::fill_n(raw.begin() + 50'000, 8'000, std::byte{0});
  EXPECT_FALSE(encode(raw).empty());
}

TEST(Zstd, EveryCutAndEveryOtherLengthIsRefused) {
  const std::vector<std::byte> raw = texts(3000);
  std::vector<std::byte> unit = encode(raw);
  std::vector<std::byte> back;
  for (size_t bytes = 0; bytes < unit.size(); ++bytes) {
    ASSERT_EQ(decode(ConstBytes(unit).first(bytes), raw.size(), &back), Code::Corrupt) << bytes;
  }
  for (const size_t bytes : {size_t{0}, raw.size() - 1, raw.size() + 1, 2 * raw.size()}) {
    EXPECT_EQ(decode(unit, bytes, &back), Code::Corrupt) << bytes;
  }
  unit.push_back(std::byte{0});
  EXPECT_EQ(decode(unit, raw.size(), &back), Code::Corrupt) << "a byte after the frame";
}

TEST(Zstd, EveryFieldOfTheHeaderIsChecked) {
  const std::vector<std::byte> raw = texts(3000);
  const std::vector<std::byte> unit = encode(raw);
  std::vector<std::byte> back;
  const std::pair<size_t, uint8_t> wrong[] = {{0, 2}, {0, 0}, {1, kElementsEnd}, {2, 0}, {2, 3}, {2, 8},
                                              {3, 1}, {4, 1}, {7, 0x80},         {8, 0}, {11, 1}};
  for (const auto& [at, value] : wrong) {
    std::vector<std::byte> bad = unit;
    if (bad[at] == std::byte{value})
      value == 0 ? bad[at] = std::byte{1} : bad[at] = std::byte{0};
    else
      bad[at] = std::byte{value};
    EXPECT_EQ(decode(bad, raw.size(), &back), Code::Corrupt) << at << " = " << int{value};
  }
}

// Frames that libzstd itself would read, of which none is a unit's.
TEST(Zstd, FramesOfAnotherKindAreRefused) {
  const std::vector<std::byte> raw = texts(3000);
  const std::vector<std::byte> unit = encode(raw);
  const auto with_frame = [&](const std::vector<std::byte>& frame) {
    std::vector<std::byte> out(unit.begin(), unit.begin() + sizeof(ZstdHeader));
    out.insert(out.end(), frame.begin(), frame.end());
    std::vector<std::byte> back;
    return decode(out, raw.size(), &back);
  };
  const std::vector<std::byte> good(unit.begin() + sizeof(ZstdHeader), unit.end());
  ASSERT_TRUE(with_frame(good).ok());

  std::vector<std::byte> skipped(8);  // a frame to skip, of no bytes, before the good one
  store_le(skipped.data(), uint32_t{0x184D2A50});
  skipped.insert(skipped.end(), good.begin(), good.end());
  EXPECT_EQ(with_frame(skipped), Code::Corrupt);

  ZSTD_CCtx* context = ZSTD_createCCtx();
  const auto frame_by = [&](const std::vector<std::byte>& of) {
    std::vector<std::byte> out(ZSTD_compressBound(of.size()));
    out.resize(ZSTD_compress2(context, out.data(), out.size(), of.data(), of.size()));
    return out;
  };
  EXPECT_TRUE(with_frame(frame_by(raw)).ok()) << "another level of the same library";
  ZSTD_CCtx_setParameter(context, ZSTD_c_contentSizeFlag, 0);
  EXPECT_EQ(with_frame(frame_by(raw)), Code::Corrupt) << "it does not say its length";
  ZSTD_CCtx_setParameter(context, ZSTD_c_contentSizeFlag, 1);
  std::vector<std::byte> longer = raw;
  longer.push_back(std::byte{0});
  EXPECT_EQ(with_frame(frame_by(longer)), Code::Corrupt);
  // Two frames that together have the part's length.
  const auto half = raw.begin() + 1500;
  std::vector<std::byte> two = frame_by({raw.begin(), half});
  const std::vector<std::byte> second = frame_by({half, raw.end()});
  two.insert(two.end(), second.begin(), second.end());
  EXPECT_EQ(with_frame(two), Code::Corrupt);
  ZSTD_freeCCtx(context);
}

TEST(Zstd, DamagedUnitsStayInsideTheirTarget) {
  Prng prng(54);
  uint64_t refused = 0;
  uint64_t decoded = 0;
  std::vector<std::pair<size_t, std::vector<std::byte>>> good;
  while (good.size() < 40) {
    const size_t bytes = 1000 + prng.below(3000);
    const std::vector<std::byte> raw = prng.below(2) == 0 ? texts(bytes) : kv_values(prng, Element::Bf16, bytes);
    good.emplace_back(raw.size(), encode(raw));
    ASSERT_FALSE(good.back().second.empty());
  }
  for (int round = 0; round < 2000; ++round) {
    auto [raw_bytes, unit] = good[prng.below(good.size())];
    damage(prng, 48, unit);
    std::vector<std::byte> back;
    ++(decode(unit, raw_bytes, &back).ok() ? decoded : refused);
  }
  EXPECT_GT(refused, 500U);
  EXPECT_GT(decoded, 10U) << "a literal that is another, which the checksum of the raw bytes finds";
}

}  // namespace
}  // namespace halfstep::compress
