// One suite for every engine: what engine.h promises, whichever way the bytes move.
#include "io/engine.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <deque>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/prng.h"
#include "io/engine_fixture.h"

namespace halfstep::io {
namespace {

TEST_P(EngineContract, ReadsBackWhatWasWritten) {
  Prng prng(1);
  prng.fill({at(0), 2 * MiB});
  const std::vector<std::byte> expected(at(0), at(2 * MiB));
  std::vector<Tracked> writes(8);
  for (size_t i = 0; i < writes.size(); ++i) {
    writes[i].set(Op::Write, MiB + i * 256 * KiB, at(i * 256 * KiB), 256 * KiB);
    engine_->submit(writes[i].request);
  }
  EXPECT_EQ(engine_->in_flight(), writes.size());
  drain();
  for (const Tracked& write : writes) {
    EXPECT_EQ(write.completions, 1U);
    EXPECT_EQ(write.request.error, 0);
  }
  // Read in other pieces, to other places.
  std::fill(at(0), at(4 * MiB), std::byte{0});
  std::vector<Tracked> reads(512);
  for (size_t i = 0; i < reads.size(); ++i) {
    reads[i].set(Op::Read, MiB + i * 4096, at(2 * MiB + i * 4096), 4096);
    engine_->submit(reads[i].request);
  }
  drain();
  EXPECT_TRUE(std::equal(expected.begin(), expected.end(), at(2 * MiB)));
  const EngineCounters& counters = engine_->counters();
  EXPECT_EQ(counters.writes, 8U);
  EXPECT_EQ(counters.write_bytes, 2 * MiB);
  EXPECT_EQ(counters.reads, 512U);
  EXPECT_EQ(counters.read_bytes, 2 * MiB);
  EXPECT_EQ(counters.errors, 0U);
}

TEST_P(EngineContract, CompletesOnceEachInAnyOrderWithItsOwnBytes) {
  Prng prng(2);
  constexpr size_t kPages = 256;
  for (uint64_t page = 0; page < kPages; ++page) store_le(at(page * 4096), page * 0x9E3779B97F4A7C15U);
  Tracked write;
  write.set(Op::Write, 0, at(0), kPages * 4096);
  ASSERT_EQ(run(write), 0);

  std::vector<Tracked*> finished;
  std::vector<Tracked> reads(kPages);
  std::vector<size_t> pages(kPages);
  for (size_t i = 0; i < kPages; ++i) pages[i] = i;
  for (size_t i = kPages - 1; i > 0; --i) std::swap(pages[i], pages[prng.below(i + 1)]);
  for (size_t i = 0; i < kPages; ++i) {
    reads[i].set(Op::Read, pages[i] * 4096, at(2 * MiB + i * 4096), 4096);
    reads[i].finished = &finished;
    engine_->submit(reads[i].request);
  }
  drain();
  ASSERT_EQ(finished.size(), kPages);
  for (size_t i = 0; i < kPages; ++i) {
    EXPECT_EQ(reads[i].completions, 1U);
    EXPECT_EQ(load_le<uint64_t>(reads[i].request.data), pages[i] * 0x9E3779B97F4A7C15U);
  }
}

TEST_P(EngineContract, QueuesTenTimesItsDepth) {
  std::vector<Tracked> writes(10 * kQueueDepth);
  for (size_t i = 0; i < writes.size(); ++i) {
    std::fill_n(at(i * 4096), 4096, static_cast<std::byte>(i));
    writes[i].set(Op::Write, i * 4096, at(i * 4096), 4096);
    engine_->submit(writes[i].request);
  }
  EXPECT_EQ(engine_->in_flight(), writes.size());
  // As a loop does it: one turn is poll, then flush_submissions. No wait() here.
  while (engine_->in_flight() > 0) {
    engine_->poll();
    engine_->flush_submissions();
  }
  Tracked read;
  read.set(Op::Read, 0, at(4 * MiB), static_cast<uint32_t>(writes.size() * 4096));
  ASSERT_EQ(run(read), 0);
  for (size_t i = 0; i < writes.size(); ++i) {
    EXPECT_EQ(writes[i].completions, 1U);
    EXPECT_EQ(*at(4 * MiB + i * 4096 + 4095), static_cast<std::byte>(i));
  }
}

TEST_P(EngineContract, NeverCompletesInsideSubmit) {
  Tracked good;
  Tracked bad;
  good.set(Op::Flush, 0, nullptr, 0);
  bad.set(Op::Read, kDeviceBytes, at(0), 4096);
  engine_->submit(good.request);
  engine_->submit(bad.request);
  engine_->flush_submissions();
  EXPECT_EQ(good.completions, 0U);
  EXPECT_EQ(bad.completions, 0U);
  drain();
  EXPECT_EQ(good.completions, 1U);
  EXPECT_EQ(bad.completions, 1U);
}

TEST_P(EngineContract, CompletionMaySubmitAgain) {
  struct Chain {
    Request request;
    Engine* engine = nullptr;
    uint32_t left = 40;
    static void complete(Request& request) {
      auto& self = *static_cast<Chain*>(request.owner);
      ASSERT_EQ(request.error, 0);
      if (--self.left == 0) return;
      request.offset += 4096;
      self.engine->submit(request);
    }
  } chain;
  chain.engine = engine_.get();
  chain.request.data = at(0);
  chain.request.bytes = 4096;
  chain.request.complete = Chain::complete;
  chain.request.owner = &chain;
  engine_->submit(chain.request);
  drain();
  EXPECT_EQ(chain.left, 0U);
  EXPECT_EQ(engine_->counters().reads, 40U);
}

TEST_P(EngineContract, RefusesAddressesThatAreNotTheDevices) {
  struct Case {
    const char* why;
    uint64_t offset;
    uint32_t bytes;
    uint64_t data_offset;
    uint8_t device;
  };
  const Case cases[] = {
      {"behind the end", kDeviceBytes, 4096, 0, 0},
      {"over the end", kDeviceBytes - 4096, 8192, 0, 0},
      {"offset that wraps", UINT64_MAX - 4095, 8192, 0, 0},
      {"offset off the page", 512, 4096, 0, 0},
      {"length off the page", 0, 1000, 0, 0},
      {"memory off the page", 0, 4096, 8, 0},
      {"no bytes", 0, 0, 0, 0},
      {"no such device", 0, 4096, 0, 1},
  };
  for (const Op op : {Op::Read, Op::Write}) {
    for (const Case& c : cases) {
      Tracked tracked;
      tracked.set(op, c.offset, at(c.data_offset), c.bytes);
      tracked.request.device = c.device;
      EXPECT_EQ(run(tracked), -EINVAL) << c.why;
    }
  }
  EXPECT_EQ(engine_->counters().errors, 2 * std::size(cases));
  // And it goes on.
  Tracked good;
  good.set(Op::Read, 0, at(0), 4096);
  EXPECT_EQ(run(good), 0);
}

TEST_P(EngineContract, DiscardsNothingOfADeviceThatTakesNone) {
  if (engine_->discard_limits(0).taken()) GTEST_SKIP() << "this device takes some";
  Prng prng(3);
  prng.fill({at(0), 64 * KiB});
  Tracked tracked;
  tracked.set(Op::Write, 0, at(0), 64 * KiB);
  ASSERT_EQ(run(tracked), 0);
  EXPECT_FALSE(engine_->discard_limits(0).taken());
  EXPECT_EQ(engine_->facts().discard, "none");
  EXPECT_EQ(engine_->facts().why_no_discard, "") << "a file is no device that should take some";
  tracked.set(Op::Discard, 0, nullptr, 64 * KiB);
  EXPECT_EQ(run(tracked), -EOPNOTSUPP);
  tracked.set(Op::Read, 0, at(MiB), 64 * KiB);
  ASSERT_EQ(run(tracked), 0);
  EXPECT_TRUE(std::equal(at(0), at(64 * KiB), at(MiB)));
}

TEST_P(EngineContract, FlushSucceedsAmongWrites) {
  std::vector<Tracked> requests(30);
  for (size_t i = 0; i < requests.size(); ++i) {
    if (i % 3 == 2) {
      requests[i].set(Op::Flush, 0, nullptr, 0);
    } else {
      requests[i].set(Op::Write, i * 4096, at(i * 4096), 4096);
    }
    engine_->submit(requests[i].request);
  }
  drain();
  for (const Tracked& tracked : requests) EXPECT_EQ(tracked.request.error, 0);
  EXPECT_EQ(engine_->counters().flushes, 10U);
  EXPECT_EQ(engine_->counters().writes, 20U);
}

TEST_P(EngineContract, MovesMemoryThatIsNotTheArenas) {
  const std::unique_ptr<std::byte[], AlignedDelete> outside = aligned_bytes(256 * KiB);
  Prng(3).fill({outside.get(), 256 * KiB});
  const std::vector<std::byte> expected(outside.get(), outside.get() + 256 * KiB);
  Tracked tracked;
  tracked.set(Op::Write, MiB, outside.get(), 256 * KiB);
  ASSERT_EQ(run(tracked), 0);
  std::fill_n(outside.get(), 256 * KiB, std::byte{0});
  tracked.set(Op::Read, MiB, outside.get(), 256 * KiB);
  ASSERT_EQ(run(tracked), 0);
  EXPECT_TRUE(std::equal(expected.begin(), expected.end(), outside.get()));
}

TEST_P(EngineContract, WaitReturnsWhenNothingIsInFlight) {
  engine_->wait();
  EXPECT_EQ(engine_->poll(), 0U);
  EXPECT_EQ(engine_->in_flight(), 0U);
}

TEST_P(EngineContract, DestructionWaitsForTheDeviceAndCompletesNothing) {
  std::vector<Tracked> requests(10 * kQueueDepth);
  for (size_t i = 0; i < requests.size(); ++i) {
    requests[i].set(i % 2 == 0 ? Op::Read : Op::Write, i * 64 * KiB, at((i % 32) * 64 * KiB), 64 * KiB);
    engine_->submit(requests[i].request);
  }
  engine_->flush_submissions();
  engine_.reset();
  // The arena goes now; a transfer that is still under way would be found by the sanitizers or by
  // the kernel's own accounting.
  arena_.reset();
  for (const Tracked& tracked : requests) EXPECT_EQ(tracked.completions, 0U);
}

// A ring's task work interrupts epoll_wait before Linux 6.1 (and a ring's end does on all): loops
// go on after EINTR.
int wait_for_event(int epoll, int timeout_ms) {
  epoll_event event{};
  for (;;) {
    const int ready = epoll_wait(epoll, &event, 1, timeout_ms);
    if (ready >= 0 || errno != EINTR) return ready;
  }
}

TEST_P(EngineContract, WakesAnEpollWaitForEachCompletion) {
  if (engine_->wake_descriptor() < 0) GTEST_SKIP() << engine_->facts().name << " is only polled";
  const int epoll = epoll_create1(EPOLL_CLOEXEC);
  ASSERT_GE(epoll, 0);
  epoll_event interest{};
  interest.events = EPOLLIN | EPOLLET;
  ASSERT_EQ(epoll_ctl(epoll, EPOLL_CTL_ADD, engine_->wake_descriptor(), &interest), 0);
  EXPECT_EQ(wait_for_event(epoll, 0), 0) << "readable before anything was asked";
  for (int turn = 0; turn < 200; ++turn) {
    std::vector<Tracked> requests(3);
    for (size_t i = 0; i < requests.size(); ++i) {
      requests[i].set(turn % 2 == 0 ? Op::Write : Op::Read, i * 4096, at(i * 4096), 4096);
      engine_->submit(requests[i].request);
    }
    engine_->flush_submissions();
    while (engine_->in_flight() > 0) {
      ASSERT_EQ(wait_for_event(epoll, 10'000), 1) << "turn " << turn << ": no wake, " << engine_->in_flight() << " in flight";
      engine_->poll();
      engine_->flush_submissions();
    }
  }
  // A refusal wakes too, and an idle engine comes to rest instead of waking for ever.
  Tracked bad;
  bad.set(Op::Read, kDeviceBytes, at(0), 4096);
  engine_->submit(bad.request);
  engine_->flush_submissions();
  ASSERT_EQ(wait_for_event(epoll, 10'000), 1);
  engine_->poll();
  for (int turn = 0; turn < 3 && wait_for_event(epoll, 0) == 1; ++turn) engine_->poll();
  EXPECT_EQ(wait_for_event(epoll, 0), 0);
  EXPECT_EQ(bad.completions, 1U);
  close(epoll);
}

TEST_P(EngineContract, RunsOnAnotherThreadThanTheOneThatOpenedIt) {
  int32_t error = 1;
  std::thread shard([&] {
    Tracked tracked;
    tracked.set(Op::Write, 0, at(0), 4096);
    engine_->submit(tracked.request);
    while (tracked.completions == 0) {
      engine_->flush_submissions();
      engine_->poll();
    }
    error = tracked.request.error;
  });
  shard.join();
  EXPECT_EQ(error, 0);
}

TEST_P(EngineContract, MayBeDestroyedByAnotherThreadOnceItsOwnHasEnded) {
  std::vector<Tracked> requests(2 * kQueueDepth);
  std::thread shard([&] {
    for (size_t i = 0; i < requests.size(); ++i) {
      requests[i].set(Op::Read, i * 256 * KiB, at(i * 256 * KiB), 256 * KiB);
      engine_->submit(requests[i].request);
    }
    engine_->flush_submissions();
  });
  shard.join();
  engine_.reset();
  arena_.reset();
  for (const Tracked& tracked : requests) EXPECT_EQ(tracked.completions, 0U);
}

TEST_P(EngineContract, SurvivesAReopen) {
  std::fill_n(at(0), 4096, std::byte{0x5A});
  Tracked tracked;
  tracked.set(Op::Write, 3 * MiB, at(0), 4096);
  ASSERT_EQ(run(tracked), 0);
  engine_.reset();
  open();
  std::fill_n(at(0), 4096, std::byte{0});
  tracked.set(Op::Read, 3 * MiB, at(0), 4096);
  ASSERT_EQ(run(tracked), 0);
  EXPECT_EQ(*at(4095), std::byte{0x5A});
}

TEST_P(EngineContract, ReadOfAFileThatWasCutFailsInsteadOfEndingShort) {
  if (GetParam() == Kind::Memory || GetParam() >= Kind::VhostUser) GTEST_SKIP() << "there is no file to cut";
  ASSERT_EQ(ftruncate(backing_->descriptor(), MiB + 4096), 0);
  Tracked tracked;
  tracked.set(Op::Read, 2 * MiB, at(0), 4096);
  EXPECT_EQ(run(tracked), -EIO);
  tracked.set(Op::Read, MiB, at(0), 64 * KiB);
  EXPECT_EQ(run(tracked), -EIO) << "the first page is there, the rest is not";
  tracked.set(Op::Read, MiB, at(0), 4096);
  EXPECT_EQ(run(tracked), 0);
}

TEST_P(EngineContract, ErrorsOfTheSystemComeBackAsTheyAre) {
  if (GetParam() == Kind::Memory) GTEST_SKIP() << "its errors are memory_engine_test's";
  if (GetParam() == Kind::VhostUser) GTEST_SKIP() << "its errors are vhost_user_engine_test's";
  if (GetParam() == Kind::UringCmd) GTEST_SKIP() << "its errors are uring_cmd_engine_test's";
  if (GetParam() == Kind::Noop) GTEST_SKIP() << "it makes no system call that could fail";
  // A descriptor that may not be written: every write fails with EBADF, reads go on.
  const int read_only = ::open((directory_.path() + "/device").c_str(), O_RDONLY | O_CLOEXEC);
  ASSERT_GE(read_only, 0);
  engine_.reset();
  ASSERT_EQ(dup3(read_only, backing_->descriptor(), O_CLOEXEC), backing_->descriptor());
  close(read_only);
  open();
  Tracked tracked;
  tracked.set(Op::Write, 0, at(0), 4096);
  EXPECT_EQ(run(tracked), -EBADF);
  tracked.set(Op::Read, 0, at(0), 4096);
  EXPECT_EQ(run(tracked), 0);
  EXPECT_EQ(engine_->counters().errors, 1U);
}

INSTANTIATE_TEST_SUITE_P(Engines, EngineContract, kEveryEngine, kind_name);

}  // namespace
}  // namespace halfstep::io
