#include "base/bytes.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include "base/prng.h"

namespace halfstep {
namespace {

TEST(Reader, TakesWhatAWriterPut) {
  std::vector<std::byte> bytes;
  bytes.reserve(64);  // without it g++ 12 sees an overflow in std::vector::insert that is not there
  Writer writer(bytes);
  writer.put(uint32_t{0x04030201});
  writer.put(uint8_t{5});
  writer.put_bytes(as_bytes("text"));
  writer.put(uint64_t{0});
  writer.patch(9, uint64_t{0x1122334455667788});
  EXPECT_EQ(writer.size(), 17U);
  EXPECT_EQ(bytes[0], std::byte{1}) << "little-endian";
  EXPECT_EQ(bytes[3], std::byte{4});

  Reader reader(bytes);
  EXPECT_EQ(reader.take<uint32_t>(), 0x04030201U);
  EXPECT_EQ(reader.take<uint8_t>(), 5U);
  EXPECT_EQ(as_text(reader.take_bytes(4)), "text");
  EXPECT_EQ(reader.left(), 8U);
  EXPECT_FALSE(reader.finished());
  EXPECT_EQ(reader.take<uint64_t>(), 0x1122334455667788U);
  EXPECT_TRUE(reader.finished());
  EXPECT_FALSE(reader.failed());
}

TEST(Reader, FailsForGoodOnceAByteIsMissingAndYieldsZeros) {
  const uint8_t source[7] = {1, 2, 3, 4, 5, 6, 7};
  Reader reader(object_bytes(source));
  EXPECT_EQ(reader.take<uint32_t>(), 0x04030201U);
  EXPECT_EQ(reader.take<uint32_t>(), 0U) << "three are left";
  EXPECT_TRUE(reader.failed());
  EXPECT_EQ(reader.take<uint8_t>(), 0U) << "it would have fitted, but the record is broken";
  EXPECT_EQ(reader.take_bytes(0).size(), 0U);
  EXPECT_EQ(reader.left(), 0U);
  EXPECT_FALSE(reader.finished());
}

TEST(Reader, RefusesLengthsThatWouldWrap) {
  const uint8_t source[8] = {};
  for (const size_t count : {size_t{9}, SIZE_MAX, SIZE_MAX - 7, size_t{1} << 63}) {
    Reader reader(object_bytes(source));
    EXPECT_TRUE(reader.take_bytes(count).empty());
    EXPECT_TRUE(reader.failed());
  }
}

TEST(Reader, NeverReadsPastItsSpanWhateverIsAsked) {
  // Exact heap blocks, so that AddressSanitizer sees a byte too many.
  Prng prng(31);
  for (int round = 0; round < 2000; ++round) {
    std::vector<std::byte> bytes(prng.below(40));
    bytes.shrink_to_fit();
    prng.fill(bytes);
    Reader reader(bytes);
    size_t taken = 0;
    uint64_t sum = 0;
    while (!reader.failed()) {
      const size_t before = reader.left();
      switch (prng.below(4)) {
        case 0: sum += reader.take<uint16_t>(); break;
        case 1: sum += reader.take<uint64_t>(); break;
        case 2: sum += reader.take_bytes(prng.below(20)).size(); break;
        default: sum += reader.take<uint8_t>(); break;
      }
      if (!reader.failed()) taken += before - reader.left();
      ASSERT_LE(taken, bytes.size());
    }
    ASSERT_EQ(reader.left(), 0U) << sum;
  }
}

TEST(Writer, PadsToAUnitWithZeros) {
  std::vector<std::byte> bytes;
  bytes.reserve(64);  // without it g++ 12 sees an overflow in std::vector::insert that is not there
  Writer writer(bytes);
  writer.pad_to(8);
  EXPECT_EQ(writer.size(), 0U);
  writer.put(uint8_t{0xFF});
  writer.pad_to(8);
  EXPECT_EQ(writer.size(), 8U);
  EXPECT_EQ(load_le<uint64_t>(bytes.data()), 0xFFU);
  writer.pad_to(8);
  EXPECT_EQ(writer.size(), 8U);
}

TEST(Bytes, LoadAndStoreAreUnaligned) {
  std::vector<std::byte> bytes(16);
  for (size_t at = 0; at <= 8; ++at) {
    store_le(bytes.data() + at, uint64_t{0xA1A2A3A4A5A6A7A8} + at);
    EXPECT_EQ(load_le<uint64_t>(bytes.data() + at), uint64_t{0xA1A2A3A4A5A6A7A8} + at);
  }
}

}  // namespace
}  // namespace halfstep
