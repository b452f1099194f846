// key_waiters.h — who waits for a block that is not there yet (kBatchWait): by key, until somebody stores the block, or deletes
// it. Nobody looks again and again: a commit finds those who wait for its key, and they go on at the end of the turn.
// Those of one key stand in a ring, and the first of each ring in a bucket's chain. What has happened moves a whole ring to the
// ready ones, whoever waits; each turn takes some of them from there.
// Invariants: joining, leaving and a commit cost the same however many wait for a key; no more than kWakesMax are told a turn,
// and no more are begun once they have made kLookupsMax lookups; memory is its owners', who account for it (request_memory.h).
// Thread: the shard's.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "store/format/block.h"

namespace halfstep::shard {

class KeyWaiters {
 public:
  enum class Why : uint8_t {
    Stored,     // it is there, or was a moment ago
    Deleted,    // somebody deleted it
    LookAgain,  // it may have come, or may never come: a recovery has ended, a layout was cleared
    Stopping,   // the shard takes no more requests
  };
  struct Wait;
  // Who waits, for people.
  struct Waiter {
    const char* command = "";
    uint64_t since_us = 0;  // on the shard's clock, as is its deadline
    uint64_t until_us = 0;
  };
  class Owner {
   public:
    virtual Waiter waiter() const noexcept = 0;
    // It waits no longer, unless it is parked anew. Answers how many lookups this took.
    virtual uint32_t woken(Wait& wait, Why why) = 0;

   protected:
    ~Owner() = default;
  };
  // One block that is waited for. It stays where it is while it waits.
  struct Wait {
    store::IndexKey key;
    Owner* owner = nullptr;

   private:
    friend class KeyWaiters;
    Wait* before_ = nullptr;  // in its ring; null: it does not wait
    Wait* after_ = nullptr;
    Wait* other_ = nullptr;  // of the first in its ring: the next ring of the bucket
  };
  struct Counts {
    uint64_t waiting = 0;  // gauge: blocks, once for each who waits
    uint64_t stored = 0;   // woken because the block came
    uint64_t deleted = 0;
    uint64_t expired = 0;  // nobody stored it before the deadline
    uint64_t ended = 0;    // by a cancel, the connection's end, or a stop
    uint64_t refused = 0;  // beyond the memory for those who wait
  };
  static constexpr uint32_t kWakesMax = 64;
  static constexpr uint32_t kLookupsMax = 1024;

  KeyWaiters() noexcept;
  KeyWaiters(const KeyWaiters&) = delete;
  KeyWaiters& operator=(const KeyWaiters&) = delete;

  // The block is not there: look before.
  void park(Wait& wait);
  // It waits no longer. Nothing happens to one that does not wait.
  void leave(Wait& wait) noexcept;

  // What has happened to a block, or to all of them. They are told by wake().
  void stored(const store::IndexKey& key) noexcept { move_ring(key, Why::Stored); }
  void deleted(const store::IndexKey& key) noexcept { move_ring(key, Why::Deleted); }
  void look_again() noexcept { move_all(Why::LookAgain); }
  // Who parks from now on is told so, too.
  void stop() noexcept;

  bool any_ready() const noexcept;
  // Tells some of those that are ready, where no object is in the middle of anything.
  void wake();

  // How many wait for this key; `most` need be counted.
  uint32_t waiting_for(const store::IndexKey& key, uint32_t most) const noexcept;
  // Calls visit(const Owner&) for so many of them at most.
  template <typename Visit>
  void for_each_of(const store::IndexKey& key, uint32_t most, Visit&& visit) const {
    const Wait* const first = first_of(key);
    const Wait* wait = first;
    for (uint32_t seen = 0; wait != nullptr && seen < most; ++seen) {
      visit(static_cast<const Owner&>(*wait->owner));
      wait = wait->after_ == first ? nullptr : wait->after_;
    }
  }
  Counts& counts() noexcept { return counts_; }
  const Counts& counts() const noexcept { return counts_; }

 private:
  static constexpr size_t kBuckets = size_t{1} << 14;
  static constexpr size_t kWhys = 4;

  const Wait* first_of(const store::IndexKey& key) const noexcept;
  // Where the first of a key's ring is linked, or where it would be.
  Wait** find(const store::IndexKey& key) noexcept;
  void move_ring(const store::IndexKey& key, Why why) noexcept;
  void move_all(Why why) noexcept;
  void append_ring(Wait& first, Why why) noexcept;

  std::vector<Wait*> buckets_;     // empty until somebody waits
  std::array<Wait, kWhys> ready_;  // by Why: the ring behind each
  Counts counts_;
  bool stopped_ = false;
};

}  // namespace halfstep::shard
