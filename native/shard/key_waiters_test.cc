#include "shard/key_waiters.h"

#include <gtest/gtest.h>

#include <deque>
#include <utility>
#include <vector>

namespace halfstep::shard {
namespace {

using Why = KeyWaiters::Why;

// Notes who is told what, and may park or drop others meanwhile.
class KeyWaitersTest : public ::testing::Test, public KeyWaiters::Owner {
 protected:
  KeyWaiters::Waiter waiter() const noexcept override { return {.command = "test"}; }
  uint32_t woken(KeyWaiters::Wait& wait, Why why) override {
    told_.emplace_back(&wait, why);
    for (KeyWaiters::Wait* other : std::exchange(leave_, {})) waiters_.leave(*other);
    return lookups_;
  }
  KeyWaiters::Wait& wait_for(uint64_t key) {
    KeyWaiters::Wait& wait = waits_.emplace_back();
    wait.key = {key, 1};
    wait.owner = this;
    waiters_.park(wait);
    return wait;
  }
  std::vector<std::pair<KeyWaiters::Wait*, Why>> turn() {
    told_.clear();
    waiters_.wake();
    return told_;
  }

  KeyWaiters waiters_;
  std::deque<KeyWaiters::Wait> waits_;
  std::vector<std::pair<KeyWaiters::Wait*, Why>> told_;
  std::vector<KeyWaiters::Wait*> leave_;  // as the next is told
  uint32_t lookups_ = 1;
};

using Told = std::vector<std::pair<KeyWaiters::Wait*, Why>>;

TEST_F(KeyWaitersTest, WhoWaitsForAKeyIsToldInTheOrderOfComing) {
  KeyWaiters::Wait& first = wait_for(7);
  KeyWaiters::Wait& other = wait_for(8);
  KeyWaiters::Wait& second = wait_for(7);
  waiters_.stored({7, 1});
  EXPECT_TRUE(waiters_.any_ready());
  EXPECT_EQ(turn(), (Told{{&first, Why::Stored}, {&second, Why::Stored}}));
  EXPECT_FALSE(waiters_.any_ready());
  EXPECT_EQ(waiters_.counts().waiting, 1U);
  waiters_.deleted({8, 1});
  EXPECT_EQ(turn(), (Told{{&other, Why::Deleted}}));
  EXPECT_EQ(waiters_.counts().stored, 2U);
  EXPECT_EQ(waiters_.counts().deleted, 1U);
}

TEST_F(KeyWaitersTest, WhoWaitsForAKeyIsShownUpToABound) {
  const auto shown = [&](uint64_t key, uint32_t most) {
    uint32_t count = 0;
    waiters_.for_each_of({key, 1}, most, [&](const KeyWaiters::Owner& owner) {
      EXPECT_EQ(&owner, this);
      ++count;
    });
    return count;
  };
  EXPECT_EQ(shown(7, 10), 0U);
  for (int i = 0; i < 5; ++i) wait_for(7);
  wait_for(8);
  EXPECT_EQ(shown(7, 10), 5U);
  EXPECT_EQ(shown(7, 3), 3U);
  EXPECT_EQ(shown(8, 10), 1U);
  EXPECT_EQ(shown(9, 10), 0U);
}

// Keys that share a bucket, and each place in the chain and in a ring.
TEST_F(KeyWaitersTest, WhoLeavesIsNotTold) {
  constexpr uint64_t kBuckets = 1 << 14;
  std::vector<KeyWaiters::Wait*> waits;
  for (const uint64_t key : {0, 1, 2}) {
    for (int twice = 0; twice < 3; ++twice) waits.push_back(&wait_for(5 + key * kBuckets));
  }
  for (const size_t at : {3, 0, 7, 8}) waiters_.leave(*waits[at]);
  waiters_.leave(*waits[0]);  // once more
  EXPECT_EQ(waiters_.counts().waiting, 5U);
  EXPECT_EQ(waiters_.waiting_for({5 + kBuckets, 1}, 10), 2U);
  EXPECT_EQ(waiters_.waiting_for({5 + kBuckets, 1}, 1), 1U);
  EXPECT_EQ(waiters_.waiting_for({6, 1}, 10), 0U);
  for (const uint64_t key : {2, 1, 0}) waiters_.stored({5 + key * kBuckets, 1});
  waiters_.leave(*waits[4]);  // it is ready
  leave_ = {waits[5]};        // while another is told
  EXPECT_EQ(turn(), (Told{{waits[6], Why::Stored}, {waits[1], Why::Stored}, {waits[2], Why::Stored}}));
  EXPECT_EQ(waiters_.counts().waiting, 0U);
}

TEST_F(KeyWaitersTest, ATurnTellsABoundedNumber) {
  for (int i = 0; i < 1000; ++i) (void)wait_for(7);
  waiters_.stored({7, 1});
  size_t all = 0;
  while (waiters_.any_ready()) {
    const size_t told = turn().size();
    EXPECT_LE(told, KeyWaiters::kWakesMax);
    all += told;
  }
  EXPECT_EQ(all, 1000U);
}

TEST_F(KeyWaitersTest, ATurnMakesABoundedNumberOfLookups) {
  for (int i = 0; i < 10; ++i) (void)wait_for(7);
  waiters_.stored({7, 1});
  lookups_ = KeyWaiters::kLookupsMax / 2;
  EXPECT_EQ(turn().size(), 2U);
  EXPECT_EQ(turn().size(), 2U);
}

TEST_F(KeyWaitersTest, AllLookAgainAndAllAreToldOfAStop) {
  KeyWaiters::Wait& first = wait_for(7);
  KeyWaiters::Wait& second = wait_for(8);
  waiters_.look_again();
  EXPECT_EQ(turn().size(), 2U);
  waiters_.park(first);
  waiters_.stored({7, 1});
  waiters_.park(second);
  waiters_.stop();
  EXPECT_EQ(turn(), (Told{{&first, Why::Stored}, {&second, Why::Stopping}}));
  KeyWaiters::Wait& late = wait_for(9);
  EXPECT_EQ(turn(), (Told{{&late, Why::Stopping}})) << "nobody will store it";
}

}  // namespace
}  // namespace halfstep::shard
