#include "store/format/part_table.h"

#include <gtest/gtest.h>

namespace halfstep::store {
namespace {

TEST(PartTable, HasOnePartInItselfAndMoreElsewhere) {
  PartTable table;
  EXPECT_TRUE(table.empty());
  EXPECT_EQ(table.begin(), table.end());
  table.reset(1);
  const auto* const own = reinterpret_cast<const std::byte*>(&table);
  const auto* const one = reinterpret_cast<const std::byte*>(table.data());
  EXPECT_TRUE(one >= own && one + sizeof(PartInfo) <= own + sizeof(table));
  table.reset(5);
  EXPECT_EQ(table.size(), 5U);
  EXPECT_EQ(table.end() - table.begin(), 5);
}

TEST(PartTable, KnowsNothingOfPartsThatWereThereBefore) {
  PartTable table;
  for (const size_t count : {1U, 4U, 1U, 2U, 0U, 4U, 1U}) {
    table.reset(count);
    ASSERT_EQ(table.size(), count);
    for (PartInfo& part : table) {
      EXPECT_EQ(part.offset + part.stored_bytes + part.raw_bytes + part.stored_crc + part.raw_crc + part.codec, 0U);
      part = {1, 2, 3, 4, 5, 6};
    }
  }
}

TEST(PartTable, KeepsNoMemoryOfAMuchLargerBlock) {
  PartTable table;
  table.reset(2560);
  EXPECT_EQ(table.heap_bytes(), 2560 * sizeof(PartInfo));
  table.reset(1300);
  EXPECT_EQ(table.heap_bytes(), 2560 * sizeof(PartInfo)) << "half of it";
  table.reset(100);
  EXPECT_EQ(table.heap_bytes(), 100 * sizeof(PartInfo));
  table.reset(1);
  EXPECT_EQ(table.heap_bytes(), 0U);
}

TEST(PartTable, TakesNoMemoryForAsManyAsItHasHad) {
  PartTable table;
  table.reset(8);
  const PartInfo* const many = table.data();
  table.reset(1);
  table.reset(3);
  EXPECT_EQ(table.data(), many);
  table.reset(8);
  EXPECT_EQ(table.data(), many);
}

}  // namespace
}  // namespace halfstep::store
