// loop.h — one thread's event loop: epoll, timers, turns by time used, and a wake-up from other threads.
// Everything that can become ready is a descriptor here: sockets, an engine's eventfd, a peer's queue (DESIGN section 2).
// Invariants: handlers run on the thread that calls turn() or fire_due(), one at a time; a Watch may remove itself or any other
// watch while it runs, and a removed watch is never called again, even if it was ready in the same turn. A timer that is armed
// while timers fire waits for the next turn, so that no handler can keep a turn from ending. Work that others may have to wait
// for is no handler's: a handler queues a Turn for it (turn_queue.h), and a turn of the loop takes those for kTurnsUs, so that
// whoever comes is heard soon. turn() does not nest. Must never:
// allocate per event, or call a handler after remove().
#pragma once

#include <sys/epoll.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <vector>

#include "base/bytes.h"
#include "base/clock.h"
#include "base/indexed_heap.h"
#include "base/status.h"
#include "net/busy_poll.h"
#include "net/turn_queue.h"

namespace halfstep::net {

// Memory that a handler may use until it returns, one block a loop: what is received before it is known where it belongs.
inline constexpr size_t kLoopScratchBytes = 128 * 1024;

class Watch {
 public:
  virtual ~Watch() = default;
  virtual void on_ready(uint32_t epoll_events) = 0;
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
  uint64_t order_ = 0;  // timers due at the same time fire as they were armed
  size_t heap_at_ = SIZE_MAX;
};

class Loop {
 public:
  static constexpr uint64_t kAtOnce = 0;
  // For how long turns are taken before the loop looks again who is ready. The one that is being taken ends first.
  static constexpr uint64_t kTurnsUs = 1'000;

  explicit Loop(const Clock& clock) noexcept : clock_(clock) {}
  ~Loop();
  Loop(const Loop&) = delete;
  Loop& operator=(const Loop&) = delete;

  Status open();
  Status add(int descriptor, uint32_t epoll_events, Watch* watch);
  Status change(int descriptor, uint32_t epoll_events, Watch* watch);
  void remove(int descriptor, Watch* watch);

  // (Re)arms; fires once, on the first turn at or after `due_us` of the loop's clock: the next one, for what is past. Allocates
  // only when more timers are armed than ever before.
  void arm(Timer& timer, uint64_t due_us);
  void disarm(Timer& timer) noexcept;
  // It is taken in this turn of the loop or one of the next, by what it has used; once, if it is queued already.
  void queue(Turn& turn) { turns_.push(turn); }
  void charge(Turn& turn, uint64_t us) { turns_.charge(turn, us); }
  // When the Turn that is being taken began.
  uint64_t turn_began_us() const noexcept { return turns_.began_us(); }

  // Waits until something is ready or queued, a timer is due or `wait_us_max` passed; runs what is ready, then what is due and
  // queued.
  void turn(uint64_t wait_us_max) { turn(wait_us_max, busy_poll_); }
  // By what those like who turns have learned about looking: threads that turn one loop find their cores in different company.
  void turn(uint64_t wait_us_max, BusyPoll& busy_poll);
  // Makes a turn() under way, or the next one, return at once. Any thread, async-signal-safe.
  void wake() noexcept;
  // Waits for a wake() that no turn() has seen, while another thread may be in turn(). False after `wait_us`.
  bool await_wake(uint64_t wait_us) noexcept;
  // The part of a turn() that comes after waiting: what is due or queued, such as bytes that are to be sent since.
  void fire_due();

  uint64_t now_us() const noexcept { return clock_.now_us(); }
  // More than one had something to do in this turn or the last: who has much gives way in between.
  bool crowded() const noexcept { return std::max({ran_, ran_before_, turns_.crowd()}) > 1; }
  const BusyPoll& busy_poll() const noexcept { return busy_poll_; }
  const Clock& clock() const noexcept { return clock_; }
  // kLoopScratchBytes, of the handler that runs, until it returns.
  Bytes scratch() noexcept { return {scratch_.get(), kLoopScratchBytes}; }

 private:
  struct Entry {
    Watch* watch = nullptr;
    uint32_t serial = 0;  // tells a watch from an earlier one on the same descriptor, whose event may still be at hand
  };

  Entry* entry_of(int descriptor) noexcept;
  void dispatch(const epoll_event& event);
  int wait(epoll_event* events, int events_max, uint64_t wait_us) noexcept;
  int look(epoll_event* events, int events_max, uint64_t* wait_us, BusyPoll& busy_poll) noexcept;
  static bool sooner(const Timer* a, const Timer* b) noexcept {
    return a->due_us_ != b->due_us_ ? a->due_us_ < b->due_us_ : a->order_ < b->order_;
  }

  const Clock& clock_;
  int epoll_ = -1;
  int wake_ = -1;
  bool fine_waits_ = true;  // epoll_pwait2 (Linux 5.11), else milliseconds
  bool turning_ = false;
  BusyPoll busy_poll_;
  uint32_t serial_ = 0;
  uint64_t armed_count_ = 0;
  uint64_t fired_at_us_ = 0;
  uint64_t ran_ = 0;  // watches and timers of this turn, or Turns where these are more
  uint64_t ran_before_ = 0;
  std::vector<Entry> entries_;  // by descriptor
  IndexedHeap<Timer, &Loop::sooner, &Timer::heap_at_> heap_;
  TurnQueue turns_;
  std::unique_ptr<std::byte[]> scratch_;
};

}  // namespace halfstep::net
