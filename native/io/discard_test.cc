// How a device is asked, and that what is asked happens: on a loop device, whose file loses the blocks of what is discarded.
#include "io/discard.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "base/arena.h"
#include "base/prng.h"
#include "base/units.h"
#include "io/backing.h"
#include "io/pread_engine.h"
#include "io/test_fixtures.h"
#include "io/uring_engine.h"

namespace halfstep::io {
namespace {

constexpr DiscardLimits kLimits{kPageBytes, 1 * GiB};
int knows(int) { return -EINVAL; }
int knows_not(int) { return -EOPNOTSUPP; }
int never_asked(int) {
  ADD_FAILURE() << "asked though it need not be";
  return 0;
}

TEST(DiscardChoice, TakesTheRingsCommandWhereTheKernelKnowsIt) {
  EXPECT_EQ(choose_discard(kLimits, 3, {knows, never_asked}).method, DiscardMethod::RingCommand);
}

TEST(DiscardChoice, TakesTheIoctlOnAnOlderKernelAndWithoutARing) {
  EXPECT_EQ(choose_discard(kLimits, 3, {knows_not, knows}).method, DiscardMethod::Ioctl);
  EXPECT_EQ(choose_discard(kLimits, 3, {nullptr, knows}).method, DiscardMethod::Ioctl);
}

TEST(DiscardChoice, SaysWhyThereIsNoneOfADeviceThatShouldTakeThem) {
  const DiscardChoice choice = choose_discard(kLimits, 3, {knows_not, knows_not});
  EXPECT_EQ(choice.method, DiscardMethod::None);
  EXPECT_NE(choice.why_none.find("EOPNOTSUPP"), std::string::npos) << choice.why_none;
}

TEST(DiscardChoice, AsksNothingOfADeviceThatTakesNone) {
  const DiscardChoice choice = choose_discard({}, 3, {never_asked, never_asked});
  EXPECT_EQ(choice.method, DiscardMethod::None);
  EXPECT_EQ(choice.why_none, "");
}

class DiscardLimitsOf : public testing::Test {
 protected:
  void say(const std::string& directory, const std::string& max_bytes, const std::string& granularity) {
    const std::filesystem::path queue = sysfs_ + "/dev/block/" + directory + "/queue";
    std::filesystem::create_directories(queue);
    std::ofstream(queue / "discard_max_bytes") << max_bytes << "\n";
    std::ofstream(queue / "discard_granularity") << granularity << "\n";
  }
  TemporaryDirectory directory_;
  std::string sysfs_ = directory_.path();
};

TEST_F(DiscardLimitsOf, AreTheQueuesInWholeGranules) {
  say("259:0", std::to_string(UINT32_MAX), "512");
  const DiscardLimits limits = read_discard_limits(makedev(259, 0), sysfs_);
  EXPECT_EQ(limits.granularity_bytes, kPageBytes) << "a granule is never less than a page";
  EXPECT_EQ(limits.request_bytes_max, 4 * GiB - kPageBytes);
  say("259:5", std::to_string(100 * MiB), std::to_string(64 * MiB));
  EXPECT_EQ(read_discard_limits(makedev(259, 5), sysfs_).granularity_bytes, 64 * MiB);
  EXPECT_EQ(read_discard_limits(makedev(259, 5), sysfs_).request_bytes_max, 64 * MiB);
}

TEST_F(DiscardLimitsOf, APartitionAreItsDisks) {
  say("disk", "1048576", "4096");
  std::filesystem::create_directories(sysfs_ + "/dev/block/disk/part");
  std::filesystem::create_directory_symlink("disk/part", sysfs_ + "/dev/block/8:1");
  EXPECT_EQ(read_discard_limits(makedev(8, 1), sysfs_).request_bytes_max, 1 * MiB);
}

TEST_F(DiscardLimitsOf, ADeviceThatTakesNoneOrIsNotThereAreNone) {
  say("8:0", "0", "4096");
  EXPECT_FALSE(read_discard_limits(makedev(8, 0), sysfs_).taken());
  EXPECT_FALSE(read_discard_limits(makedev(8, 16), sysfs_).taken());
}

// ---- On a device -----------------------------------------------------------------------------------------------------------

enum class Way { RingCommand, RingWithoutIt, Pread };
std::string way_name(const testing::TestParamInfo<Way>& info) {
  constexpr const char* kNames[] = {"RingCommand", "RingWithoutIt", "Pread"};
  return kNames[static_cast<size_t>(info.param)];
}

class DiscardOnDevice : public testing::TestWithParam<Way> {
 protected:
  static constexpr uint64_t kDeviceBytes = 16 * MiB;

