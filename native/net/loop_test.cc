#include "net/loop.h"

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "base/prng.h"
#include "net/stream_fixture.h"

namespace halfstep::net {
namespace {

struct Called : Watch {
  void on_ready(uint32_t events) override {
    ++count;
    last = events;
    if (then) then();
  }
  int count = 0;
  uint32_t last = 0;
  std::function<void()> then;
};

struct Alarm {
  explicit Alarm(std::function<void()> run) : then(std::move(run)) {}
  static void fire(void* self) { static_cast<Alarm*>(self)->then(); }
  std::function<void()> then;
  Timer timer{&Alarm::fire, this};
};

class LoopTest : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_TRUE(loop_.open().ok());
    a_ = unix_pair();
    b_ = unix_pair();
  }
  void TearDown() override {
    for (const int descriptor : {a_[0], a_[1], b_[0], b_[1]}) ::close(descriptor);
  }
  static void poke(int descriptor) { ASSERT_EQ(::write(descriptor, "x", 1), 1); }

  ManualClock clock_;
  Loop loop_{clock_};
  std::array<int, 2> a_{};
  std::array<int, 2> b_{};
};

TEST_F(LoopTest, CallsAWatchWhileItIsReady) {
  Called watch;
  ASSERT_TRUE(loop_.add(a_[1], EPOLLIN, &watch).ok());
  loop_.turn(0);
  EXPECT_EQ(watch.count, 0);
  poke(a_[0]);
  loop_.turn(0);
  loop_.turn(0);
  EXPECT_EQ(watch.count, 2) << "level-triggered: the byte was not read";
  EXPECT_EQ(watch.last, EPOLLIN);
  ASSERT_TRUE(loop_.change(a_[1], EPOLLOUT, &watch).ok());
  loop_.turn(0);
  EXPECT_EQ(watch.last, EPOLLOUT);
  loop_.remove(a_[1], &watch);
  loop_.turn(0);
  EXPECT_EQ(watch.count, 3);
}

TEST_F(LoopTest, RefusesWhatIsNotItsOwn) {
  Called watch;
  Called other;
  EXPECT_EQ(loop_.add(-1, EPOLLIN, &watch).code(), Code::Invalid);
  ASSERT_TRUE(loop_.add(a_[1], EPOLLIN, &watch).ok());
  EXPECT_EQ(loop_.add(a_[1], EPOLLIN, &other).code(), Code::Invalid);
  EXPECT_EQ(loop_.change(a_[1], EPOLLIN, &other).code(), Code::Invalid);
  EXPECT_EQ(loop_.change(b_[1], EPOLLIN, &watch).code(), Code::Invalid);
  loop_.remove(a_[1], &other);  // nothing of other's is there
  poke(a_[0]);
  loop_.turn(0);
  EXPECT_EQ(watch.count, 1);
}

TEST_F(LoopTest, ARemovedWatchIsNotCalledAlthoughItWasReadyInTheSameTurn) {
  Called first;
  Called second;
  ASSERT_TRUE(loop_.add(a_[1], EPOLLIN, &first).ok());
  ASSERT_TRUE(loop_.add(b_[1], EPOLLIN, &second).ok());
  first.then = [&] { loop_.remove(b_[1], &second); };
  second.then = [&] { loop_.remove(a_[1], &first); };
  poke(a_[0]);
  poke(b_[0]);
  loop_.turn(0);
  loop_.turn(0);
  EXPECT_EQ(std::min(first.count, second.count), 0);
  EXPECT_EQ(std::max(first.count, second.count), 2);
}

TEST_F(LoopTest, ALaterWatchOnTheSameDescriptorDoesNotGetTheEventOfTheEarlier) {
  Called first;
  Called second;
  Called later;
  ASSERT_TRUE(loop_.add(a_[1], EPOLLIN, &first).ok());
  ASSERT_TRUE(loop_.add(b_[1], EPOLLIN, &second).ok());
  const auto replace = [&](int descriptor, Called& old) {
    loop_.remove(descriptor, &old);
    ASSERT_TRUE(loop_.add(descriptor, EPOLLIN, &later).ok());
    first.then = second.then = nullptr;
  };
  first.then = [&] { replace(b_[1], second); };
  second.then = [&] { replace(a_[1], first); };
  poke(a_[0]);
  poke(b_[0]);
  loop_.turn(0);
  EXPECT_EQ(first.count + second.count, 1);
  EXPECT_EQ(later.count, 0);
  loop_.turn(0);
  EXPECT_EQ(later.count, 1) << "its own event comes in its own turn";
}

