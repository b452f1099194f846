#include "store/read/trailer_cache.h"

#include <gtest/gtest.h>

namespace halfstep::store {
namespace {

IndexKey key_of_number(uint64_t number) { return {number * 0x9E3779B97F4A7C15, number}; }

Block block_of(uint32_t page) {
  Block block;
  block.location = {1, page, 0};
  block.bound_checksum = 7 * page;
  return block;
}

// So many parts, each of which says whose it is.
std::vector<PartInfo> table_of(uint32_t number, size_t parts) {
  std::vector<PartInfo> table(parts);
  for (size_t p = 0; p < parts; ++p) table[p] = {static_cast<uint32_t>(p), number, 0, 0, 0, 1};
  return table;
}

class Trailers : public ::testing::Test {
 protected:
  void keep(uint32_t number, size_t parts) { cache.keep(key_of_number(number), block_of(number), table_of(number, parts)); }
  // How many parts are known of it; their bytes are right.
  size_t known(uint32_t number) const {
    const std::span<const PartInfo> found = cache.find(key_of_number(number), block_of(number));
    size_t right = 0;
    for (const PartInfo& part : found) right += part.offset == right && part.stored_bytes == number ? 1 : 0;
    EXPECT_EQ(right, found.size());
    return found.size();
  }
  TrailerCache cache;
};

TEST_F(Trailers, AreKnownByKeyPlaceAndChecksum) {
  EXPECT_EQ(known(1), 0U);
  keep(1, 3);
  keep(2, 1);
  EXPECT_EQ(known(1), 3U);
  EXPECT_EQ(known(2), 1U);
  EXPECT_TRUE(cache.find(key_of_number(3), block_of(1)).empty());
  Block moved = block_of(1);
  moved.location.page = 9;
  EXPECT_TRUE(cache.find(key_of_number(1), moved).empty());
  Block reused = block_of(1);
  ++reused.location.reuse;
  EXPECT_TRUE(cache.find(key_of_number(1), reused).empty());
  Block anew = block_of(1);
  ++anew.bound_checksum;
  EXPECT_TRUE(cache.find(key_of_number(1), anew).empty());
}

TEST_F(Trailers, GiveWayToYoungerOnesTheOldestFirst) {
  constexpr uint32_t kFit = TrailerCache::kPartsMax / wire::kPartsMax;
  for (uint32_t n = 0; n < 3 * kFit + 1; ++n) {
    keep(n, wire::kPartsMax);
    for (uint32_t back = 0; back < std::min(n + 1, kFit); ++back) ASSERT_EQ(known(n - back), wire::kPartsMax) << n;
    if (n >= kFit) {
      ASSERT_EQ(known(n - kFit), 0U) << n;
    }
  }
}

TEST_F(Trailers, OfManySmallBlocksAreBoundedByTheirNumber) {
  constexpr uint32_t kMany = 3 * TrailerCache::kBlocksMax / 2;
  for (uint32_t n = 0; n < kMany; ++n) keep(n, 1);
  for (uint32_t n = 0; n < kMany; ++n) ASSERT_EQ(known(n), n < kMany - TrailerCache::kBlocksMax ? 0U : 1U) << n;
}

TEST_F(Trailers, OfOneKeyTheYoungestIsKnownAndOutlivesTheOthers) {
  const IndexKey key = key_of_number(1);
  cache.keep(key, block_of(1), table_of(1, 4));
  cache.keep(key, block_of(2), table_of(2, 6));
  EXPECT_TRUE(cache.find(key, block_of(1)).empty());
  EXPECT_EQ(cache.find(key, block_of(2)).size(), 6U);
  for (uint32_t n = 10; n < 10 + TrailerCache::kBlocksMax - 1; ++n) keep(n, 1);
  EXPECT_EQ(cache.find(key, block_of(2)).size(), 6U) << "the older one has made room";
  keep(9, 1);
  EXPECT_TRUE(cache.find(key, block_of(2)).empty());
}

// Tables of all lengths: none is ever found with parts of another one.
TEST_F(Trailers, OfAnyLengthsKeepTheirParts) {
  uint32_t parts = 1;
  for (uint32_t n = 0; n < 400; ++n) {
    parts = (parts * 1103 + 12'345) % wire::kPartsMax;
    keep(n, parts + 1);
    ASSERT_EQ(known(n), parts + 1);
    for (uint32_t back = 1; back < std::min(n, 100U); ++back) known(n - back);
  }
}

}  // namespace
}  // namespace halfstep::store