  void SetUp() override {
    if (loop_.path().empty()) GTEST_SKIP() << "no loop device can be made here (root and the kernel's loop driver are needed)";
    ASSERT_TRUE(Arena::create(kDeviceBytes, false, &arena_).ok());
    const Fault opened = Backing::open_patiently({.path = loop_.path(), .bytes = 0, .allow_buffered = true}, &backing_);
    ASSERT_TRUE(opened.ok()) << opened.what;
    ASSERT_TRUE(backing_->facts().block_device);
    EXPECT_EQ(backing_->facts().bytes, kDeviceBytes);
    if (!backing_->facts().discard.taken()) GTEST_SKIP() << "the file system below the loop device punches no holes";
    Fault fault;
    if (GetParam() == Way::Pread) {
      fault = PreadEngine::open({}, {backing_.get()}, &engine_);
    } else {
      const DiscardProbe without{knows_not, plain_discard_probe().ioctl};
      const DiscardProbe probe = GetParam() == Way::RingCommand ? ring_discard_probe() : without;
      fault = UringEngine::open({}, *arena_, {backing_.get()}, &engine_, UringEngine::Features::All, probe);
      if (fault.status == Code::Unsupported) GTEST_SKIP() << "no io_uring here: " << fault.what;
    }
    ASSERT_TRUE(fault.ok()) << fault.what;
    const std::string wanted = name_of(GetParam() == Way::RingCommand ? DiscardMethod::RingCommand : DiscardMethod::Ioctl);
    if (GetParam() == Way::RingCommand && engine_->facts().discard != wanted) {
      GTEST_SKIP() << "this kernel's ring discards nothing (Linux 6.12 does)";
    }
    EXPECT_EQ(engine_->facts().discard, wanted) << engine_->facts().why_no_discard;
  }

  void start(Request& request, Op op, uint64_t offset, uint64_t bytes) {
    request = {};
    request.op = op;
    request.offset = offset;
    request.bytes = static_cast<uint32_t>(bytes);
    if (op == Op::Read || op == Op::Write) request.data = arena_->bytes().data() + offset;
    request.owner = &completions_;
    request.complete = [](Request& done) { ++*static_cast<uint32_t*>(done.owner); };
    engine_->submit(request);
  }
  int32_t run(Op op, uint64_t offset, uint64_t bytes) {
    Request request;
    completions_ = 0;
    start(request, op, offset, bytes);
    while (engine_->in_flight() > 0) {
      engine_->wait();
      engine_->poll();
    }
    EXPECT_EQ(completions_, 1U);
    return request.error;
  }
  // What the image takes of the file system below.
  uint64_t bytes_in_use() const {
    struct stat about {};
    return stat(loop_.image().c_str(), &about) == 0 ? static_cast<uint64_t>(about.st_blocks) * 512 : 0;
  }

