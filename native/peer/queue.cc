#include "peer/queue.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>

namespace halfstep::peer {

Queue::~Queue() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

int Queue::descriptor() {
  const std::lock_guard lock(mutex_);
  if (descriptor_ < 0) {
    const int made = ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (made < 0) return -errno;
    descriptor_ = made;
    show(has_events() || kept_);
  }
  return descriptor_;
}

void Queue::keep(bool kept) {
  const std::lock_guard lock(mutex_);
  kept_ = kept;
  show(has_events() || kept_);
}

// Neither system call can fail: the count is 0 or 1, as `shown_` says.
void Queue::show(bool readable) noexcept {
  if (descriptor_ < 0 || readable == shown_) return;
  shown_ = readable;
  uint64_t count = 1;
  [[maybe_unused]] const ssize_t done =
      readable ? ::write(descriptor_, &count, sizeof(count)) : ::read(descriptor_, &count, sizeof(count));
}

void Queue::list(Ticket& ticket) {
  if (ticket.event_listed) return;
  ticket.event_listed = true;
  ticket.next_event = nullptr;
  if (!has_events()) {
    first_.store(&ticket, std::memory_order_release);
    show(true);
  } else {
    last_->next_event = &ticket;
  }
  last_ = &ticket;
  changed_.notify_all();
}

void Queue::post_progress(Ticket& ticket) {
  const std::lock_guard lock(mutex_);
  ticket.event_steps = ticket.steps_done;
  list(ticket);
}

void Queue::post_done(Ticket& ticket) {
  const std::lock_guard lock(mutex_);
  ticket.event_steps = ticket.steps_done;
  ticket.done = true;
  const bool last = open_.fetch_sub(1, std::memory_order_acq_rel) == 1;
  list(ticket);
  if (last) changed_.notify_all();
}

void Queue::withdraw() {
  const std::lock_guard lock(mutex_);
  if (open_.fetch_sub(1, std::memory_order_acq_rel) == 1) changed_.notify_all();
}

size_t Queue::take(hs_event* events, size_t max, Ticket** finished) {
  size_t count = 0;
  Ticket* first = first_.load(std::memory_order_relaxed);
  while (count < max && first != nullptr) {
    Ticket& ticket = *first;
    first = ticket.next_event;
    ticket.next_event = nullptr;
    ticket.event_listed = false;
    hs_event& event = events[count++];
    event = {};
    event.ticket = ticket.id;
    event.kind = ticket.done ? HS_EVENT_DONE : HS_EVENT_PROGRESS;
    event.steps_done = ticket.event_steps;
    event.user_data = ticket.user_data;
    if (ticket.done) {
      event.items_ok = ticket.items_ok;
      ticket.next_event = *finished;
      *finished = &ticket;
    }
  }
  first_.store(first, std::memory_order_release);
  if (count > 0 && first == nullptr) show(kept_);
  return count;
}

void Queue::recycle(Ticket* finished) {
  while (finished != nullptr) {
    Ticket* next = finished->next_event;
    finished->host.recycle(*finished);
    finished = next;
  }
}

size_t Queue::poll(hs_event* events, size_t max) {
  if (!has_events()) return 0;
  Ticket* finished = nullptr;
  size_t count = 0;
  {
    const std::lock_guard lock(mutex_);
    count = take(events, max, &finished);
  }
  recycle(finished);
  return count;
}

size_t Queue::sleep(hs_event* events, size_t max, uint64_t timeout_us, uint64_t nudges_seen) {
  using std::chrono::steady_clock;
  Ticket* finished = nullptr;
  size_t count = 0;
  {
    std::unique_lock lock(mutex_);
    sleepers_.fetch_add(1, std::memory_order_relaxed);
    const auto called = [&] { return calls(nudges_seen); };
    // Longer than a month is for ever: the sum with the clock must not overflow.
    constexpr uint64_t kForEverUs = uint64_t{31} * 24 * 3600 * 1'000'000;
    if (timeout_us > kForEverUs) {
      changed_.wait(lock, called);
    } else {
      changed_.wait_until(lock, steady_clock::now() + std::chrono::microseconds(timeout_us), called);
    }
    sleepers_.fetch_sub(1, std::memory_order_relaxed);
    count = take(events, max, &finished);
  }
  recycle(finished);
  return count;
}

void Queue::nudge() {
  const std::lock_guard lock(mutex_);
  nudges_.fetch_add(1, std::memory_order_release);
  changed_.notify_all();
}

void Queue::begin_end() {
  const std::lock_guard lock(mutex_);
  ending_.store(true, std::memory_order_release);
  changed_.notify_all();
}

void Queue::wait_none_open() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return open() == 0; });
}

void Queue::drop_events() {
  Ticket* finished = nullptr;
  hs_event event;
  {
    const std::lock_guard lock(mutex_);
    while (take(&event, 1, &finished) > 0) continue;
  }
  recycle(finished);
}

}  // namespace halfstep::peer
