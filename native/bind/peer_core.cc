#include "bind/peer_core.h"

#include <algorithm>
#include <array>
#include <limits>
#include <utility>

namespace halfstep::bind {
namespace {

constexpr const char* kClosed = "queue is closed; open another with client.queue()";
constexpr size_t kWhyBytes = 512;
constexpr size_t kEventsMax = 256;
// How long a signal may go unheard. The core's wait ends at once on an event; this is only for the handler's sake.
constexpr uint64_t kSliceUs = 50'000;

uint64_t as_us(double seconds) {
  if (seconds < 0) return std::numeric_limits<uint64_t>::max();
  return static_cast<uint64_t>(std::min(seconds * 1e6, 9e18));
}

Batch& batch_of(nb::handle object) { return *nb::inst_ptr<Batch>(object); }

// Holds `flag` for the time of a poll or wait.
class OnlyOne {
 public:
  explicit OnlyOne(bool& flag) : flag_(flag) {
    if (flag_) throw Refused("queue: another thread polls or waits on it; one at a time may");
    flag_ = true;
  }
  ~OnlyOne() { flag_ = false; }
  OnlyOne(const OnlyOne&) = delete;
  OnlyOne& operator=(const OnlyOne&) = delete;

 private:
  bool& flag_;
};

}  // namespace

// ---- Core ----------------------------------------------------------------------------------------------------------------

Core::Core(const Options& options) {
  const hs_options given{.struct_bytes = sizeof(hs_options),
                         .address = options.address.c_str(),
                         .name_space = options.name_space.c_str(),
                         .connections = options.connections,
                         .connect_timeout_ms = 0,
                         .backoff_ms_min = 0,
                         .backoff_ms_max = 0,
                         .tickets_max = options.tickets_max};
  std::array<char, kWhyBytes> why{};
  hs_client* client = nullptr;
  int opened = 0;
  {
    const nb::gil_scoped_release release;
    opened = hs_client_open(&given, &client, why.data(), why.size());
  }
  if (opened != 0) throw Refused(why.data());
  client_ = std::shared_ptr<hs_client>(client, End());
}

Core::~Core() { close(); }

hs_client* Core::handle() const {
  if (client_ == nullptr) throw Refused("client is closed");
  return client_.get();
}

void Core::End::operator()(hs_client* client) const noexcept {
  if (hs_client_forked(client) != 0) return;  // the parent's
  const nb::gil_scoped_release release;
  hs_client_close(client);
}

int Core::register_layout(nb::bytes canonical) {
  const int handle_number = hs_layout_register(handle(), canonical.c_str(), canonical.size());
  if (handle_number < 0) throw Refused("layout: the core refuses its canonical form");
  return handle_number;
}

std::pair<int, std::string> Core::wait_ready(double timeout_s) {
  handle();
  const std::shared_ptr<hs_client> client = client_;
  std::array<char, kWhyBytes> why{};
  for (uint64_t left_us = as_us(timeout_s);;) {
    const uint64_t slice_us = std::min(left_us, kSliceUs);
    int ready = 0;
    {
      const nb::gil_scoped_release release;
      ready = hs_client_wait_ready(client.get(), static_cast<uint32_t>((slice_us + 999) / 1000), why.data(), why.size());
    }
    handle();  // closed meanwhile?
    left_us -= slice_us;
    if (ready != 0 || left_us == 0) return {ready, why.data()};
    if (PyErr_CheckSignals() != 0) throw nb::python_error();
  }
}

hs_client_facts Core::facts() const {
  hs_client_facts facts{};
  hs_client_get_facts(handle(), &facts);
  return facts;
}

// ---- Queue ---------------------------------------------------------------------------------------------------------------

Queue::Queue(nb::object core) : core_(std::move(core)) {
  if (hs_queue_open(nb::inst_ptr<Core>(core_)->handle(), &queue_) != 0) {
    queue_ = nullptr;
    throw Refused("queue: no file descriptor left for its eventfd; raise the limit (ulimit -n)");
  }
}

Queue::~Queue() { close(); }

hs_queue* Queue::handle() const {
  if (queue_ == nullptr) throw Refused(kClosed);
  return queue_;
}

void Queue::submit(nb::object object, nb::object owner) {
  Batch& batch = batch_of(object);
  hs_queue* queue = handle();
  if (ended_) throw Refused(kClosed);
  const uint64_t user_data = next_++;
  const hs_batch prepared = batch.prepared(user_data);
  std::array<char, kWhyBytes> why{};
  batch.started(std::move(owner));
  batches_.emplace(user_data, object);
  hs_ticket ticket = 0;
  {
    // The core copies the keys, and may wait for its own lock.
    const nb::gil_scoped_release release;
    ticket = hs_submit(queue, &prepared, why.data(), why.size());
  }
  if (ticket == 0) {
    batches_.erase(user_data);
    batch.refused();
    throw Refused(why.data());
  }
  batch.named(ticket);
  if (batch.cancel_wanted()) hs_cancel(queue, ticket);
}

void Queue::run(nb::object object) {
  const Batch& batch = batch_of(object);
  const OnlyOne only(polling_);
  submit(object, nb::none());
  std::array<hs_event, 16> events;
  try {
    while (!batch.done()) deliver(events.data(), wait_slices(events.data(), events.size(), -1), nullptr);
  } catch (...) {
    fence(batch);
    throw;
  }
}

void Queue::fence(const Batch& batch) {
  if (batch.done()) return;
  hs_cancel(queue_, batch.ticket());
  std::array<hs_event, 16> events;
  while (!batch.done()) {
    size_t count = 0;
    {
      const nb::gil_scoped_release release;
      count = hs_queue_wait(queue_, events.data(), events.size(), std::numeric_limits<uint64_t>::max());
    }
    deliver(events.data(), count, nullptr);
  }
}

void Queue::poll(nb::list into) {
  hs_queue* queue = handle();
  const OnlyOne only(polling_);
  std::array<hs_event, kEventsMax> events;
  size_t count = 0;
  do {
    count = hs_queue_poll(queue, events.data(), events.size());
    deliver(events.data(), count, &into);
  } while (count == events.size());
}

void Queue::wait(nb::list into, double timeout_s) {
  handle();
  const OnlyOne only(polling_);
  std::array<hs_event, kEventsMax> events;
  deliver(events.data(), wait_slices(events.data(), events.size(), timeout_s), &into);
}

size_t Queue::wait_slices(hs_event* events, size_t max, double timeout_s) {
  for (uint64_t left_us = as_us(timeout_s);;) {
    const uint64_t slice_us = std::min(left_us, kSliceUs);
    size_t count = 0;
    {
      const nb::gil_scoped_release release;
      count = hs_queue_wait(queue_, events, max, slice_us);
    }
    if (left_us != std::numeric_limits<uint64_t>::max()) left_us -= slice_us;
    if (count > 0 || left_us == 0 || std::exchange(nudged_, false)) return count;
    if (PyErr_CheckSignals() != 0) throw nb::python_error();
    if (queue_ == nullptr) return 0;  // a child that a handler forked: abandon() has ended what there was
  }
}

void Queue::deliver(const hs_event* events, size_t count, nb::list* list) {
  for (size_t i = 0; i < count; ++i) {
    const hs_event& event = events[i];
    const auto found = batches_.find(event.user_data);
    if (found == batches_.end()) continue;
    const nb::object object = found->second;
    Batch& batch = batch_of(object);
    batch.progressed(event.steps_done);
    nb::object owner = batch.owner();
    const bool done = event.kind == HS_EVENT_DONE;
    if (done) {
      batches_.erase(found);
      batch.finish(event.items_ok);
    }
    if (list != nullptr) list->append(nb::make_tuple(owner, done, event.steps_done));
  }
}

void Queue::cancel(Batch& batch) const {
  if (queue_ == nullptr || batch.done()) return;
  if (batch.ticket() == 0) {
    batch.want_cancel();
  } else {
    hs_cancel(queue_, batch.ticket());
  }
}

void Queue::end() {
  ended_ = true;
  for (const auto& [user_data, object] : batches_) cancel(batch_of(object));
}

int Queue::descriptor() const { return hs_queue_descriptor(handle()); }

void Queue::close() {
  hs_queue* queue = std::exchange(queue_, nullptr);
  if (queue == nullptr) return;
  const Core& core = *nb::inst_ptr<Core>(core_);
  if (!core.closed() && !core.forked()) {
    const nb::gil_scoped_release release;
    hs_queue_close(queue);
  }
  // Fenced: nothing is written to any of them now.
  auto batches = std::exchange(batches_, {});
  for (auto& [user_data, object] : batches) batch_of(object).finish(0);
}

int Queue::traverse(PyObject* self, visitproc visit, void* arg) {
  Py_VISIT(Py_TYPE(self));
  if (!nb::inst_ready(self)) return 0;
  const Queue& queue = *nb::inst_ptr<Queue>(self);
  Py_VISIT(queue.core_.ptr());
  for (const auto& [user_data, object] : queue.batches_) Py_VISIT(object.ptr());
  return 0;
}

int Queue::clear(PyObject* self) {
  if (nb::inst_ready(self)) nb::inst_ptr<Queue>(self)->close();
  return 0;
}

nb::list Queue::abandon() {
  queue_ = nullptr;
  polling_ = false;  // whoever did is in the parent
  nb::list owners;
  auto batches = std::exchange(batches_, {});
  for (auto& [user_data, object] : batches) {
    nb::object owner = batch_of(object).owner();
    batch_of(object).finish_forked();
    owners.append(owner);
  }
  return owners;
}

}  // namespace halfstep::bind
