#include "store/store.h"

#include <gtest/gtest.h>

#include "store/store_fixture.h"

namespace halfstep::store {
namespace store_test {

std::string name_of(uint64_t number) { return "block-" + std::to_string(number); }

TEST(Store, DerivesManyKeysAsItDoesOne) {
  StoreBed bed;
  bed.open();
  std::vector<std::string> texts;
  std::vector<BlockName> names;
  for (size_t i = 0; i < 101; ++i) texts.push_back(std::string(1 + i * 7 % 255, static_cast<char>('a' + i % 26)));
  for (uint32_t i = 0; i < texts.size(); ++i) {
    names.push_back({1 + i % 3, wire::Component::of(i % 2, 0, i), as_bytes(texts[i])});
  }
  std::vector<IndexKey> keys(names.size());
  bed.store->keys_of(names, keys);
  for (size_t i = 0; i < names.size(); ++i) EXPECT_EQ(keys[i], bed.store->key_of(names[i])) << i;
}

TEST(Store, ReturnsEveryShapeOfBlockFromMemoryAndAfterARestart) {
  StoreBed bed;
  bed.open();
  const uint32_t largest = bed.geometry.block_bytes_max;
  struct Shape {
    const char* name;
    uint32_t group;
    uint32_t bytes;
  };
  const Shape shapes[] = {
      {"plain", kGroupPlain, 16384},
      {"one byte", kGroupByte, 1},
      {"ragged", kGroupRagged, 12'345},
      {"ragged pages", kGroupRagged, 8192},
      {"opaque small", kGroupOpaque, 77},
      {"opaque page", kGroupOpaque, 4096},
      {"largest", kGroupOpaque, largest},
      {"a key of more than thirty-two bytes, as many engines have", kGroupPlain, 16384},
      {"largest but one", kGroupOpaque, largest - 1},
  };
  for (const Shape& shape : shapes) {
    ASSERT_EQ(bed.put(shape.name, shape.group, shape.bytes, true), Code::Ok) << shape.name;
    EXPECT_EQ(bed.get(shape.name, shape.group), Code::Ok) << shape.name;
  }
  EXPECT_GT(bed.store->counters().hits_memory, 0U);
  for (int start = 0; start < 2; ++start) {
    bed.reopen();
    EXPECT_EQ(bed.store->recovery().blocks, std::size(shapes));
    for (const Shape& shape : shapes) {
      const Found found = bed.store->find({bed.key(shape.name, shape.group), wire::Component::of(shape.group, 0, 0)});
      EXPECT_TRUE(found.present) << shape.name;
      EXPECT_EQ(found.block_bytes, shape.bytes);
      EXPECT_EQ(bed.get(shape.name, shape.group), Code::Ok) << shape.name;
    }
    EXPECT_EQ(bed.store->counters().hits_flash, std::size(shapes));
  }
}

TEST(Store, OverwritesTheOldestSegmentsManyTimesOver) {
  StoreBed bed(2, 6);
  bed.open();
  constexpr uint64_t kBlocks = 4000;  // 65 MB through 12 MiB of segments
  for (uint64_t i = 0; i < kBlocks; ++i) ASSERT_EQ(bed.put(name_of(i)), Code::Ok) << i;
  bed.settle();
  EXPECT_GT(bed.store->counters().segments_reclaimed, 20U);
  uint64_t there = 0;
  bool seen = false;
  for (uint64_t i = 0; i < kBlocks; ++i) {
    const Status status = bed.get(name_of(i));
    ASSERT_TRUE(status == Code::Ok || status == Code::NotFound);
    if (status.ok()) {
      seen = true;
      ++there;
    } else {
      EXPECT_FALSE(seen) << "block " << i << " is gone though an older one is there";
    }
  }
  EXPECT_GT(there, 350U);
  const uint64_t before = bed.store->gauges().blocks;
  bed.reopen();
  EXPECT_EQ(bed.store->recovery().blocks, before);
  EXPECT_EQ(bed.get(name_of(kBlocks - 1)), Code::Ok);
}

TEST(Store, DeletedBlocksStayDeletedThroughRestartsAndLogCompaction) {
  StoreBed bed(3, 16);
  bed.open();
  for (uint64_t i = 0; i < 300; ++i) ASSERT_EQ(bed.put(name_of(i)), Code::Ok);
  for (uint64_t round = 0; round < 40; ++round) {
    for (uint64_t i = 0; i < 300; i += 3) ASSERT_EQ(bed.remove(name_of(i)), Code::Ok);
    for (uint64_t i = 0; i < 300; i += 3) ASSERT_EQ(bed.get(name_of(i)), Code::NotFound);
    if (round + 1 == 40) break;
    for (uint64_t i = 0; i < 300; i += 3) ASSERT_EQ(bed.put(name_of(i)), Code::Ok);
  }
  EXPECT_EQ(bed.remove("never there"), Code::NotFound);
  for (int start = 0; start < 3; ++start) {
    bed.reopen();
    for (uint64_t i = 0; i < 300; i += 3) ASSERT_EQ(bed.get(name_of(i)), Code::NotFound) << i;
  }
}

TEST(Store, ANamespaceMayHaveTheLongestNameOfTheWire) {
  StoreBed bed(6);
  bed.open();
  const std::string name(255, 'n');
  Status status = Code::Internal;
  bed.store->create_namespace({name, 0, 0}, [&](Status answer) { status = answer; });
  bed.settle();
  EXPECT_EQ(status, Code::Ok);
  bed.reopen();
  EXPECT_TRUE(bed.store->has_namespace(name));
  bed.store->create_namespace({name + "n", 0, 0}, [&](Status answer) { status = answer; });
  EXPECT_EQ(status, Code::Invalid);
}

TEST(Store, ALayoutOfANamespaceThatIsDeletedInTheSameChangeIsNotFound) {
  StoreBed bed(7);
  bed.open();
  bed.store->create_namespace({"short-lived", 0, 0}, [](Status status) { EXPECT_EQ(status, Code::Ok); });
  bed.settle();
  Status registered = Code::Internal;
  uint32_t scope = 1;
  bed.store->register_layout("short-lived", test_layout("another"), [&](Status status, uint32_t got) {
    registered = status;
    scope = got;
  });
  bed.store->delete_namespace("short-lived", [](Status status) { EXPECT_EQ(status, Code::Ok); });
  bed.settle();
  EXPECT_EQ(registered, Code::NotFound);
  EXPECT_EQ(scope, 0U);
}

TEST(Store, LayoutsOfOneNamespaceLeaveRoomForThoseOfOthers) {
  StoreBed bed(4, 16);
  bed.open();
  bed.store->create_namespace({"other", 0, 0}, [](Status status) { EXPECT_EQ(status, Code::Ok); });
  bed.settle();
  const auto fill = [&](const char* name, size_t filler) {
    uint32_t stored = 0;
    Status last;
    while (last.ok()) {
      wire::Layout layout;
      const std::string number = std::to_string(stored);
      EXPECT_TRUE(wire::Layout::make({{"model", name + number}, {"more", std::string(filler, 'x')}},
                                     {{.part_count = 1, .size_count = 1, .part_bytes = {4096}}}, &layout)
                      .ok());
      bool done = false;
      bed.store->register_layout(name, layout, [&](Status status, uint32_t scope) {
        last = status;
        bed.scope = scope;
        done = true;
      });
      while (!done) bed.pump();
      if (!last.ok()) break;
      ++stored;
      // One without a block gives its place up.
      EXPECT_EQ(bed.put("block", 0, 4096), Code::Ok);
    }
    EXPECT_EQ(last, Code::NoSpace);
    return stored;
  };
  const uint32_t large = fill("default", 15'000);
  EXPECT_GT(large, 8U);
  EXPECT_LT(large, 20U) << "by their bytes";
  EXPECT_EQ(fill("other", 10), format::kNamespaceLayoutsMax) << "by their number";
}

}  // namespace store_test
}  // namespace halfstep::store
