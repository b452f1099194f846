#include "shard/get_sender.h"

#include <algorithm>

#include "base/units.h"
#include "shard/get_parts_fixture.h"
#include "shard/get_planner.h"
#include "shard/get_step.h"

namespace halfstep::shard {
namespace {

class NoWaiter final : public Waiter {
 public:
  void resume() override {}
  uint64_t memory_wanted() const noexcept override { return 0; }
};

class GetSenderTest : public GetPartsTest, private GetSender::Owner {
 protected:
  static constexpr uint32_t kPartBytes = 4096;

  // A get of these keys, each of two parts, of which `first` stand in the sender's window.
  void begin(wire::Order order, const std::vector<std::string>& keys, uint16_t flags = 0) {
    register_layout(2, kPartBytes);
    for (const std::string& key : keys) put(key);
    ask({.order = order}, {section(keys, flags)});
    planner_.begin(view_, handles_, *store_);
    sender_.begin(view_, ~uint64_t{0});
    credit_.open(1 * MiB, &gauge_);
  }
  void TearDown() override {
    store_->finish_reads();
    sender_.drop();
  }
  // Plans so many and begins to read them.
  Status begin_reads(size_t count) {
    step_.clear();
    for (size_t i = 0; i < count; ++i) {
      if (!planner_.next(outcomes_)) ADD_FAILURE() << "there are no more";
      items_.push_back(std::make_unique<GetItem>());
      GetItem& item = *items_.back();
      planner_.take(item, outcomes_);
      item.read.owner = this;
      item.read.tag = items_.size() - 1;
      item.read.complete = [](store::Read& read) {
        auto& test = *static_cast<GetSenderTest*>(read.owner);
        GetItem& of = *test.items_[read.tag];
        of.reading = false;
        if (of.left_window) return test.unpin(of);
        if (of.state == GetItem::State::Reading) test.sender_.accept(of);
      };
      item.read.landed = [](store::Read& read) {
        auto& test = *static_cast<GetSenderTest*>(read.owner);
        GetItem& of = *test.items_[read.tag];
        if (of.state == GetItem::State::Reading) test.sender_.accept(of);
      };
      step_.add(item);
    }
    EXPECT_TRUE(step_.take_credit(waiter_, credit_));
    return step_.begin_some(*store_, sender_, reads_);
  }
  // Items that have left their window.
  size_t left() const {
    return static_cast<size_t>(std::count_if(items_.begin(), items_.end(), [](const auto& item) { return item->left_window; }));
  }
  // As "item.part" in the order in which they would leave: all that is ready.
  std::string sent() {
    std::string out;
    ChunkBuilder chunk;
    (void)sender_.fill(chunk);
    for (const wire::Run& run : chunk.runs()) {
      for (uint32_t part = run.part; part < run.part + run.part_count; ++part) {
        out += (out.empty() ? "" : " ") + std::to_string(run.item) + "." + std::to_string(part);
      }
    }
    return out;
  }

  GetPlanner planner_;
  GetStep step_;
  GetSender sender_{*this, outcomes_};
  Credit credit_;
  uint64_t gauge_ = 0;
  NoWaiter waiter_;
  std::vector<store::Read*> reads_;
  std::vector<std::unique_ptr<GetItem>> items_;

