// Some parts of coded blocks, from flash: what is read for them, that they are right, and what becomes of those that are not.
#include <gtest/gtest.h>

#include "store/coded_fixture.h"

namespace halfstep::store {
namespace {

class CodedParts : public CodedBed {
 protected:
  // From now on what is read, in order.
  void list_reads() {
    order.clear();
    tap->tap = [this](io::Request& request) {
      if (request.op == io::Op::Read) order.emplace_back(request.offset, request.bytes);
      return TapEngine::Fate::Pass;
    };
  }
  // Where a block's extent is, by a read of its trailer.
  uint64_t extent_of(const std::string& name) {
    list_reads();
    expect_parts(name, {3, 1});
    return order.at(0).first + order.at(0).second - shape_of_parts(coded_parts()).extent_bytes();
  }
  // The block is dropped by its first read of some parts, and that is counted as what it was.
  void expect_corrupt(const std::string& name, PartSpan span = {3, 1}) {
    const uint64_t before = store->counters().misses_corrupt;
    Asked asked;
    ASSERT_EQ(begin(asked, name, span), Code::Ok);
    finish(asked);
    EXPECT_EQ(asked.read.status, Code::Corrupt);
    EXPECT_EQ(asked.read.resident, nullptr);
    EXPECT_EQ(store->counters().misses_corrupt, before + 1);
    EXPECT_FALSE(store->find(key(name, kGroupLarge)).present) << "judged by the whole of it";
  }

