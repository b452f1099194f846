// What is the engine of NVMe commands' own: pieces, placement, flushes, deallocation, errors. What every engine promises is
// engine_test's, over the same fake drive.
#include "io/uring_cmd_engine.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <map>
#include <set>
#include <thread>
#include <vector>

#include "base/prng.h"
#include "io/engine_fixture.h"
#include "io/nvme_ring.h"
#include "io/polled_nvme_queue.h"

namespace halfstep::io {
namespace {

constexpr int32_t kUnrecovered = 0x281;

class UringCmd : public testing::Test {
 protected:
  void SetUp() override { ASSERT_TRUE(Arena::create(kArenaBytes, false, &arena_).ok()); }
  void open(bool polled = false) {
    EngineConfig config;
    config.queue_depth = kQueueDepth;
    config.polled = polled;
    const Fault fault = open_on_fake(drive_, config, *arena_, &engine_);
    ASSERT_TRUE(fault.ok()) << fault.what;
    drive_.commands.clear();
    drive_.regions.clear();
  }
  std::byte* at(uint64_t offset) { return arena_->bytes().data() + offset; }
  int32_t run(Tracked& tracked) {
    engine_->submit(tracked.request);
    while (engine_->in_flight() > 0) {
      engine_->wait();
      engine_->poll();
    }
    EXPECT_EQ(tracked.completions, 1U);
    return tracked.request.error;
  }
  int32_t write(uint64_t offset, uint32_t bytes, uint8_t placement = 0) {
    Tracked tracked;
    tracked.set(Op::Write, offset, at(0), bytes);
    tracked.request.placement = placement;
    return run(tracked);
  }

