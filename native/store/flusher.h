// flusher.h — one device flush at a time, shared by everybody who needs one (group commit).
// Invariants: a waiter's `done` follows a flush that was submitted after its `starting`; writes that had completed by then
// are on media when the status is Ok and failures() has not moved since they were submitted. After a failed flush nobody can
// say what of the earlier writes reached media, and no later flush tells (Linux marks the pages clean): so it fails those
// who wait for the next one too, and whoever has writes of unknown fate compares failures(). That holds for shards on one
// device as well: they count their failures together, and a flush during which another shard's failed is one that failed.
// Thread: the shard's.
#pragma once

#include <atomic>
#include <cerrno>

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
  // `failures`: of all shards on the device; null: there are no others.
  Flusher(io::Engine& engine, uint64_t& flushes, std::atomic<uint64_t>* failures = nullptr)
      : engine_(engine), flushes_(flushes), failures_(failures != nullptr ? *failures : own_failures_) {
    failures_told_ = failures_;
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

  uint64_t failures() const noexcept { return failures_.load(std::memory_order_acquire); }
  // Of a flush that went past this flusher, to who asked for it: the other shards have to hear of it.
  void note_failure() noexcept { failures_told_ = failures_.fetch_add(1) + 1; }
  bool idle() const noexcept { return flying_ == nullptr && queued_ == nullptr; }

 private:
  void completed() noexcept {
    FlushWaiter* finished = flying_;
    flying_ = nullptr;
    const int32_t error = HALFSTEP_MUTANT(FlushErrorIgnored) ? 0 : request_.error;
    if (error == 0 && failures() == failures_told_) return answer(finished, {});
    if (error != 0) failures_.fetch_add(1);
    failures_told_ = failures();
    FlushWaiter* queued = queued_;
    queued_ = nullptr;
    const Status failed{Code::IoError, error != 0 ? error : -EIO};
    answer(finished, failed);
    answer(queued, failed);
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
  std::atomic<uint64_t> own_failures_{0};
  std::atomic<uint64_t>& failures_;
  uint64_t failures_told_ = 0;  // to those who waited
};

}  // namespace halfstep::store
