#include "wire/layout.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "wire/sample_frames.h"

namespace halfstep::wire {
namespace {

using Fields = std::vector<std::pair<std::string, std::string>>;

GroupShape shape(uint16_t part_count, std::initializer_list<uint32_t> sizes) {
  GroupShape out{.part_count = part_count, .size_count = static_cast<uint16_t>(sizes.size())};
  std::copy(sizes.begin(), sizes.end(), out.part_bytes.begin());
  return out;
}

std::vector<std::byte> canonical(const Fields& fields, const std::vector<GroupShape>& groups) {
  std::vector<std::byte> out;
  Writer writer(out);
  writer.put(kLayoutVersion);
  writer.put(static_cast<uint16_t>(fields.size()));
  for (const auto& [name, value] : fields) {
    writer.put(static_cast<uint16_t>(name.size()));
    writer.put_bytes(as_bytes(name));
    writer.put(static_cast<uint16_t>(value.size()));
    writer.put_bytes(as_bytes(value));
  }
  writer.put(static_cast<uint16_t>(groups.size()));
  for (const GroupShape& group : groups) {
    writer.put(group.part_count);
    writer.put(group.size_count);
    for (uint32_t i = 0; i < std::min<uint32_t>(group.size_count, kPartSizesMax); ++i) writer.put(group.part_bytes[i]);
  }
  return out;
}

Status parsed(const Fields& fields, const std::vector<GroupShape>& groups) {
  Layout out;
  return Layout::parse(canonical(fields, groups), &out);
}

const std::vector<GroupShape> kOpaque = {shape(0, {kOpaquePartBytes})};

// ---- shapes ----

TEST(GroupShape, CutsAFixedBlockOfExactlyItsBytes) {
  const GroupShape group = shape(5, {100, 20, 3});
  EXPECT_EQ(group.parts_of(100 + 20 + 3 + 100 + 20), 5U);
  for (const uint64_t bytes : {0U, 1U, 123U, 242U, 244U, 486U}) EXPECT_EQ(group.parts_of(bytes), 0U) << bytes;
  EXPECT_EQ(group.bytes_of(4, 243), 20U);
  EXPECT_EQ(group.offset_of(4), 223U);
}

TEST(GroupShape, CutsAnOpenBlockUntilItsLengthEnds) {
  const GroupShape group = shape(0, {10, 4});
  const std::pair<uint64_t, uint32_t> kExpected[] = {{0, 0}, {1, 1}, {10, 1}, {11, 2}, {14, 2}, {15, 3}, {28, 4}, {29, 5}};
  for (const auto& [bytes, parts] : kExpected) EXPECT_EQ(group.parts_of(bytes), parts) << bytes;
  EXPECT_EQ(group.bytes_of(1, 11), 1U);
  EXPECT_EQ(group.bytes_of(1, 14), 4U);
}

TEST(GroupShape, RefusesMorePartsThanABlockMayHave) {
  const GroupShape group = shape(0, {8});
  EXPECT_EQ(group.parts_of(uint64_t{8} * kPartsMax), kPartsMax);
  EXPECT_EQ(group.parts_of(uint64_t{8} * kPartsMax + 1), 0U);
  EXPECT_EQ(group.parts_of(UINT64_MAX), 0U);
  EXPECT_EQ(group.parts_of(8 * ((uint64_t{1} << 32) + 1)), 0U);  // 2^32 + 1 parts are not one
}

TEST(GroupShape, StaysExactAtTheLargestSizes) {
  const GroupShape group = shape(0, {UINT32_MAX, UINT32_MAX, UINT32_MAX, UINT32_MAX});
  EXPECT_EQ(group.parts_of(uint64_t{UINT32_MAX} * kPartsMax), kPartsMax);
  EXPECT_EQ(group.offset_of(kPartsMax - 1), uint64_t{UINT32_MAX} * (kPartsMax - 1));
  EXPECT_EQ(group.bytes_of(kPartsMax - 1, uint64_t{UINT32_MAX} * kPartsMax - 1), UINT32_MAX - 1);
}

TEST(GroupShape, AnUnusableShapeHasNoParts) {
  EXPECT_EQ(GroupShape().parts_of(4096), 0U);
  EXPECT_EQ(shape(0, {4096, 0}).parts_of(4096), 0U);
  GroupShape no_sizes = shape(2, {8});
  no_sizes.size_count = 0;
  EXPECT_EQ(no_sizes.parts_of(16), 0U);
  EXPECT_EQ(no_sizes.bytes_of(1, 16), 0U);
  EXPECT_EQ(no_sizes.offset_of(1), 0U);
}

TEST(GroupShape, PartsTileTheBlockForEveryCycleAndLength) {
  for (const GroupShape& group : {shape(0, {7}), shape(0, {7, 3}), shape(0, {1, 2, 3}), shape(0, {5, 1, 4, 2})}) {
    for (uint64_t bytes = 1; bytes < 200; ++bytes) {
      const uint32_t parts = group.parts_of(bytes);
      uint64_t at = 0;
      for (uint32_t part = 0; part < parts; ++part) {
        ASSERT_EQ(group.offset_of(part), at);
        ASSERT_GT(group.bytes_of(part, bytes), 0U);
        at += group.bytes_of(part, bytes);
      }
      ASSERT_EQ(at, bytes);
      ASSERT_EQ(group.bytes_of(parts, bytes), 0U);
    }
  }
}

// ---- canonical form ----

TEST(Layout, SortsFieldsAndComesBackFromItsCanonicalForm) {
  const Layout made = samples::layout();
  Layout read;
  ASSERT_TRUE(Layout::parse(made.canonical(), &read).ok());
  EXPECT_EQ(read.fields(), (Fields{{"dtype", "bf16"}, {"engine", "example 1.0"}, {"model", "tiny"}}));
  EXPECT_EQ(read.groups(), made.groups());
  EXPECT_EQ(read.id(), made.id());
  EXPECT_TRUE(std::ranges::equal(read.canonical(), made.canonical()));
}

TEST(Layout, OrderIsBytewiseNotSigned) {
  EXPECT_TRUE(parsed({{"a", ""}, {"\xC3\xA9", ""}}, kOpaque).ok());
  EXPECT_EQ(parsed({{"\xC3\xA9", ""}, {"a", ""}}, kOpaque), Code::Invalid);
  EXPECT_TRUE(parsed({{"a", ""}, {"aa", ""}, {"b", ""}}, kOpaque).ok());
}

TEST(Layout, EveryByteOfItCountsForItsId) {
  std::set<LayoutId> ids;
  Layout out;
  for (const Fields& fields : {Fields{}, Fields{{"a", ""}}, Fields{{"a", "b"}}, Fields{{"ab", ""}}}) {
    for (const auto& groups : {kOpaque, std::vector{shape(1, {kOpaquePartBytes})}, std::vector{kOpaque[0], kOpaque[0]}}) {
      ASSERT_TRUE(Layout::make(fields, groups, &out).ok());
      ids.insert(out.id());
    }
  }
  EXPECT_EQ(ids.size(), 12U);
}

TEST(Layout, RefusesTruncationAtEveryByteAndTrailingBytes) {
  const Layout made = samples::layout();
  Layout out;
  for (size_t bytes = 0; bytes < made.canonical().size(); ++bytes) {
    EXPECT_EQ(Layout::parse(made.canonical().first(bytes), &out), Code::Invalid) << bytes;
  }
  std::vector<std::byte> longer(made.canonical().begin(), made.canonical().end());
  longer.push_back(std::byte{0});
  EXPECT_EQ(Layout::parse(longer, &out), Code::Invalid);
}

TEST(Layout, RefusesAnotherVersion) {
  std::vector<std::byte> bytes = canonical({}, kOpaque);
  Layout out;
  for (const uint16_t version : std::initializer_list<uint16_t>{0, 2, 0x0100}) {
    store_le(bytes.data(), version);
    EXPECT_EQ(Layout::parse(bytes, &out), Code::Invalid) << version;
  }
}

TEST(Layout, RefusesUnsortedDuplicateAndNamelessFields) {
  EXPECT_EQ(parsed({{"b", "1"}, {"a", "2"}}, kOpaque), Code::Invalid);
  EXPECT_EQ(parsed({{"a", "1"}, {"a", "2"}}, kOpaque), Code::Invalid);
  EXPECT_EQ(parsed({{"", "1"}}, kOpaque), Code::Invalid);
  Layout out;
  EXPECT_EQ(Layout::make({{"a", "1"}, {"a", "2"}}, kOpaque, &out), Code::Invalid);
}

TEST(Layout, RefusesTextThatIsNotUtf8) {
  EXPECT_EQ(parsed({{"a\xFF", "1"}}, kOpaque), Code::Invalid);
  EXPECT_EQ(parsed({{"a", "\xED\xA0\x80"}}, kOpaque), Code::Invalid);
}

TEST(Layout, RefusesGroupsThatCutNoBlock) {
  GroupShape none = shape(1, {8});
  none.size_count = 0;
  GroupShape five = shape(1, {8});
  five.size_count = 5;
  const std::vector<std::vector<GroupShape>> kRefused = {
      {},
      {shape(1, {0})},
      {shape(0, {8, 0})},
      {shape(1, {static_cast<uint32_t>(kBlockBytesMax) + 1})},
      {shape(2, {static_cast<uint32_t>(kBlockBytesMax)})},
      {shape(static_cast<uint16_t>(kPartsMax + 1), {8})},
      {none},
      {five},
      std::vector<GroupShape>(kGroupsMax + 1, shape(1, {8})),
  };
  for (size_t i = 0; i < kRefused.size(); ++i) {
    EXPECT_EQ(parsed({}, kRefused[i]), Code::Invalid) << i;
    Layout out;
    EXPECT_EQ(Layout::make({}, kRefused[i], &out), Code::Invalid) << i;
  }
  EXPECT_TRUE(parsed({}, {shape(1, {static_cast<uint32_t>(kBlockBytesMax)})}).ok());
  EXPECT_TRUE(parsed({}, std::vector<GroupShape>(kGroupsMax, shape(kPartsMax, {8}))).ok());
}

TEST(Layout, RefusesMoreThanItsByteLimit) {
  const size_t overhead = canonical({{"a", ""}}, kOpaque).size();
  const std::string full(kLayoutBytesMax - overhead, 'x');
  EXPECT_TRUE(parsed({{"a", full}}, kOpaque).ok());
  EXPECT_EQ(parsed({{"a", full + "x"}}, kOpaque), Code::Invalid);
  Layout out;
  EXPECT_EQ(Layout::make({{"a", std::string(1 << 20, 'x')}}, kOpaque, &out), Code::Invalid);
  EXPECT_EQ(Layout::make(Fields(70'000, {"a", "b"}), kOpaque, &out), Code::Invalid);
}

TEST(Layout, KeepsItsOldValueWhenItRefuses) {
  Layout out = samples::layout();
  const LayoutId before = out.id();
  EXPECT_EQ(Layout::parse({}, &out), Code::Invalid);
  EXPECT_EQ(out.id(), before);
}

// ---- names ----

TEST(Layout, KnowsTheCoarsestStepThatItsFieldsName) {
  const auto coarsest = [](std::string_view list) {
    Layout layout;
    EXPECT_TRUE(Layout::make({{"codec", "ubq"}, {"codec.0", std::string(list)}, {"codec.1", "bf16/64/0.02"}},
                             {GroupShape{0, 1, {64}}}, &layout)
                    .ok());
    return layout.coarsest_step();
  };
  EXPECT_EQ(coarsest(""), 200U);
  EXPECT_EQ(coarsest("2*(8*bf16/128/0.03,8*bf16/128/0.25),raw,any,bf16/128"), 2500U);
  EXPECT_EQ(coarsest("bf16/128/0.07"), 700U) << "not a unit more, whatever 0.07 is in binary";
  EXPECT_EQ(coarsest("bf16/128/0.07001"), 701U) << "rounded up";
  for (const char* none : {"bf16/1/nan", "bf16/1/inf", "bf16/1/-1", "bf16/1/1e30", "bf16/1/x", "bf16/1/", "bf16/1/0.1/2"}) {
    EXPECT_EQ(coarsest(none), UINT32_MAX) << none;
  }
  Layout exact;
  ASSERT_TRUE(
      Layout::make({{"codec", "bfx"}, {"codec.0", "bf16/128"}, {"other", "bf16/1/3"}}, {GroupShape{0, 1, {64}}}, &exact).ok());
  EXPECT_EQ(exact.coarsest_step(), 0U);
}

TEST(Component, HoldsGroupVariantAndCell) {
  const Component component = Component::of(200, 9, 0xABCDE);
  EXPECT_EQ(component.value, 0xC89ABCDEU);
  EXPECT_EQ(component.group(), 200U);
  EXPECT_EQ(component.variant(), 9U);
  EXPECT_EQ(component.cell(), 0xABCDEU);
}

TEST(NameNumber, DependsOnEveryPartOfTheName) {
  const LayoutId id = samples::layout().id();
  LayoutId other = id;
  other[15] ^= std::byte{1};
  const std::string longest(kEngineKeyBytesMax, 'k');
  std::set<uint32_t> numbers = {name_number(id, {0}, as_bytes("k")),     name_number(id, {1}, as_bytes("k")),
                                name_number(other, {0}, as_bytes("k")),  name_number(id, {0}, as_bytes("kk")),
                                name_number(id, {0}, as_bytes(longest)), name_number(id, {0}, as_bytes(longest.substr(1)))};
  EXPECT_EQ(numbers.size(), 6U);
}

TEST(WireCheck, FailsUnderAnotherNameOrPart) {
  EXPECT_EQ(wire_check(0x12345678, 0xFFFFFFFF, 1), 0x12345678U ^ 0x9E3779B0U);  // wraps
  EXPECT_NE(wire_check(7, 1, 0), wire_check(7, 2, 0));
  EXPECT_NE(wire_check(7, 1, 0), wire_check(7, 1, 1));
}

TEST(Route, StaysBelowTheShardsAndSpreads) {
  for (uint32_t shards = 1; shards <= kShardsMax; ++shards) {
    std::vector<uint32_t> hits(shards);
    for (int i = 0; i < 4096; ++i) {
      const uint32_t shard = route(as_bytes("key-" + std::to_string(i)), shards);
      ASSERT_LT(shard, shards);
      ++hits[shard];
    }
    // Binomial with mean 4096 / shards: six standard deviations.
    const double mean = 4096.0 / shards;
    for (const uint32_t hit : hits) EXPECT_LT(std::abs(hit - mean), 6 * std::sqrt(mean) + 1) << shards;
  }
}

}  // namespace
}  // namespace halfstep::wire
