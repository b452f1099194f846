// queue.h — where the events of tickets wait until somebody takes them, and whose turn it is meanwhile.
//
//   ┌──────┐  end()    ┌────────┐  no ticket is open   ┌──────┐
//   │ Open ├──────────▶│ Ending ├─────────────────────▶│ Over │      end(): of the queue, or of its client
//   └──────┘           └────────┘                      └──────┘
//   takes tickets      takes none; those it has        a wait returns at once
//                      are cancelled and fenced
//
//   A thread that waits, one of any number:
//   ┌─────────┐  has the client's baton    ┌─────────┐
//   │ looking ├───────────────────────────▶│ leading │ turns the client's loop ─┐
//   └────┬────┘                            └─────────┘                          ├─▶ out: an event, a nudge, Over, its time
//        │       somebody else has it      ┌──────────┐                         │
//        └────────────────────────────────▶│ sleeping │ on `changed_` ──────────┘
//                                          └──────────┘
//
// Who is out looks again, or leaves: nothing has to be undone for a thread that never comes back, so an exception, a signal's
// handler, a fork or the end of an interpreter may take one away between two waits.
// Invariants: a ticket is in the list at most once; a terminal event absorbs a progress event that was not taken yet; a ticket
// is given back to the pool when its terminal event is taken; a ticket is open from acquire() until it is posted as done or
// withdrawn, and none is opened once the queue is ending. The descriptor is readable exactly while the list is not empty or
// the user keeps events.
// Thread: post_…() on the client's, the rest on any; mutex_ covers the list and the tickets' event fields. What is asked once a
// turn of the loop is told without it. `ending_` is set under the client's lock, under which tickets are opened.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>

#include "peer/halfstep.h"
#include "peer/ticket.h"

namespace halfstep::peer {

class Queue {
 public:
  Queue() = default;
  ~Queue();
  Queue(const Queue&) = delete;
  Queue& operator=(const Queue&) = delete;

  // Made on first use: synchronous callers never need one. -errno: out of descriptors.
  int descriptor();
  // The user has events that were taken from here and that nobody has seen: the descriptor stays readable.
  void keep(bool kept);

  void post_progress(Ticket& ticket);
  // The ticket is the queue's from here on.
  void post_done(Ticket& ticket);

  // Somebody hears of events by the descriptor, and need not be in a call meanwhile.
  bool watched() const noexcept { return descriptor_.load(std::memory_order_acquire) >= 0; }
  bool has_events() const noexcept { return first_.load(std::memory_order_acquire) != nullptr; }
  size_t poll(hs_event* events, size_t max);

  // ---- The turn
  // How often it was nudged: a wait that is told an older number ends at once, so that no nudge falls between a look at what
  // the caller waits for and the wait.
  uint64_t nudges() const noexcept { return nudges_.load(std::memory_order_acquire); }
  bool ending() const noexcept { return ending_.load(std::memory_order_acquire); }
  bool over() const noexcept { return ending() && open() == 0; }
  // A thread that waits here has a reason to stop.
  bool calls(uint64_t nudges_seen) const noexcept { return has_events() || nudges() != nudges_seen || over(); }
  // Threads that sleep here and are served by nobody of their own.
  uint32_t sleepers() const noexcept { return sleepers_.load(std::memory_order_relaxed); }
  // Until then, or for `timeout_us`; takes what there is.
  size_t sleep(hs_event* events, size_t max, uint64_t timeout_us, uint64_t nudges_seen);
  // Whoever sleeps looks again. Who leads is woken by the client.
  void nudge();

  // Tickets acquired and neither posted as done nor withdrawn.
  void count_acquired() noexcept { open_.fetch_add(1, std::memory_order_relaxed); }
  // One that was acquired will not be submitted.
  void withdraw();
  uint64_t open() const noexcept { return open_.load(std::memory_order_acquire); }
  // From here on no ticket is opened; who sleeps here for nothing leaves. Who leads is woken by the client.
  void begin_end();
  void wait_none_open();
  // Gives back what nobody took.
  void drop_events();

 private:
  void list(Ticket& ticket);
  size_t take(hs_event* events, size_t max, Ticket** finished);
  static void recycle(Ticket* finished);
  void show(bool readable) noexcept;

  std::mutex mutex_;
  std::condition_variable changed_;
  std::atomic<Ticket*> first_{nullptr};
  Ticket* last_ = nullptr;
  bool kept_ = false;
  bool shown_ = false;  // the descriptor is readable
  std::atomic<uint64_t> open_{0};
  std::atomic<uint64_t> nudges_{0};
  std::atomic<uint32_t> sleepers_{0};
  std::atomic<bool> ending_{false};
  std::atomic<int> descriptor_{-1};
};

}  // namespace halfstep::peer
