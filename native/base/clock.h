// clock.h — time as an argument, so that the real code runs on a simulated clock.
#pragma once

#include <cstdint>

namespace halfstep {

class Clock {
 public:
  virtual ~Clock() = default;
  // Monotonic, in microseconds from an arbitrary start: deadlines, leases, latencies.
  virtual uint64_t now_us() const noexcept = 0;
  // Seconds since 1970: what is written on flash. May jump; store time (store/format/store_time.h) does not.
  virtual uint64_t wall_s() const noexcept = 0;
  // Lets so much time pass: for who starts or stops and has nothing else to do, never inside a loop that serves.
  virtual void pause_us(uint64_t us) const noexcept;
};

class SystemClock final : public Clock {
 public:
  uint64_t now_us() const noexcept override;
  uint64_t wall_s() const noexcept override;
};

}  // namespace halfstep
