#include "base/clock.h"

#include <ctime>

namespace halfstep {

void Clock::pause_us(uint64_t us) const noexcept {
  const timespec pause{static_cast<time_t>(us / 1'000'000U), static_cast<long>(us % 1'000'000U * 1000U)};
  (void)nanosleep(&pause, nullptr);
}

uint64_t SystemClock::now_us() const noexcept {
  timespec t{};
  clock_gettime(CLOCK_MONOTONIC, &t);
  return static_cast<uint64_t>(t.tv_sec) * 1'000'000U + static_cast<uint64_t>(t.tv_nsec) / 1000U;
}

uint64_t SystemClock::wall_s() const noexcept {
  timespec t{};
  clock_gettime(CLOCK_REALTIME, &t);
  return static_cast<uint64_t>(t.tv_sec);
}

}  // namespace halfstep
