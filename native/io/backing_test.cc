#include "io/backing.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <linux/magic.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "base/units.h"
#include "io/test_fixtures.h"

namespace halfstep::io {
namespace {

constexpr uint64_t kBytes = 4 * MiB;

bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

bool on_tmpfs(const std::string& path) {
  struct statfs fs {};
  return statfs(path.c_str(), &fs) == 0 && fs.f_type == TMPFS_MAGIC;
}

Fault create(const std::string& path, uint64_t bytes = kBytes) {
  return Backing::create({path, bytes, true}, nullptr, nullptr);
}

class BackingFile : public testing::Test {
 protected:
  void SetUp() override { ASSERT_FALSE(directory_.path().empty()); }
  std::string path() const { return directory_.path() + "/store"; }
  bool exists() const { return std::filesystem::exists(path()); }
  Fault open(std::unique_ptr<Backing>* out, bool allow_buffered = true) {
    return Backing::open({path(), 0, allow_buffered}, out);
  }
  TemporaryDirectory directory_;
};

TEST_F(BackingFile, IsAllocatedWholeWithProgressToTheEnd) {
  struct Seen {
    std::vector<uint64_t> done;
    uint64_t total = 0;
  } seen;
  const auto progress = [](void* context, uint64_t done, uint64_t total) {
    auto& s = *static_cast<Seen*>(context);
    s.done.push_back(done);
    s.total = total;
    return true;
  };
  constexpr uint64_t kLong = 2 * GiB + 4096;
  if (free_bytes(path()) < 2 * kLong) GTEST_SKIP() << directory_.path() << " has less than 4 GiB free";
  if (on_tmpfs(directory_.path())) GTEST_SKIP() << directory_.path() << " is tmpfs: 2 GiB would be memory";
  const Fault fault = Backing::create({path(), kLong, true}, progress, &seen);
  ASSERT_TRUE(fault.ok()) << fault.what;
  struct stat about {};
  ASSERT_EQ(stat(path().c_str(), &about), 0);
  EXPECT_EQ(static_cast<uint64_t>(about.st_size), kLong);
  EXPECT_GE(static_cast<uint64_t>(about.st_blocks) * 512, kLong) << "not a hole";
  EXPECT_EQ(about.st_mode & 0777U, 0600U) << "tenants' bytes are nobody else's";
  ASSERT_GE(seen.done.size(), 3U);
  EXPECT_LE(seen.done.front(), 16 * MiB);
  EXPECT_TRUE(std::is_sorted(seen.done.begin(), seen.done.end()));
  EXPECT_EQ(seen.done.back(), kLong);
  EXPECT_EQ(seen.total, kLong);
}

TEST_F(BackingFile, IsRemovedWhenItsCreationIsStopped) {
  const Fault fault = Backing::create(
      {path(), kBytes, true}, [](void*, uint64_t, uint64_t) { return false; }, nullptr);
  EXPECT_TRUE(fault.status == Code::Cancelled);
  EXPECT_FALSE(exists());
}

// Each look at it is so much later.
class SlowClock final : public Clock {
 public:
  explicit SlowClock(uint64_t step_us) : step_us_(step_us) {}
  uint64_t now_us() const noexcept override { return us_ += step_us_; }
  uint64_t wall_s() const noexcept override { return 1'800'000'000; }

 private:
  const uint64_t step_us_;
  mutable uint64_t us_ = 0;
};

// "error, steps, largest step" of a file of 64 MiB, stopped after `stop_after` steps.
std::string steps_of(const std::string& path, uint64_t step_us, uint32_t stop_after = UINT32_MAX) {
  struct Seen {
    uint32_t steps = 0, stop_after = 0;
    uint64_t last = 0, largest = 0;
  } seen;
  seen.stop_after = stop_after;
  const SlowClock clock(step_us);
  Backing::Options options{.path = path, .bytes = 64 * MiB, .allow_buffered = true};
  options.clock = &clock;
  const Fault fault = Backing::create(
      options,
      [](void* context, uint64_t done, uint64_t) {
        auto& s = *static_cast<Seen*>(context);
        s.largest = std::max(s.largest, done - s.last);
        s.last = done;
        return ++s.steps < s.stop_after;
      },
      &seen);
  return std::string(code_name(fault.status.code())) + ", " + std::to_string(seen.steps) + " steps, the largest " +
         std::to_string(seen.largest / MiB) + " MiB" + (std::filesystem::exists(path) ? "" : ", no file");
}

TEST_F(BackingFile, ASlowAllocationGoesBySmallStepsAndAQuickOneByLargeOnes) {
  // A step that took 0.3 s is followed by one of half: 16, 8, 4, 2 and then 34 of 1 MiB.
  EXPECT_EQ(steps_of(path(), 300'000), "ok, 38 steps, the largest 16 MiB");
  std::filesystem::remove(path());
  EXPECT_EQ(steps_of(path(), 1), "ok, 3 steps, the largest 32 MiB");  // 16, 32, 16
}

TEST_F(BackingFile, WithoutFallocateItIsZerosByTheSameStepsAndCanBeStoppedAtEach) {
  for (const int refusal : {EOPNOTSUPP, ENOSYS}) {
    const Child child([this, refusal]() -> std::string {
      if (!refuse_call(SYS_fallocate, static_cast<uint16_t>(refusal))) return "no seccomp";
      const std::string whole = steps_of(path(), 300'000);
      struct stat about {};
      if (stat(path().c_str(), &about) != 0 || static_cast<uint64_t>(about.st_blocks) * 512 < 64 * MiB) return "holes";
      std::filesystem::remove(path());
      return whole + "; " + steps_of(path(), 300'000, 2);
    });
    if (child.answer() == "no seccomp") GTEST_SKIP() << "seccomp filters cannot be installed here";
    EXPECT_EQ(child.answer(), "ok, 38 steps, the largest 16 MiB; cancelled, 2 steps, the largest 16 MiB, no file");
    std::filesystem::remove(path());
  }
}

TEST_F(BackingFile, WhatAnotherPutInItsPlaceIsNotRemoved) {
  // The file is removed and made anew, by another, while it grows: the stop removes its own alone.
  struct Other {
    std::string path;
  } other{path()};
  const Fault fault = Backing::create(
      {path(), kBytes, true},
      [](void* context, uint64_t, uint64_t) {
        const std::string& name = static_cast<Other*>(context)->path;
        std::filesystem::remove(name);
        std::ofstream(name) << "another daemon's";
        return false;
      },
      &other);
  EXPECT_TRUE(fault.status == Code::Cancelled);
  EXPECT_TRUE(exists());
}

TEST_F(BackingFile, IsLockedFromItsCreationOn) {
  std::unique_ptr<Backing> made;
  std::unique_ptr<Backing> second;
  const Fault fault = Backing::create({path(), kBytes, true}, nullptr, nullptr, &made);
  ASSERT_TRUE(fault.ok()) << fault.what;
  EXPECT_EQ(made->facts().bytes, kBytes);
  EXPECT_TRUE(open(&second).status == Code::Present);
  made.reset();
  EXPECT_TRUE(open(&second).ok());
}

TEST_F(BackingFile, IsRemovedWhenItCannotGrow) {
  // A limit on file size makes fallocate fail in a way that statvfs cannot foresee.
  const Child child([this] {
    signal(SIGXFSZ, SIG_IGN);
    const rlimit limit{kBytes / 2, kBytes / 2};
    if (setrlimit(RLIMIT_FSIZE, &limit) != 0) return std::string("setrlimit failed");
    const Fault fault = create(path());
    return fault.what + (exists() ? " STILL THERE" : "");
  });
  EXPECT_TRUE(contains(child.answer(), "EFBIG")) << child.answer();
  EXPECT_TRUE(contains(child.answer(), "ulimit -f")) << child.answer();
  EXPECT_FALSE(exists());
}

TEST_F(BackingFile, RefusesMoreThanTheFileSystemHasBeforeItStarts) {
  bool started = false;
  const auto progress = [](void* context, uint64_t, uint64_t) { return *static_cast<bool*>(context) = true; };
  const Fault fault = Backing::create({path(), uint64_t{1} << 60, true}, progress, &started);
  EXPECT_TRUE(fault.status == Code::NoSpace);
  EXPECT_FALSE(started);
  EXPECT_TRUE(contains(fault.what, "size=1152921504606846976")) << fault.what;
  EXPECT_TRUE(contains(fault.what, directory_.path() + " has ")) << fault.what;
  EXPECT_TRUE(contains(fault.what, "lower it or mount a larger device")) << fault.what;
  EXPECT_FALSE(exists());
}

TEST_F(BackingFile, RefusesMoreThanASmallFileSystemHolds) {
  if (mount("halfstep-test", directory_.path().c_str(), "tmpfs", 0, "size=2m") != 0) {
    GTEST_SKIP() << "mounting a tmpfs needs CAP_SYS_ADMIN";
  }
  const Fault fault = create(path(), kBytes);
  const bool left_behind = exists();
  umount(directory_.path().c_str());
  EXPECT_TRUE(fault.status == Code::NoSpace) << fault.what;
  EXPECT_TRUE(contains(fault.what, "2097152 (2.0 MiB) free")) << fault.what;
  EXPECT_FALSE(left_behind);
}

TEST_F(BackingFile, NeverTouchesAFileThatExists) {
  std::ofstream(path()) << "somebody's";
  const Fault fault = create(path());
  EXPECT_TRUE(fault.status == Code::Present);
  EXPECT_TRUE(contains(fault.what, path() + " exists")) << fault.what;
  std::string content;
  std::ifstream(path()) >> content;
  EXPECT_EQ(content, "somebody's");
}

TEST_F(BackingFile, RefusesSizesThatAreNoPages) {
  for (const uint64_t bytes : {uint64_t{0}, uint64_t{1}, uint64_t{4097}}) {
    const Fault fault = create(path(), bytes);
    EXPECT_TRUE(fault.status == Code::Invalid);
    EXPECT_TRUE(contains(fault.what, "size=" + std::to_string(bytes))) << fault.what;
    EXPECT_TRUE(contains(fault.what, "4096")) << fault.what;
    EXPECT_FALSE(exists());
  }
}

TEST_F(BackingFile, NamesTheDirectoryThatIsMissing) {
  const Fault fault = create(directory_.path() + "/not/there/store");
  EXPECT_FALSE(fault.ok());
  EXPECT_TRUE(contains(fault.what, "make the directory " + directory_.path() + "/not/there first")) << fault.what;
}

TEST_F(BackingFile, FreeBytesLooksAtTheNearestDirectoryThatExists) {
  const uint64_t here = free_bytes(directory_.path());
  EXPECT_GT(here, 0U);
  EXPECT_GT(free_bytes(directory_.path() + "/not/there/store"), 0U);
  EXPECT_GT(free_bytes("relative-name-that-is-not-there"), 0U);
}

TEST_F(BackingFile, OpensForDirectIoWhereTheFileSystemCanDoIt) {
  ASSERT_TRUE(create(path()).ok());
  std::unique_ptr<Backing> backing;
  const Fault fault = open(&backing);
  ASSERT_TRUE(fault.ok()) << fault.what;
  const BackingFacts& facts = backing->facts();
  EXPECT_EQ(facts.bytes, kBytes);
  EXPECT_EQ(facts.path, path());
  if (!facts.direct) GTEST_SKIP() << "no O_DIRECT under TMPDIR: " << facts.why_not_direct;
  EXPECT_TRUE(facts.why_not_direct.empty());
  EXPECT_LE(facts.direct_align_bytes, kPageBytes);
  EXPECT_NE(fcntl(backing->descriptor(), F_GETFL) & O_DIRECT, 0);
}

TEST_F(BackingFile, SaysWhyItIsBufferedOnTmpfsAndIsRefusedWhenThatIsNotAllowed) {
  if (!on_tmpfs("/dev/shm")) GTEST_SKIP() << "/dev/shm is not tmpfs here";
  const TemporaryDirectory memory("/dev/shm");
  ASSERT_FALSE(memory.path().empty());
  const std::string file = memory.path() + "/store";
  const Fault created = create(file);
  ASSERT_TRUE(created.ok()) << created.what;
  std::unique_ptr<Backing> backing;
  ASSERT_TRUE(Backing::open({file, 0, true}, &backing).ok());
  EXPECT_FALSE(backing->facts().direct);
  EXPECT_TRUE(contains(backing->facts().why_not_direct, "tmpfs")) << backing->facts().why_not_direct;
  EXPECT_EQ(fcntl(backing->descriptor(), F_GETFL) & O_DIRECT, 0);
  backing.reset();
  const Fault refused = Backing::open({file, 0, false}, &backing);
  EXPECT_TRUE(refused.status == Code::Unsupported);
  EXPECT_TRUE(contains(refused.what, "tmpfs")) << refused.what;
  EXPECT_TRUE(contains(refused.what, "put the store on")) << refused.what;
}

TEST_F(BackingFile, LockOfAnotherProcessIsNamed) {
  ASSERT_TRUE(create(path()).ok());
  std::unique_ptr<Backing> backing;
  {
    const Child holder([this] {
      static std::unique_ptr<Backing> held;
      const Fault fault = open(&held);
      return fault.ok() ? "held" : fault.what;
    });
    ASSERT_EQ(holder.answer(), "held");
    const Fault fault = open(&backing);
    EXPECT_TRUE(fault.status == Code::Present);
    EXPECT_TRUE(contains(fault.what, "locked by process " + std::to_string(holder.pid()) + " (")) << fault.what;
    EXPECT_TRUE(contains(fault.what, program_invocation_short_name)) << "the command: " << fault.what;
    EXPECT_TRUE(contains(fault.what, "use another path")) << fault.what;
  }
  const Fault fault = open(&backing);
  EXPECT_TRUE(fault.ok()) << "the holder has ended: " << fault.what;
}

TEST_F(BackingFile, LockHolderOutOfSightIsSaidToBeSo) {
  if (geteuid() != 0) GTEST_SKIP() << "needs root, to become somebody who may not look at root's processes";
  ASSERT_TRUE(create(path()).ok());
  ASSERT_EQ(chmod(directory_.path().c_str(), 0755), 0);
  ASSERT_EQ(chmod(path().c_str(), 0666), 0);
  std::unique_ptr<Backing> backing;
  ASSERT_TRUE(open(&backing).ok());
  const Child other([this, &backing] {
    close(backing->descriptor());  // inherited, and the same lock
    if (setgid(65534) != 0 || setuid(65534) != 0) return std::string("setuid failed");
    std::unique_ptr<Backing> mine;
    const Fault fault = open(&mine);
    return fault.status.detail() == -ESRCH ? fault.what : "seen: " + fault.what;
  });
  EXPECT_EQ(other.answer().rfind("seen: ", 0), std::string::npos) << other.answer();
  EXPECT_TRUE(contains(other.answer(), "locked by a process that cannot be seen from here")) << other.answer();
  EXPECT_TRUE(contains(other.answer(), "lsof " + path())) << other.answer();
}

TEST_F(BackingFile, IsLockedAgainstItsOwnProcessToo) {
  ASSERT_TRUE(create(path()).ok());
  std::unique_ptr<Backing> first;
  std::unique_ptr<Backing> second;
  ASSERT_TRUE(open(&first).ok());
  const Fault fault = open(&second);
  EXPECT_TRUE(fault.status == Code::Present);
  EXPECT_TRUE(contains(fault.what, "process " + std::to_string(getpid()))) << fault.what;
  first.reset();
  EXPECT_TRUE(open(&second).ok());
}

TEST_F(BackingFile, RefusesToOpenWhatIsNoStoreFile) {
  std::unique_ptr<Backing> backing;
  EXPECT_TRUE(open(&backing).status == Code::NotFound);
  EXPECT_FALSE(Backing::open({directory_.path(), 0, true}, &backing).ok());
  EXPECT_TRUE(Backing::open({"/dev/null", 0, true}, &backing).status == Code::Unsupported);
  const std::string pipe = directory_.path() + "/pipe";
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  // To open it for reading would wait for a writer.
  EXPECT_TRUE(Backing::open({.path = pipe, .read_only = true}, &backing).status == Code::Unsupported);
  std::ofstream(path()) << "cut short";
  const Fault fault = open(&backing);
  EXPECT_TRUE(fault.status == Code::Invalid);
  EXPECT_TRUE(contains(fault.what, "9 bytes")) << fault.what;
  EXPECT_EQ(backing, nullptr);
}

TEST_F(BackingFile, ALengthThatIsNoMultipleOfThePageIsOpenedWithItsWholePages) {
  ASSERT_TRUE(create(path()).ok());
  for (const int64_t by : {int64_t{-1}, int64_t{-4095}, int64_t{1}, int64_t{4095}, int64_t{5000}}) {
    SCOPED_TRACE(by);
    const auto length = static_cast<uint64_t>(static_cast<int64_t>(kBytes) + by);
    std::filesystem::resize_file(path(), length);
    std::unique_ptr<Backing> backing;
    const Fault fault = open(&backing);
    ASSERT_TRUE(fault.ok()) << fault.what;
    EXPECT_EQ(backing->facts().bytes, length / kPageBytes * kPageBytes);
    backing.reset();
    EXPECT_EQ(std::filesystem::file_size(path()), length) << "opening changes nothing";
  }
}

// Another file system in a file, mounted; gone with the object. `mkfs` gets the image's path
// appended.
class Mounted {
 public:
  Mounted(const std::string& directory, const std::string& mkfs, uint64_t bytes, const std::string& options = "loop")
      : at_(directory + "/mounted") {
    const std::string image = directory + "/image";
    std::error_code ignored;
    std::filesystem::create_directory(at_, ignored);
    std::ofstream(image).close();
    std::filesystem::resize_file(image, bytes, ignored);
    ok_ = shell(mkfs + " " + image) && shell("mount -o " + options + " " + image + " " + at_);
  }
  Mounted(const Mounted&) = delete;
  Mounted& operator=(const Mounted&) = delete;
  ~Mounted() {
    if (ok_) (void)shell("umount " + at_);
  }
  bool ok() const { return ok_; }
  const std::string& at() const { return at_; }

 private:
  static bool shell(const std::string& command) { return std::system((command + " >/dev/null 2>&1").c_str()) == 0; }
  std::string at_;
  bool ok_ = false;
};

TEST_F(BackingFile, SwitchesCopyOnWriteOffOnBtrfs) {
  const Mounted btrfs(directory_.path(), "mkfs.btrfs -q", 256 * MiB);
  if (!btrfs.ok()) GTEST_SKIP() << "needs root, mkfs.btrfs, loop devices and btrfs in the kernel";
  const std::string file = btrfs.at() + "/store";
  const Fault created = create(file);
  ASSERT_TRUE(created.ok()) << created.what;
  std::unique_ptr<Backing> backing;
  const Fault opened = Backing::open({file, 0, true}, &backing);
  ASSERT_TRUE(opened.ok()) << opened.what;
  EXPECT_TRUE(backing->facts().nocow);
  EXPECT_TRUE(backing->facts().direct) << backing->facts().why_not_direct;
}

TEST_F(BackingFile, OpensDirectOnXfs) {
  const Mounted xfs(directory_.path(), "mkfs.xfs -q", 512 * MiB);
  if (!xfs.ok()) GTEST_SKIP() << "needs root, mkfs.xfs, loop devices and xfs in the kernel";
  const std::string file = xfs.at() + "/store";
  ASSERT_TRUE(create(file).ok());
  std::unique_ptr<Backing> backing;
  ASSERT_TRUE(Backing::open({file, 0, false}, &backing).ok());
  EXPECT_TRUE(backing->facts().direct);
  EXPECT_FALSE(backing->facts().nocow);
}

TEST_F(BackingFile, SaysThatAnOverlayOverTmpfsIsMemory) {
  const Mounted memory(directory_.path(), "true", 16 * MiB, "size=64m -t tmpfs");
  if (!memory.ok()) GTEST_SKIP() << "needs root and tmpfs";
  for (const char* name : {"lower", "upper", "work", "merged"}) std::filesystem::create_directory(memory.at() + "/" + name);
  const std::string merged = memory.at() + "/merged";
  const std::string options =
      "lowerdir=" + memory.at() + "/lower,upperdir=" + memory.at() + "/upper,workdir=" + memory.at() + "/work";
  if (mount("overlay", merged.c_str(), "overlay", 0, options.c_str()) != 0) GTEST_SKIP() << "no overlay can be mounted here";
  std::unique_ptr<Backing> backing;
  const Fault fault = Backing::create({merged + "/store", kBytes, true}, nullptr, nullptr, &backing);
  EXPECT_TRUE(fault.ok()) << fault.what;
  if (fault.ok()) {
    EXPECT_FALSE(backing->facts().direct);
    EXPECT_TRUE(contains(backing->facts().why_not_direct, "tmpfs")) << backing->facts().why_not_direct;
    EXPECT_EQ(backing->facts().submission_waits_for, "an overlay");
  }
  backing.reset();
  EXPECT_EQ(umount(merged.c_str()), 0);
}

TEST_F(BackingFile, KnowsWhichFileSystemsARequestMayWaitFor) {
  for (const uint64_t direct : {uint64_t{EXT4_SUPER_MAGIC}, uint64_t{XFS_SUPER_MAGIC}, uint64_t{BTRFS_SUPER_MAGIC}}) {
    EXPECT_EQ(submission_waits_for(direct), "");
  }
  EXPECT_EQ(submission_waits_for(0x65735546), "FUSE");
  EXPECT_EQ(submission_waits_for(NFS_SUPER_MAGIC), "NFS");
  EXPECT_NE(submission_waits_for(0x12345678), "") << "what is not known may wait";
}

TEST_F(BackingFile, AReadOnlyDeviceIsRefusedByName) {
  const LoopDevice device(directory_.path(), 4 * MiB);
  if (device.path().empty()) GTEST_SKIP() << "no loop devices here";
  if (std::system(("blockdev --setro " + device.path()).c_str()) != 0) GTEST_SKIP() << "no blockdev here";
  std::unique_ptr<Backing> backing;
  const Fault fault = Backing::open({device.path(), 0, true}, &backing);
  EXPECT_FALSE(fault.ok());
  EXPECT_TRUE(contains(fault.what, "the device is read-only: `blockdev --setrw " + device.path())) << fault.what;
  EXPECT_TRUE(Backing::open({.path = device.path(), .read_only = true}, &backing).ok()) << "fsck may look";
  backing.reset();
  // A loop device that is detached stays as it is, for whoever gets it next.
  EXPECT_EQ(std::system(("blockdev --setrw " + device.path()).c_str()), 0);
}

TEST_F(BackingFile, AFileOfAReadOnlyMountIsRefusedByName) {
  const Mounted ext4(directory_.path(), "mkfs.ext4 -q", 64 * MiB);
  if (!ext4.ok()) GTEST_SKIP() << "needs root, mkfs.ext4 and loop devices";
  const Fault created = create(ext4.at() + "/store");
  ASSERT_TRUE(created.ok()) << created.what;
  ASSERT_EQ(mount(nullptr, ext4.at().c_str(), nullptr, MS_REMOUNT | MS_RDONLY, nullptr), 0);
  std::unique_ptr<Backing> backing;
  const Fault fault = Backing::open({ext4.at() + "/store", 0, true}, &backing);
  EXPECT_FALSE(fault.ok());
  EXPECT_TRUE(contains(fault.what, "mounted read-only")) << fault.what;
}

TEST_F(BackingFile, SaysThatAFileSystemIgnoresDirectIo) {
  // ext4 that journals data takes O_DIRECT and goes through the page cache all the same.
  const Mounted ext4(directory_.path(), "mkfs.ext4 -q", 64 * MiB, "loop,data=journal");
  if (!ext4.ok()) GTEST_SKIP() << "needs root, mkfs.ext4 and loop devices";
  const std::string file = ext4.at() + "/store";
  ASSERT_TRUE(create(file).ok());
  std::unique_ptr<Backing> backing;
  ASSERT_TRUE(Backing::open({file, 0, true}, &backing).ok());
  EXPECT_FALSE(backing->facts().direct);
  EXPECT_TRUE(contains(backing->facts().why_not_direct, "I/O is buffered")) << backing->facts().why_not_direct;
}

}  // namespace
}  // namespace halfstep::io
