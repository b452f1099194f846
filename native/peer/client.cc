#include "peer/client.h"

#include <pthread.h>
#include <signal.h>

#include <algorithm>
#include <cassert>
#include <system_error>

namespace halfstep::peer {
namespace {

using wire::Answer;
using wire::AnswerReason;
using wire::Reason;

// How long bytes of a put that are in a socket's queue may outlast their ticket before their connection is ended.
constexpr uint64_t kFenceUs = 10'000;
constexpr uint64_t kIdleUs = 3'600'000'000;
constexpr size_t kIdleTicketsMax = 256;

}  // namespace

// ---- Life ----------------------------------------------------------------------------------------------------------------

Client::Client(Options options) : options_(std::move(options)), loop_(clock_), prng_(0) {}

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
  // Signals are the application's: this thread takes none.
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  Fault fault;
  try {
    thread_ = std::thread([this] { run(); });
  } catch (const std::system_error& error) {
    fault = {{Code::IoError, -error.code().value()}, std::string("the client's thread: ") + error.what()};
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  if (!fault.ok()) return fault;
  pthread_setname_np(thread_.native_handle(), "halfstep");
  remember_for_exit(*this);
  return {};
}

void Client::run() {
  for (Link& link : links_) {
    for (auto& connection : link.connections) connection->start();
  }
  while (!stopping_.load(std::memory_order_acquire)) {
    take_inbox();
    sweep_retired();
    loop_.turn(kIdleUs);
  }
}

void Client::stop_for_exit() noexcept {
  stopping_.store(true, std::memory_order_release);
  loop_.wake();
  if (thread_.joinable() && thread_.get_id() != std::this_thread::get_id()) thread_.join();
}

void Client::close() {
  {
    const std::lock_guard lock(mutex_);
    if (closed_) return;
    closed_ = true;
  }
  forget_for_exit(*this);
  stop_for_exit();
  // From here on this is the client's thread.
  take_inbox();
  end_all({Answer::Cancelled, Reason::Closed});
  while (running_ != nullptr) loop_.turn(kFenceUs);
  stop_connections();
}

void Client::post(void (*fill)(Inbox& inbox, void* what), void* what) {
  bool first = false;
  {
    const std::lock_guard lock(mutex_);
    first = inbox_.empty();
    fill(inbox_, what);
  }
  if (first) loop_.wake();
}

void Client::take_inbox() {
  {
    const std::lock_guard lock(mutex_);
    if (inbox_.empty()) return;
    std::swap(inbox_, taken_);
  }
  if (taken_.layouts) take_layouts();
  for (Ticket* ticket : taken_.submitted) begin(*ticket);
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
  taken_.cancelled.clear();
  taken_.closing.clear();
  taken_.layouts = false;
}

// ---- Layouts -------------------------------------------------------------------------------------------------------------

int Client::register_layout(std::shared_ptr<const wire::Layout> layout) {
  int handle = 0;
  bool wake = false;
  {
    const std::lock_guard lock(mutex_);
    const auto known =
        std::find_if(all_layouts_.begin(), all_layouts_.end(), [&](const auto& other) { return other->id() == layout->id(); });
    handle = static_cast<int>(known - all_layouts_.begin());
    if (known == all_layouts_.end()) {
      all_layouts_.push_back(std::move(layout));
      wake = inbox_.empty();
      inbox_.layouts = true;
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
    if (closed_) return nullptr;
    if (idle_tickets_.empty()) {
      idle_tickets_.push_back(static_cast<uint32_t>(tickets_.size()));
      tickets_.push_back(std::make_unique<Ticket>(*this, &Client::on_deadline));
    }
    ticket = tickets_[idle_tickets_.back()].get();
    ticket->place = idle_tickets_.back();
    ticket->id = ++ticket_serial_;
    idle_tickets_.pop_back();
  }
  ticket->reset();
  ticket->queue = &queue;
  return ticket;
}

void Client::recycle(Ticket& ticket) {
  const std::lock_guard lock(mutex_);
  idle_tickets_.push_back(ticket.place);
  // A burst need not be remembered for ever.
  if (idle_tickets_.size() > kIdleTicketsMax) ticket.shed();
}

void Client::submit(Ticket& ticket) {
  ticket.queue->count_submitted();
  AnswerReason refusal;
  if (open_tickets_.fetch_add(1, std::memory_order_relaxed) >= options_.tickets_max) {
    refusal = {Answer::Throttled, Reason::QueueFull};
  }
  bool wake = false;
  if (refusal.answer == Answer::Pending) {
    const std::lock_guard lock(mutex_);
    if (closed_) {
      refusal = {Answer::Cancelled, Reason::Closed};
    } else {
      wake = inbox_.empty();
      inbox_.submitted.push_back(&ticket);
    }
  }
  if (wake) loop_.wake();
  if (refusal.answer == Answer::Pending) return;
  ticket.end = refusal;
  ticket.finish();
  open_tickets_.fetch_sub(1, std::memory_order_relaxed);
  ticket.queue->post_done(ticket);
}

void Client::cancel(hs_ticket id) {
  post([](Inbox& inbox, void* what) { inbox.cancelled.push_back(*static_cast<hs_ticket*>(what)); }, &id);
}

void Client::close_queue(Queue& queue) {
  Closing closing{&queue, 0};
  {
    const std::lock_guard lock(mutex_);
    closing.newest = ticket_serial_;
  }
  post([](Inbox& inbox, void* what) { inbox.closing.push_back(*static_cast<Closing*>(what)); }, &closing);
}

void Client::begin(Ticket& ticket) {
  ticket.next = nullptr;
  ticket.previous = running_last_;
  (running_last_ != nullptr ? running_last_->next : running_) = &ticket;
  running_last_ = &ticket;
  ticket.state = Ticket::State::Waiting;
  loop_.arm(ticket.timer, ticket.deadline_us);
  if (refused_) return end(ticket, {Answer::Rejected, refusal_});
  if (reached()) dispatch(ticket);
}

void Client::dispatch(Ticket& ticket) {
  ticket.state = Ticket::State::Running;
  PlanLimits limits;
  limits.shards = static_cast<uint32_t>(links_.size());
  for (const Link& link : links_) {
    uint32_t up = 0;
    for (const auto& connection : link.connections) {
      if (!connection->up()) continue;
      ++up;
      limits.keys_max = std::min(limits.keys_max, connection->hello().keys_max);
    }
    limits.connections.push_back(up);
  }
  plan(ticket, limits, [&]() -> Request& {
    if (idle_requests_.empty()) {
      requests_.push_back(std::make_unique<Request>());
      idle_requests_.push_back(requests_.back().get());
    }
    Request& request = *idle_requests_.back();
    idle_requests_.pop_back();
    request.reset(ticket, opcode_of(ticket.operation));
    return request;
  });
  ticket.dispatching = true;
  given_ = ticket.requests;
  for (Request* request : given_) {
    if (Connection* connection = choose(links_[request->shard]); connection != nullptr) {
      connection->give(*request);
      continue;
    }
    const AnswerReason why{Answer::Unavailable, Reason::NoConnection};
    request->for_items([&](Section& section, uint32_t item) { ticket.fail_item(section, item, why); });
    if (request->slices.empty()) ticket.say_whole(why);
    on_request_over(*request);
  }
  ticket.dispatching = false;
  if (ticket.requests.empty()) conclude(ticket);
}

void Client::on_deadline(void* of) {
  auto& ticket = *static_cast<Ticket*>(of);
  Client& self = ticket.client;
  switch (ticket.state) {
    case Ticket::State::Waiting: return self.end(ticket, {Answer::Unavailable, Reason::NoConnection});
    case Ticket::State::Running: return self.end(ticket, {Answer::Late, Reason::Deadline});
    case Ticket::State::Fencing:
      // Each abort() releases what its connection still holds, from the loop. The list is kept: nothing is added any more.
      for (Connection* connection : ticket.fence) {
        connection->abort(Code::Late, "bytes of a put that is over did not leave within 10 ms of its deadline");
      }
      return;
    default: assert(false);
  }
}

void Client::end(Ticket& ticket, AnswerReason why) {
  if (ticket.state == Ticket::State::Fencing) return;
  ticket.end = why;
  ticket.say_whole(why);
  while (!ticket.requests.empty()) {
    Request* request = ticket.requests.back();
    ticket.requests.pop_back();
    request->connection->abandon(*request);
  }
  // What the caller still owns from here on is what a socket reads: little time is left for that.
  ticket.deadline_us = std::min(ticket.deadline_us, loop_.now_us());
  conclude(ticket);
}

void Client::conclude(Ticket& ticket) {
  if (ticket.payload_references == 0) return finish(ticket);
  ticket.state = Ticket::State::Fencing;
  loop_.arm(ticket.timer, ticket.deadline_us + kFenceUs);
}

void Client::on_payload_released(Ticket& ticket) {
  assert(ticket.payload_references > 0);
  if (--ticket.payload_references == 0 && ticket.state == Ticket::State::Fencing) finish(ticket);
}

void Client::finish(Ticket& ticket) {
  loop_.disarm(ticket.timer);
  (ticket.previous != nullptr ? ticket.previous->next : running_) = ticket.next;
  (ticket.next != nullptr ? ticket.next->previous : running_last_) = ticket.previous;
  ticket.finish();
  open_tickets_.fetch_sub(1, std::memory_order_relaxed);
  ticket.queue->post_done(ticket);
}

void Client::end_all(AnswerReason why) {
  for (Ticket* ticket = running_; ticket != nullptr;) {
    Ticket* next = ticket->next;
    end(*ticket, why);
    ticket = next;
  }
}

void Client::tell_progress(Ticket& ticket) {
  if (!ticket.wants_progress || ticket.steps_done == ticket.steps_told) return;
  ticket.steps_told = ticket.steps_done;
  ticket.queue->post_progress(ticket);
}

void Client::on_request_over(Request& request) {
  Ticket& ticket = *request.ticket;
  std::erase(ticket.requests, &request);
  recycle(request);
  if (ticket.dispatching) return;
  if (!ticket.requests.empty()) return tell_progress(ticket);
  conclude(ticket);
}

void Client::recycle(Request& request) {
  request.ticket = nullptr;
  idle_requests_.push_back(&request);
}

}  // namespace halfstep::peer
