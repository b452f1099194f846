// Yardsticks for shared memory, without a daemon: what a copy of the same bytes takes on one thread, and what two processes
// take to wake each other by eventfds. bench/shared_memory.py runs it.
//   --bytes N      of one copy (1048576)      --set N, --target N   bytes that the copies walk through, and into (67108864,
//   1048576)
//   --runtime N    milliseconds of each       --core N, --other-core N
#include <sys/eventfd.h>
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

double quantile(std::vector<double> values, double share) {
  std::ranges::sort(values);
  return values[static_cast<size_t>(share * static_cast<double>(values.size() - 1))];
}

// Bytes a second from one buffer that is walked through into another, as a client copies blocks that it gets into its targets.
double copy_bytes_per_s(size_t bytes, size_t set_bytes, size_t target_bytes, double runtime_us) {
  const size_t blocks = std::max<size_t>(1, set_bytes / bytes);
  const size_t targets = std::max<size_t>(1, target_bytes / bytes);
  std::vector<std::byte> from(blocks * bytes, std::byte{1});
  std::vector<std::byte> to(targets * bytes);
  double copied = 0;
  const double start = now_us();
  double end = start;
  for (size_t i = 0; end - start < runtime_us; ++i) {
    std::memcpy(to.data() + i % targets * bytes, from.data() + i % blocks * bytes, bytes);
    asm volatile("" : : "r"(to.data()) : "memory");
    copied += static_cast<double>(bytes);
    end = now_us();
  }
  return copied / ((end - start) / 1e6);
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
  const std::vector<double> round_trips = ping_pong_us(runtime_us, core, other_core);
  std::printf("{\"build\": \"%s\", \"copy_bytes_per_s\": %.0f, \"eventfd_us\": {\"p50\": %.2f, \"p99\": %.2f}}\n",
              std::string(halfstep::kBuildType).c_str(), copy_bytes_per_s(bytes, set_bytes, target_bytes, runtime_us),
              quantile(round_trips, 0.5), quantile(round_trips, 0.99));
  return 0;
}
