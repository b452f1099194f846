#include "shard/memory_waiters.h"

#include <gtest/gtest.h>

#include <deque>
#include <string>

namespace halfstep::shard {
namespace {

// Wants so many bytes of a memory that has `room` of them.
class TestWaiter final : public Waiter {
 public:
  TestWaiter(MemoryWaiters& waiters, uint64_t& room, std::string& log, char name, uint64_t bytes)
      : waiters_(waiters), room_(room), log_(log), name_(name), bytes_(bytes) {
    waiters_.join(*this);
  }
  uint64_t memory_wanted() const noexcept override { return bytes_; }
  void resume() override {
    if (room_ < bytes_) return;
    room_ -= bytes_;
    log_ += name_;
    waiters_.note_passed(*this, bytes_);
    (void)waiters_.leave(*this);
  }

 private:
  MemoryWaiters& waiters_;
  uint64_t& room_;
  std::string& log_;
  const char name_;
  const uint64_t bytes_;
};

class MemoryWaitersTest : public testing::Test {
 protected:
  void resume(uint64_t room) {
    room_ = room;
    waiters_.resume();
  }
  MemoryWaiters waiters_;
  uint64_t room_ = 0;
  std::string log_;
};

TEST_F(MemoryWaitersTest, GoOnInTheOrderInWhichTheyCame) {
  TestWaiter a(waiters_, room_, log_, 'a', 100);
  TestWaiter b(waiters_, room_, log_, 'b', 100);
  TestWaiter c(waiters_, room_, log_, 'c', 100);
  resume(250);
  EXPECT_EQ(log_, "ab");
  resume(100);
  EXPECT_EQ(log_, "abc");
  EXPECT_TRUE(waiters_.empty());
}

TEST_F(MemoryWaitersTest, OneThatWantsLittlePassesOneThatWantsMuch) {
  TestWaiter large(waiters_, room_, log_, 'L', 1000);
  TestWaiter as_large(waiters_, room_, log_, 'l', 800);
  TestWaiter small(waiters_, room_, log_, 's', 100);
  resume(900);
  EXPECT_EQ(log_, "s") << "there was room for the second, too, but it may not pass";
  resume(1000);
  EXPECT_EQ(log_, "sL");
  resume(800);
  EXPECT_EQ(log_, "sLl");
}

TEST_F(MemoryWaitersTest, NoMorePassesThanTheFirstWants) {
  TestWaiter large(waiters_, room_, log_, 'L', 1000);
  {
    TestWaiter one(waiters_, room_, log_, '1', 250);
    TestWaiter two(waiters_, room_, log_, '2', 250);
    TestWaiter three(waiters_, room_, log_, '3', 250);
    TestWaiter four(waiters_, room_, log_, '4', 250);
    resume(999);
    EXPECT_EQ(log_, "123");
    resume(999);
    EXPECT_EQ(log_, "1234");
  }
  TestWaiter five(waiters_, room_, log_, '5', 10);
  resume(999);
  EXPECT_EQ(log_, "1234");
  resume(1010);
  EXPECT_EQ(log_, "1234L5");
}

TEST_F(MemoryWaitersTest, LookAtNoMoreThanAThousandAtATime) {
  TestWaiter large(waiters_, room_, log_, 'L', 1000);
  TestWaiter near(waiters_, room_, log_, 'n', 100);
  std::deque<TestWaiter> as_large;
  for (int i = 0; i < 2'000; ++i) as_large.emplace_back(waiters_, room_, log_, 'l', 800);
  TestWaiter far(waiters_, room_, log_, 'f', 100);
  resume(999);
  EXPECT_EQ(log_, "n");
  resume(1000 + 800);
  EXPECT_EQ(log_, "nLl");
}

}  // namespace
}  // namespace halfstep::shard