  std::vector<std::pair<uint64_t, uint32_t>> order;
};

TEST_F(CodedParts, ReadTheTrailerAndThenTheirOwnPages) {
  const std::vector<PartInfo> parts = coded_parts();
  fill_coded({"a", "b"});
  list_reads();
  const uint64_t resident_before = store->gauges().memory_resident_bytes;
  expect_parts("a", {3, 1});
  ASSERT_EQ(order.size(), 2U);
  EXPECT_EQ(order[0].second, kPageBytes) << "of sixteen parts";
  const uint64_t extent = order[0].first + kPageBytes - shape_of_parts(parts).extent_bytes();
  EXPECT_EQ(order[1].first, extent + round_down(parts[3].offset, kPageBytes));
  EXPECT_EQ(order[1].second, page_bytes_of(parts, {3, 1}));
  EXPECT_EQ(part_reads(), 1U);
  EXPECT_EQ(store->counters().hits_flash, 1U);
  EXPECT_EQ(store->gauges().memory_resident_bytes, resident_before) << "nobody else could find it";
}

TEST_F(CodedParts, ReadATrailerOnceForAllThatFollow) {
  const std::vector<PartInfo> parts = coded_parts();
  fill_coded({"a", "b"});
  expect_parts("a", {0, 2});
  expect_parts("b", {5, 3});
  for (const char* name : {"a", "b"}) {
    for (const PartSpan span : {PartSpan{0, 2}, PartSpan{2, 2}, PartSpan{9, 4}, PartSpan{kParts - 1, 1}}) {
      list_reads();
      expect_parts(name, span);
      ASSERT_EQ(order.size(), 1U);
      EXPECT_EQ(order[0].second, page_bytes_of(parts, span));
    }
  }
  EXPECT_EQ(part_reads(), 10U);
  EXPECT_EQ(failed(), 0U);
}

TEST_F(CodedParts, OfEverySpanAreRight) {
  fill_coded({"block"});
  for (uint32_t first = 0; first < kParts; ++first) {
    for (uint32_t count = 1; first + count <= kParts; count += 3) {
      SCOPED_TRACE(std::to_string(first) + "+" + std::to_string(count));
      reopen();  // what was read whole is in memory
      const uint64_t before = part_reads();
      expect_parts("block", {first, count});
      EXPECT_EQ(part_reads() - before, count < kParts / 2 ? 1U : 0U);
      expect_parts("block", {first, count});
      EXPECT_EQ(part_reads() - before, count < kParts / 2 ? 2U : 0U) << "whether its trailer is known or not";
      EXPECT_EQ(failed(), 0U);
    }
  }
}

TEST_F(CodedParts, OfWhichNobodyAskedAreKnownAndNotThere) {
  fill_coded({"block"});
  for (const bool known : {false, true}) {
    Asked asked;
    ASSERT_EQ(begin(asked, "block", {6, 3}), Code::Ok);
    finish(asked);
    ASSERT_TRUE(asked.read.status.ok()) << known;
    for (uint32_t p = 0; p < kParts; ++p) EXPECT_EQ(asked.read.resident->parts()[p].is_there(), p >= 6 && p < 9) << p;
    store->unpin(asked.read.resident);
  }
}

TEST_F(CodedParts, OfWhatIsInMemoryComeFromThere) {
  fill_coded({"block"});
  ASSERT_EQ(get("block", kGroupLarge), Code::Ok);
  list_reads();
  expect_parts("block", {5, 1});
  EXPECT_TRUE(order.empty());
  EXPECT_EQ(part_reads(), 0U);
}

TEST_F(CodedParts, TakeWhatFindSaysWhetherTheTrailerIsKnownOrNot) {
  fill_coded({"block"});
  uint64_t bytes_before = UINT64_MAX;
  for (const bool known : {false, true}) {
    Sought sought(key("block", kGroupLarge), wire::Component::of(kGroupLarge, 0, 0));
    sought.parts = {5, 2};
    const Found found = store->find(sought);
    const uint64_t before = store->gauges().memory_pinned_bytes;
    Asked asked;
    ASSERT_EQ(begin(asked, "block", sought.parts), Code::Ok);
    EXPECT_EQ(store->gauges().memory_pinned_bytes - before, found.memory_bytes) << known;
    EXPECT_LE(found.memory_bytes, bytes_before);
    bytes_before = found.memory_bytes;
    finish(asked);
    store->unpin(asked.read.resident);
  }
}

TEST_F(CodedParts, WhereTheTrailerIsDamagedTheBlockIsAMissWhateverWasHit) {
  // By where in the extent's end: a part's lengths, its sums, its codec, reserved bytes, those of the tail; and the padding.
  const ExtentShape shape = shape_of_parts(coded_parts());
  const uint64_t record = shape.trailer_offset() + 3 * sizeof(format::TrailerPart);
  const uint64_t tail = shape.extent_bytes() - sizeof(format::TrailerTail);
  std::vector<uint64_t> places{record, record + 4, record + 8, record + 12, record + 16, record + 20};
  for (uint64_t at = tail; at < shape.extent_bytes(); at += 4) places.push_back(at);
  ASSERT_LT(shape.stored_bytes, shape.trailer_offset());
  places.push_back(shape.stored_bytes);
  std::vector<std::string> names;
  for (size_t i = 0; i < places.size(); ++i) names.push_back("block " + std::to_string(i));
  fill_coded(names);
  std::vector<uint64_t> extents;
  for (const std::string& name : names) extents.push_back(extent_of(name));
  for (size_t i = 0; i < names.size(); ++i) device->flip_bit(extents[i] + places[i], static_cast<uint32_t>(i % 8));
  expect_parts("block 0", {3, 1});  // its trailer is known, and was right
  reopen();
  for (size_t i = 0; i + 1 < names.size(); ++i) {
    SCOPED_TRACE(places[i] - shape.trailer_offset());
    expect_corrupt(names[i]);
    EXPECT_EQ(failed(), i + 1);
  }
  // No part, and no page that was read for them.
  expect_parts(names.back(), {3, 1});
}

TEST_F(CodedParts, OfDamagedBytesAreAMissAndOfThoseBesideThemAreNot) {
  const std::vector<PartInfo> parts = coded_parts();
  fill_coded({"block", "other"});
  const uint64_t extent = extent_of("block");
  device->flip_bit(extent + parts[6].offset + parts[6].stored_bytes / 2, 3);
  expect_parts("block", {5, 1});
  expect_parts("block", {7, 2});
  EXPECT_EQ(failed(), 0U);
  expect_corrupt("block", {6, 1});
  EXPECT_EQ(failed(), 1U);
  expect_parts("other", {6, 1});
}

TEST_F(CodedParts, ThatTheDeviceFailsAreReadAgainWithTheWholeBlock) {
  fill_coded({"block"});
  for (const int which : {1, 2}) {
    reopen();
    int seen = 0;
    tap->tap = [&](io::Request& request) {
      const bool fails = request.op == io::Op::Read && ++seen == which;
      return fails ? TapEngine::Fate::Fail : TapEngine::Fate::Pass;
    };
    expect_parts("block", {9, 2});
    EXPECT_EQ(failed(), 1U) << which;
    EXPECT_EQ(seen, which + 1) << "and the whole of it";
    tap->tap = nullptr;
  }
}

// A part may be longer than it is raw; there is memory for as much as it is raw before its trailer is known.
TEST_F(CodedParts, LongerThanRawOnesComeWithTheWholeBlockUntilTheTrailerIsKnown) {
  std::vector<PartInfo> parts = coded_parts(1000);
  parts[2].stored_bytes = 2 * kPartBytes;
  for (uint32_t p = 1; p < kParts; ++p) parts[p].offset = parts[p - 1].offset + parts[p - 1].stored_bytes;
  fill_coded({"block"}, parts);
  expect_parts("block", {2, 1}, parts);
  EXPECT_EQ(failed(), 1U);
  EXPECT_EQ(store->counters().misses_corrupt, 0U);
  reopen();
  expect_parts("block", {7, 1}, parts);
  expect_parts("block", {2, 1}, parts);
  EXPECT_EQ(part_reads(), 2U);
  EXPECT_EQ(failed(), 0U);
}

TEST_F(CodedParts, OfABlockThatWasPutAgainAreThoseOfTheNewOne) {
  fill_coded({"block"});
  expect_parts("block", {3, 2});
  ASSERT_EQ(remove("block", kGroupLarge), Code::Ok);
  const std::vector<PartInfo> others = coded_parts(5000);
  ASSERT_EQ(put_coded("block", others), Code::Ok);
  for (int i = 0; i < 40; ++i) ASSERT_EQ(put_coded("filler " + std::to_string(i)), Code::Ok);  // out of memory
  settle();
  const uint64_t before = part_reads();
  expect_parts("block", {3, 2}, others);
  EXPECT_EQ(part_reads(), before + 1);
  EXPECT_EQ(failed(), 0U);
}

TEST_F(CodedParts, OfABlockThatReclaimHasCopiedAreReadFromItsNewPlace) {
  options.policy = "seg-fifo";  // keeps nothing by itself
  fill_coded({"held"});
  NamespaceInfo budget = account();
  budget.pin_budget_bytes = kBlockBytes;
  ASSERT_EQ(limit(budget), Code::Ok);
  ASSERT_EQ(change("held", kGroupLarge, 7, 0, &Store::hold), Code::Ok);
  expect_parts("held", {11, 2});
  const uint64_t copied = store->counters().blocks_rewritten;
  for (int i = 0; store->counters().blocks_rewritten == copied && i < 400; ++i) {
    ASSERT_EQ(put("filler " + std::to_string(i), kGroupLarge, kBlockBytes, true), Code::Ok);
  }
  ASSERT_GT(store->counters().blocks_rewritten, copied);
  settle();
  const uint64_t before = part_reads();
  expect_parts("held", {11, 2});
  expect_parts("held", {3, 1});
  EXPECT_EQ(part_reads(), before + 2);
  EXPECT_EQ(failed(), 0U);
}

TEST_F(CodedParts, OfAWindowThatFindsNoMemoryHoldNone) {
  const std::vector<std::string> names = names_of(6);
  fill_coded(names);
  expect_parts("block 1", {1, 2});
  expect_no_memory_for(names, 90, 6);
  expect_parts("block 2", {1, 2});
}

// Parts that are raw, of a block that is not whole pages.
TEST_F(CodedParts, AreReadTheSameWayWhereATrailerIsThereForItsLengthAlone) {
  constexpr uint32_t kBytes = 200'001;
  const wire::GroupShape ragged = shape_of_group(kGroupRagged);
  ASSERT_EQ(put("ragged", kGroupRagged, kBytes, true), Code::Ok);
  reopen();
  const uint32_t parts = ragged.parts_of(kBytes);
  for (const PartSpan span : {PartSpan{1, 1}, PartSpan{parts - 1, 1}, PartSpan{20, 25}}) {
    Asked asked;
    ASSERT_EQ(begin(asked, "ragged", span, kGroupRagged), Code::Ok);
    finish(asked);
    expect_right(asked, "ragged", span, ragged, kBytes);
    store->unpin(asked.read.resident);
  }
  EXPECT_EQ(part_reads(), 3U);
}

}  // namespace
}  // namespace halfstep::store
