// turn_queue.h — who works next on a loop: whoever has used the least time.
// Each turn is charged the time that it took, so that one who asks for much work waits until the others have had as much, and
// one who asks for little never stands behind it (start-time fair queueing). Who comes back after a pause starts where the
// others are, less kCreditUs: what was not used is not saved up. A newcomer has no such credit, or one would ask each time
// anew. Newcomers share one account: each starts where the last one's first turn ended, and who ends in a turn leaves the
// account what it took. Else those that come, take one turn and go would all be at the same place, before everybody else.
// Invariants: a turn is queued once, however often it is asked for; a round ends at the latest when the next in line is one who
// had a turn in it, so that none goes on for ever and whoever has come meanwhile is looked at.
// Thread: the loop's.
#pragma once

#include <cstdint>

#include "base/clock.h"
#include "base/indexed_heap.h"

namespace halfstep::net {

class TurnQueue;

// Embedded in its owner; leaves the queue with it.
class Turn {
 public:
  Turn(void (*take)(void* owner), void* owner) noexcept : take_(take), owner_(owner) {}
  ~Turn();
  Turn(const Turn&) = delete;
  Turn& operator=(const Turn&) = delete;
  bool queued() const noexcept { return queued_; }

 private:
  friend class TurnQueue;
  void (*take_)(void* owner);
  void* owner_;
  TurnQueue* queue_ = nullptr;  // that it is in, or whose turn it has
  uint64_t used_us_ = 0;        // as the queue counts it
  uint64_t order_ = 0;          // of those that have used as much the first comes first
  uint64_t round_ = 0;          // in which it had its turn last; 0: it had none
  size_t heap_at_ = SIZE_MAX;
  bool queued_ = false;
};

class TurnQueue {
 public:
  // How far one who used little may be ahead of the others.
  static constexpr uint64_t kCreditUs = 1'000;

  ~TurnQueue();
  void push(Turn& turn);
  void remove(Turn& turn) noexcept;
  // Its owner was worked for outside of its turns, for so long: counts as if it had been in one.
  void charge(Turn& turn, uint64_t us);
  bool empty() const noexcept { return waiting_.empty(); }
  // In the round that is under way: how many had their turn, and how many wait for it.
  size_t crowd() const noexcept { return running_ ? taken_count_ + waiting_.size() - again_count_ : 0; }

  // One round: those that are queued, until `round_us_max` have passed since `began_us`. Returns how many wanted a turn.
  size_t run(const Clock& clock, uint64_t began_us, uint64_t round_us_max);
  // When the turn that is being taken began.
  uint64_t began_us() const noexcept { return began_us_; }

 private:
  static bool before(const Turn* a, const Turn* b) noexcept {
    return a->used_us_ != b->used_us_ ? a->used_us_ < b->used_us_ : a->order_ < b->order_;
  }
  void insert(Turn& turn);
  // Where it would be if it came now.
  uint64_t start_us(const Turn& turn) const noexcept;

  IndexedHeap<Turn, &TurnQueue::before, &Turn::heap_at_> waiting_;
  Turn* taken_ = nullptr;  // null: none, or it is gone
  uint64_t used_us_ = 0;   // of whoever was served last, before that: where newcomers start
  uint64_t newcomers_us_ = 0;
  uint64_t began_us_ = 0;
  uint64_t pushed_ = 0;
  uint64_t round_ = 0;
  size_t taken_count_ = 0;  // of this round
  size_t again_count_ = 0;  // of those that wait: who had a turn in this round
  bool running_ = false;
};

}  // namespace halfstep::net
