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

class TrailerAlone : public ::testing::Test {
 protected:
  // The end of the extent, as a read of its last pages has it.
  static std::vector<std::byte> tail_of(const Built& built) {
    std::vector<std::byte> tail;
    built.slot.for_range(built.shape.trailer_offset(), format::trailer_bytes(built.shape.parts),
                         [&](Bytes piece) { tail.insert(tail.end(), piece.begin(), piece.end()); });
    return tail;
  }
  Status open(const Built& built, ConstBytes tail) {
    return open_trailer(tail, built.shape.extent_bytes(), built.raw_bytes, built.checksum, &shape, &parts);
  }
  ExtentShape shape;
  PartTable parts;
};

TEST_F(TrailerAlone, SaysAllOfTheParts) {
  for (const auto& lengths :
       std::vector<std::vector<uint32_t>>{{1}, {4064}, {4065}, {1000, 3000, 96, 300'000}, std::vector<uint32_t>(2560, 100)}) {
    const Built built(lengths, 4);
    ASSERT_TRUE(open(built, tail_of(built)).ok());
    EXPECT_EQ(shape.parts, built.shape.parts);
    EXPECT_EQ(shape.stored_bytes, built.shape.stored_bytes);
    EXPECT_TRUE(shape.trailer);
    ASSERT_EQ(parts.size(), built.parts.size());
    for (size_t p = 0; p < parts.size(); ++p) {
      EXPECT_EQ(parts[p].offset, built.parts[p].offset);
      EXPECT_EQ(parts[p].stored_bytes, built.parts[p].stored_bytes);
      EXPECT_EQ(parts[p].stored_crc, built.parts[p].stored_crc);
    }
  }
}

TEST_F(TrailerAlone, IsNotBelievedWithAFlippedBitAnywhere) {
  const Built built({1000, 3000, 96}, 4);
  std::vector<std::byte> tail = tail_of(built);
  ASSERT_TRUE(open(built, tail).ok());
  for (size_t bit = 0; bit < tail.size() * 8; ++bit) {
    tail[bit / 8] ^= std::byte{1} << bit % 8;
    EXPECT_EQ(open(built, tail), Code::Corrupt) << "bit " << bit;
    tail[bit / 8] ^= std::byte{1} << bit % 8;
  }
}

TEST_F(TrailerAlone, IsOfAnExtentOfItsLengthWithItsChecksumAlone) {
  const Built built({1000, 3000, 96}, 4);
  const std::vector<std::byte> tail = tail_of(built);
  const uint64_t extent_bytes = built.shape.extent_bytes();
  const auto status = [&](ConstBytes bytes, uint64_t extent, uint32_t raw, uint32_t checksum) {
    return open_trailer(bytes, extent, raw, checksum, &shape, &parts);
  };
  EXPECT_TRUE(status(tail, extent_bytes, built.raw_bytes, built.checksum).ok());
  EXPECT_EQ(status(tail, extent_bytes + kPageBytes, built.raw_bytes, built.checksum), Code::Corrupt);
  EXPECT_EQ(status(tail, extent_bytes, built.raw_bytes + 1, built.checksum), Code::Corrupt);
  EXPECT_EQ(status(tail, extent_bytes, built.raw_bytes, built.checksum ^ 1), Code::Corrupt);
  EXPECT_EQ(status(ConstBytes(tail).subspan(24), extent_bytes, built.raw_bytes, built.checksum), Code::Corrupt);
  EXPECT_EQ(status(ConstBytes(tail).last(31), extent_bytes, built.raw_bytes, built.checksum), Code::Corrupt);
  EXPECT_EQ(status({}, extent_bytes, built.raw_bytes, built.checksum), Code::Corrupt);
}

TEST_F(TrailerAlone, GivesARawPartTheSumOfItsBytesWhateverItsWriterSaid) {
  Built built({4096, 3000}, 0);
  built.parts[0].raw_crc = 99;
  built.checksum = finish_extent(built.slot, built.shape, built.parts, built.raw_bytes);
  ASSERT_TRUE(open(built, tail_of(built)).ok());
  EXPECT_EQ(parts[0].raw_crc, built.parts[0].stored_crc);
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
