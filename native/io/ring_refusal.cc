#include "io/ring_refusal.h"

#include <linux/io_uring.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <fstream>

#include "base/status.h"

namespace halfstep::io {
namespace {

std::string first_word_of(const char* path) {
  std::ifstream in(path);
  std::string word;
  in >> word;
  return word;
}

bool under_seccomp_filter() {
  std::ifstream in("/proc/self/status");
  for (std::string line; std::getline(in, line);) {
    if (line.rfind("Seccomp:", 0) == 0) return line.find('2') != std::string::npos;
  }
  return false;
}

}  // namespace

std::string explain_ring_refusal(int error, const char* call) {
  std::string what = std::string(call) + ": " + errno_name(error);
  const std::string disabled = first_word_of("/proc/sys/kernel/io_uring_disabled");
  switch (-error) {
    case EPERM:
    case EACCES:
      if (disabled == "2") return what + "; kernel.io_uring_disabled=2, set it to 0";
      if (disabled == "1" && !under_seccomp_filter()) {
        return what +
               "; kernel.io_uring_disabled=1 lets only CAP_SYS_ADMIN and the group "
               "kernel.io_uring_group (" +
               first_word_of("/proc/sys/kernel/io_uring_group") + ") in: join it or set io_uring_disabled to 0";
      }
      what += disabled.empty() ? "; " : "; kernel.io_uring_disabled=" + disabled + ", so ";
      what += under_seccomp_filter() ? "a seccomp filter forbids it (container runtimes do by default): allow "
                                       "io_uring_setup, io_uring_enter "
                                       "and io_uring_register in the profile"
                                     : "a security module forbids it: allow io_uring for this service";
      return what;
    case ENOSYS:
      return what + (under_seccomp_filter() ? "; a seccomp filter hides it: allow io_uring_setup, io_uring_enter and "
                                              "io_uring_register in the profile"
                                            : "; this kernel has no io_uring: 5.15 or newer is needed");
    case ENOMEM:
      return what +
             "; the ring's memory counts as locked on kernels before 5.12: raise the memlock limit "
             "(ulimit -l)";
    case EMFILE:
    case ENFILE: return what + "; raise the limit of open files (ulimit -n)";
    default: return what;
  }
}

int try_to_enter_ring() {
  io_uring_params parameters{};
  const long ring = ::syscall(__NR_io_uring_setup, 1, &parameters);
  if (ring < 0) return 0;
  const long result = ::syscall(__NR_io_uring_enter, ring, 0, 0, 0, nullptr, 0);
  const int error = result < 0 && errno != EINTR && errno != EAGAIN && errno != EBUSY ? -errno : 0;
  ::close(static_cast<int>(ring));
  return error;
}

std::string memlock_limit() {
  rlimit limit{};
  if (getrlimit(RLIMIT_MEMLOCK, &limit) != 0) return "unknown";
  return limit.rlim_cur == RLIM_INFINITY ? "unlimited" : std::to_string(limit.rlim_cur) + " bytes";
}

}  // namespace halfstep::io