  TemporaryDirectory directory_;
  LoopDevice loop_{directory_.path(), kDeviceBytes};
  std::unique_ptr<Arena> arena_;
  std::unique_ptr<Backing> backing_;
  std::unique_ptr<Engine> engine_;
  uint32_t completions_ = 0;
};

TEST_P(DiscardOnDevice, GivesBackTheRangeAndNothingBesideIt) {
  Prng prng(1);
  prng.fill(arena_->bytes());
  const std::vector<std::byte> written(arena_->bytes().begin(), arena_->bytes().end());
  ASSERT_EQ(run(Op::Write, 0, kDeviceBytes), 0);
  ASSERT_EQ(run(Op::Flush, 0, 0), 0);
  const uint64_t before = bytes_in_use();
  ASSERT_EQ(run(Op::Discard, 4 * MiB, 8 * MiB), 0);
  EXPECT_EQ(before - bytes_in_use(), 8 * MiB);
  std::fill(arena_->bytes().begin(), arena_->bytes().end(), std::byte{0});
  ASSERT_EQ(run(Op::Read, 0, kDeviceBytes), 0);
  const std::byte* read = arena_->bytes().data();
  EXPECT_TRUE(std::equal(read, read + 4 * MiB, written.data()));
  EXPECT_TRUE(std::equal(read + 12 * MiB, read + 16 * MiB, written.data() + 12 * MiB));
  EXPECT_EQ(engine_->counters().discards, 1U);
  EXPECT_EQ(engine_->counters().discard_bytes, 8 * MiB);
  EXPECT_EQ(engine_->counters().errors, 0U);
}

TEST_P(DiscardOnDevice, GoesOnAmongReadsAndWritesOfOtherPlaces) {
  Prng prng(2);
  prng.fill(arena_->bytes());
  const std::vector<std::byte> written(arena_->bytes().begin(), arena_->bytes().end());
  std::vector<Request> requests(96);
  for (uint32_t round = 0; round < 4; ++round) {
    completions_ = 0;
    for (size_t i = 0; i < requests.size(); ++i) {
      const uint64_t place = i * (kDeviceBytes / 96 / kPageBytes) * kPageBytes;
      start(requests[i], i % 3 == 0 ? Op::Discard : Op::Write, place, 16 * kPageBytes);
    }
    while (engine_->in_flight() > 0) {
      engine_->wait();
      engine_->poll();
    }
    EXPECT_EQ(completions_, requests.size());
    for (const Request& request : requests) EXPECT_EQ(request.error, 0);
  }
  std::fill(arena_->bytes().begin(), arena_->bytes().end(), std::byte{0});
  ASSERT_EQ(run(Op::Read, 0, kDeviceBytes), 0);
  for (const Request& request : requests) {
    if (request.op == Op::Discard) continue;
    EXPECT_TRUE(std::equal(written.begin() + static_cast<ptrdiff_t>(request.offset),
                           written.begin() + static_cast<ptrdiff_t>(request.offset + request.bytes),
                           arena_->bytes().data() + request.offset));
  }
}

TEST_P(DiscardOnDevice, RefusesARangeThatIsNotTheDevices) {
  EXPECT_EQ(run(Op::Discard, kDeviceBytes, kPageBytes), -EINVAL);
  EXPECT_EQ(run(Op::Discard, kDeviceBytes - kPageBytes, 2 * kPageBytes), -EINVAL);
  EXPECT_EQ(run(Op::Discard, 512, kPageBytes), -EINVAL);
  EXPECT_EQ(run(Op::Discard, 0, 0), -EINVAL);
}

TEST_P(DiscardOnDevice, DestructionWaitsForWhatIsUnderWayAndCompletesNothing) {
  std::vector<Request> requests(32);
  for (size_t i = 0; i < requests.size(); ++i) start(requests[i], Op::Discard, i * 256 * KiB, 256 * KiB);
  engine_->flush_submissions();
  engine_.reset();
  EXPECT_EQ(completions_, 0U);
}

TEST_P(DiscardOnDevice, TheDeviceIsClaimedAsLongAsItIsOpen) {
  std::unique_ptr<Backing> second;
  const Fault fault = Backing::open({.path = loop_.path(), .bytes = 0, .allow_buffered = true}, &second);
  EXPECT_TRUE(fault.status == Code::Present) << fault.what;
  EXPECT_NE(fault.what.find("in use"), std::string::npos) << fault.what;
}

INSTANTIATE_TEST_SUITE_P(Ways, DiscardOnDevice, testing::Values(Way::RingCommand, Way::RingWithoutIt, Way::Pread), way_name);

}  // namespace
}  // namespace halfstep::io
