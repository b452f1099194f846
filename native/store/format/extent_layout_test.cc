#include "store/format/extent_layout.h"

#include <gtest/gtest.h>

#include "base/crc.h"
#include "base/prng.h"

namespace halfstep::store {
namespace {

// An extent in memory as a writer would leave it, from parts of these lengths.
class Built {
 public:
  Built(std::vector<uint32_t> lengths, uint8_t codec) {
    Prng prng(lengths.size());
    uint32_t at = 0;
    parts.reset(lengths.size());
    for (size_t p = 0; p < lengths.size(); ++p) {
      parts[p] = {at, lengths[p], lengths[p], 0, 0, codec};
      at += lengths[p];
    }
    raw_bytes = at;
    shape = shape_of(parts, at);
    EXPECT_TRUE(Arena::create(8 * MiB, false, &arena).ok());
    pool = std::make_unique<SlotPool>(*arena);
    slot = pool->take(shape.extent_bytes());
    slot.for_range(0, slot.bytes(), [&](Bytes piece) { prng.fill(piece); });  // also where padding will be
    for (PartInfo& part : parts) {
      slot.for_range(part.offset, part.stored_bytes, [&](Bytes piece) { part.stored_crc = crc32c(piece, part.stored_crc); });
      part.raw_crc = part.stored_crc;
    }
    checksum = finish_extent(slot, shape, parts, raw_bytes);
  }
  uint32_t whole_crc() const {
    uint32_t crc = 0;
    slot.for_range(0, slot.bytes(), [&](Bytes piece) { crc = crc32c(piece, crc); });
    return crc;
  }
  Status verify(PartTable* out, const wire::GroupShape* group = nullptr) const {
    return verify_extent(slot, shape, group, raw_bytes, checksum, out);
  }

  std::unique_ptr<Arena> arena;
  std::unique_ptr<SlotPool> pool;
  Slot slot;
  PartTable parts;
  ExtentShape shape;
  uint32_t raw_bytes = 0;
  uint32_t checksum = 0;
};

TEST(ExtentLayout, ChecksumCombinedFromPartsIsThatOfTheWholeExtent) {
  for (const auto& lengths : std::vector<std::vector<uint32_t>>{
           {1}, {4096}, {4096, 8192}, {1000, 3000, 96}, {262'144, 262'144, 5}, std::vector<uint32_t>(2560, 100)}) {
    const Built built(lengths, 0);
    EXPECT_EQ(built.checksum, built.whole_crc());
  }
}

TEST(ExtentLayout, TrailersBringBackWhatWasPutIn) {
  const Built built({1000, 3000, 96, 300'000}, 4);
  PartTable parts;
  ASSERT_TRUE(built.verify(&parts).ok());
  ASSERT_EQ(parts.size(), 4U);
  for (size_t p = 0; p < parts.size(); ++p) {
    EXPECT_EQ(parts[p].offset, built.parts[p].offset);
    EXPECT_EQ(parts[p].stored_bytes, built.parts[p].stored_bytes);
    EXPECT_EQ(parts[p].stored_crc, built.parts[p].stored_crc);
    EXPECT_EQ(parts[p].codec, 4);
  }
}

TEST(ExtentLayout, NoFlippedByteOfAnExtentPassesNotEvenInItsPadding) {
  const Built built({1000, 3000, 96}, 4);
  PartTable parts;
  ASSERT_TRUE(built.verify(&parts).ok());
  for (uint64_t at = 0; at < built.slot.bytes(); ++at) {
    const auto flip = [&] { built.slot.for_range(at, 1, [](Bytes piece) { piece[0] ^= std::byte{0x10}; }); };
    flip();
    EXPECT_FALSE(built.verify(&parts).ok()) << "byte " << at;
    flip();
  }
}

TEST(ExtentLayout, PlainBlocksHaveNoTrailerAndAreCutByTheirGroup) {
  const Built built({8192, 4096, 8192, 4096}, 0);
  EXPECT_FALSE(built.shape.trailer);
  EXPECT_EQ(built.shape.extent_bytes(), 24'576U);
  wire::GroupShape group;
  group.part_count = 4;
  group.size_count = 2;
  group.part_bytes = {8192, 4096, 0, 0};
  PartTable parts;
  ASSERT_TRUE(built.verify(&parts, &group).ok());
  EXPECT_EQ(parts[2].stored_crc, built.parts[2].stored_crc);
  EXPECT_FALSE(built.verify(&parts, nullptr).ok());
  group.part_count = 5;
  EXPECT_FALSE(built.verify(&parts, &group).ok());
}

}  // namespace
}  // namespace halfstep::store
