// Which requests a scheduler lets go to the device, against an engine that completes them on command.
#include "io/scheduler.h"

#include <gtest/gtest.h>

#include <deque>
#include <vector>

namespace halfstep::io {
namespace {

class HandClock final : public Clock {
 public:
  uint64_t now_us() const noexcept override { return us; }
  uint64_t wall_s() const noexcept override { return us / 1'000'000; }
  uint64_t us = 1'000'000;
};

class HandEngine final : public Engine {
 public:
  void submit(Request& request) noexcept override { held.push_back(&request); }
  void flush_submissions() noexcept override {}
  size_t poll() noexcept override {
    size_t completed = 0;
    for (; finished != 0 && !held.empty(); --finished, ++completed) {
      Request* request = held.front();
      held.pop_front();
      request->complete(*request);
    }
    return completed;
  }
  void wait() noexcept override {}
  int wake_descriptor() const noexcept override { return -1; }
  uint32_t in_flight() const noexcept override { return static_cast<uint32_t>(held.size()); }
  uint64_t device_bytes(uint8_t) const noexcept override { return 0; }
  DiscardLimits discard_limits(uint8_t) const noexcept override { return {}; }
  const EngineFacts& facts() const noexcept override { return facts_; }
  const EngineCounters& counters() const noexcept override { return counters_; }
  bool gathers() const noexcept override { return gathering; }

  bool gathering = true;
  std::deque<Request*> held;  // at the device, in order
  size_t finished = 0;        // of them the first so many complete at the next poll()

 private:
  EngineFacts facts_;
  EngineCounters counters_;
};

class SchedulerTest : public ::testing::Test {
 protected:
  struct Shard {
    HandEngine* device = nullptr;
    std::unique_ptr<Scheduler> scheduler;
  };
  Shard shard(uint64_t goal_us = 2'000, uint32_t queue_depth = 64) {
    auto engine = std::make_unique<HandEngine>();
    HandEngine* device = engine.get();
    return {device, std::make_unique<Scheduler>(std::move(engine), goal_us, queue_depth, pressure_, clock_)};
  }
  Request& submit(Shard& to, IoClass io_class, uint32_t bytes, Op op = Op::Write) {
    Request& request = requests_.emplace_back();
    request.op = op;
    request.io_class = io_class;
    request.bytes = bytes;
    request.owner = &completed_;
    request.complete = [](Request& done) { static_cast<std::vector<Request*>*>(done.owner)->push_back(&done); };
    to.scheduler->submit(request);
    return request;
  }
  Request& read(Shard& to) { return submit(to, IoClass::Demand, 64 * KiB, Op::Read); }
  // All that is at the device.
  void finish(Shard& of, uint64_t after_us = 0) {
    clock_.us += after_us;
    of.device->finished = of.device->held.size();
    do {
      of.scheduler->poll();
    } while (of.scheduler->ready());
  }
  // Reads that take so long, until the window has been steered.
  void reads(Shard& of, uint64_t each_us) {
    for (int i = 0; i < 8; ++i) {
      read(of);
      of.scheduler->flush_submissions();
      finish(of, each_us);
      clock_.us += 3'000;
    }
  }
  static size_t of_class(const Shard& shard, IoClass io_class) {
    size_t count = 0;
    for (const Request* request : shard.device->held) count += request->io_class == io_class ? 1 : 0;
    return count;
  }

