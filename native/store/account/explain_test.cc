#include "store/account/explain.h"

#include "store/format/touch.h"
#include "store/store_fixture.h"

namespace halfstep::store {
namespace {

// Asks for cells 0 to 3 of every group.
Explanation explain(const StoreBed& bed, std::string_view name, std::string_view space = "default") {
  const ComponentRange cells{wire::Component::of(0, 0, 0), 4};
  KeyQuestion question;
  question.name_space = space;
  question.engine_key = as_bytes(name);
  question.components = {&cells, 1};
  question.every_group = true;
  return bed.store->explain(question);
}

std::vector<std::string> reasons(const ExplainedBlock& block) {
  std::vector<std::string> out;
  for (const Event& event : block.events) out.push_back(event_reason_name(event.reason));
  return out;
}

TEST(Explain, WhatIsThereSaysWhereAndWhatKeepsIt) {
  StoreBed bed;
  bed.open();
  ASSERT_TRUE(bed.put("k", kGroupPlain, 16384, true, 100).ok());
  ASSERT_TRUE(bed.get("k").ok());
  ASSERT_TRUE(bed.store->hold(bed.key("k"), 9, bed.clock.us + 5'000'000).ok());
  const Explanation got = explain(bed, "k");
  ASSERT_EQ(got.blocks.size(), 1U);
  const ExplainedBlock& block = got.blocks[0];
  EXPECT_TRUE(block.there && block.in_memory && block.on_flash && block.on_media);
  EXPECT_EQ(block.layout, test_layout().id());
  EXPECT_EQ(block.component.group(), kGroupPlain);
  EXPECT_EQ(block.block_bytes, 16384U);
  EXPECT_EQ(block.created_s, bed.clock.wall);
  EXPECT_EQ(block.expiry_s, bed.clock.wall + 100);
  EXPECT_EQ(block.touch_class, kTouchedOnce);
  ASSERT_EQ(block.holds.size(), 1U);
  EXPECT_FALSE(block.holds[0].persistent);
  EXPECT_NEAR(static_cast<double>(block.holds[0].ends_in_ms), 5000, 100);
  EXPECT_EQ(reasons(block), (std::vector<std::string>{"put"}));
  EXPECT_TRUE(got.whole);
}

TEST(Explain, TheHintOfAPutIsToldOnItsWayAndOnFlash) {
  StoreBed bed;
  bed.open();
  StoreBed::Put put;
  put.write.hint = static_cast<uint8_t>(Hint::FinalTurn);
  ASSERT_TRUE(bed.begin_put(put, "k", kGroupPlain, 16384, true).ok());
  const ExplainedBlock before = explain(bed, "k").blocks.at(0);
  EXPECT_FALSE(before.on_flash);
  EXPECT_EQ(before.hint, put.write.hint);
  for (int turns = 0; !put.done && turns < 100'000; ++turns) bed.pump();
  ASSERT_TRUE(put.done);
  const ExplainedBlock after = explain(bed, "k").blocks.at(0);
  EXPECT_TRUE(after.on_media);
  EXPECT_EQ(after.hint, put.write.hint);
}

TEST(Explain, OfManyHoldersSomeAreTold) {
  StoreBed bed;
  bed.open();
  ASSERT_TRUE(bed.put("k").ok());
  const auto hold_by = [&](uint64_t owner) { return bed.store->hold(bed.key("k"), owner, bed.clock.us + 5'000'000).ok(); };
  for (uint64_t owner = 1; owner <= KeyQuestion::kHoldsPerBlockMax; ++owner) ASSERT_TRUE(hold_by(owner));
  EXPECT_TRUE(explain(bed, "k").whole);
  ASSERT_TRUE(hold_by(1000));
  const Explanation got = explain(bed, "k");
  EXPECT_EQ(got.blocks[0].holds.size(), KeyQuestion::kHoldsPerBlockMax);
  EXPECT_FALSE(got.whole);
}

TEST(Explain, WhatWasThereBeforeThisStartIsFoundWithoutAnEvent) {
  StoreBed bed;
  bed.open();
  ASSERT_TRUE(bed.put("old", kGroupPlain, 16384, true).ok());
  bed.reopen();
  const Explanation got = explain(bed, "old");
  ASSERT_EQ(got.blocks.size(), 1U);
  EXPECT_TRUE(got.blocks[0].there);
  EXPECT_FALSE(got.blocks[0].in_memory);
  EXPECT_TRUE(got.blocks[0].events.empty());
}

TEST(Explain, WhatWentSaysWhenAndWhy) {
  StoreBed bed;
  bed.open();
  ASSERT_TRUE(bed.put("k").ok());
  bed.clock.wall += 3;
  ASSERT_TRUE(bed.remove("k").ok());
  const Explanation got = explain(bed, "k");
  ASSERT_EQ(got.blocks.size(), 1U);
  EXPECT_FALSE(got.blocks[0].there);
  EXPECT_EQ(reasons(got.blocks[0]), (std::vector<std::string>{"put", "deleted"}));
  EXPECT_EQ(got.blocks[0].events[1].time_s, bed.clock.wall);
}

TEST(Explain, AnExpiredBlockIsNotThereThoughNobodySweptIt) {
  StoreBed bed;
  bed.open();
  ASSERT_TRUE(bed.put("k", kGroupPlain, 16384, true, 5).ok());
  bed.clock.wall += 10;
  bed.pump();  // an explanation changes nothing, and goes by the store's time of the last turn
  const Explanation got = explain(bed, "k");
  ASSERT_EQ(got.blocks.size(), 1U);
  EXPECT_FALSE(got.blocks[0].there);
  EXPECT_EQ(got.blocks[0].expiry_s, bed.clock.wall - 5);
}

TEST(Explain, AComponentNobodyAskedForIsFoundByItsEvent) {
  StoreBed bed;
  bed.open();
  ASSERT_TRUE(bed.put("k", kGroupRagged, 4000).ok());
  KeyQuestion question;
  question.name_space = "default";
  question.engine_key = as_bytes(std::string_view("k"));
  const Explanation got = bed.store->explain(question);
  EXPECT_EQ(got.lookups, 0U) << "nobody asked for any";
  ASSERT_EQ(got.blocks.size(), 1U);
  EXPECT_TRUE(got.blocks[0].there);
  EXPECT_EQ(got.blocks[0].component.group(), kGroupRagged);
}

TEST(Explain, NeverSeenSaysHowFarMemoryReaches) {
  StoreBed bed;
  bed.options.events_max = 4;
  bed.open();
  for (int i = 0; i < 9; ++i) ASSERT_TRUE(bed.put("k" + std::to_string(i)).ok());
  const Explanation got = explain(bed, "never");
  EXPECT_TRUE(got.blocks.empty());
  EXPECT_EQ(got.lookups, 4U * 5U) << "four cells of five groups";
  EXPECT_EQ(got.oldest_event, 6U);
  EXPECT_EQ(got.newest_event, 9U);
  EXPECT_EQ(got.forgotten[static_cast<size_t>(EventReason::Put)], 5U);
}

TEST(Explain, AClearedLayoutExplainsItsBlocks) {
  StoreBed bed;
  bed.open();
  ASSERT_TRUE(bed.put("k").ok());
  ASSERT_TRUE(bed.change_names([&](auto done) { bed.store->clear("default", test_layout().id(), done); }).ok());
  const Explanation got = explain(bed, "k");
  ASSERT_EQ(got.blocks.size(), 1U);
  EXPECT_FALSE(got.blocks[0].there);
  EXPECT_TRUE(got.blocks[0].scope_retired);
  ASSERT_EQ(got.cleared.size(), 1U);
  EXPECT_EQ(got.cleared[0].name.layout, got.blocks[0].layout);
}

TEST(Explain, ANamespaceLearnsNothingOfAnother) {
  StoreBed bed;
  bed.open();
  ASSERT_TRUE(bed.put("k").ok());
  ASSERT_TRUE(bed.change_names([&](auto done) { bed.store->create_namespace({"other"}, done); }).ok());
  EXPECT_TRUE(explain(bed, "k", "other").blocks.empty());
  EXPECT_TRUE(explain(bed, "k", "missing").blocks.empty());
}

TEST(Explain, TooManyLookupsSaySo) {
  StoreBed bed;
  bed.open();
  const ComponentRange cells{wire::Component::of(0, 0, 0), 4096};
  KeyQuestion question{"default", as_bytes(std::string_view("k")), {&cells, 1}, true, {}};
  const Explanation got = bed.store->explain(question);
  EXPECT_FALSE(got.whole);
  EXPECT_EQ(got.lookups, KeyQuestion::kLookupsMax);
}

}  // namespace
}  // namespace halfstep::store
