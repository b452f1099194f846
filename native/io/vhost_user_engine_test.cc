// Against a target in this process (fake_vhost_target.h), honest and not.
#include "io/vhost_user_engine.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/prng.h"
#include "io/backing.h"
#include "io/engine_fixture.h"
#include "io/fake_vhost_target.h"

namespace halfstep::io {
namespace {

constexpr auto kPatience = std::chrono::seconds(60);

class VhostUserEngineTest : public testing::Test {
 protected:
  void SetUp() override { ASSERT_TRUE(Arena::create_shared(kArenaBytes, false, &arena_).ok()); }
  void TearDown() override {
    engine_ = nullptr;
    backing_ = nullptr;
  }
  std::string socket() const { return directory_.path() + "/socket"; }
  Fault open_backing() { return Backing::open({.path = std::string(kVhostUserPrefix) + socket()}, &backing_); }
  void open(uint32_t queue_depth = kQueueDepth) {
    target_.start();
    Fault fault = open_backing();
    ASSERT_TRUE(fault.ok()) << fault.what;
    EngineConfig config;
    config.queue_depth = queue_depth;
    fault = open_engine(config, *arena_, {backing_.get()}, &engine_);
    ASSERT_TRUE(fault.ok()) << fault.what;
    EXPECT_EQ(engine_->facts().name, "vhost_user");
  }
  std::byte* at(uint64_t offset) { return arena_->bytes().data() + offset; }
  // Turns as a loop does, without a sleep that an eventfd would have to end.
  template <typename Happened>
  void turn_until(const Happened& happened) {
    const auto until = std::chrono::steady_clock::now() + kPatience;
    while (!happened()) {
      ASSERT_LT(std::chrono::steady_clock::now(), until) << "it never happened";
      engine_->poll();
      engine_->flush_submissions();
      std::this_thread::yield();
    }
  }
  int32_t run(Tracked& tracked) {
    engine_->submit(tracked.request);
    turn_until([&] { return tracked.completions > 0; });
    EXPECT_EQ(tracked.completions, 1U);
    return tracked.request.error;
  }
  // Asks until the target is back.
  void write_until_ok(Tracked& tracked, uint64_t offset, std::byte* data, uint32_t bytes) {
    const auto until = std::chrono::steady_clock::now() + kPatience;
    do {
      ASSERT_LT(std::chrono::steady_clock::now(), until) << "the target never came back";
      tracked.set(Op::Write, offset, data, bytes);
    } while (run(tracked) != 0);
  }

