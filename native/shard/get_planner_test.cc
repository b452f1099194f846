#include "shard/get_planner.h"

#include "base/units.h"
#include "shard/get_parts_fixture.h"

namespace halfstep::shard {
namespace {

class GetPlannerTest : public GetPartsTest {
 protected:
  void begin(const wire::Batch& batch, const std::vector<SectionSpec>& sections) {
    ask(batch, sections);
    planner_.begin(view_, handles_, *store_);
  }
  // The numbers of the items of this round, up to `most` of them.
  std::vector<uint32_t> take(size_t most = SIZE_MAX) {
    std::vector<uint32_t> numbers;
    while (numbers.size() < most && planner_.next(outcomes_)) {
      items_.push_back(std::make_unique<GetItem>());
      planner_.take(*items_.back(), outcomes_);
      numbers.push_back(items_.back()->number);
    }
    return numbers;
  }
  std::vector<GetItem*> taken() const {
    std::vector<GetItem*> out;
    for (const auto& item : items_) out.push_back(item.get());
    return out;
  }

  GetPlanner planner_;
  std::vector<std::unique_ptr<GetItem>> items_;
};

using Numbers = std::vector<uint32_t>;

TEST_F(GetPlannerTest, PlansWhatIsThereAndAnswersTheRest) {
  register_layout(1, 4096);
  put("a");
  put("c");
  begin({}, {section({"a", "b"}), section({"c", "d"})});
  EXPECT_EQ(take(), (Numbers{0, 2}));
  EXPECT_TRUE(outcomes_.pending(0));
  EXPECT_FALSE(outcomes_.pending(1));
  EXPECT_FALSE(outcomes_.pending(3));
  EXPECT_FALSE(planner_.next_round());
}

TEST_F(GetPlannerTest, PlansNothingBehindAMissThatStops) {
  register_layout(1, 4096);
  for (const char* key : {"a", "c", "d", "e"}) put(key);
  begin({}, {section({"a", "b", "c"}, wire::kSectionStopAtMiss), section({"d", "e"})});
  EXPECT_EQ(take(), (Numbers{0, 3, 4})) << "another section is not concerned";
  EXPECT_FALSE(outcomes_.pending(2));
}

TEST_F(GetPlannerTest, AnItemThatDidNotFitIsAskedAboutAgain) {
  register_layout(1, 4096);
  for (const char* key : {"a", "b"}) put(key);
  begin({}, {section({"a", "b"}, wire::kSectionStopAtMiss)});
  EXPECT_EQ(take(1), Numbers{0});
  ASSERT_TRUE(planner_.next(outcomes_));
  outcomes_.miss(0, 0, {Answer::Miss, Reason::Corrupt});  // its read found it rotten meanwhile
  EXPECT_FALSE(planner_.next(outcomes_));
}

// 2 MiB in rounds: half a step is 448 KiB for each of four, in which one part of 256 KiB finds room.
TEST_F(GetPlannerTest, ARoundGoesOverAllKeysBeforeTheNext) {
  register_layout(8, 256 * KiB);
  store_->parts_alone = true;
  for (const char* key : {"a", "b", "c", "d"}) put(key);
  begin({.order = wire::Order::LayerMajor}, {section({"a", "b", "c", "d"})});
  EXPECT_EQ(take(2), (Numbers{0, 1}));
  EXPECT_EQ(items_[0]->read.parts.count, 0U) << "whole, before it is known that not all fit";
  planner_.begin_again(taken(), 2 * MiB, outcomes_.items());
  for (uint32_t round = 0; round < 8; ++round) {
    items_.clear();
    EXPECT_EQ(take(), (Numbers{0, 1, 2, 3})) << round;
    for (const auto& item : items_) {
      EXPECT_EQ(item->read.parts.first, round);
      EXPECT_EQ(item->read.parts.count, 1U);
      EXPECT_EQ(item->read.goes_on, round != 0);
      EXPECT_EQ(item->ordinal, round);
      EXPECT_EQ(item->end, round + 1);
    }
    EXPECT_EQ(planner_.is_last_round(), round == 7);
    EXPECT_EQ(planner_.next_round(), round != 7);
  }
}

TEST_F(GetPlannerTest, BlocksOfLessThanFourRoundsAreReadWhole) {
  register_layout(4, 256 * KiB);
  store_->parts_alone = true;
  for (const char* key : {"a", "b", "c"}) put(key);
  begin({.order = wire::Order::LayerMajor}, {section({"a", "b", "c"})});
  EXPECT_EQ(take(2), (Numbers{0, 1}));
  planner_.begin_again(taken(), 2 * MiB, outcomes_.items());
  items_.clear();
  EXPECT_EQ(take(), (Numbers{0, 1, 2})) << "from the first on";
  for (const auto& item : items_) EXPECT_EQ(item->read.parts.count, 0U);
  EXPECT_TRUE(planner_.is_last_round());
  EXPECT_FALSE(planner_.next_round());
}

// What is in memory is pinned whole, so rounds would read and send the same in more pieces.
TEST_F(GetPlannerTest, RoundsThatReadNoLessAreNone) {
  register_layout(8, 256 * KiB);
  for (const char* key : {"a", "b", "c"}) put(key);
  begin({.order = wire::Order::LayerMajor}, {section({"a", "b", "c"})});
  EXPECT_EQ(take(2), (Numbers{0, 1}));
  planner_.begin_again(taken(), 2 * MiB, outcomes_.items());
  items_.clear();
  EXPECT_EQ(take(), (Numbers{0, 1, 2}));
  EXPECT_EQ(items_[0]->read.parts.count, 0U);
}

TEST_F(GetPlannerTest, WhatIsAnsweredIsNotPlannedInALaterRound) {
  register_layout(8, 256 * KiB);
  store_->parts_alone = true;
  for (const char* key : {"a", "b", "c"}) put(key);
  begin({.order = wire::Order::LayerMajor}, {section({"a", "b", "c"})});
  EXPECT_EQ(take(2), (Numbers{0, 1}));
  planner_.begin_again(taken(), 2 * MiB, outcomes_.items());
  EXPECT_EQ(take(), (Numbers{0, 1, 2}));
  outcomes_.miss(0, 1, {Answer::Miss, Reason::Corrupt});
  ASSERT_TRUE(planner_.next_round());
  EXPECT_EQ(take(), (Numbers{0, 2}));
}

}  // namespace
}  // namespace halfstep::shard
