// Which engine is opened where, and what is said about it.
#include <gtest/gtest.h>
#include <linux/magic.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "io/backing.h"
#include "io/engine.h"
#include "io/request.h"
#include "io/test_fixtures.h"

namespace halfstep::io {
namespace open_engine_test {

bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

bool refuse_io_uring(uint16_t error) { return refuse_call(SYS_io_uring_setup, error); }

// Writes a page, reads it back elsewhere. "works" or what went wrong.
std::string try_out(Engine& engine, Arena& arena) {
  std::byte* const from = arena.bytes().data();
  std::byte* const to = from + kPageBytes;
  for (uint32_t i = 0; i < kPageBytes; ++i) from[i] = static_cast<std::byte>(i * 7);
  for (const Op op : {Op::Write, Op::Flush, Op::Read}) {
    Request request;
    request.op = op;
    request.offset = op == Op::Flush ? 0 : 8 * kPageBytes;
    request.bytes = op == Op::Flush ? 0 : kPageBytes;
    request.data = op == Op::Read ? to : from;
    request.complete = [](Request&) {};
    engine.submit(request);
    engine.wait();
    if (engine.poll() != 1) return "no completion";
    if (request.error != 0) return "error " + std::to_string(request.error);
  }
  return std::equal(from, to, to) ? "works" : "other bytes";
}

class OpenEngine : public testing::Test {
 protected:
  void SetUp() override {
    const Backing::Options options{directory_.path() + "/device", 1 * MiB, true};
    Fault fault = Backing::create(options, nullptr, nullptr);
    ASSERT_TRUE(fault.ok()) << fault.what;
    fault = Backing::open(options, &backing_);
    ASSERT_TRUE(fault.ok()) << fault.what;
  }
  // Made at its first use, which may be in a child: one that its parent made is not there.
  Arena& arena() {
    if (!arena_ && !Arena::create(32 * MiB, false, &arena_).ok()) std::abort();
    return *arena_;
  }
  Fault open(EngineChoice choice, std::unique_ptr<Engine>* out) {
    EngineConfig config;
    config.choice = choice;
    return open_engine(config, arena(), {backing_.get()}, out);
  }
  // Opens, tries out, and tells all of it in one string.
  std::string story(EngineChoice choice) {
    std::unique_ptr<Engine> engine;
    if (const Fault fault = open(choice, &engine); !fault.ok()) return "refused: " + fault.what;
    const EngineFacts& facts = engine->facts();
    return facts.name + " " + try_out(*engine, arena()) + (facts.registered_buffers ? " buffers" : "") +
           (facts.registered_files ? " files" : "") + " [" + facts.ring_features + "] why_fallback: " + facts.why_fallback +
           " why_unregistered: " + facts.why_unregistered;
  }

