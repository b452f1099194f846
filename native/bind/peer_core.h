// peer_core.h — the client core and its queues, as Python objects hold them.
// Invariants: a queue keeps its core alive; a batch in flight is kept alive by its queue, with all its memory, until its
// terminal event has been polled or the queue is closed (hs_queue_close fences). In a forked child nothing of a core is
// touched: it is leaked, as V1 section 4 says. Thread: with the GIL held, which is released wherever the core may wait. One
// thread at a time polls or waits on a queue (the Python layer sees to it; a second one is refused).
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <memory>
#include <string>
#include <unordered_map>

#include "bind/peer_batch.h"
#include "peer/halfstep.h"

namespace halfstep::bind {

struct Options {
  std::string address;
  std::string name_space;
  uint32_t connections = 1;
  uint32_t tickets_max = 0;
};

class Core {
 public:
  explicit Core(const Options& options);
  ~Core();
  Core(const Core&) = delete;
  Core& operator=(const Core&) = delete;

  hs_client* handle() const;
  bool forked() const noexcept { return client_ != nullptr && hs_client_forked(client_.get()) != 0; }
  bool closed() const noexcept { return client_ == nullptr; }
  // Whoever waits for it hears so within a slice; the last one of them to leave ends it.
  void close() noexcept { client_.reset(); }
  // In a child: forgets the core without touching it.
  void abandon() noexcept { client_.reset(); }
  int register_layout(nb::bytes canonical);
  // 1 ready, 0 not within the time, -1 refused for good, and why. Signals are heard while it waits.
  std::pair<int, std::string> wait_ready(double timeout_s);
  hs_client_facts facts() const;

 private:
  struct End {
    void operator()(hs_client* client) const noexcept;
  };

  // Shared with the threads that wait without the GIL.
  std::shared_ptr<hs_client> client_;
};

class Queue {
 public:
  explicit Queue(nb::object core);
  ~Queue();
  Queue(const Queue&) = delete;
  Queue& operator=(const Queue&) = delete;

  // `owner` is what poll() names in its events. Refused: the batch breaks a rule of the core.
  void submit(nb::object batch, nb::object owner);
  // As submit, and returns after the terminal event. An exception raised by a signal's handler cancels the batch and leaves
  // only after the terminal event: no byte lands after it.
  void run(nb::object batch);
  // Appends (owner, done, steps_done) to `into`, the caller's: an exception that a signal's handler raises on the way back
  // loses none. Never waits.
  void poll(nb::list into);
  // Waits for at least one event; appends none after the time (negative: for ever). Signals are heard.
  void wait(nb::list into, double timeout_s);
  // Ends a wait early, for an event that the core does not know of; the next wait where none is running.
  void nudge() noexcept { nudged_ = true; }
  void cancel(Batch& batch) const;
  // Cancels what is in flight, and refuses what comes from here on. Nothing comes any more once `polled` is false after it.
  void end();
  // Whether a thread polls or waits, in run() too.
  bool polled() const noexcept { return polling_; }
  int descriptor() const;
  size_t in_flight() const noexcept { return batches_.size(); }
  // Fences. What is still in flight ends without an event: poll until in_flight is 0 first.
  void close();
  // In a child: ends every batch as cancelled(forked) and forgets the queue. Returns their owners.
  nb::list abandon();

  // For Python's collector: a ticket that is dropped with its queue is a cycle through here. The memory of batches is not part
  // of it: that is released after the fence alone.
  static int traverse(PyObject* self, visitproc visit, void* arg);
  static int clear(PyObject* self);

 private:
  hs_queue* handle() const;
  // Waits in slices, so that Python hears signals; the terminal events of `events` are not lost by an exception.
  size_t wait_slices(hs_event* events, size_t max, double timeout_s);
  void deliver(const hs_event* events, size_t count, nb::list* list);
  void fence(const Batch& batch);

  nb::object core_;
  hs_queue* queue_ = nullptr;
  bool polling_ = false;
  bool ended_ = false;
  bool nudged_ = false;
  uint64_t next_ = 1;
  std::unordered_map<uint64_t, nb::object> batches_;  // by user_data
};

}  // namespace halfstep::bind
