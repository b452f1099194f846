// flusher.h — one device flush at a time, shared by everybody who needs one (group commit).
// Invariants: a waiter's `done` follows a flush that was submitted after its `starting`; writes that had completed by then
// are on media when the status is Ok and failures() has not moved since they were submitted. After a failed flush nobody can
// say what of the earlier writes reached media, and no later flush tells (Linux marks the pages clean): so it fails those
// who wait for the next one too, and whoever has writes of unknown fate compares failures().
// Thread: the shard's.
#pragma once

#include "base/status.h"
#include "io/engine.h"
#include "store/mutant.h"

namespace halfstep::store {

struct FlushWaiter {
  void (*starting)(FlushWaiter& waiter) = nullptr;  // may be null: the last moment to note what this flush covers
  void (*done)(FlushWaiter& waiter, Status status) = nullptr;
  void* owner = nullptr;
  FlushWaiter* next = nullptr;
  bool waiting = false;
};

class Flusher {
 public:
  Flusher(io::Engine& engine, uint64_t& flushes) : engine_(engine), flushes_(flushes) {
    request_.op = io::Op::Flush;
    request_.owner = this;
    request_.complete = [](io::Request& request) { static_cast<Flusher*>(request.owner)->completed(); };
  }

  // Asking again before the flush has begun is the same asking.
  void want(FlushWaiter& waiter) noexcept {
    if (waiter.waiting) return;
    waiter.waiting = true;
    waiter.next = queued_;
    queued_ = &waiter;
  }

  void turn() noexcept {
    if (flying_ != nullptr || queued_ == nullptr) return;
    flying_ = queued_;
    queued_ = nullptr;
    for (FlushWaiter* waiter = flying_; waiter != nullptr; waiter = waiter->next) {
      if (waiter->starting != nullptr) waiter->starting(*waiter);
    }
    ++flushes_;
    if (HALFSTEP_MUTANT(SkipFlush)) return completed();
    engine_.submit(request_);
  }

  uint64_t failures() const noexcept { return failures_; }
  bool idle() const noexcept { return flying_ == nullptr && queued_ == nullptr; }

 private:
  void completed() noexcept {
    FlushWaiter* finished = flying_;
    flying_ = nullptr;
    if (request_.error == 0 || HALFSTEP_MUTANT(FlushErrorIgnored)) return answer(finished, {});
    ++failures_;
    FlushWaiter* queued = queued_;
    queued_ = nullptr;
    answer(finished, {Code::IoError, request_.error});
    answer(queued, {Code::IoError, request_.error});
  }

  static void answer(FlushWaiter* waiter, Status status) noexcept {
    while (waiter != nullptr) {
      FlushWaiter* next = waiter->next;  // `done` may ask for the next flush
      waiter->waiting = false;
      waiter->done(*waiter, status);
      waiter = next;
    }
  }

  io::Engine& engine_;
  uint64_t& flushes_;
  io::Request request_;
  FlushWaiter* queued_ = nullptr;
  FlushWaiter* flying_ = nullptr;
  uint64_t failures_ = 0;
};

}  // namespace halfstep::store
