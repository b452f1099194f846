// call_loop.h — makes calls in an open loop, each when it is due, or in a closed loop, each when the one before has ended.
// The moments of an open loop are drawn beforehand, with exponential gaps, and a latency counts from when its call was due: one
// that had to wait, because all places were taken or this thread was busy, has waited. In a closed loop a slow daemon is simply
// asked less often (coordinated omission). Who makes the calls, and by which clock, is a Caller: the client core (workload.h),
// plain sockets (pair_client.h), or a test in virtual time. src/halfstep/tools/bench/arrivals.py and workload.py are the same
// in Python. Invariants: a place has one call at a time; every call that is due within the time is made, in order, unless those
// that are late need as long again; it is prepared before it is due wherever a place is free for that. Thread: one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/prng.h"

namespace halfstep::bench {

// A timer wakes a process by so much too late; the rest of the way is looked, not slept.
inline constexpr uint64_t kLookNs = 200'000;

uint64_t ns_of(double seconds);

// When the calls of an open loop are due, in nanoseconds from its start. There is one at least.
std::vector<uint64_t> due_ns(Prng& gaps, double calls_per_s, double seconds);

// Makes one call at a time in each of its places, which are numbered from 0 on.
class Caller {
 public:
  virtual ~Caller() = default;

  // Monotonic, from an arbitrary start.
  virtual uint64_t now_ns() const;
  // Chooses what the next call of this place asks for.
  virtual void prepare(size_t place) = 0;
  // Makes the call that was prepared.
  virtual void submit(size_t place) = 0;
  // Places whose calls have ended, until the next of these two. wait: may come back with none before so much time has passed,
  // and is asked again then.
  virtual std::span<const uint64_t> poll() = 0;
  virtual std::span<const uint64_t> wait(uint64_t timeout_ns) = 0;
  // A call that counts took so long, from when it was due, or in a closed loop made.
  virtual void ended(size_t place, uint64_t latency_ns) = 0;
  // Looks at what came of a call; no latency has this in it. counts: it is one of those that `ended` was told of.
  virtual void check(size_t place, bool counts) = 0;
};

// Of a loop. What is due or ends within the warm-up does not count.
struct Span {
  uint64_t warm_up_ns = 0;
  uint64_t run_ns = 0;
};

struct LoopTime {
  double seconds = 0;  // of what counts, until its last call had ended
  uint64_t made = 0;   // calls that count
  uint64_t ever = 0;   // calls, those of the warm-up too
  // Of an open loop, and of what counts. begun: before its time was over; `made` has late ones too.
  uint64_t due = 0;
  uint64_t begun = 0;
};

// due: due_ns() of warm-up and run together.
LoopTime open_loop(Caller& caller, size_t places, std::vector<uint64_t> due, const Span& span);
// A call in each place for the whole of the time, and until one has counted. After a warm-up the time that counts begins when
// a call ends.
LoopTime closed_loop(Caller& caller, size_t places, const Span& span);
// The same for so many calls, however long they take; all of them count.
LoopTime closed_loop(Caller& caller, size_t places, uint64_t calls);

}  // namespace halfstep::bench