  std::unique_ptr<Arena> arena_;
  FakeNvmeDrive drive_{kDeviceBytes};
  std::unique_ptr<Engine> engine_;
};

TEST_F(UringCmd, CutsARequestIntoEvenPiecesThatAreThereTogether) {
  open();
  Prng(1).fill({at(0), 100 * KiB});
  ASSERT_EQ(write(MiB, 100 * KiB), 0);
  // 32 KiB at most, in ordinary pages.
  ASSERT_EQ(drive_.commands.size(), 4U);
  std::set<uint64_t> firsts;
  uint64_t bytes = 0;
  for (const nvme_uring_cmd& command : drive_.commands) {
    EXPECT_LE(command.data_len, 28 * KiB) << "even ones: 100 KiB / 4, in pages";
    firsts.insert(command.cdw10);
    bytes += command.data_len;
  }
  EXPECT_EQ(bytes, 100 * KiB);
  EXPECT_EQ(firsts.size(), 4U);
  EXPECT_EQ(drive_.at_once_max, 4U);
  EXPECT_TRUE(std::equal(at(0), at(100 * KiB), drive_.bytes.begin() + MiB));
  EXPECT_EQ(engine_->counters().writes, 1U);
  EXPECT_EQ(engine_->counters().write_bytes, 100 * KiB);
  EXPECT_EQ(engine_->facts().command_bytes_max, 32 * KiB);
}

TEST_F(UringCmd, MovesARequestOfMorePiecesThanTheQueueTakes) {
  drive_.scattered_bytes_max = drive_.transfer_bytes_max = 4 * KiB;
  open();
  Prng(2).fill({at(0), 256 * KiB});
  ASSERT_EQ(write(0, 256 * KiB), 0);
  EXPECT_EQ(drive_.commands.size(), 64U);
  EXPECT_EQ(drive_.at_once_max, kQueueDepth);
  EXPECT_TRUE(std::equal(at(0), at(256 * KiB), drive_.bytes.begin()));
}

TEST_F(UringCmd, UsesRegisteredMemoryWhereTheKernelTakesIt) {
  open();
  ASSERT_EQ(write(0, 4 * KiB), 0);
  EXPECT_EQ(drive_.regions, (std::vector<int32_t>{0}));
  EXPECT_TRUE(engine_->facts().registered_buffers);
  const auto outside = aligned_bytes(4 * KiB);
  Tracked tracked;
  tracked.set(Op::Read, 0, outside.get(), 4 * KiB);
  ASSERT_EQ(run(tracked), 0);
  EXPECT_EQ(drive_.regions.back(), NvmeQueue::kUnregistered);

  drive_.takes_registered = false;
  open();
  EXPECT_FALSE(engine_->facts().registered_buffers);
  EXPECT_NE(engine_->facts().why_unregistered, "");
  ASSERT_EQ(write(0, 4 * KiB), 0);
  EXPECT_EQ(drive_.regions, (std::vector<int32_t>{NvmeQueue::kUnregistered}));
}

TEST_F(UringCmd, IsRefusedAtStartWhereTheKernelTakesNoCommands) {
  for (const int32_t error : {-EACCES, -EOPNOTSUPP}) {
    drive_.refuse = [error](const nvme_uring_cmd&) { return error; };
    EngineConfig config;
    config.queue_depth = kQueueDepth;
    const Fault fault = open_on_fake(drive_, config, *arena_, &engine_);
    EXPECT_TRUE(fault.status == Status(Code::Unsupported, error));
    EXPECT_EQ(fault.what.rfind("a read by an NVMe command: " + errno_name(error), 0), 0U) << fault.what;
    EXPECT_EQ(engine_, nullptr);
  }
  // A drive that cannot read its first block is another matter: the store's rules do the rest.
  drive_.refuse = [](const nvme_uring_cmd&) { return kUnrecovered; };
  open();
}

TEST_F(UringCmd, WritesStreamsWithTheDrivesPlacementIdentifiers) {
  drive_.placements = {4, 9};
  open();
  EXPECT_EQ(engine_->facts().placements, 2U);
  for (uint8_t stream = 0; stream < 4; ++stream) ASSERT_EQ(write(stream * 64 * KiB, 4 * KiB, stream), 0);
  std::vector<uint32_t> ids;
  for (const nvme_uring_cmd& command : drive_.commands) {
    EXPECT_EQ(command.cdw12 >> 20 & 0xF, 2U);
    ids.push_back(command.cdw13 >> 16);
  }
  EXPECT_EQ(ids, (std::vector<uint32_t>{4, 9, 4, 9})) << "more streams than identifiers share them";
}

TEST_F(UringCmd, FlushesADriveWithAVolatileCacheAlone) {
  for (const bool cache : {true, false}) {
    drive_.volatile_cache = cache;
    open();
    Tracked tracked;
    tracked.set(Op::Flush, 0, nullptr, 0);
    EXPECT_EQ(run(tracked), 0);
    EXPECT_EQ(drive_.commands.size(), cache ? 1U : 0U);
    EXPECT_EQ(engine_->counters().flushes, 1U);
  }
}

TEST_F(UringCmd, DeallocatesWhatIsDiscarded) {
  drive_.discard_granularity_bytes = 4 * KiB;
  open();
  EXPECT_EQ(engine_->facts().discard, "deallocate command");
  EXPECT_TRUE(engine_->discard_limits(0).taken());
  std::vector<Tracked> requests(4);
  for (size_t i = 0; i < requests.size(); ++i) {
    requests[i].set(Op::Discard, i * MiB, nullptr, MiB);
    engine_->submit(requests[i].request);
  }
  while (engine_->in_flight() > 0) {
    engine_->flush_submissions();
    engine_->poll();
  }
  for (const Tracked& tracked : requests) EXPECT_EQ(tracked.request.error, 0);
  EXPECT_EQ(drive_.deallocated_bytes, 4 * MiB);
  EXPECT_EQ(engine_->counters().discard_bytes, 4 * MiB);
}

TEST_F(UringCmd, OnePieceThatFailsFailsItsRequestOnceAndAlone) {
  open();
  // From the second piece of the second request on.
  drive_.refuse = [](const nvme_uring_cmd& command) {
    return command.cdw10 >= 256 + 8 && command.cdw10 < 512 ? kUnrecovered : 0;
  };
  std::vector<Tracked> reads(3);
  for (size_t i = 0; i < reads.size(); ++i) {
    reads[i].set(Op::Read, i * MiB, at(i * MiB), i == 1 ? MiB : 64 * KiB);
    engine_->submit(reads[i].request);
  }
  while (engine_->in_flight() > 0) {
    engine_->flush_submissions();
    engine_->poll();
  }
  for (size_t i = 0; i < reads.size(); ++i) {
    EXPECT_EQ(reads[i].completions, 1U);
    EXPECT_EQ(reads[i].request.error, i == 1 ? -EIO : 0);
  }
  EXPECT_LT(drive_.commands.size(), 2 + 32 + 2U) << "the rest of its pieces is not asked for";
  EXPECT_EQ(engine_->counters().errors, 1U);
}

TEST_F(UringCmd, AsksAgainWhileTheDriveIsNotReadyButNotForEver) {
  uint32_t refusals = 5;
  drive_.refuse = [&](const nvme_uring_cmd&) { return refusals > 0 && refusals-- > 0 ? 0x082 : 0; };
  open();
  refusals = 5;
  EXPECT_EQ(write(0, 4 * KiB), 0);
  EXPECT_EQ(drive_.commands.size(), 6U);
  refusals = 1'000'000;
  EXPECT_EQ(write(0, 4 * KiB), -EAGAIN);
  EXPECT_EQ(1'000'000 - refusals, kRetriesMax + 1U);
}

TEST_F(UringCmd, FailsEachRequestOnceWhenTheKernelTakesNoMore) {
  open();
  drive_.refuse_submit = [] { return -EPERM; };
  std::vector<Tracked> requests(5 * kQueueDepth);
  for (size_t i = 0; i < requests.size(); ++i) {
    requests[i].set(Op::Write, i * 4 * KiB, at(i * 4 * KiB), 4 * KiB);
    engine_->submit(requests[i].request);
  }
  for (int turn = 0; turn < 20 && engine_->in_flight() > 0; ++turn) {
    engine_->flush_submissions();
    engine_->poll();
  }
  EXPECT_EQ(engine_->in_flight(), 0U);
  for (const Tracked& one : requests) EXPECT_EQ(one.request.error, -EPERM);
  drive_.refuse_submit = nullptr;
  EXPECT_EQ(write(0, 4 * KiB), 0);
}

TEST_F(UringCmd, TriesLaterWhatTheKernelDoesNotTakeNow) {
  open();
  int refusals = 3;
  drive_.refuse_submit = [&] { return refusals-- > 0 ? -EAGAIN : 0; };
  Tracked tracked;
  tracked.set(Op::Write, 0, at(0), 64 * KiB);
  engine_->submit(tracked.request);
  for (int turn = 0; turn < 10; ++turn) {
    engine_->flush_submissions();
    engine_->poll();
  }
  EXPECT_EQ(tracked.completions, 1U);
  EXPECT_EQ(tracked.request.error, 0);
}

TEST_F(UringCmd, PolledItAsksForTurnsWhileCommandsAreOut) {
  drive_.polled = true;
  open(true);
  EXPECT_TRUE(engine_->facts().polled);
  EXPECT_FALSE(engine_->ready());
  drive_.holding = true;
  Tracked tracked;
  tracked.set(Op::Write, 0, at(0), 4 * KiB);
  engine_->submit(tracked.request);
  engine_->flush_submissions();
  engine_->poll();
  EXPECT_TRUE(engine_->ready()) << "nothing else would tell";
  drive_.holding = false;
  engine_->poll();
  EXPECT_EQ(tracked.completions, 1U);
  EXPECT_FALSE(engine_->ready());
}

TEST_F(UringCmd, PolledFlushesGoBesideThePolledQueueAndAllComesBack) {
  FakeNvmeDrive beside(kDeviceBytes);
  drive_.polled = true;
  EngineConfig config;
  config.queue_depth = kQueueDepth;
  config.polled = true;
  const auto make = [&](const std::vector<Bytes>&, UringCmdEngine::Carrier* carrier) -> Fault {
    carrier->queue = std::make_unique<PolledNvmeQueue>(std::make_unique<FakeNvmeQueue>(drive_, kQueueDepth),
                                                       std::make_unique<FakeNvmeQueue>(beside, kQueueDepth));
    return {};
  };
  ASSERT_TRUE(UringCmdEngine::open_on(config, *arena_, {drive_.facts(), {}}, make, &engine_).ok());
  drive_.commands.clear();
  std::vector<Tracked> requests(60);
  for (size_t i = 0; i < requests.size(); ++i) {
    if (i % 3 == 2) {
      requests[i].set(Op::Flush, 0, nullptr, 0);
    } else {
      requests[i].set(Op::Write, i * 64 * KiB, at(i * 64 * KiB), 64 * KiB);
    }
    engine_->submit(requests[i].request);
  }
  while (engine_->in_flight() > 0) {
    engine_->wait();
    engine_->poll();
  }
  for (const Tracked& one : requests) {
    EXPECT_EQ(one.completions, 1U);
    EXPECT_EQ(one.request.error, 0);
  }
  EXPECT_EQ(drive_.commands.size(), 80U);
  EXPECT_EQ(beside.commands.size(), 20U);
  beside.refuse_submit = [] { return -EPERM; };
  Tracked flush;
  flush.set(Op::Flush, 0, nullptr, 0);
  EXPECT_EQ(run(flush), -EPERM);
}

// /dev/null takes commands of any kind, and does nothing (Linux 6.15): a ring of the kernel's own, without a drive.
class RingOnNull : public testing::Test {
 protected:
  void SetUp() override {
    descriptor_ = ::open("/dev/null", O_RDWR | O_CLOEXEC);
    const Fault fault = NvmeRing::open({.descriptor = descriptor_, .entries = 8, .polled = false, .regions = {}}, &ring_);
    if (!fault.ok()) GTEST_SKIP() << "no ring for commands here: " << fault.what;
    std::array<NvmeDone, 1> done;
    ASSERT_TRUE(ring_->push({}, NvmeQueue::kUnregistered, 1));
    ASSERT_EQ(ring_->wait(), 0);
    ASSERT_EQ(ring_->reap(done), 1U);
    if (done[0].result == -EOPNOTSUPP) GTEST_SKIP() << "/dev/null takes no commands before Linux 6.15";
    ASSERT_EQ(done[0].result, 0);
  }
  void TearDown() override { ::close(descriptor_); }

