// Yardsticks for shared memory, without a daemon: what a copy of the same bytes takes on one thread, what the kernel takes to
// put them into a memfd, and what two processes take to wake each other by eventfds. bench/shared_memory.py runs it.
//   --bytes N      of one copy (1048576)      --set N, --target N   bytes that the copies walk through, and into (67108864,
//   1048576)
//   --runtime N    milliseconds of each       --core N, --other-core N
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <csignal>
#include <cstring>
#include <memory>

#include "program.h"

namespace {

using namespace halfstep::bench;

double now_us() {
  const auto since = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration<double, std::micro>(since).count();
}

struct Walk {
  size_t bytes = 0;  // of one copy
  size_t set_bytes = 0;
  size_t target_bytes = 0;
  double runtime_us = 0;
};

// Bytes a second of copy(offset in the target, from), from one buffer that is walked through, as a client copies blocks that it
// gets into its targets.
template <typename Copy>
double walk_bytes_per_s(const Walk& walk, const Copy& copy) {
  const size_t blocks = std::max<size_t>(1, walk.set_bytes / walk.bytes);
  const size_t targets = std::max<size_t>(1, walk.target_bytes / walk.bytes);
  std::vector<std::byte> from(blocks * walk.bytes, std::byte{1});
  double copied = 0;
  const double start = now_us();
  double end = start;
  for (size_t i = 0; end - start < walk.runtime_us; ++i) {
    copy(i % targets * walk.bytes, from.data() + i % blocks * walk.bytes);
    copied += static_cast<double>(walk.bytes);
    end = now_us();
  }
  return copied / ((end - start) / 1e6);
}

double copy_bytes_per_s(const Walk& walk) {
  std::vector<std::byte> to(std::max(walk.target_bytes, walk.bytes));
  return walk_bytes_per_s(walk, [&](size_t offset, const std::byte* from) {
    std::memcpy(to.data() + offset, from, walk.bytes);
    asm volatile("" : : "r"(to.data()) : "memory");
  });
}

// How a daemon would land bytes in a client's memory by itself: by the kernel alone, since a mapping may be cut under it.
double landing_bytes_per_s(const Walk& walk) {
  const int memory = ::memfd_create("halfstep-bench", MFD_CLOEXEC);
  if (memory < 0) fail_errno("memfd");
  const auto land = [&](size_t offset, const std::byte* from) {
    if (::pwrite(memory, from, walk.bytes, static_cast<off_t>(offset)) != static_cast<ssize_t>(walk.bytes))
      fail_errno("pwrite");
  };
  // Its pages are made before the clock starts.
  const std::vector<std::byte> blank(walk.bytes);
  for (size_t at = 0; at + walk.bytes <= walk.target_bytes; at += walk.bytes) land(at, blank.data());
  const double rate = walk_bytes_per_s(walk, land);
  ::close(memory);
  return rate;
}

void send(int bell) {
  const uint64_t one = 1;
  if (::write(bell, &one, sizeof one) != sizeof one) fail_errno("eventfd");
}
void wait(int bell) {
  uint64_t count = 0;
  if (::read(bell, &count, sizeof count) != sizeof count) fail_errno("eventfd");
}

std::vector<double> ping_pong_us(double runtime_us, uint64_t core, uint64_t other_core) {
  const int there = ::eventfd(0, 0);
  const int back = ::eventfd(0, 0);
  if (there < 0 || back < 0) fail_errno("eventfd");
  const pid_t child = ::fork();
  if (child < 0) fail_errno("fork");
  if (child == 0) {
    // Nothing else ends it when this program is killed: it would wait for ever.
    if (::prctl(PR_SET_PDEATHSIG, SIGKILL) != 0) fail_errno("prctl");
    pin(other_core);
    for (;;) {
      wait(there);
      send(back);
    }
  }
  pin(core);
  std::vector<double> taken;
  for (const double start = now_us(); now_us() - start < runtime_us;) {
    const double began = now_us();
    send(there);
    wait(back);
    taken.push_back(now_us() - began);
  }
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
  return taken;
}

}  // namespace

int main(int count, char** arguments) {
  uint64_t bytes = 1 << 20;
  uint64_t set_bytes = 64 << 20;
  uint64_t target_bytes = 1 << 20;
  uint64_t runtime_ms = 500;
  uint64_t core = kAnyCore;
  uint64_t other_core = kAnyCore;
  const std::array numbers{Number{"--bytes", &bytes},        Number{"--set", &set_bytes}, Number{"--target", &target_bytes},
                           Number{"--runtime", &runtime_ms}, Number{"--core", &core},     Number{"--other-core", &other_core}};
  read_options(count, arguments, numbers, {});
  if (bytes == 0 || runtime_ms == 0) fail("--bytes and --runtime: must be at least 1");
  const double runtime_us = static_cast<double>(runtime_ms) * 1000;
  std::vector<double> round_trips = ping_pong_us(runtime_us, core, other_core);
  std::ranges::sort(round_trips);
  const Walk walk{bytes, set_bytes, target_bytes, runtime_us};
  std::printf(
      "{\"build\": \"%s\", \"copy_bytes_per_s\": %.0f, \"landing_bytes_per_s\": %.0f, \"eventfd_us\": {\"p50\": %.2f, \"p99\": "
      "%.2f}}\n",
      std::string(halfstep::kBuildType).c_str(), copy_bytes_per_s(walk), landing_bytes_per_s(walk), quantile(round_trips, 0.5),
      quantile(round_trips, 0.99));
  return 0;
}
