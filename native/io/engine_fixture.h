// engine_fixture.h — for tests of what engine.h promises, whichever way the bytes move: every engine over a device of 8 MiB,
// and requests that remember how often they were completed.
#pragma once

#include <gtest/gtest.h>
#include <sys/epoll.h>

#include <cerrno>
#include <cstdlib>
#include <memory>
#include <string>
#include <type_traits>
#include <vector>

#include "base/units.h"
#include "io/backing.h"
#include "io/fake_nvme.h"
#include "io/fake_vhost_target.h"
#include "io/memory_engine.h"
#include "io/test_fixtures.h"
#include "io/uring_cmd_engine.h"
#include "io/uring_engine.h"

namespace halfstep::io {

inline constexpr uint64_t kDeviceBytes = 8 * MiB;
inline constexpr uint64_t kArenaBytes = 8 * MiB;
inline constexpr uint32_t kQueueDepth = 8;

enum class Kind { Uring, UringOfLinux60, UringOfLinux519, UringOfLinux515, Pread, Memory, VhostUser, UringCmd, Noop };

inline std::string kind_name(const testing::TestParamInfo<Kind>& info) {
  constexpr const char* kNames[] = {
      "Uring", "UringOfLinux60", "UringOfLinux519", "UringOfLinux515", "Pread", "Memory", "VhostUser", "UringCmd", "Noop"};
  return kNames[static_cast<size_t>(info.param)];
}

// A request that remembers how often it was completed; what finishes is appended to `finished`.
struct Tracked {
  Request request;
  uint32_t completions = 0;
  std::vector<Tracked*>* finished = nullptr;

  static void complete(Request& request) {
    auto& self = reinterpret_cast<Tracked&>(request);
    ++self.completions;
    if (self.finished != nullptr) self.finished->push_back(&self);
  }
  void set(Op op, uint64_t offset, std::byte* data, uint32_t bytes) {
    request = {};
    request.op = op;
    request.offset = offset;
    request.data = data;
    request.bytes = bytes;
    request.complete = complete;
    request.owner = this;
    completions = 0;
  }
  // One of several that are of use only together.
  void belongs_to(void* all) {
    request.whole = true;
    request.owner = all;
  }
};
static_assert(std::is_standard_layout_v<Tracked>, "a request is found again in what begins with it");

class EngineContract : public testing::TestWithParam<Kind> {
 protected:
  void SetUp() override {
    const bool shared = GetParam() == Kind::VhostUser;
    ASSERT_TRUE((shared ? Arena::create_shared(kArenaBytes, false, &arena_) : Arena::create(kArenaBytes, false, &arena_)).ok());
    if (shared) {
      target_.start();
      const Fault fault = Backing::open({.path = std::string(kVhostUserPrefix) + socket_path()}, &backing_);
      ASSERT_TRUE(fault.ok()) << fault.what;
    } else if (GetParam() == Kind::Noop) {
      const Fault fault = Backing::open({.path = std::string(kNoopName), .bytes = kDeviceBytes}, &backing_);
      ASSERT_TRUE(fault.ok()) << fault.what;
    } else if (GetParam() == Kind::UringCmd) {
      if (nvme_path() == nullptr) return open();
      const Fault fault = Backing::open({.path = nvme_path()}, &backing_);
      ASSERT_TRUE(fault.ok()) << fault.what;
      ASSERT_EQ(backing_->facts().bytes, kDeviceBytes) << "HALFSTEP_TEST_NVME names a namespace of 8 MiB";
    } else if (GetParam() != Kind::Memory) {
      const Backing::Options options{directory_.path() + "/device", kDeviceBytes, true};
      Fault fault = Backing::create(options, nullptr, nullptr);
      ASSERT_TRUE(fault.ok()) << fault.what;
      fault = Backing::open(options, &backing_);
      ASSERT_TRUE(fault.ok()) << fault.what;
    }
    open();
  }

  void open() {
    if (GetParam() == Kind::Memory) {
      MemoryConfig config;
      config.seed = 7;
      config.queue_depth = kQueueDepth;
      engine_ = std::make_unique<MemoryEngine>(config, std::vector<MemoryDevice*>{&memory_});
      return;
    }
    EngineConfig config;
    config.queue_depth = kQueueDepth;
    if (GetParam() == Kind::UringCmd) {
      config.choice = EngineChoice::UringCmd;
      const Fault fault = nvme_path() != nullptr ? open_engine(config, *arena_, {backing_.get()}, &engine_)
                                                 : open_on_fake(drive_, config, *arena_, &engine_);
      ASSERT_TRUE(fault.ok()) << fault.what;
      return;
    }
    config.choice = EngineChoice::Pread;
    if (GetParam() == Kind::Pread || GetParam() == Kind::VhostUser || GetParam() == Kind::Noop) {
      const Fault fault = open_engine(config, *arena_, {backing_.get()}, &engine_);
      ASSERT_TRUE(fault.ok()) << fault.what;
      if (GetParam() == Kind::VhostUser) connect();
      return;
    }
    const Fault fault = UringEngine::open(config, *arena_, {backing_.get()}, &engine_, features());
    if (fault.status == Code::Unsupported) GTEST_SKIP() << "no io_uring here: " << fault.what;
    ASSERT_TRUE(fault.ok()) << fault.what;
  }

  // It connects by itself, and tells that it has by one wake. Tests begin after that.
  void connect() {
    epoll_event told{};
    int count = 0;
    do {
      count = epoll_wait(engine_->wake_descriptor(), &told, 1, 60'000);
    } while (count < 0 && errno == EINTR);  // io_uring's work of an earlier test may interrupt
    ASSERT_EQ(count, 1);
  }

  static UringEngine::Features features() {
    switch (GetParam()) {
      case Kind::UringOfLinux60: return UringEngine::Features::NoDeferredTaskRun;
      case Kind::UringOfLinux519: return UringEngine::Features::NoSingleIssuer;
      case Kind::UringOfLinux515: return UringEngine::Features::None;
      default: return UringEngine::Features::All;
    }
  }

  // A real namespace, whose bytes are lost; null: a fake one.
  static const char* nvme_path() { return std::getenv("HALFSTEP_TEST_NVME"); }
  static bool is_uring() { return GetParam() < Kind::Pread; }
  std::string socket_path() const { return directory_.path() + "/socket"; }

  std::byte* at(uint64_t offset) { return arena_->bytes().data() + offset; }

  void drain() {
    while (engine_->in_flight() > 0) {
      engine_->wait();
      ASSERT_GT(engine_->poll(), 0U) << "wait() returned and nothing had finished";
    }
  }
  int32_t run(Tracked& tracked) {
    engine_->submit(tracked.request);
    drain();
    EXPECT_EQ(tracked.completions, 1U);
    return tracked.request.error;
  }

  TemporaryDirectory directory_;
  FakeVhostTarget target_{socket_path()};
  std::unique_ptr<Arena> arena_;
  std::unique_ptr<Backing> backing_;
  MemoryDevice memory_{kDeviceBytes};
  FakeNvmeDrive drive_{kDeviceBytes};
  std::unique_ptr<Engine> engine_;
};

inline const auto kEveryEngine =
    testing::Values(Kind::Uring, Kind::UringOfLinux60, Kind::UringOfLinux519, Kind::UringOfLinux515, Kind::Pread, Kind::Memory,
                    Kind::VhostUser, Kind::UringCmd, Kind::Noop);

}  // namespace halfstep::io
