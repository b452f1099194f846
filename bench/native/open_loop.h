// open_loop.h — calls that come when they come, however the ones before them fare, by the client core alone.
// The moments are drawn beforehand, with exponential gaps, and a latency counts from when its call was due: one that had to
// wait, because all places were taken or this thread was busy, has waited. It does what `halfstep bench --rate` does
// (src/halfstep/tools/bench/arrivals.py, driver.py), so that the two differ by the interpreter alone.
// Invariants: every call that was due within the time is made, in order, unless those that are late need as long again; its
// keys are made before it is due wherever a place is free for that. Thread: one.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/prng.h"
#include "core_client.h"
#include "trail.h"

namespace halfstep::bench {

enum class Scenario : uint8_t {
  Hot,        // gets of a set that memory holds
  Cold,       // gets of a set that memory cannot hold
  ColdMixed,  // gets from flash among puts that go round the store
};

struct LoopOptions {
  Scenario scenario = Scenario::Hot;
  uint64_t bs = 0;
  uint64_t batch = 1;
  uint64_t iodepth = 1;
  uint64_t read_percent = 70;
  double rate = 0;          // calls a second; 0: each when the one before has ended
  uint64_t size = 0;        // bytes of the hot set
  uint64_t cold_bytes = 0;  // of the cold set, and of what ColdMixed gets in one turn; 0: as much as memory makes sensible
  uint64_t fill = 0;        // bytes that go once round the store
  uint64_t first = 0;       // added to every number: what was put before under these names stays apart
  uint64_t seed = 1;
};

// The gets, or the puts, of a run.
struct Side {
  std::vector<double> latencies_us;
  Outcome outcome;
};

struct Timing {
  double seconds = 0;
  Side gets;
  Side puts;
  // Of calls that came at a rate. begun: in time; made: late ones included.
  uint64_t due = 0;
  uint64_t begun = 0;
  uint64_t made = 0;
};

class OpenLoop {
 public:
  OpenLoop(CoreClient& client, const LoopOptions& options);

  // Puts what will be got, and warms up for no longer than this.
  void begin(double seconds_max);
  Timing run(double seconds);
  // Whether reclaim and memory had found their balance when the filling ended.
  bool settled() const { return settled_; }

 private:
  void fill();
  void put_set(uint64_t blocks);
  void populate(uint64_t first, uint64_t blocks);
  void touch(std::span<const uint64_t> firsts);
  void get_whole(std::span<const uint64_t> firsts);
  std::vector<uint64_t> numbers_of(std::span<const uint64_t> firsts) const;

  void prepare(Call& call);
  void submit(Call& call, uint64_t since_ns);
  void ended(Call& call, uint64_t now_ns, Timing& timing) const;
  void checked(const Call& call, Timing& timing);
  Timing closed(double seconds, uint64_t calls);
  Timing arrivals(double seconds);

  CoreClient& client_;
  const LoopOptions options_;
  Prng choices_;
  Prng gaps_;
  std::unique_ptr<Order> order_;
  Trail* trail_ = nullptr;  // order_, of ColdMixed
  std::vector<Call> calls_;
  Call bulk_;
  uint64_t bulk_blocks_ = 1;
  uint64_t next_put_ = 0;
  std::vector<uint64_t> numbers_;  // of the call that is being prepared
  bool settled_ = true;
};

// One JSON object, without an end of line. more: further fields, each with a comma before it.
std::string document_of(const LoopOptions& options, const Timing& timing, const std::string& more);
// Every byte that came was right, and some came; nothing that was put was there before.
bool verified(const Timing& timing);

}  // namespace halfstep::bench
