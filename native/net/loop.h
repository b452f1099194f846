// loop.h — one thread's event loop: epoll, timers, and a wake-up from other threads.
// Everything that can become ready is a descriptor here: sockets, an engine's eventfd, a peer's queue (DESIGN section 2).
// Invariants: handlers run on the thread that calls turn(); a Watch may remove itself or any other watch while it runs, and a
// removed watch is never called again, even if it was ready in the same turn.
// Must never: allocate per event, or call a handler after remove().
#pragma once

#include <sys/epoll.h>

#include <cstdint>
#include <vector>

#include "base/clock.h"
#include "base/status.h"

namespace halfstep::net {

class Watch {
 public:
  virtual ~Watch() = default;
  virtual void on_ready(uint32_t epoll_events) = 0;

 private:
  friend class Loop;
  uint64_t loop_serial_ = 0;  // tells a watch from a later one on the same descriptor
};

class Loop;

// Embedded in its owner; disarmed by its destructor.
class Timer {
 public:
  Timer(void (*fire)(void* owner), void* owner) noexcept : fire_(fire), owner_(owner) {}
  ~Timer();
  Timer(const Timer&) = delete;
  Timer& operator=(const Timer&) = delete;
  bool armed() const noexcept { return loop_ != nullptr; }

 private:
  friend class Loop;
  void (*fire_)(void* owner);
  void* owner_;
  Loop* loop_ = nullptr;
  uint64_t due_us_ = 0;
  size_t heap_at_ = 0;
};

class Loop {
 public:
  explicit Loop(const Clock& clock) noexcept : clock_(clock) {}
  ~Loop();
  Loop(const Loop&) = delete;
  Loop& operator=(const Loop&) = delete;

  Status open();
  Status add(int descriptor, uint32_t epoll_events, Watch* watch);
  Status change(int descriptor, uint32_t epoll_events, Watch* watch);
  void remove(int descriptor, Watch* watch);

  // (Re)arms; fires once, on the first turn at or after `due_us` of the loop's clock.
  void arm(Timer& timer, uint64_t due_us);
  void disarm(Timer& timer) noexcept;

  // Waits until something is ready, a timer is due or `wait_us_max` passed; runs what is ready, then what is due.
  void turn(uint64_t wait_us_max);
  // Makes a turn() under way, or the next one, return at once. Any thread, async-signal-safe.
  void wake() noexcept;

  uint64_t now_us() const noexcept { return clock_.now_us(); }
  const Clock& clock() const noexcept { return clock_; }

 private:
  struct Entry;
  const Clock& clock_;
  int epoll_ = -1;
  int wake_ = -1;
  uint64_t serial_ = 0;
  std::vector<Watch*> watches_;  // by descriptor
  std::vector<Timer*> heap_;
};

}  // namespace halfstep::net