TEST_F(LoopTest, TimersFireInTheOrderOfTheirTimesAndThenOfArming) {
  Prng prng(1);
  std::vector<std::unique_ptr<Alarm>> alarms;
  std::vector<std::pair<uint64_t, size_t>> expected;
  std::vector<size_t> fired;
  for (size_t i = 0; i < 500; ++i) {
    const uint64_t due = clock_.us + prng.below(100);
    alarms.push_back(std::make_unique<Alarm>([&fired, i] { fired.push_back(i); }));
    loop_.arm(alarms.back()->timer, due);
    expected.emplace_back(due, i);
  }
  for (size_t i = 0; i < 500; i += 7) {
    loop_.disarm(alarms[i]->timer);
    EXPECT_FALSE(alarms[i]->timer.armed());
  }
  std::erase_if(expected, [](const auto& entry) { return entry.second % 7 == 0; });
  std::stable_sort(expected.begin(), expected.end());
  const uint64_t start = clock_.us;
  for (; clock_.us < start + 110; clock_.us += 10) {
    loop_.turn(0);
    const auto due = static_cast<size_t>(
        std::count_if(expected.begin(), expected.end(), [&](const auto& entry) { return entry.first <= clock_.us; }));
    ASSERT_EQ(fired.size(), due);
  }
  for (size_t i = 0; i < expected.size(); ++i) ASSERT_EQ(fired[i], expected[i].second);
}

TEST_F(LoopTest, ATimerThatIsArmedWhileTimersFireWaitsForTheNextTurn) {
  int fired = 0;
  int others = 0;
  Alarm other([&] { ++others; });
  Alarm again([&] {
    ++fired;
    loop_.arm(again.timer, 0);
  });
  loop_.arm(again.timer, 0);
  loop_.arm(other.timer, clock_.us);
  loop_.turn(1'000'000);
  EXPECT_EQ(fired, 1);
  EXPECT_EQ(others, 1);
  loop_.turn(1'000'000);
  EXPECT_EQ(fired, 2);
}

TEST_F(LoopTest, ATimerMayDisarmAndDestroyOthersAndItself) {
  int fired = 0;
  std::unique_ptr<Alarm> victim = std::make_unique<Alarm>([&] { ++fired; });
  Alarm disarmed([&] { ++fired; });
  std::unique_ptr<Alarm> killer = std::make_unique<Alarm>([&] {
    victim.reset();
    loop_.disarm(disarmed.timer);
    killer.reset();
  });
  loop_.arm(killer->timer, clock_.us);
  loop_.arm(victim->timer, clock_.us);
  loop_.arm(disarmed.timer, clock_.us);
  loop_.turn(0);
  loop_.turn(0);
  EXPECT_EQ(fired, 0);
  EXPECT_EQ(killer, nullptr);
}

TEST_F(LoopTest, ATimerOutlivesItsLoop) {
  Alarm alarm([] {});
  {
    Loop brief(clock_);
    ASSERT_TRUE(brief.open().ok());
    brief.arm(alarm.timer, 1);
  }
  EXPECT_FALSE(alarm.timer.armed());
}

TEST_F(LoopTest, WakesFromAnotherThreadAndRemembersAnEarlyWake) {
  loop_.wake();
  loop_.turn(60'000'000);  // would hang the test
  SystemClock real;
  Loop waiting(real);
  ASSERT_TRUE(waiting.open().ok());
  std::thread waker([&] { waiting.wake(); });
  waiting.turn(60'000'000);
  waker.join();
}

TEST_F(LoopTest, WaitsForTheNextTimerAndNoLonger) {
  SystemClock real;
  Loop waiting(real);
  ASSERT_TRUE(waiting.open().ok());
  bool fired = false;
  Alarm alarm([&] { fired = true; });
  waiting.arm(alarm.timer, real.now_us() + 2000);
  while (!fired) waiting.turn(60'000'000);
}

TEST_F(LoopTest, LooksWhereWaitsAreShortAndSleepsWhereTheyAreLong) {
  if (::sysconf(_SC_NPROCESSORS_ONLN) == 1) GTEST_SKIP() << "with one core nobody looks";
  Called watch;
  ASSERT_TRUE(loop_.add(a_[1], EPOLLIN, &watch).ok());
  poke(a_[0]);  // and nobody reads it: every wait is short
  for (int turn = 0; turn < 500; ++turn) loop_.turn(1000);
  EXPECT_EQ(loop_.busy_poll().looks(), 500U);
  EXPECT_EQ(watch.count, 500);
  loop_.remove(a_[1], &watch);
  for (int turn = 0; turn < 200; ++turn) loop_.turn(1000);
  EXPECT_LE(loop_.busy_poll().looks(), 500 + 200 / BusyPoll::kRestWaits + 8);
  EXPECT_GT(loop_.busy_poll().looks(), 500U);
}

TEST_F(LoopTest, WhatOneThreadLearnsAboutLookingIsNotAnothers) {
  if (::sysconf(_SC_NPROCESSORS_ONLN) == 1) GTEST_SKIP() << "with one core nobody looks";
  Called watch;
  ASSERT_TRUE(loop_.add(a_[1], EPOLLIN, &watch).ok());
  poke(a_[0]);
  BusyPoll crowded;
  while (crowded.begin()) crowded.crowded();
  BusyPoll alone;
  const uint64_t before = crowded.looks();
  for (int turn = 0; turn < 10; ++turn) loop_.turn(1000, crowded);
  for (int turn = 0; turn < 10; ++turn) loop_.turn(1000, alone);
  EXPECT_EQ(crowded.looks(), before);
  EXPECT_EQ(alone.looks(), 10U);
  EXPECT_EQ(loop_.busy_poll().looks(), 0U);
  EXPECT_EQ(watch.count, 20);
}

}  // namespace
}  // namespace halfstep::net
