// Some parts of large blocks, from flash: what is read for them, that they are right, and what becomes of those that are not.
#include <gtest/gtest.h>

#include "store/account/explain.h"
#include "store/part_fixture.h"
#include "store/read/part_reader.h"

namespace halfstep::store {
namespace {

class PartReads : public PartBed {
 protected:
  // Reads them, and compares them.
  void expect_parts(std::string_view name, PartSpan parts) {
    Asked asked;
    ASSERT_EQ(begin(asked, name, parts), Code::Ok);
    finish(asked);
    expect_right(asked, name, parts, shape_of_group(kGroupLarge), kBlockBytes);
    store->unpin(asked.read.resident);
  }
  uint64_t part_reads() const { return store->counters().part_reads; }
  uint64_t failed() const { return store->counters().part_reads_failed; }
};

TEST_F(PartReads, ReadTheirOwnPagesAndTheHeaderOfTheFrame) {
  fill({"a", "b"});
  const uint64_t resident_before = store->gauges().memory_resident_bytes;
  expect_parts("a", {3, 2});
  EXPECT_EQ(part_reads(), 1U);
  EXPECT_EQ(store->counters().hits_flash, 1U);
  EXPECT_GE(bytes_read(), 2 * kPartBytes + kPageBytes);
  EXPECT_LE(bytes_read(), 2 * kPartBytes + 8 * kPageBytes);
  EXPECT_EQ(store->gauges().memory_resident_bytes, resident_before) << "nobody else could find it";
  expect_parts("a", {3, 2});
  EXPECT_EQ(part_reads(), 2U) << "nor is it kept";
}

TEST_F(PartReads, OfEverySpanAreRightAndOfMoreThanHalfTheBlockIsReadWhole) {
  fill({"block"});
  for (uint32_t first = 0; first < kParts; ++first) {
    for (uint32_t count = 1; first + count <= kParts; count += 3) {
      SCOPED_TRACE(std::to_string(first) + "+" + std::to_string(count));
      reopen();  // what was read whole is in memory
      const uint64_t before = part_reads();
      expect_parts("block", {first, count});
      EXPECT_EQ(part_reads() - before, count < kParts / 2 ? 1U : 0U);
      EXPECT_EQ(failed(), 0U);
    }
  }
}

TEST_F(PartReads, OfWhatIsInMemoryComeFromThere) {
  fill({"block"});
  ASSERT_EQ(get("block", kGroupLarge), Code::Ok);
  watch();
  expect_parts("block", {5, 1});
  EXPECT_EQ(bytes_read(), 0U);
  EXPECT_EQ(part_reads(), 0U);
}

TEST_F(PartReads, TakeWhatFindSays) {
  fill({"in memory", "on flash"});
  ASSERT_EQ(get("in memory", kGroupLarge), Code::Ok);
  for (const std::string name : {"in memory", "on flash"}) {
    Sought sought(key(name, kGroupLarge), wire::Component::of(kGroupLarge, 0, 0));
    sought.parts = {5, 1};
    const Found found = store->find(sought);
    const uint64_t before = store->gauges().memory_pinned_bytes;
    Asked asked;
    ASSERT_EQ(begin(asked, name, sought.parts), Code::Ok);
    EXPECT_EQ(store->gauges().memory_pinned_bytes - before, found.memory_bytes) << name;
    finish(asked);
    store->unpin(asked.read.resident);
  }
}

TEST_F(PartReads, OfBlocksThatShareAFrameAndHaveLongKeys) {
  const wire::GroupShape ragged = shape_of_group(kGroupRagged);
  constexpr uint32_t kBytes = 60 * kPageBytes;  // of parts that are no whole pages
  std::vector<Put> puts(6);
  std::vector<std::string> names;
  for (size_t i = 0; i < puts.size(); ++i) names.push_back(std::string(20 + 30 * i, 'k') + std::to_string(i));
  for (size_t i = 0; i < puts.size(); ++i) {
    ASSERT_EQ(begin_put(puts[i], names[i], kGroupRagged, kBytes, true), Code::Ok);
  }
  settle();
  reopen();
  const uint32_t parts = ragged.parts_of(kBytes);
  for (const std::string& name : names) {
    for (const PartSpan span : {PartSpan{0, 1}, PartSpan{1, 7}, PartSpan{parts / 2, 40}, PartSpan{parts - 1, 1}}) {
      Asked asked;
      ASSERT_EQ(begin(asked, name, span, kGroupRagged), Code::Ok);
      finish(asked);
      expect_right(asked, name, span, ragged, kBytes);
      store->unpin(asked.read.resident);
    }
  }
  EXPECT_EQ(part_reads(), 4 * names.size());
  EXPECT_EQ(failed(), 0U);
}

TEST_F(PartReads, LeaveSmallBlocksWhole) {
  ASSERT_EQ(put("small", kGroupPlain, 16384, true), Code::Ok);
  ASSERT_EQ(put("ragged", kGroupRagged, 9'001, true), Code::Ok);  // not whole pages: it has a trailer
  reopen();
  for (const auto& [name, group] : {std::pair{"small", kGroupPlain}, {"ragged", kGroupRagged}}) {
    Asked asked;
    ASSERT_EQ(begin(asked, name, {1, 1}, group), Code::Ok);
    finish(asked);
    ASSERT_TRUE(asked.read.status.ok());
    for (const PartInfo& part : asked.read.resident->parts()) EXPECT_TRUE(part.is_there());
    store->unpin(asked.read.resident);
  }
  EXPECT_EQ(part_reads() + failed(), 0U);
}

TEST_F(PartReads, ThatTheBlockDoesNotHaveAreLeftAwayAndHowManyItHasIsKnown) {
  fill({"block"});
  for (const PartSpan span : {PartSpan{kParts - 1, 2}, PartSpan{kParts - 2, UINT32_MAX}, PartSpan{kParts, 1}}) {
    Asked asked;
    ASSERT_EQ(begin(asked, "block", span), Code::Ok);
    finish(asked);
    ASSERT_TRUE(asked.read.status.ok());
    ASSERT_EQ(asked.read.resident->parts().size(), kParts);
    const uint32_t there = kParts - std::min(span.first, kParts);
    expect_right(asked, "block", {span.first, there}, shape_of_group(kGroupLarge), kBlockBytes);
    store->unpin(asked.read.resident);
  }
  EXPECT_EQ(part_reads(), 2U) << "nothing of it was asked for the third time, and it came whole";
}

TEST_F(PartReads, WhereTheHeaderIsDamagedTheBlockIsReadWhole) {
  fill({"block"});
  expect_parts("block", {3, 1});
  const uint64_t header = reads.begin()->first;
  const uint32_t header_pages = reads.begin()->second / kPageBytes;
  ASSERT_EQ(header_pages, 2U) << "of entries and of sums";
  for (uint32_t page = 0; page < header_pages; ++page) {
    SCOPED_TRACE(page);
    device->flip_bit(header + page * kPageBytes + 200, 1);
    const uint64_t before = failed();
    expect_parts("block", {3, 1});
    EXPECT_EQ(failed(), before + 1);
    EXPECT_EQ(store->counters().misses_corrupt, 0U);
    device->flip_bit(header + page * kPageBytes + 200, 1);
    reopen();
    watch();
  }
}

TEST_F(PartReads, OfDamagedBytesAreAMissAndOfThoseBesideThemAreNot) {
  fill({"block"});
  expect_parts("block", {3, 1});
  const uint64_t part = reads.rbegin()->first;
  device->flip_bit(part + 77, 3);
  expect_parts("block", {4, 2});
  EXPECT_EQ(failed(), 0U);
  Asked asked;
  ASSERT_EQ(begin(asked, "block", {3, 1}), Code::Ok);
  finish(asked);
  EXPECT_EQ(asked.read.status, Code::Corrupt);
  EXPECT_EQ(failed(), 1U);
  EXPECT_EQ(store->counters().misses_corrupt, 1U);
  EXPECT_FALSE(store->find(key("block", kGroupLarge)).present) << "judged by the whole of it";
}

TEST_F(PartReads, ThatTheDeviceFailsAreReadAgainWithTheWholeBlock) {
  fill({"block"});
  for (const int which : {1, 2}) {
    reopen();
    int seen = 0;
    tap->tap = [&](io::Request& request) {
      const bool fails = request.op == io::Op::Read && ++seen == which;
      return fails ? TapEngine::Fate::Fail : TapEngine::Fate::Pass;
    };
    expect_parts("block", {9, 3});
    EXPECT_EQ(failed(), 1U) << which;
    tap->tap = nullptr;
  }
}

// One that counted when it is read again would make it younger than blocks that come before it in its request.
TEST_F(PartReads, ThatFailAndAreReadAgainAreOneUseOfTheBlock) {
  fill({"block"});
  tap->tap = [](io::Request& request) { return request.op == io::Op::Read ? TapEngine::Fate::Hold : TapEngine::Fate::Pass; };
  Asked asked;
  Moment moment;
  asked.read.moment = &moment;
  ASSERT_EQ(begin(asked, "block", {9, 3}), Code::Ok);
  asked.read.moment = nullptr;  // it was looked at
  for (const char* name : {"later", "and later"}) ASSERT_EQ(put(name, kGroupLarge, kBlockBytes, true), Code::Ok);
  tap->tap = nullptr;
  tap->held[0]->device = 9;  // there is none
  tap->let_all_go();
  finish(asked);
  expect_right(asked, "block", {9, 3}, shape_of_group(kGroupLarge), kBlockBytes);
  store->unpin(asked.read.resident);
  EXPECT_EQ(failed(), 1U);

  const ComponentRange range{wire::Component::of(kGroupLarge, 0, 0)};
  KeyQuestion question;
  question.name_space = "default";
  question.engine_key = as_bytes("block");
  question.components = {&range, 1};
  const Explanation known = store->explain(question);
  ASSERT_EQ(known.blocks.size(), 1U);
  EXPECT_EQ(known.blocks[0].touch_class, kTouchedOnce);
  EXPECT_GT(known.blocks[0].touch_age_capacities, 0) << "used before the others were put";
}

// Memory has room for some parts of a block, and for none that is whole; the frame of "block 0" has a damaged header.
class PartReadsInNeed : public PartReads {
 protected:
  void SetUp() override {
    const std::vector<std::string> names = names_of(40);
    fill(names);
    expect_parts("block 0", {3, 1});
    device->flip_bit(reads.begin()->first + 200, 1);
    for (size_t i = 1; i + 1 < names.size(); ++i) {
      Asked& asked = *pinned.emplace_back(std::make_unique<Asked>());
      if (!begin(asked, names[i], {}).ok()) break;
      finish(asked);
    }
    pinned.pop_back();
    ASSERT_GE(pinned.size(), 2U);
    ASSERT_LT(pinned.size(), names.size() - 3) << "memory has to be full";
    store->unpin(pinned.back()->read.resident);
    Asked& parts = *pinned.back();
    parts.done = false;
    ASSERT_EQ(begin(parts, names.back(), {1, 1}), Code::Ok) << "there is room for a part";
    finish(parts);
    ASSERT_EQ(begin(failing, "block 0", {3, 1}), Code::Ok) << "and for another";
    finish(failing);
    ASSERT_EQ(failed(), 1U);
  }
  void unpin_all() {
    for (const auto& one : pinned) store->unpin(one->read.resident);
  }

  std::vector<std::unique_ptr<Asked>> pinned;
  Asked failing;
};

// Its request may hold the rest of a window, and others may do the same.
TEST_F(PartReadsInNeed, TheWholeBlockDoesNotWaitForMemory) {
  EXPECT_EQ(failing.read.status, Status(Code::Throttled, kThrottledMemory)) << "no error of the device";
  EXPECT_EQ(failing.read.resident, nullptr);
  EXPECT_EQ(store->counters().misses_memory, 1U);
  EXPECT_TRUE(store->find(key("block 0", kGroupLarge)).present) << "nothing is known against it";
  unpin_all();
  Asked again;
  ASSERT_EQ(begin(again, "block 0", {3, 1}), Code::Ok);
  finish(again);
  expect_right(again, "block 0", {3, 1}, shape_of_group(kGroupLarge), kBlockBytes);
  store->unpin(again.read.resident);
}

TEST_F(PartReadsInNeed, WhoWasRefusedStillHearsOfMemory) {
  Asked small;
  std::vector<std::unique_ptr<Asked>> more;
  do {
    more.push_back(std::make_unique<Asked>());
  } while (begin(*more.back(), "block 38", {2, 1}).ok());
  more.pop_back();
  for (const auto& one : more) finish(*one);
  int told = 0;
  store->set_on_memory([&] { ++told; });
  // Room for some parts, which one takes whose whole block finds none.
  store->unpin(more.back()->read.resident);
  ASSERT_EQ(begin(failing, "block 0", {3, 1}), Code::Ok);
  ASSERT_EQ(begin(small, "block 38", {2, 1}), Code::Throttled);
  failing.done = false;
  finish(failing);
  EXPECT_EQ(failing.read.status, Status(Code::Throttled, kThrottledMemory)) << "no error of the device";
  for (int turns = 0; turns < 200; ++turns) pump();
  EXPECT_EQ(told, 1) << "what it took is free again";
  ASSERT_EQ(begin(small, "block 38", {2, 1}), Code::Ok);
  finish(small);
  store->set_on_memory({});
  store->unpin(small.read.resident);
  for (size_t i = 0; i + 1 < more.size(); ++i) store->unpin(more[i]->read.resident);
  unpin_all();
}

TEST_F(PartReads, OfAWindowThatFindsNoMemoryHoldNone) {
  const std::vector<std::string> names = names_of(6);
  fill(names);
  expect_no_memory_for(names, 60, 7);
  expect_parts("block 2", {1, 2});
}

TEST_F(PartReads, OfABlockThatReclaimHasCopiedAreReadAloneToo) {
  options.policy = "seg-fifo";  // keeps nothing by itself
  fill({"held"});
  NamespaceInfo budget = account();
  budget.pin_budget_bytes = kBlockBytes;
  ASSERT_EQ(limit(budget), Code::Ok);
  ASSERT_EQ(change("held", kGroupLarge, 7, 0, &Store::hold), Code::Ok);
  const uint64_t copied = store->counters().blocks_rewritten;
  for (int i = 0; store->counters().blocks_rewritten == copied && i < 400; ++i) {
    ASSERT_EQ(put("filler " + std::to_string(i), kGroupLarge, kBlockBytes, true), Code::Ok);
  }
  ASSERT_GT(store->counters().blocks_rewritten, copied);
  settle();
  reopen();
  expect_parts("held", {11, 2});
  EXPECT_EQ(part_reads(), 1U);
  EXPECT_EQ(failed(), 0U);
}

TEST(PartPlan, NamesTheMemoryThatAReadTakes) {
  Block block;
  block.location = {3, 100, 0};
  block.pages = kBlockBytes / kPageBytes;
  block.pages_back = 40;
  const wire::GroupShape shape = test_layout().groups()[kGroupLarge];
  const PartReader::Plan plan = PartReader::plan(block, &shape, {2, 3});
  ASSERT_TRUE(plan);
  EXPECT_EQ(plan.first_page, 2 * kPartBytes / kPageBytes);
  EXPECT_EQ(plan.bytes(), 3 * kPartBytes + 8 * kPageBytes);
  EXPECT_FALSE(PartReader::plan(block, &shape, {}));
  EXPECT_EQ(PartReader::plan(block, &shape, {2, 3}).parts.count, 3U);
  EXPECT_EQ(PartReader::plan(block, &shape, {kParts - 1, UINT32_MAX}).parts.count, 1U);
  EXPECT_FALSE(PartReader::plan(block, &shape, {UINT32_MAX, 2}));
  EXPECT_FALSE(PartReader::plan(block, nullptr, {2, 3}));
  block.pages_back = 0;  // no frame begins there
  EXPECT_FALSE(PartReader::plan(block, &shape, {2, 3}));
  block.pages_back = 101;
  EXPECT_FALSE(PartReader::plan(block, &shape, {2, 3}));
}

}  // namespace
}  // namespace halfstep::store
