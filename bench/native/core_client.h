// core_client.h — the client core as the programs of this folder drive it: calls of numbered blocks, their memory, what came.
// Every block of a size has the same bytes, from the seed, but for its number in its first and last words. Those are wiped
// before a get and looked at after it, on top of the checksums that the client core verifies anyway. Thread: one.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "peer/halfstep.h"
#include "wire/layout.h"

namespace halfstep::bench {

inline constexpr uint32_t kCallDeadlineUs = 30'000'000;

// One batch at the client at a time. The library writes into `answers` and the pieces until its terminal event: it stays where
// it is until then.
struct Call {
  std::vector<uint64_t> numbers;
  std::vector<uint8_t> keys;
  std::vector<hs_iovec> pieces;
  std::vector<uint32_t> lengths;
  std::vector<hs_answer> answers;
  uint32_t operation = 0;
  uint64_t name = 0;  // comes back with the event
};

// blocks: asked for. ok: answered, with the bytes that they have to have. present: of them, put though they were there.
// reasons: of those that were not answered so.
struct Outcome {
  uint64_t blocks = 0;
  uint64_t ok = 0;
  uint64_t present = 0;
  uint64_t wrong = 0;
  std::map<std::string, uint64_t> reasons;

  void add(const Outcome& other);
  // What is not ok was refused for load, and no byte was wrong.
  bool throttled_alone() const;
  // `reasons` as a JSON object.
  std::string reasons_object() const;
};

class CoreClient {
 public:
  struct Options {
    std::string address;
    std::string name_space;
    uint64_t connections = 1;
    uint64_t bs = 0;
    uint64_t seed = 0;
  };
  // Whatever fails ends the program with a sentence.
  explicit CoreClient(const Options& options);
  ~CoreClient();
  CoreClient(const CoreClient&) = delete;
  CoreClient& operator=(const CoreClient&) = delete;

  // Of its blocks: opaque ones.
  static wire::Layout layout();
  // With memory for `blocks` of them, written to, so that no page fault falls into a timed run. It is never given back.
  Call make_call(uint64_t blocks, uint64_t name) const;
  // What `submit` will ask: `operation` on these blocks, whose bytes it makes or wipes.
  void prepare(Call& call, uint32_t operation, std::span<const uint64_t> numbers) const;
  void submit(Call& call, hs_durability durability = HS_CACHE);
  // Names of the calls that have ended, kCallsMax at most. wait: one at least, unless so many microseconds pass.
  std::span<const uint64_t> poll();
  std::span<const uint64_t> wait(uint64_t timeout_us);
  Outcome check(const Call& call) const;
  // Ends the program with a sentence where not every block of it is there and right.
  static void require(const Outcome& outcome);
  // A call alone.
  Outcome done(Call& call, hs_durability durability = HS_CACHE);
  // The daemon's counters, those of all shards together.
  std::map<std::string, double> stat();

  static constexpr size_t kCallsMax = 64;

  uint64_t block_bytes() const { return options_.bs; }

 private:
  uint64_t* ends_of(const Call& call, size_t block, bool last) const;
  std::span<const uint64_t> take(size_t count);

  const Options options_;
  hs_client* client_ = nullptr;
  hs_queue* queue_ = nullptr;
  int layout_ = -1;
  hs_event events_[kCallsMax] = {};
  uint64_t ended_[kCallsMax] = {};
};

// Many blocks at once, outside of every clock: in calls of 16 MiB or 1,024 blocks at most, one after the other. Whatever fails
// ends the program with a sentence.
class Bulk {
 public:
  explicit Bulk(CoreClient& client);

  // `count` numbers from `first` on; on media afterwards: what still has to be written stays in memory.
  void put(uint64_t first, uint64_t count);
  void touch(std::span<const uint64_t> numbers);
  // What is not there any more is passed over; what is has to have its bytes.
  void get(std::span<const uint64_t> numbers);

 private:
  template <typename Took>
  void in_calls(uint32_t operation, std::span<const uint64_t> numbers, Took&& took);

  CoreClient& client_;
  Call call_;
};

}  // namespace halfstep::bench
