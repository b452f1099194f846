// workload.h — the workload driver: makes what the calls of a scenario ask for, and looks at what comes, by the client core
// alone. When each call is made is call_loop.h's to say. It does what `halfstep bench` does
// (src/halfstep/tools/bench/driver.py, workload.py), so that the two differ by the interpreter alone. Thread: one.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/prng.h"
#include "call_loop.h"
#include "core_client.h"
#include "trail.h"

namespace halfstep::bench {

enum class Scenario : uint8_t {
  Hot,        // gets of a set that memory holds, in one order over and over
  Anywhere,   // gets of such a set, each of any batch of it
  Cold,       // gets of a set that memory cannot hold
  Put,        // puts of what was never there
  ColdMixed,  // gets from flash among puts that go round the store
};

struct Load {
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
  // A block that is not there and right, or not taken, ends the program with a sentence; a put that is throttled is counted.
  bool required = false;
};

// The gets, or the puts, of a run.
struct Side {
  std::vector<double> latencies_us;
  Outcome outcome;
};

struct Timing : LoopTime {
  Side gets;
  Side puts;
  uint64_t ok_ever = 0;  // blocks, those of the warm-up too
};

class Workload final : private Caller {
 public:
  Workload(CoreClient& client, const Load& load);

  // Puts what will be got, and gets the set once; ColdMixed makes its calls for no longer than this instead.
  void begin(double seconds_max);
  // What ends in the warm-up does not count.
  Timing run(double seconds, double warm_up_s = 0);
  // Whether reclaim and memory had found their balance when the filling ended.
  bool settled() const { return settled_; }

 private:
  void fill();
  std::vector<uint64_t> numbers_of(std::span<const uint64_t> firsts) const;
  template <typename Loop>
  Timing timed(Loop&& loop);

  // Caller
  void prepare(size_t place) override;
  void submit(size_t place) override;
  std::span<const uint64_t> poll() override;
  std::span<const uint64_t> wait(uint64_t timeout_ns) override;
  void ended(size_t place, uint64_t latency_ns) override;
  void check(size_t place, bool counts) override;

  CoreClient& client_;
  const Load load_;
  Prng choices_;
  Prng gaps_;
  std::unique_ptr<Order> order_;  // of gets
  Trail* trail_ = nullptr;        // order_, of ColdMixed
  std::vector<Call> calls_;
  uint64_t next_put_ = 0;
  std::vector<uint64_t> numbers_;  // of the call that is being prepared
  Timing timing_;                  // of the loop that runs
  bool settled_ = true;
};

// One JSON object, without an end of line. more: further fields, each with a comma before it.
std::string document_of(const Load& load, const Timing& timing, const std::string& more);
// Every byte that came was right, and some came; nothing that was put was there before.
bool verified(const Timing& timing);

}  // namespace halfstep::bench
