// queue.h — where the events of tickets wait until somebody takes them.
// Invariants: a ticket is in the list at most once; a terminal event absorbs a progress event that was not taken yet; a ticket
// is given back to the pool when its terminal event is taken. The descriptor is readable exactly while the list is not empty.
// Thread: post_…() on the client's, the rest on any; mutex_ covers the list and the tickets' event fields. What is asked once a
// turn of the loop is told without it.
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

  // Made on first use: synchronous callers never need one. -1: out of descriptors.
  int descriptor();

  void post_progress(Ticket& ticket);
  // The ticket is the queue's from here on.
  void post_done(Ticket& ticket);

  // Somebody hears of events by the descriptor, and need not be in a call meanwhile.
  bool watched() const noexcept { return descriptor_.load(std::memory_order_acquire) >= 0; }
  bool has_events() const noexcept { return first_.load(std::memory_order_acquire) != nullptr; }
  size_t poll(hs_event* events, size_t max);
  size_t wait(hs_event* events, size_t max, uint64_t timeout_us);

  // Tickets submitted and not yet posted as done.
  void count_submitted() noexcept { open_.fetch_add(1, std::memory_order_relaxed); }
  uint64_t open() const noexcept { return open_.load(std::memory_order_relaxed); }
  void wait_none_open();
  // Gives back what nobody took.
  void drop_events();

 private:
  void list(Ticket& ticket);
  size_t take(hs_event* events, size_t max, Ticket** finished);
  static void recycle(Ticket* finished);
  void signal_descriptor(bool readable) noexcept;

  std::mutex mutex_;
  std::condition_variable changed_;
  std::atomic<Ticket*> first_{nullptr};
  Ticket* last_ = nullptr;
  std::atomic<uint64_t> open_{0};
  std::atomic<int> descriptor_{-1};
};

}  // namespace halfstep::peer