 private:
  void release(GetItem& item) override { unpin(item); }
  bool decodes(const GetItem&) const override { return false; }
  Status decode(GetItem&, std::span<const uint32_t>) override { return Code::TooLarge; }
  void unpin(GetItem& item) {
    if (item.read.resident != nullptr) store_->unpin(item.read.resident);
    if (item.read.early != nullptr) store_->unpin(item.read.early);
    item.read.resident = item.read.early = nullptr;
  }
};

TEST_F(GetSenderTest, KeyMajorItemsWaitForThoseBeforeThem) {
  begin(wire::Order::KeyMajor, {"a", "b", "c"});
  store_->hold_reads = true;
  ASSERT_TRUE(begin_reads(3).ok());
  store_->finish_last_reads(2);
  EXPECT_EQ(sent(), "") << "the first is not there";
  store_->finish_reads();
  EXPECT_EQ(sent(), "0.0 0.1 1.0 1.1 2.0 2.1");
  EXPECT_EQ(left(), 3U);
  EXPECT_TRUE(sender_.window_is_over());
}

TEST_F(GetSenderTest, LayerMajorAPartOfAllGoesBeforeTheNext) {
  begin(wire::Order::LayerMajor, {"a", "b", "c"});
  ASSERT_TRUE(begin_reads(3).ok());
  EXPECT_EQ(sent(), "0.0 1.0 2.0 0.1 1.1 2.1");
  EXPECT_EQ(left(), 3U);
  for (uint32_t number = 0; number < 3; ++number) EXPECT_FALSE(outcomes_.pending(number));
}

TEST_F(GetSenderTest, LayerMajorPartsLeaveAsTheyLand) {
  begin(wire::Order::LayerMajor, {"a", "b"});
  store_->hold_reads = true;
  ASSERT_TRUE(begin_reads(2).ok());
  store_->land_parts(1, "a");
  EXPECT_EQ(sent(), "0.0");
  store_->land_parts(1, "b");
  EXPECT_EQ(sent(), "1.0");
  EXPECT_EQ(sent(), "") << "the second parts are not there";
  store_->finish_reads();
  EXPECT_EQ(sent(), "0.1 1.1");
}

TEST_F(GetSenderTest, LayerMajorASecondWindowIsReadWhileTheFirstIsSent) {
  begin(wire::Order::LayerMajor, {"a", "b"});
  ASSERT_TRUE(begin_reads(1).ok());
  EXPECT_FALSE(sender_.takes_more(false));
  EXPECT_TRUE(sender_.takes_more(true));
  ASSERT_TRUE(begin_reads(1).ok());
  EXPECT_FALSE(sender_.takes_more(true));
  EXPECT_EQ(sent(), "0.0 0.1") << "what stands in the second window waits";
  ASSERT_TRUE(sender_.window_is_over() && sender_.has_next_window());
  sender_.begin_next_window();
  EXPECT_EQ(sent(), "1.0 1.1");
}

TEST_F(GetSenderTest, ItemsBehindAMissAreSkippedThoughTheyWereRead) {
  begin(wire::Order::KeyMajor, {"a", "b", "c"}, wire::kSectionStopAtMiss);
  ASSERT_TRUE(begin_reads(3).ok());
  outcomes_.miss(0, 1, {Answer::Miss, Reason::Corrupt});
  items_[1]->state = GetItem::State::Dead;
  EXPECT_EQ(sent(), "0.0 0.1");
  EXPECT_EQ(left(), 3U);
  EXPECT_FALSE(outcomes_.pending(2));
}

TEST_F(GetSenderTest, ABlockThatWasWrittenAnewBetweenTwoReadsIsMissed) {
  begin(wire::Order::KeyMajor, {"a"});
  ASSERT_TRUE(begin_reads(1).ok());
  ASSERT_EQ(items_[0]->state, GetItem::State::Ready);
  store_->replace("a");
  EXPECT_FALSE(sender_.accept_again(*items_[0], items_[0]->resident()));
  sender_.accept(*items_[0]);
  EXPECT_EQ(items_[0]->state, GetItem::State::Dead);
  EXPECT_FALSE(outcomes_.pending(0));
  EXPECT_EQ(sent(), "");
}

// Of a block with more parts a round before had sent three. Whether it is another one may not be known yet.
TEST_F(GetSenderTest, ABlockThatIsShorterThanWhatWasSentOfItIsMissed) {
  begin(wire::Order::KeyMajor, {"a"});
  ASSERT_TRUE(begin_reads(1).ok());
  items_[0]->ordinal = 3;
  sender_.accept(*items_[0]);
  EXPECT_EQ(items_[0]->state, GetItem::State::Dead);
  EXPECT_FALSE(outcomes_.pending(0));
  EXPECT_EQ(sent(), "");
}

TEST_F(GetSenderTest, ABlockThatTheClientCannotDecodeIsNotSent) {
  begin(wire::Order::KeyMajor, {"a", "b"});
  store_->mark_coded("a");
  sender_.begin(view_, 1);  // raw parts alone
  ASSERT_TRUE(begin_reads(2).ok());
  EXPECT_EQ(sent(), "1.0 1.1");
  EXPECT_FALSE(outcomes_.pending(0));
}

// ---- The step whose reads fill the windows --------------------------------------------------------------------------------

TEST_F(GetSenderTest, AStepThatIsTooLargeForMemoryBeginsInHalves) {
  begin(wire::Order::KeyMajor, {"a", "b", "c", "d"});
  store_->window_bytes_max = 2 * block_bytes_;
  ASSERT_TRUE(begin_reads(4).ok());
  EXPECT_EQ(store_->reads_begun, 0U);
  EXPECT_TRUE(sender_.window_is_over()) << "what did not begin stands in no window";
  ASSERT_TRUE(step_.begin_some(*store_, sender_, reads_).ok());
  EXPECT_EQ(store_->reads_begun, 2U);
  ASSERT_TRUE(step_.begin_some(*store_, sender_, reads_).ok());
  EXPECT_TRUE(step_.is_begun());
  EXPECT_EQ(sent(), "0.0 0.1 1.0 1.1 2.0 2.1 3.0 3.1");
}

TEST_F(GetSenderTest, AStepWithoutMemoryKeepsItsCreditAndItsItems) {
  begin(wire::Order::KeyMajor, {"a", "b"});
  store_->throttle_reads = true;
  EXPECT_EQ(begin_reads(2), Code::Throttled);
  EXPECT_EQ(step_.not_begun().size(), 2U);
  EXPECT_EQ(credit_.used_bytes(), step_.bytes());
  store_->throttle_reads = false;
  ASSERT_TRUE(step_.begin_some(*store_, sender_, reads_).ok());
  EXPECT_EQ(sent(), "0.0 0.1 1.0 1.1");
}

TEST_F(GetSenderTest, ABlockThatNeverFitsIsSaidAndLeavesTheOthers) {
  begin(wire::Order::KeyMajor, {"a", "b"});
  store_->window_bytes_max = block_bytes_ - 1;
  ASSERT_TRUE(begin_reads(2).ok()) << "one at a time, then";
  EXPECT_EQ(step_.begin_some(*store_, sender_, reads_), Code::TooLarge);
  EXPECT_EQ(&step_.take_first(), items_[0].get());
  EXPECT_EQ(step_.not_begun().size(), 1U);
}

}  // namespace
}  // namespace halfstep::shard
