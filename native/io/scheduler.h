// scheduler.h — foreground first: an engine in front of another one that decides which requests go to the device, and when.
// Gets' reads go at once, as far as the device has use for them (demand_limit.h). Everything else, in the order of IoClass, has
// a window of bytes that may be at the device meanwhile; it opens when a write or a prefetch has waited long while gets' reads
// come within the latency goal, and closes when they do not, or when nobody has waited long for a while. Without gets there is
// no window.
// What comes back is completed only when the device has been given the next requests, and the device is looked at again in
// between: it would have nothing to do while reads are verified.
// Invariants: of each class one request may always be at the device, so that none waits for ever; within a class requests go in
// order; flushes and discards pass, and may complete before what came back before them. At most queue_depth requests are at the
// device, half as many where they are not gets', but for those single ones; neighbours that go as one (gather_run.h)
// are one. Thread: the shard's; what shards on one device know of each other is in DevicePressure.
#pragma once

#include <array>
#include <atomic>
#include <memory>

#include "base/clock.h"
#include "base/units.h"
#include "io/demand_limit.h"
#include "io/engine.h"
#include "io/gather_run.h"
#include "io/request.h"

namespace halfstep::io {

inline constexpr uint64_t kLatencyGoalUsDefault = 2'000;
inline constexpr uint64_t kLatencyGoalUsMax = 10'000'000;

// Of one device, for all shards of a process that use it. Any thread.
struct DevicePressure {
  static constexpr uint64_t kWindowBytesMin = 512 * KiB;  // two pieces of a frame
  static constexpr uint64_t kWindowBytesMax = 64 * MiB;

  explicit DevicePressure(uint64_t window_min = kWindowBytesMin) : window_bytes(window_min), window_bytes_min(window_min) {}

  std::atomic<uint64_t> demand_seen_us{0};  // when a get's read was last under way; 0: never
  std::atomic<uint64_t> window_bytes;       // of all shards together
  std::atomic<uint64_t> short_seen_us{0};   // when the window last kept a write or a prefetch waiting for long; 0: never
  const uint64_t window_bytes_min;
  uint32_t shards = 1;  // set before any of them starts
};

struct ClassCounters {
  uint64_t requests = 0, bytes = 0;
  uint64_t queued_us = 0;  // before they went to the device
  uint64_t device_us = 0;  // there
};

struct SchedulerCounters {
  std::array<ClassCounters, kIoClasses> classes;
  uint64_t gets_bytes = 0;    // that reads of gets, and of the start, brought: Demand less its small writes
  uint64_t reads_late = 0;    // of gets: that took longer than the goal
  uint64_t window_bytes = 0;  // gauge: what this shard's other classes may have at the device beside gets
};

class Scheduler final : public Engine {
 public:
  // `pressure` and `clock` outlive it. The goal is that of a get's read, from its submission until it has landed; 0: nothing
  // gives way.
  Scheduler(std::unique_ptr<Engine> inner, uint64_t latency_goal_us, uint32_t queue_depth, DevicePressure& pressure,
            const Clock& clock)
      : inner_(std::move(inner)),
        latency_goal_us_(latency_goal_us),
        queue_depth_(queue_depth),
        pressure_(pressure),
        clock_(clock) {
    counters_.window_bytes = pressure.window_bytes.load(std::memory_order_relaxed) / pressure.shards;
  }

  void submit(Request& request) noexcept override;
  void hurry(Request& request) noexcept override;
  void flush_submissions() noexcept override;
  size_t poll() noexcept override;
  void wait() noexcept override {
    if (landed_.empty()) inner_->wait();
  }
  bool ready() const noexcept override { return !landed_.empty() || inner_->ready(); }
  bool gathers() const noexcept override { return inner_->gathers(); }
  int wake_descriptor() const noexcept override { return inner_->wake_descriptor(); }
  uint32_t in_flight() const noexcept override { return inner_->in_flight() + queued_ + landed_count_; }
  uint64_t device_bytes(uint8_t device) const noexcept override { return inner_->device_bytes(device); }
  DiscardLimits discard_limits(uint8_t device) const noexcept override { return inner_->discard_limits(device); }
  const EngineFacts& facts() const noexcept override { return inner_->facts(); }
  const EngineCounters& counters() const noexcept override { return inner_->counters(); }
  const SchedulerCounters* scheduler_counters() const noexcept override { return &counters_; }

 private:
  struct Lane {
    RequestQueue queued;
    uint32_t out = 0;  // at the device
  };

  void dispatch() noexcept;
  // The first get after a while without stands behind what the others have at the device.
  uint32_t places(bool demand) const noexcept { return demand ? queue_depth_ : queue_depth_ / 2; }
  bool may_go(const Lane& lane, bool demand, const Request& request, bool gathered) const noexcept;
  size_t look() noexcept;
  void hand_over(Lane& lane, Request& request, bool gathered) noexcept;
  static void on_complete(Request& request);
  void completed(Request& request) noexcept;
  void steer() noexcept;

  std::unique_ptr<Engine> inner_;
  const uint64_t latency_goal_us_;
  const uint32_t queue_depth_;
  DevicePressure& pressure_;
  const Clock& clock_;
  std::array<Lane, kIoClasses> lanes_;
  DemandLimit demand_limit_;
  RequestQueue landed_;  // complete() not called
  uint32_t landed_count_ = 0;
  uint32_t queued_ = 0;
  uint32_t out_ = 0;               // at the device, of all lanes
  uint64_t background_bytes_ = 0;  // of them, those that have to keep to the window
  uint64_t now_us_ = 0;            // of this turn
  uint64_t window_bytes_ = UINT64_MAX;
  bool short_ = false;  // the window kept a write or a prefetch waiting for long since it was last steered
  uint64_t steer_at_us_ = 0;
  uint32_t reads_ = 0, reads_late_ = 0;  // of gets, since then
  SchedulerCounters counters_;
};

}  // namespace halfstep::io
