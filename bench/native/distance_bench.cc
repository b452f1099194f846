// How far two cores are from each other: what a line of the cache takes there and back between two threads that look for it.
// The host of a virtual machine moves its cores about: under one cache they are five times nearer than under two, and whatever
// one of them writes and the other reads, as over loopback, moves two to three times as fast. bench/cores.py runs it.
//   --core N, --other-core N     --windows N   of kTrips each (20)
#include <array>
#include <atomic>
#include <chrono>
#include <thread>

#include "program.h"

namespace {

using namespace halfstep::bench;

constexpr uint64_t kTrips = 1000;
constexpr uint64_t kWindowsMax = 1'000'000;

double now_ns() {
  return std::chrono::duration<double, std::nano>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// Of each window, the mean of its trips.
std::vector<double> there_and_back_ns(uint64_t core, uint64_t other_core, uint64_t windows) {
  struct alignas(128) Line {
    std::atomic<uint64_t> value{0};
  } line;
  const auto move = [&line](uint64_t from, uint64_t to) {
    while (line.value.load(std::memory_order_acquire) != from) continue;
    line.value.store(to, std::memory_order_release);
  };
  const uint64_t trips = windows * kTrips;
  std::thread other([&] {
    pin(other_core);
    for (uint64_t i = 0; i < trips; ++i) move(2 * i + 1, 2 * i + 2);
  });
  pin(core);
  std::vector<double> taken;
  move(0, 1);
  double began = now_ns();
  for (uint64_t i = 1; i < trips; ++i) {
    move(2 * i, 2 * i + 1);
    if (i % kTrips != 0) continue;
    const double now = now_ns();
    taken.push_back((now - began) / static_cast<double>(kTrips));
    began = now;
  }
  other.join();
  return taken;
}

}  // namespace

int main(int count, char** arguments) {
  uint64_t core = kAnyCore;
  uint64_t other_core = kAnyCore;
  uint64_t windows = 20;
  const std::array<Number, 3> numbers{{{"--core", &core}, {"--other-core", &other_core}, {"--windows", &windows}}};
  read_options(count, arguments, numbers, {});
  if (core == kAnyCore || other_core == kAnyCore || core == other_core) fail("--core, --other-core: two that are not the same");
  if (windows < 2 || windows > kWindowsMax) fail("--windows " + std::to_string(windows) + ": must be 2 to 1000000");
  std::vector<double> ns = there_and_back_ns(core, other_core, windows);
  std::ranges::sort(ns);
  std::printf("{\"build\": \"%s\", \"there_and_back_ns\": {\"median\": %.1f, \"lowest\": %.1f, \"highest\": %.1f}}\n",
              std::string(halfstep::kBuildType).c_str(), ns[ns.size() / 2], ns.front(), ns.back());
  return 0;
}
