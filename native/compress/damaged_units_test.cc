// Units as a disk may give them back: of each codec so many of 64 bytes to 64 KiB with bits, bytes or their length changed.
// What a decoder makes of them lies in a target of its own, exactly as long as the part, and so does the unit: an address
// sanitizer sees every byte beside them that is looked at or written. `make damaged-units` runs a million of each so.
//   HALFSTEP_DAMAGED_UNITS   how many of each codec (default 1,500)
//   HALFSTEP_SEED            (default 30)
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "compress/bfx.h"
#include "compress/codec.h"
#include "compress/ubq.h"
#include "compress/ubq_fixture.h"

namespace halfstep::compress {
namespace {

constexpr size_t kUnitBytesMin = 64;
constexpr size_t kUnitBytesMax = size_t{64} << 10;
constexpr size_t kHeaderBytes = 48;

uint64_t of_environment(const char* name, uint64_t otherwise) {
  const char* text = std::getenv(name);
  return text == nullptr ? otherwise : std::strtoull(text, nullptr, 10);
}

struct Good {
  std::vector<std::byte> unit;
  size_t raw_bytes = 0;
};

// As many long ones as short ones, by powers of two.
size_t unit_bytes_wanted(Prng& prng) {
  const size_t octave = kUnitBytesMin << prng.below(10);
  return octave + prng.below(octave);
}

std::vector<std::byte> part_for(Prng& prng, const Codec& codec, size_t bytes, UnitShape* shape) {
  shape->element = codec.lossy ? kElements[prng.below(2)] : kElements[prng.below(4)];
  shape->row_values = 16;
  shape->step = codec.lossy ? 0.1F : 0.0F;
  const uint32_t width = value_bytes(shape->element);
  const size_t values = std::max(bytes / width / 16 * 16, size_t{16});
  const int spread = prng.below(2) == 0 ? 0 : 8;
  // Few values make a short unit of what a codec would leave raw otherwise.
  std::vector<std::byte> raw = kv_values(prng, shape->element, values, 16, spread);
  if (!codec.lossy && prng.below(3) == 0) std::fill(raw.begin() + static_cast<ptrdiff_t>(raw.size() / 8), raw.end(), raw[0]);
  return raw;
}

// That are damaged in turn.
std::vector<Good> good_units(Prng& prng, const Codec& codec, size_t count) {
  std::vector<Good> out;
  Scratch scratch;
  while (out.size() < count) {
    const size_t wanted = unit_bytes_wanted(prng);
    UnitShape shape;
    const std::vector<std::byte> raw = part_for(prng, codec, wanted * (1 + prng.below(4)), &shape);
    Good good{.unit = std::vector<std::byte>(raw.size()), .raw_bytes = raw.size()};
    good.unit.resize(codec.encode(raw, shape, scratch, good.unit));
    if (codec.number == kRaw) good.unit = raw;
    if (good.unit.size() < kUnitBytesMin || good.unit.size() > kUnitBytesMax) continue;
    out.push_back(std::move(good));
  }
  return out;
}

// On each path in its turn, where a codec has paths.
Status decode_in_turn(const Codec& codec, uint64_t turn, ConstBytes unit, Scratch& scratch, Bytes out) {
  static const std::vector<const Kernels*> all = all_kernels();
  const Kernels& use = *all[turn % all.size()];
  if (codec.number == kBfx) return bfx_decode_by(use, unit, scratch, out);
  if (codec.number == kUbq) return ubq_decode_by(use, unit, scratch, out);
  return codec.decode(unit, scratch, out);
}

class DamagedUnits : public ::testing::TestWithParam<uint8_t> {};
INSTANTIATE_TEST_SUITE_P(Codecs, DamagedUnits, ::testing::Values(kRaw, kBfx, kUbq, kZstd),
                         [](const auto& of) { return std::string(find_codec(uint32_t{of.param})->name); });

TEST_P(DamagedUnits, AreRefusedOrDecodeInsideTheirTarget) {
  const Codec& codec = *find_codec(uint32_t{GetParam()});
  const uint64_t count = of_environment("HALFSTEP_DAMAGED_UNITS", 1500);
  const uint64_t seed = of_environment("HALFSTEP_SEED", 30);
  Prng prng(seed * 64 + codec.number);
  const std::vector<Good> good = good_units(prng, codec, std::clamp<size_t>(count / 25, 40, 400));
  uint64_t refused = 0;
  Scratch scratch;
  for (uint64_t i = 0; i < count; ++i) {
    const Good& from = good[prng.below(good.size())];
    std::vector<std::byte> damaged = from.unit;
    damage(prng, kHeaderBytes, damaged);
    // Memory of exactly these lengths: neighbours of a vector's spare room would not be seen.
    const auto unit = std::make_unique<std::byte[]>(damaged.size());
    std::copy(damaged.begin(), damaged.end(), unit.get());
    const auto target = std::make_unique_for_overwrite<std::byte[]>(from.raw_bytes);
    const ConstBytes given(unit.get(), damaged.size());
    const Status status = decode_in_turn(codec, i, given, scratch, {target.get(), from.raw_bytes});
    UnitFacts facts;
    const bool has_head = codec.inspect(given, &facts).ok();
    if (status.ok()) {
      ASSERT_TRUE(has_head && facts.raw_bytes == from.raw_bytes) << "unit " << i << " of seed " << seed;
    } else {
      ASSERT_EQ(status, Code::Corrupt) << "unit " << i << " of seed " << seed;
    }
    refused += status.ok() ? 0 : 1;
  }
  std::printf("%s: %llu damaged units of seed %llu, %llu refused\n", std::string(codec.name).c_str(),
              static_cast<unsigned long long>(count), static_cast<unsigned long long>(seed),
              static_cast<unsigned long long>(refused));
  EXPECT_GT(refused, count / 4);
}

}  // namespace
}  // namespace halfstep::compress