  int descriptor_ = -1;
  std::unique_ptr<NvmeRing> ring_;
};

TEST_F(RingOnNull, GivesBackEachCommandOnce) {
  std::map<uint32_t, int> seen;
  uint32_t tag = 0;
  for (int round = 0; round < 100; ++round) {
    while (ring_->push({}, NvmeQueue::kUnregistered, tag)) ++tag;
    ASSERT_EQ(ring_->wait(), 0);
    std::array<NvmeDone, 3> done;
    for (size_t count = 0; (count = ring_->reap(done)) > 0;) {
      for (size_t at = 0; at < count; ++at) ++seen[done[at].tag];
    }
  }
  EXPECT_EQ(tag, 800U);
  EXPECT_EQ(seen.size(), 800U);
  EXPECT_TRUE(std::all_of(seen.begin(), seen.end(), [](const auto& one) { return one.second == 1; }));
}

TEST_F(RingOnNull, TakesBackWhatItsKernelHasNotSeen) {
  for (const uint32_t tag : {11U, 12U, 13U}) ASSERT_TRUE(ring_->push({}, NvmeQueue::kUnregistered, tag));
  std::array<uint32_t, 8> tags;
  ASSERT_EQ(ring_->take_back(tags), 3U);
  EXPECT_EQ(std::vector<uint32_t>(tags.begin(), tags.begin() + 3), (std::vector<uint32_t>{11, 12, 13}));
  ASSERT_TRUE(ring_->push({}, NvmeQueue::kUnregistered, 14));
  ASSERT_EQ(ring_->wait(), 0);
  std::array<NvmeDone, 8> done;
  ASSERT_EQ(ring_->reap(done), 1U);
  EXPECT_EQ(done[0].tag, 14U);
}

TEST_F(RingOnNull, EndsWithCommandsInHandOnAnotherThreadThanTheirs) {
  std::thread shard([&] {
    for (uint32_t tag = 0; tag < 8; ++tag) ASSERT_TRUE(ring_->push({}, NvmeQueue::kUnregistered, tag));
    ASSERT_EQ(ring_->submit(), 0);
  });
  shard.join();
  ring_ = nullptr;
}

}  // namespace
}  // namespace halfstep::io
