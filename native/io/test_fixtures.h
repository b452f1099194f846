// test_fixtures.h — for this folder's tests: a directory that is gone afterwards, page-aligned
// memory, a child process. Directories lie under TMPDIR (or /tmp), which a developer points at the
// file system to be tried.
#pragma once

#include <gtest/gtest.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <new>
#include <string>

#include "base/units.h"

namespace halfstep::io {

class TemporaryDirectory {
 public:
  explicit TemporaryDirectory(const std::string& parent = testing::TempDir()) {
    std::string name = parent + "/halfstep-test-XXXXXX";
    path_ = mkdtemp(name.data()) != nullptr ? name : std::string();
  }
  TemporaryDirectory(const TemporaryDirectory&) = delete;
  TemporaryDirectory& operator=(const TemporaryDirectory&) = delete;
  ~TemporaryDirectory() {
    std::error_code ignored;
    if (!path_.empty()) std::filesystem::remove_all(path_, ignored);
  }
  // Empty when it could not be made.
  const std::string& path() const noexcept { return path_; }

 private:
  std::string path_;
};

// From here on a system call answers `error` in this process: what a container's default profile does to io_uring_setup.
inline bool refuse_call(uint32_t call, uint16_t error) {
  sock_filter filter[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, call, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, static_cast<uint32_t>(SECCOMP_RET_ERRNO) | error),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  const sock_fprog program{static_cast<unsigned short>(std::size(filter)), filter};
  return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 && prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program, 0, 0) == 0;
}

// A block device over a file of its own: only where loop devices can be made, which takes root and a kernel that has them.
class LoopDevice {
 public:
  explicit LoopDevice(const std::string& directory, uint64_t bytes) : image_(directory + "/image") {
    std::ofstream(image_).close();
    std::error_code ignored;
    std::filesystem::resize_file(image_, bytes, ignored);
    if (FILE* said = popen(("losetup --find --show " + image_ + " 2>/dev/null").c_str(), "r"); said != nullptr) {
      std::array<char, 64> name{};
      if (fgets(name.data(), name.size(), said) != nullptr) path_ = std::string(name.data(), strcspn(name.data(), "\n"));
      pclose(said);
    }
  }
  LoopDevice(const LoopDevice&) = delete;
  LoopDevice& operator=(const LoopDevice&) = delete;
  ~LoopDevice() {
    if (!path_.empty()) (void)!std::system(("losetup --detach " + path_).c_str());
  }
  // Empty where there is none.
  const std::string& path() const noexcept { return path_; }
  const std::string& image() const noexcept { return image_; }

 private:
  std::string image_;
  std::string path_;
};

struct AlignedDelete {
  void operator()(std::byte* at) const noexcept { ::operator delete[](at, std::align_val_t{kPageBytes}); }
};
inline std::unique_ptr<std::byte[], AlignedDelete> aligned_bytes(size_t bytes) {
  return std::unique_ptr<std::byte[], AlignedDelete>(new (std::align_val_t{kPageBytes}) std::byte[bytes]());
}

// A forked child for what a process cannot undo (a seccomp filter, another user, a limit) or cannot
// do to itself (hold a lock against itself). It runs `body`, sends the string that it returns and
// then waits until it is let go.
class Child {
 public:
  template <typename Body>
  explicit Child(Body&& body) {
    int answer[2];
    int leave[2];
    if (pipe(answer) != 0 || pipe(leave) != 0) return;
    pid_ = fork();
    if (pid_ == 0) {
      close(answer[0]);
      close(leave[1]);
      const std::string text = body();
      const bool sent = write(answer[1], text.data(), text.size()) == static_cast<ssize_t>(text.size());
      close(answer[1]);
      char byte = 0;
      while (read(leave[0], &byte, 1) < 0 && errno == EINTR) {
      }
      _exit(sent ? 0 : 1);
    }
    close(answer[1]);
    close(leave[0]);
    leave_ = leave[1];
    std::array<char, 512> part;
    for (ssize_t got = 0; (got = read(answer[0], part.data(), part.size())) != 0;) {
      if (got > 0) answer_.append(part.data(), static_cast<size_t>(got));
      if (got < 0 && errno != EINTR) break;
    }
    close(answer[0]);
  }
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;
  ~Child() {
    if (leave_ >= 0) close(leave_);
    if (pid_ > 0) waitpid(pid_, nullptr, 0);
  }
  pid_t pid() const noexcept { return pid_; }
  // What `body` returned; empty if the child died.
  const std::string& answer() const noexcept { return answer_; }

 private:
  pid_t pid_ = -1;
  int leave_ = -1;
  std::string answer_;
};

}  // namespace halfstep::io
