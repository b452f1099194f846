#include "bind/peer_queue.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <string>
#include <utility>
#include <vector>

#include "base/status.h"
#include "bind/interpreter.h"

namespace halfstep::bind {
namespace {

constexpr const char* kClosed = "queue is closed; open another with client.queue()";
constexpr size_t kEventsMax = 128;

Batch& batch_of(nb::handle object) { return *nb::inst_ptr<Batch>(object); }

class Counted {
 public:
  explicit Counted(uint32_t& count) noexcept : count_(count) { ++count_; }
  ~Counted() { --count_; }
  Counted(const Counted&) = delete;
  Counted& operator=(const Counted&) = delete;

 private:
  uint32_t& count_;
};

}  // namespace

Queue::Queue(nb::object event)
    : event_(std::move(event)), new_tuple_(nb::handle(reinterpret_cast<PyObject*>(&PyTuple_Type)).attr("__new__")) {}

Queue::~Queue() { close(); }

void Queue::Free::operator()(hs_queue* queue) const noexcept {
  const Unlocked unlocked;
  hs_queue_close(queue);
}

bool Queue::closed() const noexcept {
  return ended_ || (queue_ != nullptr && core_.is_valid() && hs_queue_ended(queue_.get()) != 0);
}

void Queue::check_open() const {
  if (closed()) throw Refused(kClosed);
}

// ---- Submit --------------------------------------------------------------------------------------------------------------

void Queue::attach(nb::object core) {
  if (ended_) throw Refused(kClosed);
  if (core.is(core_)) return;
  hs_queue* made = nullptr;
  if (hs_queue_open(nb::inst_ptr<Core>(core)->handle(), &made) != 0) throw Refused("client is closed");
  const Handle before = std::exchange(queue_, Handle(made, Free()));
  core_ = std::move(core);
  watched_ = false;
  // Whoever waits where nothing will come any more.
  if (before != nullptr) hs_queue_nudge(before.get());
}

void Queue::submit(nb::object object, nb::object owner, nb::object core) {
  Batch& batch = batch_of(object);
  attach(std::move(core));
  const Handle queue = queue_;
  if (queue == nullptr) throw Refused(kClosed);  // by another thread, while attach() let go of the queue before
  const uint64_t user_data = next_++;
  const hs_batch prepared = batch.prepared(user_data);
  if (const auto& client = nb::inst_ptr<Core>(core_)->shared(); client != nullptr) batch.register_regions(client);
  std::array<char, kWhyBytes> why{};
  batch.started(std::move(owner));
  batches_.emplace(user_data, object);
  hs_ticket ticket = 0;
  {
    // The core copies the keys, and may wait for its own lock.
    const Unlocked unlocked;
    ticket = hs_submit(queue.get(), &prepared, why.data(), why.size());
  }
  if (ticket == 0) {
    batches_.erase(user_data);
    if (!batch.done()) batch.refused();
    tell_others();  // a Region that is closed waits for it: no event will come
    throw Refused(closed() ? kClosed : why.data());
  }
  batch.named(ticket);
  if (batch.cancel_wanted()) hs_cancel(queue.get(), ticket);
}

void Queue::run(nb::object object, nb::object core) {
  const Batch& batch = batch_of(object);
  submit(object, nb::none(), std::move(core));
  try {
    wait_until([&] { return batch.done(); }, kNever, true);
  } catch (...) {
    fence(batch);
    throw;
  }
}

void Queue::fence(const Batch& batch) {
  if (batch.done()) return;
  if (queue_ != nullptr) hs_cancel(queue_.get(), batch.ticket());
  wait_until([&] { return batch.done(); }, kNever, false);
}

void Queue::post(nb::object object, nb::object owner) {
  check_open();
  list(batch_of(object), object, std::move(owner));
  keep(true);
  tell_others();
}

// ---- Events --------------------------------------------------------------------------------------------------------------

// A fork that went round Python's hooks.
void Queue::leave_fork() {
  if (core_.is_valid() && nb::inst_ptr<Core>(core_)->forked()) abandon();
}

const Queue::Handle& Queue::place() {
  leave_fork();
  if (queue_ == nullptr) {
    hs_queue* made = nullptr;
    (void)hs_queue_open(nullptr, &made);
    queue_ = Handle(made, Free());
  }
  return queue_;
}

template <typename Done>
bool Queue::wait_until(const Done& done, uint64_t until_us, bool hears_signals) {
  bool looked = false;
  for (;;) {
    // These may run Python code and let another thread in: both come before what is looked at, and not between that and the
    // wait.
    const uint64_t slice = hears_signals ? slice_us() : kNever;
    leave_fork();
    if (done()) return true;
    const uint64_t nudges = hs_queue_nudges(place().get());
    uint64_t left_us = kNever;
    if (until_us != kNever) {
      const uint64_t now = now_us();
      left_us = until_us - std::min(until_us, now);
      if (left_us == 0 && looked) return false;
    }
    look(std::min(left_us, slice), nudges);
    looked = true;
    if (hears_signals && !done() && PyErr_CheckSignals() != 0) throw nb::python_error();
  }
}

void Queue::look(uint64_t timeout_us, uint64_t nudges) {
  const Handle queue = queue_;
  std::array<hs_event, kEventsMax> events;
  size_t count = 0;
  {
    const Counted inside(inside_);
    const Unlocked unlocked;
    count = hs_queue_wait_unless(queue.get(), events.data(), events.size(), timeout_us, nudges);
  }
  deliver(events.data(), count);
}

void Queue::drain(const Handle& queue) {
  std::array<hs_event, kEventsMax> events;
  size_t count = 0;
  do {
    {
      const Unlocked unlocked;
      count = hs_queue_poll(queue.get(), events.data(), events.size());
    }
    deliver(events.data(), count);
  } while (count == events.size());
}

void Queue::list(Batch& batch, nb::object object, nb::object owner) {
  if (batch.listed != 0) return;  // it is told as it is when somebody takes it
  batch.listed = next_listed_++;
  unseen_.emplace(batch.listed, Unseen{std::move(owner), std::move(object)});
}

void Queue::deliver(const hs_event* events, size_t count) {
  if (count == 0) return;
  std::vector<Batch::Remains> remains;
  remains.reserve(count);
  bool listed = false;
  for (size_t i = 0; i < count; ++i) {
    const hs_event& event = events[i];
    const auto found = batches_.find(event.user_data);
    if (found == batches_.end()) continue;
    Batch& batch = batch_of(found->second);
    batch.progressed(event.steps_done);
    const bool owned = !batch.owner().is_none();
    const bool done = event.kind == HS_EVENT_DONE;
    if (owned) {
      list(batch, found->second, batch.owner());
      if (done) over_.push_back(batch.owner());
      listed = true;
    }
    if (!done) continue;
    remains.push_back(batch.finish(event.items_ok));
    remains.back().batch = std::move(found->second);
    batches_.erase(found);
  }
  if (listed) keep(true);
  tell_others();
}

void Queue::tell_others() {
  if (inside_ > 0 && queue_ != nullptr) hs_queue_nudge(queue_.get());
}

void Queue::keep(bool kept) {
  if (watched_ && queue_ != nullptr) hs_queue_keep(queue_.get(), kept ? 1 : 0);
}

void Queue::take_inherited() {
  for (nb::object& owner : inherited_) over_.push_back(std::move(owner));
  inherited_.clear();
}

void Queue::poll() {
  check_open();
  take_inherited();
  if (queue_ == nullptr) return;
  place();
  const Handle queue = queue_;  // another thread may close while this one is in the core
  drain(queue);
}

bool Queue::wait(nb::handle until) {
  const auto called = [this] {
    check_open();
    take_inherited();
    return !unseen_.empty() || !over_.empty();
  };
  return wait_until(called, time_of(until), true);
}

bool Queue::wait_for(Batch& batch, nb::handle until) {
  if (!wait_until([&] { return batch.over(); }, time_of(until), true)) return false;
  if (batch.listed != 0) {
    const auto seen = unseen_.extract(std::exchange(batch.listed, 0));
    if (unseen_.empty()) keep(false);
    // Here its owner is let go, who may be anybody's last.
  }
  return true;
}

bool Queue::serve() {
  const auto called = [this] { return !over_.empty() || closed_ || (closed() && batches_.empty()); };
  wait_until(called, kNever, true);
  return !over_.empty();
}

nb::list Queue::take() {
  const auto unseen = std::exchange(unseen_, {});
  for (const auto& [listed, one] : unseen) batch_of(one.batch).listed = 0;
  keep(false);
  nb::list events;
  for (const auto& [listed, one] : unseen) {
    const Batch& batch = batch_of(one.batch);
    events.append(new_tuple_(event_, nb::make_tuple(one.owner, batch.over(), batch.steps_done())));
  }
  return events;
}

nb::object Queue::next_over() const { return over_.empty() ? nb::none() : over_.front(); }

void Queue::called(nb::handle owner) {
  if (over_.empty() || !over_.front().is(owner)) return;  // another thread has said so
  const nb::object kept = std::move(over_.front());
  over_.pop_front();
}

// ---- The end -------------------------------------------------------------------------------------------------------------

void Queue::cancel(Batch& batch) const {
  if (queue_ == nullptr || batch.over()) return;
  if (batch.ticket() == 0) {
    batch.want_cancel();
  } else {
    hs_cancel(queue_.get(), batch.ticket());
  }
}

int Queue::descriptor(nb::object core) {
  check_open();
  if (!core.is_none()) attach(std::move(core));
  const int descriptor = hs_queue_descriptor(place().get());
  if (descriptor < 0) {
    throw Lacking("eventfd: " + errno_name(descriptor) + "; raise the limit on open files (ulimit -n)");
  }
  watched_ = true;
  keep(!unseen_.empty());
  return descriptor;
}

// Ends what is in flight without an event; those that owe a call-back go to `owed`.
void Queue::end_rest(Batch::Remains (Batch::*finish)(), std::deque<nb::object>& owed) {
  std::vector<Batch::Remains> remains;
  for (auto& [user_data, object] : std::exchange(batches_, {})) {
    Batch& batch = batch_of(object);
    nb::object owner = batch.owner();
    if (owner.is_valid() && !owner.is_none()) {
      list(batch, object, owner);
      owed.push_back(std::move(owner));
    }
    remains.push_back((batch.*finish)());
    remains.back().batch = std::move(object);
  }
}

void Queue::close() {
  ended_ = true;
  const Handle queue = queue_;
  const bool ours = queue != nullptr && !(core_.is_valid() && nb::inst_ptr<Core>(core_)->forked());
  if (ours) {
    {
      const Unlocked unlocked;
      hs_queue_end(queue.get());
    }
    drain(queue);
    // Over, as the core's fence says, and with events that another thread has taken and not sorted yet: it may wait for the
    // GIL, or be below a handler that closes the queue, or never come back.
    end_rest(&Batch::finish_unseen, over_);
  }
  closed_ = true;
  if (ours) hs_queue_nudge(queue.get());
  if (queue_ == queue) queue_.reset();
}

void Queue::abandon() {
  inside_ = 0;
  watched_ = false;
  queue_.reset();
  core_.reset();
  end_rest(&Batch::finish_forked, inherited_);
}

int Queue::traverse(PyObject* self, visitproc visit, void* arg) {
  Py_VISIT(Py_TYPE(self));
  if (!nb::inst_ready(self)) return 0;
  const Queue& queue = *nb::inst_ptr<Queue>(self);
  Py_VISIT(queue.event_.ptr());
  Py_VISIT(queue.core_.ptr());
  for (const auto& [user_data, object] : queue.batches_) Py_VISIT(object.ptr());
  for (const auto& [listed, one] : queue.unseen_) {
    Py_VISIT(one.owner.ptr());
    Py_VISIT(one.batch.ptr());
  }
  for (const auto* owners : {&queue.over_, &queue.inherited_}) {
    for (const nb::object& owner : *owners) Py_VISIT(owner.ptr());
  }
  return 0;
}

int Queue::clear(PyObject* self) {
  if (!nb::inst_ready(self)) return 0;
  Queue& queue = *nb::inst_ptr<Queue>(self);
  queue.close();
  const auto unseen = std::exchange(queue.unseen_, {});
  const auto over = std::exchange(queue.over_, {});
  const auto inherited = std::exchange(queue.inherited_, {});
  return 0;
}

}  // namespace halfstep::bind
