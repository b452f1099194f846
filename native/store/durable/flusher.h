// flusher.h — one device flush at a time, shared by everybody who needs one (group commit).
// Invariants: a waiter's `done` follows a flush that was submitted after its `starting`; writes that had completed by then
// are on media when the status is Ok and failures() has not moved since they were submitted. After a failed flush nobody can
// say what of the earlier writes reached media, and no later flush tells (Linux marks the pages clean): so it fails those
// who wait for the next one too, and whoever has writes of unknown fate compares failures(). That holds for shards on one
// device as well (flush_board.h): they count their failures together, a flush during which another shard's failed is one that
// failed, and none is answered Ok while one that was under way at its end may still turn out to have failed.
// Thread: the shard's.
#pragma once

#include <cerrno>
#include <functional>
#include <utility>

#include "base/check.h"
#include "base/status.h"
#include "io/engine.h"
#include "store/durable/blocking_io.h"
#include "store/durable/flush_board.h"
#include "store/format/mutant.h"

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
  // `board`: of all shards on the device, of whom `wake` makes this one turn; null: there are no others.
  Flusher(io::Engine& engine, uint64_t& flushes, FlushBoard* board = nullptr, std::function<void()> wake = {})
      : engine_(engine), flushes_(flushes), place_(board != nullptr ? *board : own_board_, std::move(wake)) {
    failures_told_ = failures();
    request_.op = io::Op::Flush;
    request_.owner = this;
    request_.complete = [](io::Request& request) {
      static_cast<Flusher*>(request.owner)->completed(HALFSTEP_MUTANT(FlushErrorIgnored) ? 0 : request.error);
    };
  }

  // Asking again before the flush has begun is the same asking.
  void want(FlushWaiter& waiter) noexcept {
    if (waiter.waiting) return;
    waiter.waiting = true;
    waiter.next = queued_;
    queued_ = &waiter;
  }

  void turn() {
    if (ended_) conclude();
    if (flying_ != nullptr || queued_ == nullptr) return;
    flying_ = queued_;
    queued_ = nullptr;
    for (FlushWaiter* waiter = flying_; waiter != nullptr; waiter = waiter->next) {
      if (waiter->starting != nullptr) waiter->starting(*waiter);
    }
    ++flushes_;
    place_.began();
    if (HALFSTEP_MUTANT(SkipFlush)) return completed(0);
    engine_.submit(request_);
  }

  // Where nothing is served yet. Blocks, for those of other shards as well.
  Status flush_now(BlockingIo& io) {
    HALFSTEP_DCHECK(idle());
    place_.began();
    const Status status = io.flush();
    place_.ended(!status.ok());
    place_.wait_settled();
    failures_told_ = failures();
    return status;
  }

  uint64_t failures() const noexcept { return place_.failures(); }
  bool idle() const noexcept { return flying_ == nullptr && queued_ == nullptr; }
  // Flushes of other shards have to end before this one's is answered.
  bool waits_for_others() const noexcept { return ended_; }
  void wait_for_others() { place_.wait_settled(); }

 private:
  void completed(int32_t error) {
    place_.ended(error != 0);
    error_ = error;
    ended_ = true;
    conclude();
  }

  void conclude() {
    if (error_ == 0 && !place_.settled()) return;
    ended_ = false;
    FlushWaiter* finished = std::exchange(flying_, nullptr);
    if (error_ == 0 && failures() == failures_told_) return answer(finished, {});
    failures_told_ = failures();
    FlushWaiter* queued = std::exchange(queued_, nullptr);
    const Status failed{Code::IoError, error_ != 0 ? error_ : -EIO};
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
  bool ended_ = false;  // the one that flies, and waits for those of others
  int32_t error_ = 0;   // of that one
  FlushBoard own_board_;
  FlushBoard::Place place_;
  uint64_t failures_told_ = 0;  // to those who waited
};

}  // namespace halfstep::store
