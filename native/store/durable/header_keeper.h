// header_keeper.h — the one store header of a process: what its shards know of it, and whose turn it is to rewrite it.
// Shards are threads that share nothing else. Each has a seat. Who wants a change takes the pen, rewrites both copies through
// its own engine (header_io.h) and publishes the new snapshot; the change is answered when every seat has taken that over, so
// that whoever was answered finds it on any shard. Who waits, for the pen or for the others, is woken through its own loop.
// Invariants: there is one pen, given on in the order of asking; snapshots are published by who has it, and it is kept until
// all know the newest. A seat that leaves is not waited for. The last one to leave hears whether all left cleanly, and stays
// seated: it writes that down. Thread: any; a Seat is its shard's. There is one lock, and a turn without news does not take it.
#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "base/clock.h"
#include "io/engine.h"
#include "store/durable/flush_board.h"
#include "store/durable/header_load.h"
#include "store/durable/scope_use.h"
#include "store/format/header.h"

namespace halfstep::store {

class HeaderKeeper {
 public:
  using Snapshot = std::shared_ptr<const HeaderState>;

  // Reads the header; writes nothing. Blocking.
  static Fault load(io::Engine& engine, std::shared_ptr<HeaderKeeper>* out, const HeaderPatience& patience = {});
  // Takes ownership under a new start number. The first caller does it, the others hear what came of it. Blocking.
  Fault start(io::Engine& engine, const Clock& clock);
  // Whether a device that was away and is back holds this store still: its header says so, of this start. `read` does. Any
  // thread. Unsupported: it does not; what was expected, what is there, and the remedy.
  Fault recognise(const std::function<Status(uint64_t offset, Bytes into)>& read) const;
  // What an operator should know of the header; afterwards nobody else is told.
  std::vector<std::string> take_notes();

  Snapshot newest() const;
  // Of the device, which all share.
  FlushBoard& flushes() noexcept { return flushes_; }
  ScopeUse& scope_use() noexcept { return scope_use_; }
  // A change of names failed, and either copy may hold it all the same: until the header has been written again, a start may
  // find names that nobody here knows of.
  const std::atomic<bool>& names_uncertain() const noexcept { return names_uncertain_; }
  // What start() wrote; afterwards nobody else is told.
  uint64_t take_bytes_written() noexcept { return start_bytes_.exchange(0); }
  uint32_t shards() const { return newest()->fixed.shards; }

  class Seat {
   public:
    // `wake`: any thread may call it, until the seat is left; it makes the shard turn.
    Seat(std::shared_ptr<HeaderKeeper> keeper, std::function<void()> wake);
    // Leaves, not cleanly.
    ~Seat();
    Seat(const Seat&) = delete;
    Seat& operator=(const Seat&) = delete;

    // Something has happened since the last time: there is news, the pen has come, all know, or the store is lost.
    bool called() noexcept { return called_.load(std::memory_order_relaxed) && called_.exchange(false); }
    // The newest snapshot, once; null if it is known here. The caller takes it over before it does anything else.
    Snapshot news();
    // What this seat began with, once.
    Snapshot take_first() noexcept { return std::move(first_); }

    // False: another has the pen; it will come.
    bool take_pen();
    void publish(HeaderState next);                                                               // with the pen
    void set_names_uncertain(bool uncertain) noexcept { keeper_->names_uncertain_ = uncertain; }  // with the pen
    bool names_uncertain() const noexcept { return keeper_->names_uncertain_; }
    bool all_know() const;
    void give_pen();

    // Another process has taken the store.
    void lose();
    bool lost() const;

    // Blocks until called(). For shutdown alone.
    void wait_called();
    // False: others are still seated, and this one is not any more. True: it is the last; `clean` says whether all were.
    bool leave(bool* clean);

   private:
    friend class HeaderKeeper;
    void leave_locked();

    const std::shared_ptr<HeaderKeeper> keeper_;
    const std::function<void()> wake_;
    Snapshot first_;
    std::atomic<bool> called_{false};
    // Guarded by the keeper's mutex.
    uint64_t known_ = 0;
    bool seated_ = true;
  };

 private:
  HeaderKeeper() = default;
  // These with mutex_ held.
  bool all_know_locked() const noexcept;
  void call(Seat& seat);
  void give_on();

  FlushBoard flushes_;
  ScopeUse scope_use_;
  std::atomic<bool> names_uncertain_{false};
  std::atomic<uint64_t> start_bytes_{0};
  std::atomic<uint64_t> claimed_{0};  // the start number that start() writes, or wrote
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  Snapshot snapshot_;
  uint64_t number_ = 1;  // of the snapshot, in this process
  std::vector<Seat*> seats_;
  Seat* pen_ = nullptr;
  std::deque<Seat*> waiting_;
  bool lost_ = false;
  bool all_clean_ = true;
  std::vector<std::string> notes_;

  std::mutex start_mutex_;
  bool started_ = false;  // these are guarded by start_mutex_
  Fault start_fault_;
  bool copy_bad_[2] = {false, false};
};

}  // namespace halfstep::store