  TemporaryDirectory directory_;
  FakeVhostTarget target_{socket()};
  std::unique_ptr<Arena> arena_;
  std::unique_ptr<Backing> backing_;
  std::unique_ptr<Engine> engine_;
};

TEST_F(VhostUserEngineTest, BytesOfASharedArenaMoveWithoutACopyAndOthersBounce) {
  open();
  EXPECT_TRUE(engine_->facts().registered_buffers);
  EXPECT_EQ(engine_->device_bytes(0), 8 * MiB);
  const std::unique_ptr<std::byte[], AlignedDelete> outside = aligned_bytes(3 * MiB);
  Prng(1).fill({outside.get(), 3 * MiB});
  Tracked tracked;
  tracked.set(Op::Write, MiB, outside.get(), 3 * MiB);
  ASSERT_EQ(run(tracked), 0);
  EXPECT_TRUE(std::ranges::equal(Bytes(outside.get(), 3 * MiB), target_.disk(MiB, 3 * MiB)));
  tracked.set(Op::Read, MiB, at(0), 3 * MiB);
  ASSERT_EQ(run(tracked), 0);
  EXPECT_TRUE(std::equal(outside.get(), outside.get() + 3 * MiB, at(0)));
}

TEST_F(VhostUserEngineTest, WithoutIndirectDescriptorsAndWithSmallPiecesItIsTheSame) {
  target_.manner.features = kFeatureEventIndex | kFeatureProtocol | kFeatureVersion1 | kFeatureSizeMax;
  target_.manner.protocol = 1ULL << 9;
  target_.manner.size_max = 20'000;
  open();
  Prng(2).fill({at(0), MiB});
  Tracked tracked;
  tracked.set(Op::Write, 0, at(0), MiB);
  ASSERT_EQ(run(tracked), 0);
  EXPECT_TRUE(std::ranges::equal(Bytes(at(0), MiB), target_.disk(0, MiB)));
  tracked.set(Op::Flush, 0, nullptr, 0);
  EXPECT_EQ(run(tracked), 0) << "a device without a cache has nothing to flush";
}

// QEMU's does.
TEST_F(VhostUserEngineTest, ADeviceThatBoundsItsPiecesByNothingIsTaken) {
  target_.manner.features |= kFeatureSizeMax;
  target_.manner.size_max = 0;
  open();
  Tracked tracked;
  tracked.set(Op::Write, 0, at(0), 2 * MiB);
  EXPECT_EQ(run(tracked), 0);
}

TEST_F(VhostUserEngineTest, ATurnKicksOnceAtMost) {
  open(64);
  std::vector<Tracked> reads(64);
  Tracked first;
  first.set(Op::Read, 0, at(0), 4096);
  ASSERT_EQ(run(first), 0);
  const uint64_t before = engine_->counters().kicks;
  for (size_t i = 0; i < reads.size(); ++i) {
    reads[i].set(Op::Read, i * 4096, at(i * 4096), 4096);
    engine_->submit(reads[i].request);
  }
  EXPECT_EQ(engine_->counters().kicks, before);
  engine_->flush_submissions();
  EXPECT_EQ(engine_->counters().kicks, before + 1);
  turn_until([&] { return engine_->in_flight() == 0; });
  EXPECT_EQ(engine_->counters().kicks, before + 1);
}

// As SPDK's: it polls, and ends by SIGSEGV when it is given ordinary pages.
TEST_F(VhostUserEngineTest, ATargetThatPollsIsGivenReservedPagesOrNothing) {
  target_.manner.features &= ~kFeatureEventIndex;
  target_.start();
  ASSERT_TRUE(open_backing().ok());
  EngineConfig config;
  config.queue_depth = kQueueDepth;
  Fault fault = open_engine(config, *arena_, {backing_.get()}, &engine_);
  ASSERT_FALSE(fault.ok()) << "the arena is in ordinary pages";
  EXPECT_NE(fault.what.find("vm.nr_hugepages="), std::string::npos) << fault.what;
  EXPECT_EQ(target_.connections(), 1U) << "it was connected to again, to be given memory";
  ASSERT_TRUE(Arena::create_shared(2 * MiB, true, &arena_).ok());
  if (!arena_->shared()->reserved())
    GTEST_SKIP() << "no 2 MiB pages are reserved here (vm.nr_hugepages): refusal alone was seen";
  fault = open_engine(config, *arena_, {backing_.get()}, &engine_);
  if (fault.status == Code::Unsupported) GTEST_SKIP() << "too few pages are reserved here: " << fault.what;
  ASSERT_TRUE(fault.ok()) << fault.what;
  Tracked tracked;
  std::fill_n(at(0), 4096, std::byte{0x44});
  tracked.set(Op::Write, 0, at(0), 4096);
  EXPECT_EQ(run(tracked), 0);
  EXPECT_EQ(target_.disk(4095, 1)[0], std::byte{0x44});
}

// It has a descriptor of the kick, and does with it what it can: blocking, full, and never read.
TEST_F(VhostUserEngineTest, ATargetThatBlocksItsKickBlocksItselfAlone) {
  std::atomic<int> filled{0};
  target_.manner.deaf = [&](int kick) {
    ASSERT_EQ(::fcntl(kick, F_SETFL, ::fcntl(kick, F_GETFL) | O_NONBLOCK), 0);
    (void)::eventfd_write(kick, UINT64_MAX - 1);
    while (::eventfd_write(kick, 1) == 0) ++filled;
    ASSERT_EQ(::fcntl(kick, F_SETFL, ::fcntl(kick, F_GETFL) & ~O_NONBLOCK), 0);
  };
  open();
  Tracked tracked;
  for (int turn = 0; turn < 2000; ++turn) {
    tracked.set(Op::Read, 0, at(0), 4096);
    ASSERT_EQ(run(tracked), 0) << turn;
  }
  EXPECT_GE(engine_->counters().kicks, 2000U);
  // Once it reads, it is told of what came while it did not.
  target_.stop();
  target_.manner.deaf = nullptr;
  target_.start();
  write_until_ok(tracked, 0, at(0), 4096);
}

TEST_F(VhostUserEngineTest, ATargetThatShutsItsKickDownIsNoSignalAndNoError) {
  target_.manner.deaf = [](int kick) { (void)::shutdown(kick, SHUT_RDWR); };
  open();
  Tracked tracked;
  tracked.set(Op::Read, 0, at(0), 4096);
  EXPECT_EQ(run(tracked), 0);
}

TEST_F(VhostUserEngineTest, WhatTheDeviceRefusesIsAnErrorOfThatRequestAlone) {
  std::atomic<int> refuse{1};
  target_.manner.status = [&](uint8_t& status) { status = refuse-- > 0 ? 1 : 0; };
  open();
  Tracked tracked;
  tracked.set(Op::Read, 0, at(0), 4096);
  EXPECT_EQ(run(tracked), -EIO);
  tracked.set(Op::Read, 0, at(0), 4096);
  EXPECT_EQ(run(tracked), 0);
  EXPECT_EQ(engine_->counters().losses, 0U);
}

TEST_F(VhostUserEngineTest, InFlightOfATargetThatHangsUpFailsAndItsMemoryIsOutOfItsReach) {
  std::atomic<bool> takes{false};
  target_.manner.takes = [&] { return takes.load(); };
  open();
  Prng(3).fill({at(0), kArenaBytes});
  std::vector<Tracked> reads(4);
  for (size_t i = 0; i < reads.size(); ++i) {
    reads[i].set(Op::Read, i * 4096, at(i * 4096), 4096);
    engine_->submit(reads[i].request);
  }
  turn_until([&] { return target_.kept() == 4; });
  target_.hang_up();
  turn_until([&] { return engine_->in_flight() == 0; });
  for (const Tracked& read : reads) EXPECT_EQ(read.request.error, -EIO);
  // The request's owner has its memory again. The old target lives, and writes to all that it was given.
  const std::vector<std::byte> before(at(0), at(kArenaBytes));
  ASSERT_EQ(target_.old_mappings(), 2U);
  target_.scribble(std::byte{0xee});
  EXPECT_TRUE(std::equal(before.begin(), before.end(), at(0))) << "a target that was left wrote into the arena";
  takes = true;
  Tracked tracked;
  write_until_ok(tracked, 0, at(0), 64 * KiB);
  EXPECT_TRUE(std::ranges::equal(ConstBytes(before).first(64 * KiB), target_.disk(0, 64 * KiB)));
  EXPECT_EQ(engine_->counters().losses, 1U);
}

TEST_F(VhostUserEngineTest, WhileTheTargetIsAwayRequestsFailAndTheyGoOnWhenItIsBack) {
  open();
  Tracked tracked;
  tracked.set(Op::Write, 0, at(0), 4096);
  ASSERT_EQ(run(tracked), 0);
  for (int turn = 0; turn < 3; ++turn) {
    target_.stop();
    do {
      tracked.set(Op::Read, 0, at(0), 4096);
    } while (run(tracked) == 0);
    EXPECT_EQ(tracked.request.error, -EIO);
    target_.start();
    write_until_ok(tracked, 4096, at(0), 4096);
  }
  EXPECT_EQ(engine_->counters().losses, 3U);
}

TEST_F(VhostUserEngineTest, ATargetThatLiesAboutItsQueueIsLeftAndNothingOutsideItsRequestIsTouched) {
  struct Lie {
    const char* what;
    std::function<void(FakeVhostTarget::Manner&, std::atomic<int>&)> tell;
  };
  const Lie lies[] = {
      {"a slot that is not out",
       [](auto& manner, auto& left) {
         manner.used = [&left](uint32_t& head, uint32_t&) { head = left-- > 0 ? (head + 1) % kQueueDepth : head; };
       }},
      {"a slot that there is not",
       [](auto& manner, auto& left) {
         manner.used = [&left](uint32_t& head, uint32_t&) { head = left-- > 0 ? 0xffff0000U : head; };
       }},
      {"more bytes than the request has",
       [](auto& manner, auto& left) {
         manner.used = [&left](uint32_t&, uint32_t& length) { length = left-- > 0 ? UINT32_MAX : length; };
       }},
      {"more answers than requests",
       [](auto& manner, auto& left) {
         manner.after = [&left](std::byte* ring) {
           if (left-- > 0) store_le(ring + 2, uint16_t{0x8000});
         };
       }},
  };
  for (const Lie& lie : lies) {
    SCOPED_TRACE(lie.what);
    engine_ = nullptr;
    backing_ = nullptr;
    target_.stop();
    target_.manner = {};
    std::atomic<int> left{1};
    lie.tell(target_.manner, left);
    open();
    std::fill_n(at(0), 2 * 4096, std::byte{0x77});
    Tracked tracked;
    tracked.set(Op::Read, 0, at(0), 4096);
    EXPECT_EQ(run(tracked), -EIO);
    EXPECT_EQ(*at(4096), std::byte{0x77});
    write_until_ok(tracked, 0, at(0), 4096);
    EXPECT_EQ(engine_->counters().losses, 1U);
  }
}

TEST_F(VhostUserEngineTest, AShortReadThatCallsItselfGoodIsAnError) {
  target_.manner.used = [](uint32_t&, uint32_t& length) { length = 1; };
  open();
  Tracked tracked;
  tracked.set(Op::Read, 0, at(0), 4096);
  EXPECT_EQ(run(tracked), -EIO);
  tracked.set(Op::Write, 0, at(0), 4096);
  EXPECT_EQ(run(tracked), 0);
}

TEST_F(VhostUserEngineTest, ATargetThatCannotBeUsedIsRefusedWithTheReason) {
  const Fault none = open_backing();
  EXPECT_NE(none.what.find("start the target"), std::string::npos) << none.what;
  struct Case {
    const char* says;
    std::function<void(FakeVhostTarget::Manner&)> make;
  };
  const Case cases[] = {
      {"virtio 1.0", [](auto& manner) { manner.features = kFeatureProtocol; }},
      {"configuration space", [](auto& manner) { manner.protocol = 1; }},
      {"read-only", [](auto& manner) { manner.features |= kFeatureReadOnly; }},
      {"capacity of 0 sectors",
       [](auto& manner) {
         manner.answer = [](VhostMessage what, std::vector<std::byte>& answer) {
           if (what == VhostMessage::GetConfig) store_le(answer.data() + 12, uint64_t{0});
           return true;
         };
       }},
      {"capacity of 18446744073709551615 sectors",
       [](auto& manner) {
         manner.answer = [](VhostMessage what, std::vector<std::byte>& answer) {
           if (what == VhostMessage::GetConfig) store_le(answer.data() + 12, UINT64_MAX);
           return true;
         };
       }},
      {"no vhost-user",
       [](auto& manner) {
         manner.answer = [](VhostMessage, std::vector<std::byte>& answer) {
           answer.resize(100'000);
           return true;
         };
       }},
  };
  for (const Case& one : cases) {
    SCOPED_TRACE(one.says);
    target_.stop();
    target_.manner = {};
    one.make(target_.manner);
    target_.start();
    const Fault fault = open_backing();
    EXPECT_FALSE(fault.ok());
    EXPECT_NE(fault.what.find(one.says), std::string::npos) << fault.what;
  }
}

TEST_F(VhostUserEngineTest, ATargetThatComesBackSmallerIsNotTaken) {
  open();
  Tracked tracked;
  tracked.set(Op::Write, 0, at(0), 4096);
  ASSERT_EQ(run(tracked), 0);
  target_.stop();
  target_.manner.bytes = 4 * MiB;
  target_.start();
  const uint64_t before = target_.connections();
  turn_until([&] { return target_.connections() >= before + 3; });
  tracked.set(Op::Write, 0, at(0), 4096);
  EXPECT_EQ(run(tracked), -EIO);
  target_.stop();
  target_.manner.bytes = 8 * MiB;
  target_.start();
  write_until_ok(tracked, 0, at(0), 4096);
}

TEST_F(VhostUserEngineTest, ATargetThatComesBackWithoutAFeatureInUseIsNotTakenAndNeverHasTheArena) {
  const uint64_t all = target_.manner.features;
  open();
  Tracked tracked;
  tracked.set(Op::Write, 0, at(0), 4096);
  ASSERT_EQ(run(tracked), 0);
  for (const uint64_t lost : {kFeatureFlush, kFeatureIndirect, kFeatureEventIndex}) {
    target_.stop();
    target_.manner.features = all & ~lost;
    target_.start();
    const uint64_t before = target_.connections();
    turn_until([&] { return target_.connections() >= before + 2; });
    turn_until([&] { return !backing_->session()->why_refused().empty(); });
    tracked.set(Op::Write, 4096, at(0), 4096);
    EXPECT_EQ(run(tracked), -EIO);
    EXPECT_EQ(target_.old_mappings(), 0U) << "it was given memory";
    target_.stop();
    target_.manner.features = all | kFeatureSizeMax;  // one more is no harm
    target_.start();
    write_until_ok(tracked, 4096, at(0), 4096);
    EXPECT_TRUE(backing_->session()->why_refused().empty());
  }
}

TEST_F(VhostUserEngineTest, ATargetThatComesBackWithAnotherStoreIsNotTakenAndNeverHasTheArena) {
  open();
  const auto write_mark = [&](std::byte mark) { target_.fill_disk(0, 4096, mark); };
  Tracked tracked;
  std::fill_n(at(0), 4096, std::byte{0x51});
  tracked.set(Op::Write, 0, at(0), 4096);
  ASSERT_EQ(run(tracked), 0);
  backing_->session()->judge_by([](const VhostSession::Read& read) -> Fault {
    std::vector<std::byte> page(200 * KiB);
    if (const Status status = read(4 * MiB, page); !status.ok()) return {status, "not read"};
    if (const Status status = read(0, Bytes(page).first(4096)); !status.ok()) return {status, "not read"};
    return page[4095] == std::byte{0x51} ? Fault() : Fault{Code::Unsupported, "holds another store"};
  });
  target_.stop();
  write_mark(std::byte{0x52});
  target_.start();
  turn_until([&] { return !backing_->session()->why_refused().empty(); });
  EXPECT_NE(backing_->session()->why_refused().find(socket() + ": holds another store"), std::string::npos);
  const uint64_t before = target_.connections();
  turn_until([&] { return target_.connections() >= before + 2; });
  tracked.set(Op::Write, 4096, at(0), 4096);
  EXPECT_EQ(run(tracked), -EIO);
  EXPECT_EQ(target_.disk(4096, 1)[0], std::byte{0}) << "written into somebody else's store";
  const std::vector<std::byte> arena(at(0), at(kArenaBytes));
  target_.scribble(std::byte{0xee});
  EXPECT_TRUE(std::equal(arena.begin(), arena.end(), at(0))) << "a target that was refused has had the arena";
  target_.stop();
  write_mark(std::byte{0x51});
  target_.start();
  write_until_ok(tracked, 4096, at(0), 4096);
  EXPECT_TRUE(backing_->session()->why_refused().empty());
  EXPECT_EQ(engine_->counters().losses, 1U);
}

TEST_F(VhostUserEngineTest, EnginesOfOneTargetHaveAQueueEachAndServeWhenAllAreThere) {
  target_.start();
  ASSERT_TRUE(open_backing().ok());
  EngineConfig config;
  config.queue_depth = kQueueDepth;
  config.engines = 2;
  ASSERT_TRUE(open_engine(config, *arena_, {backing_.get()}, &engine_).ok());
  std::unique_ptr<Arena> arena;
  ASSERT_TRUE(Arena::create_shared(2 * MiB, false, &arena).ok());
  std::unique_ptr<Engine> second;
  ASSERT_TRUE(open_engine(config, *arena, {backing_.get()}, &second).ok());
  std::fill_n(at(0), 4096, std::byte{0x33});
  Tracked tracked;
  tracked.set(Op::Write, 0, at(0), 4096);
  ASSERT_EQ(run(tracked), 0);
  Tracked read;
  read.set(Op::Read, 0, arena->bytes().data(), 4096);
  second->submit(read.request);
  while (read.completions == 0) {
    second->wait();
    second->poll();
  }
  EXPECT_EQ(read.request.error, 0);
  EXPECT_EQ(arena->bytes()[4095], std::byte{0x33});
  second = nullptr;
  EXPECT_EQ(run(tracked), 0) << "one that leaves takes nothing from the other";
  engine_ = nullptr;
  config.engines = 5;
  const Fault fault = open_engine(config, *arena_, {backing_.get()}, &engine_);
  EXPECT_NE(fault.what.find("shards=5"), std::string::npos) << fault.what;
}

}  // namespace
}  // namespace halfstep::io
