// store_embedded.h — the real store without a daemon, for tools that ask what it would do: over memory or over a file without
// a name, by a clock that its user sets or by the machine's, driven from call to call.
// Every block has the same size and bytes that follow from its key and the seed; whatever is read is compared with them.
// Keys come as runs of 16-byte engine keys in the order of a request: from the root of the prefix chain to its leaf.
// Invariants: between calls no more than `gather_blocks` blocks are short of being written, and the store has nothing to do
// but wait for time; no answer depends on how long anything took, as long as the clock is set by hand.
// Thread: one at a time. A call waits for the store's own I/O and nothing else.
#pragma once

#include <array>
#include <deque>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/arena.h"
#include "base/clock.h"
#include "base/hash.h"
#include "base/slots.h"
#include "bind/store_sizing.h"
#include "io/backing.h"
#include "io/memory_engine.h"
#include "store/store.h"

namespace halfstep::bind {

inline constexpr size_t kEmbeddedKeyBytes = 16;
inline constexpr size_t kEmbeddedReadsMax = 16;  // at once

// Stands still until it is told to go on.
class ManualClock final : public Clock {
 public:
  uint64_t now_us() const noexcept override { return us_; }
  uint64_t wall_s() const noexcept override { return kWallStart_s + us_ / 1'000'000; }
  void advance_to(uint64_t us) noexcept { us_ = us > us_ ? us : us_; }

 private:
  static constexpr uint64_t kWallStart_s = 1'800'000'000;
  uint64_t us_ = 0;
};

class EmbeddedStore {
 public:
  struct Config {
    Sizing sizing;
    std::string path;  // of the file; empty: memory
    uint64_t seed = 1;
    uint32_t gather_blocks = 1;  // written together, as a busy daemon would
    bool manual_clock = true;
    store::Options options;
  };
  struct Reads {
    uint32_t leading = 0;  // how many of the first ones came, whole and right
    uint32_t missed = 0;
    uint32_t wrong = 0;  // not the bytes that were written
  };
  struct Access {
    uint32_t present = 0;
    uint32_t written = 0;
    uint32_t refused = 0;  // no room could be made
  };

  static Fault open(const Config& config, std::unique_ptr<EmbeddedStore>* out);
  ~EmbeddedStore();
  EmbeddedStore(const EmbeddedStore&) = delete;
  EmbeddedStore& operator=(const EmbeddedStore&) = delete;

  // Which are there; returns how many of the first ones are.
  uint32_t match(ConstBytes keys, std::span<uint8_t> present) noexcept;
  Status read(ConstBytes keys, Reads* out);
  // What is there is touched, all at one moment; what is not is written; each from the leaf to the root. ttl_s 0: for good.
  // hints: of each key, or none.
  Status access(ConstBytes keys, std::span<const uint8_t> hints, bool tell_parents, uint32_t ttl_s, Access* out);
  // Brings blocks into memory ahead of their read, to be kept for so long: of each, what became of it. Not whether it is there
  // in time: that is for its caller, who knows when the device would have answered.
  enum class Staged : uint8_t { Absent, There, WasThere, NoRoom };
  Status stage(ConstBytes keys, uint64_t keep_us, std::span<uint8_t> out);
  // Only forward, and only a clock that is set by hand.
  void advance_to(uint64_t us) noexcept { manual_.advance_to(us); }
  // Writes what was gathered, and lets the store do what is due.
  Status settle();

  const store::Counters& counters() const noexcept { return store_->counters(); }
  // On flash or gathered for it.
  uint64_t blocks() const noexcept { return store_->gauges().blocks + gathered_; }
  const io::EngineCounters& engine_counters() const noexcept { return engine_->counters(); }
  const io::EngineFacts& engine_facts() const noexcept { return engine_->facts(); }

 private:
  explicit EmbeddedStore(const Config& config) : config_(config) {}
  Fault start();
  Fault open_arena();
  Fault open_engine();
  Status register_layout();

  const Clock& clock() const noexcept { return config_.manual_clock ? static_cast<const Clock&>(manual_) : system_; }
  store::BlockName name_of(ConstBytes key) const noexcept { return {scope_, {}, key}; }
  // One turn of the loop, when the device has answered everything.
  void turn();
  void touch(ConstBytes keys);
  Status write(ConstBytes keys, size_t index, uint8_t hint, bool tell_parents, uint32_t ttl_s, Access* out);
  store::Write& take_write();
  Status read_window(ConstBytes keys);
  void read_done(store::Read& read) noexcept;

  // What a page of a block holds: the pattern, xored with this word.
  static uint64_t page_word(uint64_t block_seed, uint64_t page) noexcept;
  static uint64_t block_seed(ConstBytes key) noexcept { return xxh3_64(key); }
  void fill(store::Write& write, uint64_t seed) noexcept;
  bool right(const store::Resident& resident, uint64_t seed) const noexcept;

  Config config_;
  ManualClock manual_;
  SystemClock system_;
  std::unique_ptr<Arena> arena_;
  std::unique_ptr<io::MemoryDevice> device_;
  std::unique_ptr<io::Backing> backing_;
  std::unique_ptr<io::Engine> engine_;
  std::unique_ptr<SlotPool> slots_;
  Slot spare_;  // what the arena has more than was asked for
  std::unique_ptr<store::Store> store_;
  uint32_t scope_ = 0;

  std::array<uint64_t, kPageBytes / sizeof(uint64_t)> pattern_{};
  std::deque<store::Write> writes_;  // a pool: the store has those that are not free
  std::vector<store::Write*> free_writes_;
  uint32_t gathered_ = 0;
  std::vector<store::IndexKey> touched_;
  std::array<store::Read, kEmbeddedReadsMax> reads_;
  uint32_t reads_open_ = 0;
};

}  // namespace halfstep::bind
