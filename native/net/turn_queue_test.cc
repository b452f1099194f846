#include "net/turn_queue.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "net/stream_fixture.h"

namespace halfstep::net {
namespace {

// Takes so long each time, and comes again as often as it is told.
struct Worker {
  Worker(TurnQueue& its_queue, ManualClock& its_clock, std::string& its_log, char its_name, uint64_t its_us)
      : queue(its_queue), clock(its_clock), log(its_log), name(its_name), us(its_us) {}
  static void take(void* self) {
    auto* worker = static_cast<Worker*>(self);
    worker->log += worker->name;
    worker->clock.us += worker->us;
    worker->used_us += worker->us;
    if (worker->left == 0) return;
    --worker->left;
    worker->queue.push(worker->turn);
  }
  TurnQueue& queue;
  ManualClock& clock;
  std::string& log;
  const char name;
  uint64_t us;
  uint64_t used_us = 0;
  uint64_t left = 0;
  Turn turn{&Worker::take, this};
};

class TurnQueueTest : public testing::Test {
 protected:
  Worker& worker(char name, uint64_t us, uint64_t left = 0) {
    workers_.push_back(std::make_unique<Worker>(queue_, clock_, log_, name, us));
    workers_.back()->left = left;
    return *workers_.back();
  }
  size_t round(uint64_t us_max = 1'000) { return queue_.run(clock_, clock_.us, us_max); }

  ManualClock clock_;
  TurnQueue queue_;
  std::string log_;
  std::vector<std::unique_ptr<Worker>> workers_;
};

TEST_F(TurnQueueTest, TakesEachOnceARoundAndInTheOrderOfAsking) {
  for (const char name : {'a', 'b', 'c'}) queue_.push(worker(name, 0, 1).turn);
  queue_.push(workers_[0]->turn);
  EXPECT_EQ(round(), 3U);
  EXPECT_EQ(log_, "abc") << "who asks again while turns are taken waits for the next round";
  EXPECT_EQ(round(), 3U);
  EXPECT_EQ(log_, "abcabc");
  EXPECT_TRUE(queue_.empty());
}

TEST_F(TurnQueueTest, WhatWasDoneOutsideOfTurnsCounts) {
  Worker& a = worker('a', 100, 10);
  Worker& b = worker('b', 100, 10);
  queue_.push(a.turn);
  queue_.push(b.turn);
  round();
  EXPECT_EQ(log_, "ab");
  queue_.charge(a.turn, 250);
  log_.clear();
  for (int i = 0; i < 3; ++i) round(50);  // one turn each
  EXPECT_EQ(log_, "bbb") << "two turns and a half, while it waits";
  for (int i = 0; i < 2; ++i) round(50);
  EXPECT_EQ(log_, "bbbab");
}

TEST_F(TurnQueueTest, WhatWasDoneForOneThatAsksForNothingCountsWhenItComesBack) {
  Worker& idle = worker('i', 100);
  Worker& busy = worker('b', 100, 100'000);
  queue_.push(idle.turn);
  queue_.push(busy.turn);
  for (int i = 0; i < 1'000; ++i) round(50);
  queue_.charge(idle.turn, TurnQueue::kCreditUs + 500);  // more than the credit of who comes back
  queue_.push(idle.turn);
  log_.clear();
  for (int i = 0; i < 4; ++i) round(50);
  EXPECT_EQ(log_, "bbbb");
  for (int i = 0; i < 4; ++i) round(50);
  EXPECT_EQ(std::count(log_.begin(), log_.end(), 'i'), 1) << log_;
}

TEST_F(TurnQueueTest, ARoundEndsByTheClock) {
  for (const char name : {'a', 'b', 'c'}) queue_.push(worker(name, 600).turn);
  EXPECT_EQ(round(), 3U);
  EXPECT_EQ(log_, "ab") << "the one that was under way when time was up ends";
  EXPECT_FALSE(queue_.empty());
  round();
  EXPECT_EQ(log_, "abc");
}

TEST_F(TurnQueueTest, WhoTakesLongWaitsUntilTheOthersHadAsMuch) {
  Worker& slow = worker('s', 5'000, 1'000);
  Worker& quick = worker('q', 250, 100'000);
  queue_.push(slow.turn);
  queue_.push(quick.turn);
  const uint64_t until_us = clock_.us + 1'000'000;
  while (clock_.us < until_us) round();
  EXPECT_NEAR(static_cast<double>(quick.used_us), static_cast<double>(slow.used_us), 5'000);
}

TEST_F(TurnQueueTest, WhoAsksForLittleIsNextHoweverManyAskForMuch) {
  Worker& light = worker('l', 10);
  for (int i = 0; i < 128; ++i) queue_.push(worker('H', 2'000, 1'000).turn);
  queue_.push(light.turn);
  for (int i = 0; i < 300; ++i) round();
  for (int i = 0; i < 50; ++i) {
    queue_.push(light.turn);
    log_.clear();
    round();
    EXPECT_EQ(log_.front(), 'l');
    for (int more = 0; more < 10; ++more) round();
  }
}

TEST_F(TurnQueueTest, APauseIsNotSavedUp) {
  Worker& idle = worker('i', 500);
  queue_.push(idle.turn);
  round();
  Worker& busy = worker('b', 500, 100'000);
  queue_.push(busy.turn);
  for (int i = 0; i < 10'000; ++i) round();
  idle.left = 100;
  queue_.push(idle.turn);
  log_.clear();
  for (int i = 0; i < 10; ++i) round();
  EXPECT_GE(std::count(log_.begin(), log_.end(), 'b'), 4) << log_;
}

// One turn each: a storm of connections that are refused, beside one that stays.
TEST_F(TurnQueueTest, ThoseThatComeAndGoDoNotKeepOthersWaiting) {
  queue_.push(worker('g', 100, 1'000).turn);
  for (int i = 0; i < 220; ++i) {
    Worker storm(queue_, clock_, log_, 'n', 10);
    queue_.push(storm.turn);
    round(1);
  }
  EXPECT_GE(std::count(log_.begin(), log_.end(), 'g'), 10);
}

TEST_F(TurnQueueTest, OneThatIsGoneIsNotTaken) {
  Worker& first = worker('a', 0);
  auto second = std::make_unique<Worker>(queue_, clock_, log_, 'b', 0);
  queue_.push(first.turn);
  queue_.push(second->turn);
  second.reset();
  round();
  EXPECT_EQ(log_, "a");
}

TEST_F(TurnQueueTest, OneMayEndItself) {
  struct Ending {
    static void take(void* self) { static_cast<Ending*>(self)->owner.reset(); }
    explicit Ending(std::unique_ptr<Ending>& its_owner) : owner(its_owner) {}
    std::unique_ptr<Ending>& owner;
    Turn turn{&Ending::take, this};
  };
  std::unique_ptr<Ending> ending;
  ending = std::make_unique<Ending>(ending);
  queue_.push(ending->turn);
  round();
  EXPECT_EQ(ending, nullptr);
  EXPECT_TRUE(queue_.empty());
}

}  // namespace
}  // namespace halfstep::net