  TemporaryDirectory directory_;
  std::unique_ptr<Backing> backing_;
  std::unique_ptr<Arena> arena_;
};

TEST_F(OpenEngine, TakesIoUringWithAllThatThisKernelHas) {
  std::unique_ptr<Engine> engine;
  const Fault fault = open(EngineChoice::Uring, &engine);
  if (!fault.ok()) GTEST_SKIP() << "no io_uring here: " << fault.what;
  const EngineFacts& facts = engine->facts();
  EXPECT_EQ(facts.name, "uring");
  EXPECT_EQ(facts.queue_depth, 128U);
  EXPECT_TRUE(facts.why_fallback.empty());
  EXPECT_TRUE(facts.registered_files) << facts.why_unregistered;
  EXPECT_EQ(facts.registered_buffers, facts.why_unregistered.empty()) << facts.why_unregistered;
  EXPECT_EQ(try_out(*engine, arena()), "works");
}

TEST_F(OpenEngine, TakesThreadsWhenAskedWithoutAnApology) {
  const std::string told = story(EngineChoice::Pread);
  EXPECT_EQ(told, "pread works [] why_fallback:  why_unregistered: ");
}

TEST_F(OpenEngine, FallsBackToThreadsWhereSeccompRefusesAndSaysSo) {
  const Child child([this] { return refuse_io_uring(EPERM) ? story(EngineChoice::Auto) : "no seccomp"; });
  if (child.answer() == "no seccomp") GTEST_SKIP() << "seccomp filters cannot be installed here";
  EXPECT_TRUE(contains(child.answer(), "pread works")) << child.answer();
  EXPECT_TRUE(contains(child.answer(), "io_uring_setup: EPERM")) << child.answer();
  EXPECT_TRUE(contains(child.answer(), "seccomp") || contains(child.answer(), "io_uring_disabled=2"))
      << "cause: " << child.answer();
  EXPECT_TRUE(contains(child.answer(), "allow io_uring_setup") || contains(child.answer(), "set it to 0"))
      << "remedy: " << child.answer();
}

TEST_F(OpenEngine, FallsBackToThreadsWhereIoUringIsHidden) {
  const Child child([this] { return refuse_io_uring(ENOSYS) ? story(EngineChoice::Auto) : "no seccomp"; });
  if (child.answer() == "no seccomp") GTEST_SKIP() << "seccomp filters cannot be installed here";
  EXPECT_TRUE(contains(child.answer(), "pread works")) << child.answer();
  EXPECT_TRUE(contains(child.answer(), "io_uring_setup: ENOSYS")) << child.answer();
}

TEST_F(OpenEngine, FallsBackToThreadsWhereTheRingMayBeMadeAndNotEntered) {
  for (const int refusal : {EPERM, ENOSYS, EACCES}) {
    const Child child([this, refusal] {
      return refuse_call(SYS_io_uring_enter, static_cast<uint16_t>(refusal)) ? story(EngineChoice::Auto) : "no seccomp";
    });
    if (child.answer() == "no seccomp") GTEST_SKIP() << "seccomp filters cannot be installed here";
    EXPECT_EQ(child.answer().rfind("pread works", 0), 0U) << child.answer();
    EXPECT_TRUE(contains(child.answer(), "io_uring_enter: " + errno_name(refusal)) ||
                contains(child.answer(), "io_uring_setup: "))  // where that is refused anyway
        << child.answer();
    EXPECT_TRUE(contains(child.answer(), "allow io_uring_setup, io_uring_enter")) << "remedy: " << child.answer();
  }
}

TEST_F(OpenEngine, RefusesARingThatCannotBeEnteredWhenIoUringWasDemanded) {
  const Child child([this] { return refuse_call(SYS_io_uring_enter, EPERM) ? story(EngineChoice::Uring) : "no seccomp"; });
  if (child.answer() == "no seccomp") GTEST_SKIP() << "seccomp filters cannot be installed here";
  EXPECT_EQ(child.answer().rfind("refused: io_uring_", 0), 0U) << child.answer();
}

TEST_F(OpenEngine, OnAFileSystemThatMayWaitRequestsGoThroughTheKernelsThreads) {
  // FUSE, the worst of them, takes a server; an overlay is treated alike.
  const std::string at = directory_.path();
  for (const char* name : {"lower", "upper", "work", "merged"}) std::filesystem::create_directory(at + "/" + name);
  const std::string options = "lowerdir=" + at + "/lower,upperdir=" + at + "/upper,workdir=" + at + "/work";
  if (mount("overlay", (at + "/merged").c_str(), "overlay", 0, options.c_str()) != 0) {
    GTEST_SKIP() << "no overlay can be mounted here: " << errno_name(errno);
  }
  std::unique_ptr<Engine> engine;
  const Backing::Options made{at + "/merged/device", 1 * MiB, true};
  backing_.reset();
  Fault fault = Backing::create(made, nullptr, nullptr, &backing_);
  EXPECT_TRUE(fault.ok()) << fault.what;
  if (fault.ok()) fault = open(EngineChoice::Uring, &engine);
  if (fault.ok()) {
    EXPECT_TRUE(contains(engine->facts().why_async, "lies on an overlay")) << engine->facts().why_async;
    EXPECT_EQ(try_out(*engine, arena()), "works");
  }
  engine.reset();
  backing_.reset();
  EXPECT_EQ(umount2((at + "/merged").c_str(), MNT_DETACH), 0);  // a ring is taken apart a moment later
  if (!fault.ok()) GTEST_SKIP() << "no io_uring here: " << fault.what;
}

TEST_F(OpenEngine, RefusesInsteadOfFallingBackWhenIoUringWasDemanded) {
  const Child child([this] { return refuse_io_uring(EPERM) ? story(EngineChoice::Uring) : "no seccomp"; });
  if (child.answer() == "no seccomp") GTEST_SKIP() << "seccomp filters cannot be installed here";
  EXPECT_EQ(child.answer().rfind("refused: io_uring_setup: EPERM", 0), 0U) << child.answer();
}

TEST_F(OpenEngine, FailsEachRequestOnceIfTheKernelStopsTakingThem) {
  const Child child([this]() -> std::string {
    std::unique_ptr<Engine> engine;
    if (const Fault fault = open(EngineChoice::Uring, &engine); !fault.ok()) return "refused: " + fault.what;
    if (try_out(*engine, arena()) != "works") return "did not work before";
    if (!refuse_call(SYS_io_uring_enter, EPERM)) return "refused: no seccomp";
    static int completed = 0;
    std::vector<Request> requests(100);  // more than the queue takes
    for (int round = 0; round < 3; ++round) {
      for (Request& request : requests) {
        request = {};
        request.bytes = kPageBytes;
        request.data = arena().bytes().data();
        request.complete = [](Request& done) { completed += done.error == -EPERM ? 1 : 1000; };
        engine->submit(request);
      }
      for (int turn = 0; turn < 10; ++turn) {
        engine->flush_submissions();
        engine->poll();
      }
    }
    return std::to_string(completed) + " completed, " + std::to_string(engine->in_flight()) + " in flight";
  });
  if (contains(child.answer(), "refused:")) GTEST_SKIP() << child.answer();
  EXPECT_EQ(child.answer(), "300 completed, 0 in flight");
}

TEST_F(OpenEngine, GoesOnUnregisteredBeyondTheMemlockLimit) {
  const Child child([this]() -> std::string {
    const rlimit limit{64 * KiB, 64 * KiB};
    if (setrlimit(RLIMIT_MEMLOCK, &limit) != 0) return "no limit";
    if (geteuid() == 0 && (setgid(65534) != 0 || setuid(65534) != 0)) return "no user";  // CAP_IPC_LOCK goes with root
    return story(EngineChoice::Uring);
  });
  if (contains(child.answer(), "refused:")) GTEST_SKIP() << "no io_uring here: " << child.answer();
  EXPECT_TRUE(contains(child.answer(), "uring works files")) << child.answer();
  EXPECT_TRUE(contains(child.answer(), "33554432 bytes with the ring: ENOMEM")) << child.answer();
  EXPECT_TRUE(contains(child.answer(), "the memlock limit is 65536 bytes")) << child.answer();
  EXPECT_TRUE(contains(child.answer(), "LimitMEMLOCK")) << child.answer();
}

TEST_F(OpenEngine, NamesValueAndBoundOfWhatItRefuses) {
  std::unique_ptr<Engine> engine;
  EngineConfig config;
  config.queue_depth = 0;
  Fault fault = open_engine(config, arena(), {backing_.get()}, &engine);
  EXPECT_TRUE(fault.status == Code::Invalid);
  EXPECT_EQ(fault.what, "queue_depth=0: must be 1 to 4096");
  config.queue_depth = 4097;
  EXPECT_EQ(open_engine(config, arena(), {backing_.get()}, &engine).what, "queue_depth=4097: must be 1 to 4096");
  config.queue_depth = 1;
  config.pread_threads = 65;
  EXPECT_EQ(open_engine(config, arena(), {backing_.get()}, &engine).what, "pread_threads=65: must be 1 to 64");
  config.pread_threads = 1;
  EXPECT_EQ(open_engine(config, arena(), {}, &engine).what, "devices=0: must be 1 to 256");
  EXPECT_EQ(engine, nullptr);
  EXPECT_TRUE(open_engine(config, arena(), {backing_.get()}, &engine).ok());
}

TEST_F(OpenEngine, NamesTheLimitWhenThreadsCannotBeStarted) {
  if (geteuid() != 0) GTEST_SKIP() << "needs root, to become a user without any process";
  const Child child([this]() -> std::string {
    const rlimit limit{1, 1};
    if (setrlimit(RLIMIT_NPROC, &limit) != 0) return "no limit";
    if (setgid(65533) != 0 || setuid(65533) != 0) return "no user";
    return story(EngineChoice::Pread);
  });
  EXPECT_TRUE(contains(child.answer(), "of pread_threads=4: EAGAIN")) << child.answer();
  EXPECT_TRUE(contains(child.answer(), "ulimit -u")) << child.answer();
}

}  // namespace open_engine_test
}  // namespace halfstep::io
