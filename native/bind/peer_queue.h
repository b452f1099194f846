// peer_queue.h — the core's queue with what Python has in flight on it: batches, their tickets, and events nobody has seen.
// The turn is the core's (peer/queue.h): any number of threads may be in a call here, and each is in the core for a part of its
// wait at a time. Between two parts it has the GIL and looks again at what it waits for; that is where signals are heard, and
// where a handler may close the queue, fork, or raise. Nothing has to be undone for a thread that does not come back.
//
//   submit ──▶ in flight ──▶ over, unseen ──▶ take()          as an Event, by one caller of poll or wait
//                  │              └─────────▶ next_over()     its call-backs, by whoever comes first
//                  └─ close(), abandon(): at once
//
// Invariants: a queue keeps its core alive. A batch in flight is kept alive here, with all its memory, until its terminal event
// or the core's fence. Until all that came in one call is sorted no Python code runs: what may run some (memory that is given
// back) comes after. In a forked child nothing of the parent's core is touched.
// Thread: with the GIL held, which is released wherever the core may wait or work.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <unordered_map>

#include "bind/peer_batch.h"
#include "bind/peer_core.h"
#include "peer/halfstep.h"

namespace halfstep::bind {

class Queue {
 public:
  // event: what take() makes, a named tuple of (owner, done, steps_done).
  explicit Queue(nb::object event);
  ~Queue();
  Queue(const Queue&) = delete;
  Queue& operator=(const Queue&) = delete;

  // `owner` is what events name; none: nobody wants any. Refused: the batch breaks a rule of the core, or the queue is closed.
  void submit(nb::object batch, nb::object owner, nb::object core);
  // As submit, and returns after the terminal event. An exception raised by a signal's handler cancels the batch and leaves
  // only after the terminal event: no byte lands after it.
  void run(nb::object batch, nb::object core);
  // An event of a batch that was answered without the core.
  void post(nb::object batch, nb::object owner);

  // Asks the core for what has happened; never waits. Refused: the queue is closed.
  void poll();
  // Waits until there is an event, or a call-back to be called. False: the time has come. Signals are heard.
  bool wait(nb::handle until);
  // Waits until the batch is over, whose event nobody else gets then.
  bool wait_for(Batch& batch, nb::handle until);
  // For a thread that does nothing else: waits until a call-back is to be called; false once the queue is closed.
  bool serve();
  // The events that nobody has seen.
  nb::list take();
  // Whose call-backs are to be called, and then: they were. It stays the next one until then. None: nobody's.
  nb::object next_over() const;
  void called(nb::handle owner);

  void cancel(Batch& batch) const;
  // `core`: none for a queue that never has one. Lacking: out of descriptors.
  int descriptor(nb::object core);
  bool closed() const noexcept;
  size_t in_flight() const noexcept { return batches_.size(); }
  // Tickets of the parent process whose call-backs nobody has called here.
  size_t inherited() const noexcept { return inherited_.size(); }
  // They are to be called now, also where the queue is closed.
  void take_inherited();
  // Threads that are in the core for it now.
  uint32_t inside() const noexcept { return inside_; }
  // Takes nothing more, fences what is in flight, sends away who waits. Call-backs are left to be called, of tickets of the
  // parent process after take_inherited() alone. Idempotent.
  void close();
  // In a child: ends every batch as cancelled(forked) and forgets the parent's queue. Call-backs wait for a poll or wait.
  void abandon();

  // For Python's collector: a ticket that is dropped with its queue is a cycle through here. The memory of batches is not part
  // of it: that is released after the fence alone.
  static int traverse(PyObject* self, visitproc visit, void* arg);
  static int clear(PyObject* self);

 private:
  // Shared with the threads that are in the core without the GIL; the last one frees it.
  using Handle = std::shared_ptr<hs_queue>;
  struct Free {
    void operator()(hs_queue* queue) const noexcept;
  };
  struct Unseen {
    nb::object owner;
    nb::object batch;
  };

  void check_open() const;
  void attach(nb::object core);
  void leave_fork();
  // To wait on: one without a client, where there is none.
  const Handle& place();
  template <typename Done>
  bool wait_until(const Done& done, uint64_t until_us, bool hears_signals);
  void look(uint64_t timeout_us, uint64_t nudges);
  void drain(const Handle& queue);
  void deliver(const hs_event* events, size_t count);
  void list(Batch& batch, nb::object object, nb::object owner);
  void tell_others();
  void keep(bool kept);
  void fence(const Batch& batch);
  void end_rest(Batch::Remains (Batch::*finish)(), std::deque<nb::object>& owed);

  const nb::object event_;
  const nb::object new_tuple_;
  nb::object core_;
  Handle queue_;
  bool ended_ = false;    // close() has begun
  bool closed_ = false;   // and is over
  bool watched_ = false;  // somebody has the descriptor
  uint32_t inside_ = 0;
  uint64_t next_ = 1;
  uint64_t next_listed_ = 1;
  std::unordered_map<uint64_t, nb::object> batches_;  // by user_data
  std::map<uint64_t, Unseen> unseen_;                 // by Batch::listed: in the order of their first events
  std::deque<nb::object> over_;                       // owners whose call-backs are to be called
  std::deque<nb::object> inherited_;                  // the parent's
};

}  // namespace halfstep::bind
