#include "peer/client.h"

#include <pthread.h>

#include <algorithm>
#include <system_error>
#include <utility>

#include "base/check.h"
#include "peer/signals.h"

namespace halfstep::peer {
namespace {

using wire::Answer;
using wire::AnswerReason;
using wire::Reason;

constexpr uint64_t kIdleUs = 3'600'000'000;
constexpr size_t kIdleTicketsMax = 256;
// How long the client's thread leaves the loop to a caller who was here and may come back. In that time nobody hears of what a
// connection brings: for a batch that was submitted by somebody who then does something else it is a delay.
constexpr uint64_t kCallerUs = 1000;
// The same while a caller waits and turns; who then leaves something under way and does not come back waits so much longer for
// it. To look each millisecond took 0.01 to 0.04 of what such a caller receives.
constexpr uint64_t kCallerWaitsUs = 5000;

}  // namespace

// ---- Life ----------------------------------------------------------------------------------------------------------------

Client::Client(Options options)
    : ConnectionHost(std::move(options)),
      devices_(loop_, *this, options_.cuda, options_.staging),
      encoder_(
          [this](Ticket& ticket, uint32_t piece) {
            Encoded encoded{&ticket, piece};
            post([](Inbox& inbox, void* what) { inbox.encoded.push_back(*static_cast<Encoded*>(what)); }, &encoded);
          },
          0, options_.coding, [this] { return path_speeds(); }) {}

Client::~Client() { close(); }

Fault Client::open(Options options, std::shared_ptr<Client>* out) {
  std::shared_ptr<Client> client(new Client(std::move(options)));
  if (Fault fault = client->start(); !fault.ok()) return fault;
  *out = std::move(client);
  return {};
}

Fault Client::start() {
  uint64_t random[2] = {};
  if (Status s = system_random({reinterpret_cast<std::byte*>(random), sizeof(random)}); !s.ok()) {
    return {s, "getrandom: " + errno_name(s.detail())};
  }
  client_id_ = random[0];
  prng_ = Prng(random[1]);
  if (Status s = loop_.open(); !s.ok()) {
    return {s, "epoll: " + errno_name(s.detail()) + "; raise the limit on open files (ulimit -n)"};
  }
  open_seed();
  for (auto& connection : links_[0].connections) connection->start();
  try {
    const SignalsBlocked blocked;
    thread_ = std::thread([this] { run(); });
  } catch (const std::system_error& error) {
    return {{Code::IoError, -error.code().value()}, std::string("the client's thread: ") + error.what()};
  }
  pthread_setname_np(thread_.native_handle(), "halfstep");
  remember_for_exit(*this);
  return {};
}

void Client::run() {
  uint64_t wait_us = kCallerUs;
  for (bool woken = true; !stopping_.load(std::memory_order_acquire); woken = loop_.await_wake(wait_us)) {
    std::unique_lock baton(baton_, std::defer_lock);
    if (woken) {
      baton.lock();
    } else if (!baton.try_lock()) {
      wait_us = caller_waits_.load(std::memory_order_relaxed) ? kCallerWaitsUs : kCallerUs;
      continue;
    }
    wait_us = kCallerUs;
    if (!woken && loop_.now_us() < called_at_us_ + kCallerUs) continue;
    // Each time, the first included: a caller who had the baton may have taken the wake-up that came with `stopping_`.
    while (!stopping_.load(std::memory_order_acquire)) {
      loop_.turn(kIdleUs);
      after_turn();
      if (std::exchange(ended_for_caller_, false)) called_at_us_ = loop_.now_us();
      if (running_ == nullptr && loop_.now_us() < called_at_us_ + kCallerUs) break;
    }
  }
}

// What comes after a turn of the loop, which has swallowed the wake-up.
void Client::after_turn() {
  take_inbox();
  if (!leaving_.empty()) sweep_leaving();
  sweep_retired();
  if (regions_closing_.load(std::memory_order_acquire)) sweep_regions();
}

bool Client::turn_for(Queue& queue, uint64_t now_us, uint64_t until_us, uint64_t nudges_seen) {
  if (queue.watched()) return false;
  std::unique_lock baton(baton_, std::try_to_lock);
  if (!baton.owns_lock()) return false;
  // Whoever had the baton may have ended what is waited for after the caller looked, or taken the wake-up that came with a
  // nudge: of that nothing would wake the loop.
  if (queue.calls(nudges_seen)) until_us = 0;
  caller_waits_.store(until_us != 0, std::memory_order_relaxed);
  bool stopped = false;
  do {
    if (stopped = stopping_.load(std::memory_order_acquire); stopped) break;
    loop_.turn(until_us - std::min(now_us, until_us), callers_looks_);
    after_turn();
  } while (!queue.calls(nudges_seen) && (now_us = loop_.now_us()) < until_us);
  caller_waits_.store(false, std::memory_order_relaxed);
  if (stopped) return false;
  leave(std::move(baton), queue);
  return true;
}

// What others have under way, or wait for, is not left to a caller who may not come back.
void Client::leave(std::unique_lock<std::mutex> baton, Queue& queue) {
  called_at_us_ = loop_.now_us();
  ended_for_caller_ = false;
  baton.unlock();
  if (open_tickets_.load(std::memory_order_relaxed) > queue.open() || queue.sleepers() > 0) loop_.wake();
}

void Client::stop_for_exit() noexcept {
  stopping_.store(true, std::memory_order_release);
  loop_.wake();
  if (thread_.joinable() && thread_.get_id() != std::this_thread::get_id()) thread_.join();
  { const std::lock_guard last_caller(baton_); }
  encoder_.stop();
}

void Client::close() {
  {
    std::unique_lock lock(mutex_);
    if (closed_) return over_changed_.wait(lock, [this] { return over_; });
    closed_ = true;
    for (Queue* queue : queues_) queue->begin_end();
  }
  {
    const std::lock_guard lock(state_mutex_);
    told_closed_ = true;
    state_changed_.notify_all();
  }
  forget_for_exit(*this);
  stop_for_exit();
  {
    // From here on this is the client's thread: who finds `stopping_` set gives the baton back.
    const std::lock_guard baton(baton_);
    take_inbox();
    end_all({Answer::Cancelled, Reason::Closed});
    for (after_turn(); running_ != nullptr; after_turn()) loop_.turn(kFenceUs);
    stop_connections();
  }
  drop_regions();
  const std::lock_guard lock(mutex_);
  over_ = true;
  over_changed_.notify_all();
}

void Client::post(void (*fill)(Inbox& inbox, void* what), void* what) {
  bool first = false;
  {
    const std::lock_guard lock(mutex_);
    first = inbox_.empty();
    fill(inbox_, what);
    inbox_waits_.store(true, std::memory_order_release);
  }
  if (first) loop_.wake();
}

void Client::take_inbox() {
  if (!inbox_waits_.load(std::memory_order_acquire)) return;
  {
    const std::lock_guard lock(mutex_);
    inbox_waits_.store(false, std::memory_order_relaxed);
    std::swap(inbox_, taken_);
  }
  if (taken_.layouts) take_layouts();
  for (Ticket* ticket : taken_.submitted) begin(*ticket);
  for (const Encoded& encoded : taken_.encoded) on_encoded(*encoded.ticket, encoded.piece);
  for (const hs_ticket id : taken_.cancelled) {
    Ticket* found = nullptr;
    for (Ticket* ticket = running_; ticket != nullptr && found == nullptr; ticket = ticket->next) {
      if (ticket->id == id) found = ticket;
    }
    if (found != nullptr) end(*found, {Answer::Cancelled, Reason::None});
  }
  for (const Closing& closing : taken_.closing) {
    for (Ticket* ticket = running_; ticket != nullptr;) {
      Ticket* next = ticket->next;
      if (ticket->queue == closing.queue && ticket->id <= closing.newest) end(*ticket, {Answer::Cancelled, Reason::Closed});
      ticket = next;
    }
  }
  taken_.submitted.clear();
  taken_.encoded.clear();
  taken_.cancelled.clear();
  taken_.closing.clear();
  taken_.layouts = false;
}

// ---- Layouts -------------------------------------------------------------------------------------------------------------

int Client::register_layout(std::shared_ptr<const wire::Layout> layout) {
  int handle = 0;
  bool wake = false;
  auto coding = std::make_shared<const LayoutCoding>(*layout, options_.codecs);
  if (!coding->coded()) coding = nullptr;
  {
    const std::lock_guard lock(mutex_);
    const auto known =
        std::find_if(all_layouts_.begin(), all_layouts_.end(), [&](const auto& other) { return other->id() == layout->id(); });
    handle = static_cast<int>(known - all_layouts_.begin());
    if (known == all_layouts_.end()) {
      codings_.push_back(std::move(coding));
      all_layouts_.push_back(std::move(layout));
      wake = inbox_.empty();
      inbox_.layouts = true;
      inbox_waits_.store(true, std::memory_order_release);
    }
  }
  if (wake) loop_.wake();
  return handle;
}

std::shared_ptr<const wire::Layout> Client::layout(int handle) {
  const std::lock_guard lock(mutex_);
  if (handle < 0 || static_cast<size_t>(handle) >= all_layouts_.size()) return nullptr;
  return all_layouts_[static_cast<size_t>(handle)];
}

std::shared_ptr<const LayoutCoding> Client::coding(int handle) {
  const std::lock_guard lock(mutex_);
  if (handle < 0 || static_cast<size_t>(handle) >= codings_.size()) return nullptr;
  return codings_[static_cast<size_t>(handle)];
}

void Client::take_layouts() {
  {
    const std::lock_guard lock(mutex_);
    layouts_ = all_layouts_;
  }
  for (Link& link : links_) {
    for (auto& connection : link.connections) connection->register_layouts();
  }
  tell_state();
}

// ---- Tickets -------------------------------------------------------------------------------------------------------------

Ticket* Client::acquire(Queue& queue) {
  Ticket* ticket = nullptr;
  {
    const std::lock_guard lock(mutex_);
    if (closed_ || queue.ending()) return nullptr;
    // In this order, should memory be short: a place is never that of no ticket, and recycle() needs no memory.
    if (idle_tickets_.empty()) {
      tickets_.push_back(std::make_unique<Ticket>(*this, &Client::on_deadline));
      idle_tickets_.reserve(tickets_.capacity());
      idle_tickets_.push_back(static_cast<uint32_t>(tickets_.size() - 1));
    }
    queue.count_acquired();
    ticket = tickets_[idle_tickets_.back()].get();
    ticket->place = idle_tickets_.back();
    ticket->id = ++ticket_serial_;
    idle_tickets_.pop_back();
  }
  ticket->reset();
  ticket->queue = &queue;
  return ticket;
}

void Client::withdraw(Ticket& ticket) {
  Queue& queue = *ticket.queue;
  if (!ticket.regions.empty()) {
    ticket.regions.clear();
    loop_.wake();  // one of them may be waited for
  }
  recycle(ticket);
  queue.withdraw();
}

void Client::recycle(Ticket& ticket) {
  const std::lock_guard lock(mutex_);
  idle_tickets_.push_back(ticket.place);
  // A burst need not be remembered for ever.
  if (idle_tickets_.size() > kIdleTicketsMax) ticket.shed();
}

void Client::submit(Ticket& ticket) {
  AnswerReason refusal;
  if (open_tickets_.fetch_add(1, std::memory_order_relaxed) >= options_.tickets_max) {
    refusal = {Answer::Throttled, Reason::QueueFull};
  }
  Queue& queue = *ticket.queue;
  bool first = false;
  if (refusal.answer == Answer::Pending) {
    const std::lock_guard lock(mutex_);
    if (closed_ || queue.ending()) {
      refusal = {Answer::Cancelled, Reason::Closed};
    } else {
      first = inbox_.empty();
      inbox_.submitted.push_back(&ticket);
      inbox_waits_.store(true, std::memory_order_release);
    }
  }
  if (first) return send_off(queue);
  if (refusal.answer == Answer::Pending) return;  // whoever came first sees to it
  ticket.end = refusal;
  ticket.regions.clear();
  ticket.finish();
  open_tickets_.fetch_sub(1, std::memory_order_relaxed);
  queue.post_done(ticket);
  loop_.wake();  // another thread may wait for this queue by turning the loop
}

// What is in the inbox leaves at once, by this thread if nobody else turns.
void Client::send_off(Queue& queue) {
  std::unique_lock baton(baton_, std::defer_lock);
  if (queue.watched() || !baton.try_lock()) return loop_.wake();
  take_inbox();
  loop_.fire_due();
  leave(std::move(baton), queue);
}

size_t Client::poll(Queue& queue, hs_event* events, size_t max) {
  const size_t count = queue.poll(events, max);
  return count == 0 && turn_for(queue, 0, 0, queue.nudges()) ? queue.poll(events, max) : count;
}

size_t Client::wait(Queue& queue, hs_event* events, size_t max, uint64_t timeout_us, uint64_t nudges_seen) {
  if (const size_t count = queue.poll(events, max); count > 0) return count;
  const uint64_t began_us = loop_.now_us();
  const uint64_t until_us = timeout_us > UINT64_MAX - began_us ? UINT64_MAX : began_us + timeout_us;
  if (turn_for(queue, began_us, until_us, nudges_seen)) {
    if (const size_t count = queue.poll(events, max); count > 0) return count;
  }
  const uint64_t left_us = until_us == UINT64_MAX ? UINT64_MAX : until_us - std::min(until_us, loop_.now_us());
  return queue.sleep(events, max, left_us, nudges_seen);
}

void Client::nudge(Queue& queue) {
  queue.nudge();
  loop_.wake();  // a thread may wait for this queue by turning the loop
}

int Client::watch(Queue& queue) {
  const int descriptor = queue.descriptor();
  loop_.wake();
  return descriptor;
}

void Client::cancel(hs_ticket id) {
  post([](Inbox& inbox, void* what) { inbox.cancelled.push_back(*static_cast<hs_ticket*>(what)); }, &id);
}

void Client::remember_queue(Queue& queue) {
  const std::lock_guard lock(mutex_);
  if (closed_) queue.begin_end();
  queues_.push_back(&queue);
}

void Client::forget_queue(Queue& queue) {
  const std::lock_guard lock(mutex_);
  std::erase(queues_, &queue);
}

void Client::end_queue(Queue& queue) {
  Closing closing{&queue, 0};
  {
    const std::lock_guard lock(mutex_);
    queue.begin_end();
    closing.newest = ticket_serial_;
  }
  post([](Inbox& inbox, void* what) { inbox.closing.push_back(*static_cast<Closing*>(what)); }, &closing);
  loop_.wake();  // a thread may wait for it by turning the loop, for nothing
  if (stopping_.load(std::memory_order_acquire)) {
    // The process ends, or close() is at work: nobody else turns for what is still open.
    const std::lock_guard baton(baton_);
    for (after_turn(); queue.open() > 0; after_turn()) loop_.turn(kFenceUs);
  }
  queue.wait_none_open();
}

}  // namespace halfstep::peer