  HandClock clock_;
  DevicePressure pressure_{1 * MiB};
  std::deque<Request> requests_;
  std::vector<Request*> completed_;
};

TEST_F(SchedulerTest, GetsGoFirstAndAllOthersByTheirClass) {
  Shard one = shard(2'000, 3);
  for (const IoClass io_class : {IoClass::Scrub, IoClass::Reclaim, IoClass::Write, IoClass::Prefetch}) {
    for (int i = 0; i < 2; ++i) submit(one, io_class, 4096);
  }
  for (int i = 0; i < 3; ++i) read(one);
  one.scheduler->flush_submissions();
  // The device takes three; of each other class one goes all the same, so that none waits for ever.
  std::vector<IoClass> order;
  for (const Request* request : one.device->held) order.push_back(request->io_class);
  EXPECT_EQ(order, (std::vector{IoClass::Demand, IoClass::Demand, IoClass::Demand, IoClass::Prefetch, IoClass::Write,
                                IoClass::Reclaim, IoClass::Scrub}));
  EXPECT_EQ(one.scheduler->in_flight(), 11U);
  finish(one);
  one.scheduler->flush_submissions();
  EXPECT_EQ(one.device->held.size(), 4U);
  finish(one);
  EXPECT_EQ(completed_.size(), 11U);
  EXPECT_EQ(one.scheduler->in_flight(), 0U);
}

TEST_F(SchedulerTest, BesideGetsTheOthersKeepToTheWindow) {
  Shard one = shard();
  read(one);
  for (int i = 0; i < 8; ++i) submit(one, IoClass::Write, 256 * KiB);
  submit(one, IoClass::Reclaim, 256 * KiB);
  submit(one, IoClass::Reclaim, 256 * KiB);
  one.scheduler->flush_submissions();
  EXPECT_EQ(of_class(one, IoClass::Write), 4U) << "1 MiB";
  EXPECT_EQ(of_class(one, IoClass::Reclaim), 1U) << "one may always go";
  read(one);
  one.scheduler->flush_submissions();
  EXPECT_EQ(of_class(one, IoClass::Demand), 2U);
}

TEST_F(SchedulerTest, WithoutGetsTheOthersLeaveHalfOfTheDeviceToThem) {
  Shard one = shard(2'000, 8);
  for (int i = 0; i < 12; ++i) submit(one, IoClass::Write, 256 * KiB);
  one.scheduler->flush_submissions();
  EXPECT_EQ(one.device->held.size(), 4U);
  for (int i = 0; i < 12; ++i) read(one);
  one.scheduler->flush_submissions();
  EXPECT_EQ(of_class(one, IoClass::Demand), 4U);
  while (one.scheduler->in_flight() != 0) {
    finish(one);
    one.scheduler->flush_submissions();
    EXPECT_LE(one.device->held.size(), 9U) << "and the one that may always go";
  }
  EXPECT_EQ(completed_.size(), 24U);
}

TEST_F(SchedulerTest, ALargeRequestGoesByItself) {
  Shard one = shard();
  read(one);
  submit(one, IoClass::Write, 2 * MiB);
  submit(one, IoClass::Write, 4096);
  one.scheduler->flush_submissions();
  EXPECT_EQ(of_class(one, IoClass::Write), 1U);
  finish(one);
  one.scheduler->flush_submissions();
  EXPECT_EQ(of_class(one, IoClass::Write), 1U);
}

TEST_F(SchedulerTest, WithoutGetsThereIsNoWindow) {
  Shard one = shard();
  for (int i = 0; i < 32; ++i) submit(one, IoClass::Write, 1 * MiB);
  one.scheduler->flush_submissions();
  EXPECT_EQ(one.device->held.size(), 32U);
  // And none any more a while after the last.
  finish(one);
  read(one);
  one.scheduler->flush_submissions();
  finish(one, 500);
  for (int i = 0; i < 32; ++i) submit(one, IoClass::Scrub, 1 * MiB);
  one.scheduler->flush_submissions();
  EXPECT_EQ(one.device->held.size(), 1U);
  clock_.us += 100'000;
  one.scheduler->flush_submissions();
  EXPECT_EQ(one.device->held.size(), 32U);
}

TEST_F(SchedulerTest, TheWindowOpensForWhatWaitsLongWhileGetsComeInTimeAndClosesWhenTheyAreLate) {
  Shard one = shard(2'000, 256);
  const auto window = [&] { return pressure_.window_bytes.load(); };
  ASSERT_EQ(window(), 1 * MiB);
  reads(one, 1'000);
  EXPECT_EQ(window(), 1 * MiB) << "nothing was kept waiting";
  const auto wanting = [&](uint64_t each_us) {
    while (one.scheduler->in_flight() < 1'000) submit(one, IoClass::Write, 1 * MiB);
    reads(one, each_us);
  };
  wanting(1'000);
  EXPECT_EQ(window(), 1 * MiB + 512 * KiB);
  for (int i = 0; i < 200; ++i) wanting(1'000);
  EXPECT_EQ(window(), DevicePressure::kWindowBytesMax);
  EXPECT_EQ(one.scheduler->scheduler_counters()->reads_late, 0U);
  wanting(2'001);
  EXPECT_EQ(window(), DevicePressure::kWindowBytesMax / 2);
  EXPECT_EQ(one.scheduler->scheduler_counters()->reads_late, 8U);
  for (int i = 0; i < 20; ++i) wanting(2'001);
  EXPECT_EQ(window(), 1 * MiB);
}

// A burst that is over within ten milliseconds needs no more of the device than the window has, and a scrub has no hurry.
TEST_F(SchedulerTest, ABurstOpensNoWindowNorDoesAScrub) {
  Shard one = shard(2'000, 256);
  const auto window = [&] { return pressure_.window_bytes.load(); };
  for (int round = 0; round < 10; ++round) {
    for (int i = 0; i < 8; ++i) submit(one, IoClass::Write, 256 * KiB);
    for (int i = 0; i < 4; ++i) submit(one, IoClass::Reclaim, 256 * KiB);
    reads(one, 1'000);
  }
  EXPECT_EQ(window(), 1 * MiB);
  for (int round = 0; round < 10; ++round) {
    while (one.scheduler->in_flight() < 200) submit(one, IoClass::Scrub, 1 * MiB);
    reads(one, 1'000);
  }
  EXPECT_EQ(window(), 1 * MiB);
}

TEST_F(SchedulerTest, AWindowThatNobodyNeedsAnyMoreClosesAgain) {
  pressure_.shards = 2;
  Shard one = shard(2'000, 256);
  Shard other = shard(2'000, 256);
  const auto window = [&] { return pressure_.window_bytes.load(); };
  for (int round = 0; round < 10; ++round) {
    while (one.scheduler->in_flight() < 200) submit(one, IoClass::Write, 1 * MiB);
    reads(one, 1'000);
    reads(other, 1'000);  // which needs none of it, and takes none of it from the first
  }
  const uint64_t opened = window();
  EXPECT_GE(opened, 5 * MiB);
  while (one.scheduler->in_flight() > 0) {
    one.scheduler->flush_submissions();
    finish(one);
  }
  reads(other, 1'000);
  EXPECT_EQ(window(), opened) << "not at once";
  for (int round = 0; round < 40; ++round) reads(other, 1'000);
  EXPECT_EQ(window(), 1 * MiB);
}

TEST_F(SchedulerTest, WithoutAGoalNothingGivesWay) {
  Shard one = shard(0);
  read(one);
  for (int i = 0; i < 40; ++i) submit(one, IoClass::Write, 1 * MiB);
  one.scheduler->flush_submissions();
  EXPECT_EQ(one.device->held.size(), 32U) << "half of the places are for gets";
  finish(one, 50'000);
  const uint64_t window = one.scheduler->scheduler_counters()->window_bytes;
  for (int i = 0; i < 4; ++i) reads(one, 50'000);
  EXPECT_EQ(one.scheduler->scheduler_counters()->reads_late, 0U) << "there is nothing to be late for";
  EXPECT_EQ(one.scheduler->scheduler_counters()->window_bytes, window);
}

TEST_F(SchedulerTest, GetsOfOneShardHoldBackTheOthers) {
  pressure_.shards = 2;
  Shard one = shard();
  Shard other = shard();
  read(one);
  for (int i = 0; i < 8; ++i) submit(other, IoClass::Write, 256 * KiB);
  other.scheduler->flush_submissions();
  EXPECT_EQ(other.device->held.size(), 2U) << "half of 1 MiB each";
}

TEST_F(SchedulerTest, GetsBytesAreThoseOfTheirReadsAndNotOfSmallWritesBesideThem) {
  Shard one = shard();
  submit(one, IoClass::Demand, 8 * KiB, Op::Read);
  submit(one, IoClass::Demand, 4 * KiB, Op::Write);
  submit(one, IoClass::Prefetch, 16 * KiB, Op::Read);
  one.scheduler->flush_submissions();
  finish(one);
  const SchedulerCounters& counters = *one.scheduler->scheduler_counters();
  EXPECT_EQ(counters.gets_bytes, 8 * KiB);
  EXPECT_EQ(counters.classes[static_cast<size_t>(IoClass::Demand)].bytes, 12 * KiB);
}

TEST_F(SchedulerTest, WhatAGetWaitsForIsNotBehindTheOthersAnyMore) {
  Shard one = shard();
  read(one);
  std::vector<Request*> ahead;
  for (int i = 0; i < 8; ++i) ahead.push_back(&submit(one, IoClass::Prefetch, 1 * MiB, Op::Read));
  one.scheduler->flush_submissions();
  ASSERT_EQ(of_class(one, IoClass::Prefetch), 1U);
  clock_.us += 50'000;              // as a prefetch it waited long; as a get it has only come
  one.scheduler->hurry(*ahead[0]);  // at the device: it stays what it was
  one.scheduler->hurry(*ahead[7]);
  one.scheduler->hurry(*ahead[4]);
  one.scheduler->hurry(*ahead[4]);
  EXPECT_EQ(one.scheduler->in_flight(), 9U);
  one.scheduler->flush_submissions();
  ASSERT_EQ(one.device->held.size(), 4U);
  EXPECT_EQ(one.device->held[2], ahead[7]);
  EXPECT_EQ(one.device->held[3], ahead[4]);
  for (int i = 0; i < 8; ++i) {
    finish(one);
    one.scheduler->flush_submissions();
  }
  EXPECT_EQ(completed_.size(), 9U);
  EXPECT_EQ(one.scheduler->in_flight(), 0U);
  const auto& classes = one.scheduler->scheduler_counters()->classes;
  EXPECT_EQ(classes[static_cast<size_t>(IoClass::Demand)].requests, 3U);
  EXPECT_EQ(classes[static_cast<size_t>(IoClass::Prefetch)].requests, 6U);
  EXPECT_EQ(classes[static_cast<size_t>(IoClass::Demand)].queued_us, 0U);
  EXPECT_GE(classes[static_cast<size_t>(IoClass::Prefetch)].queued_us, 2U * 50'000);
  EXPECT_EQ(one.scheduler->scheduler_counters()->reads_late, 1U) << "the first, which was at the device for so long";
}

// The queue at the device counts what the kernel gets: sixteen reads of 16 KiB that lie together are one request to it.
TEST_F(SchedulerTest, ReadsOfNeighboursTakeOnePlace) {
  Shard one = shard(2'000, 4);
  uint64_t offset = 0;
  const auto submit_reads = [&](int count, uint32_t bytes) {
    for (int i = 0; i < count; ++i) {
      submit(one, IoClass::Demand, bytes, Op::Read).offset = offset;
      offset += bytes;
    }
  };
  submit_reads(80, 16 * KiB);
  one.scheduler->flush_submissions();
  EXPECT_EQ(one.device->held.size(), 64U) << "four of 256 KiB";
  one.device->finished = 16;
  one.scheduler->poll();
  one.scheduler->flush_submissions();
  EXPECT_EQ(one.device->held.size(), 64U) << "one place came free, and the last sixteen have it";
  finish(one);
  EXPECT_EQ(completed_.size(), 80U);

  submit_reads(8, 128 * KiB);  // too large to go together
  one.scheduler->flush_submissions();
  EXPECT_EQ(one.device->held.size(), 4U);
  finish(one);
  one.scheduler->flush_submissions();
  EXPECT_EQ(one.device->held.size(), 4U) << "the places of all are free again";
  finish(one);
  for (int i = 0; i < 8; ++i)
    submit(one, IoClass::Demand, 16 * KiB, Op::Read).offset = (100 + 2 * static_cast<uint64_t>(i)) * MiB;
  one.scheduler->flush_submissions();
  EXPECT_EQ(one.device->held.size(), 4U) << "no neighbours";
  finish(one);
  one.scheduler->flush_submissions();
  finish(one);
  EXPECT_EQ(completed_.size(), 96U);
}

// What a completion does, verifying a block first of all, takes longer than the device may have nothing to do.
// A frame in sixteen pieces, with gets and without, and on an engine that moves each by itself.
TEST_F(SchedulerTest, PiecesOfAFrameTakeOnePlaceButBesideGets) {
  for (const bool gets : {false, true}) {
    for (const bool gathering : {true, false}) {
      clock_.us += 1'000'000;
      Shard one = shard(2'000, 8);
      one.device->gathering = gathering;
      if (gets) read(one);
      for (uint64_t i = 0; i < 16; ++i) {
        Request& piece = submit(one, IoClass::Write, 64 * KiB);
        piece.offset = i * 64 * KiB;
        piece.whole = true;
      }
      one.scheduler->flush_submissions();
      const bool together = gathering && !gets;
      EXPECT_EQ(of_class(one, IoClass::Write), together ? 16U : gets ? 3U : 4U) << gets << gathering;
      for (const Request* held : one.device->held) {
        EXPECT_EQ(held->engine_apart, held->io_class == IoClass::Write && gets);
      }
      while (one.scheduler->in_flight() != 0) {
        finish(one);
        one.scheduler->flush_submissions();
      }
      pressure_.demand_seen_us = 0;
    }
  }
}

TEST_F(SchedulerTest, ABlockOfAGetIsThereWholeOrNotAtAll) {
  Shard one = shard(2'000, 64);
  int blocks[48];
  for (uint64_t b = 0; b < 48; ++b) {
    for (uint64_t i = 0; i < 4; ++i) {
      Request& piece = submit(one, IoClass::Demand, 256 * KiB, Op::Read);
      piece.offset = b * 2 * MiB + i * 256 * KiB;
      piece.whole = true;
      piece.owner = &blocks[b];
      piece.complete = [](Request&) {};
    }
  }
  one.scheduler->flush_submissions();
  EXPECT_EQ(one.device->held.size(), 32U * 4) << "32 MiB";
  for (int turn = 0; one.scheduler->in_flight() != 0; ++turn) {
    ASSERT_LT(turn, 100);
    one.device->finished = 4;
    one.scheduler->poll();
    one.scheduler->flush_submissions();
    EXPECT_EQ(one.device->held.size() % 4, 0U);
  }
}

TEST_F(SchedulerTest, TheDeviceIsGivenTheNextRequestsBeforeAnybodyIsTold) {
  Shard one = shard(2'000, 1);
  struct Told {
    HandEngine* device = nullptr;
    size_t held = 0;
  } told{one.device};
  Request& first = read(one);
  first.owner = &told;
  first.complete = [](Request& done) {
    auto& self = *static_cast<Told*>(done.owner);
    self.held = self.device->held.size();
  };
  Request& second = read(one);
  one.scheduler->flush_submissions();
  ASSERT_EQ(one.device->held.size(), 1U);
  one.device->finished = 1;
  EXPECT_EQ(one.scheduler->poll(), 1U);
  EXPECT_EQ(told.held, 1U);
  EXPECT_EQ(one.device->held.front(), &second);
}

// While reads are verified the device is looked at again; what has come by then is for the next poll.
TEST_F(SchedulerTest, ADeviceThatHasDoneMoreMeanwhileIsGivenMore) {
  Shard one = shard(2'000, 2);
  std::vector<Request*> reads;
  for (int i = 0; i < 5; ++i) reads.push_back(&submit(one, IoClass::Demand, 1 * MiB, Op::Read));
  reads[0]->owner = one.device;
  reads[0]->complete = [](Request& done) { static_cast<HandEngine*>(done.owner)->finished = 2; };
  one.scheduler->flush_submissions();
  one.device->finished = 2;
  EXPECT_EQ(one.scheduler->poll(), 2U) << "the first two; the next two came while the first was verified";
  EXPECT_EQ(completed_, std::vector{reads[1]});
  EXPECT_TRUE(one.scheduler->ready());
  one.scheduler->wait();
  EXPECT_EQ(one.scheduler->in_flight(), 3U);
  EXPECT_EQ(one.device->held, std::deque{reads[4]});
  EXPECT_EQ(one.scheduler->poll(), 2U);
  EXPECT_FALSE(one.scheduler->ready());
  EXPECT_EQ(completed_, (std::vector{reads[1], reads[2], reads[3]}));
  finish(one);
  EXPECT_EQ(completed_.back(), reads[4]);
  EXPECT_EQ(one.scheduler->in_flight(), 0U);
}

// What is on media when a flush ends is decided by what had completed when it was submitted.
TEST_F(SchedulerTest, AFlushMayCompleteBeforeWhatLandedBeforeIt) {
  Shard one = shard();
  Request& write = submit(one, IoClass::Write, 4096);
  one.scheduler->flush_submissions();
  Request& flush = submit(one, IoClass::Write, 0, Op::Flush);
  one.device->finished = 2;
  EXPECT_EQ(one.scheduler->poll(), 2U);
  EXPECT_EQ(completed_, (std::vector{&flush, &write}));
  EXPECT_EQ(one.scheduler->in_flight(), 0U);
}

TEST_F(SchedulerTest, SmallReadsAndWritesSayNothingOfHowMuchADeviceTakes) {
  Shard one = shard();
  for (int round = 0; round < 20; ++round) {
    submit(one, IoClass::Demand, 512 * KiB);
    submit(one, IoClass::Demand, 512 * KiB);
    one.scheduler->flush_submissions();
    finish(one);
    for (int i = 0; i < 3; ++i) submit(one, IoClass::Demand, 256 * KiB, Op::Read).offset = i * 2 * MiB;
    one.scheduler->flush_submissions();
    finish(one);
  }
  for (int i = 0; i < 40; ++i) submit(one, IoClass::Demand, 1 * MiB, Op::Read);
  one.scheduler->flush_submissions();
  EXPECT_EQ(one.device->held.size(), 32U);
}

TEST_F(SchedulerTest, GetsHaveNoMoreAtTheDeviceThanKeepsItBusy) {
  Shard one = shard();
  for (int i = 0; i < 40; ++i) submit(one, IoClass::Demand, 1 * MiB, Op::Read);
  one.scheduler->flush_submissions();
  EXPECT_EQ(one.device->held.size(), 32U);
  one.device->finished = 1;
  one.scheduler->poll();
  EXPECT_EQ(one.device->held.size(), 32U) << "one came, one went";
  while (one.scheduler->in_flight() != 0) finish(one);
  EXPECT_EQ(completed_.size(), 40U);
  submit(one, IoClass::Demand, 64 * MiB, Op::Read);
  one.scheduler->flush_submissions();
  EXPECT_EQ(one.device->held.size(), 1U) << "one may always go";
}

// A device that tells of nothing until it has done all would have nothing to do while that is sent.
TEST_F(SchedulerTest, WhatComesAllAtOnceIsAskedForInHalves) {
  Shard one = shard();
  const auto four_reads = [&] {
    for (int i = 0; i < 4; ++i) submit(one, IoClass::Demand, 1 * MiB, Op::Read);
    one.scheduler->flush_submissions();
    return one.device->held.size();
  };
  for (int halved = 0; halved < 4; ++halved) {  // 32, 16, 8, 4
    ASSERT_EQ(four_reads(), 4U);
    finish(one);
  }
  EXPECT_EQ(four_reads(), 2U);
  one.device->finished = 2;
  one.scheduler->poll();
  EXPECT_EQ(one.device->held.size(), 2U) << "the other half";
  finish(one);
  // One at a time: the limit grows by a little for each.
  for (int i = 0; i < 3 * 64; ++i) {
    submit(one, IoClass::Demand, 1 * MiB, Op::Read);
    one.scheduler->flush_submissions();
    finish(one);
  }
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(four_reads(), 4U);
    one.device->finished = 1;
    one.scheduler->poll();
    finish(one);  // they came one after the other
  }
}

TEST_F(SchedulerTest, ADeviceHasNoLessThanItsLeastOfWhatComesAllAtOnce) {
  Shard one = shard();
  for (int round = 0; round < 20; ++round) {
    for (int i = 0; i < 8; ++i) submit(one, IoClass::Demand, 128 * KiB, Op::Read);
    one.scheduler->flush_submissions();
    EXPECT_GE(one.device->held.size(), 4U) << round;
    while (one.scheduler->in_flight() != 0) finish(one);
  }
  for (int i = 0; i < 8; ++i) submit(one, IoClass::Demand, 128 * KiB, Op::Read);
  one.scheduler->flush_submissions();
  EXPECT_LT(one.device->held.size(), 8U);
}

TEST_F(SchedulerTest, FlushesAndDiscardsPass) {
  Shard one = shard(2'000, 1);
  read(one);
  read(one);
  one.scheduler->flush_submissions();
  submit(one, IoClass::Write, 0, Op::Flush);
  submit(one, IoClass::Scrub, 1 * MiB, Op::Discard);
  EXPECT_EQ(one.device->held.size(), 3U);
  EXPECT_EQ(one.scheduler->in_flight(), 4U);
}

TEST_F(SchedulerTest, ACompletionFindsItsRequestAsItWasAndMaySubmitMore) {
  Shard one = shard();
  struct Again {
    Scheduler* scheduler = nullptr;
    Request next;
    bool came = false;
  } again;
  again.scheduler = one.scheduler.get();
  again.next.owner = &again;
  again.next.bytes = 4096;
  again.next.complete = [](Request& done) { static_cast<Again*>(done.owner)->came = true; };
  Request first;
  first.bytes = 4096;
  first.io_class = IoClass::Reclaim;
  first.owner = &again;
  first.complete = [](Request& done) {
    auto& self = *static_cast<Again*>(done.owner);
    self.scheduler->submit(self.next);
  };
  one.scheduler->submit(first);
  one.scheduler->flush_submissions();
  finish(one);
  EXPECT_FALSE(again.came);
  one.scheduler->flush_submissions();
  finish(one, 7);
  EXPECT_TRUE(again.came);
  const SchedulerCounters& counters = *one.scheduler->scheduler_counters();
  EXPECT_EQ(counters.classes[static_cast<size_t>(IoClass::Reclaim)].requests, 1U);
  EXPECT_EQ(counters.classes[static_cast<size_t>(IoClass::Demand)].bytes, 4096U);
  EXPECT_EQ(counters.classes[static_cast<size_t>(IoClass::Demand)].device_us, 7U);
}

}  // namespace
}  // namespace halfstep::io
