// process.h — one life of the store in a run: engine, memory, store, and what it was asked and has not answered.
// Invariants: everything that the store points at outlives it (order of the members).
// Thread: one.
#pragma once

#include <deque>
#include <map>
#include <memory>

#include "base/arena.h"
#include "base/slots.h"
#include "io/scheduler.h"
#include "sim/crash_engine.h"
#include "sim/model.h"

namespace halfstep::sim {

class World;

struct WriteInFlight {
  World* world = nullptr;
  Key* key = nullptr;
  uint64_t life = 0;
  Version version;
  uint32_t ttl_s = 0;
  bool sliding = false;
  size_t put = 0;
  bool committed = false;
  uint64_t committed_at = 0;  // turn of the run
  uint64_t committed_us = 0;
  uint64_t overdue_turns = 0;  // after the time in which an outage is to be told
  uint32_t answers = 0;
  store::Write write;
};

struct ReadInFlight {
  World* world = nullptr;
  Key* key = nullptr;
  Expectation expected;
  uint32_t answers = 0;
  uint32_t turns_pinned = 0;
  uint32_t pinned_crc = 0;
  store::PartSpan asked;
  uint64_t unread_then = 0;  // reads that an outage had ended when the first read of its block began
  store::Read read;
  uint32_t early_crc = 0;  // of the parts that were handed out first

  bool pinned() const noexcept { return read.resident != nullptr; }
};

// A get by a key that the index cannot tell from a block's own: all but the bits that only the checksum knows are the same.
struct StrangerInFlight {
  World* world = nullptr;
  uint32_t answers = 0;
  store::Read read;
};

struct RemoveInFlight {
  World* world = nullptr;
  Key* key = nullptr;
  uint64_t life = 0;
  size_t puts_then = 0;
  uint32_t answers = 0;
  store::Remove remove;
};

struct ExpireInFlight {
  World* world = nullptr;
  Key* key = nullptr;
  uint64_t life = 0;
  ExpiryChange expected;
  uint32_t answers = 0;
  store::Change change;
};

struct StageInFlight {
  World* world = nullptr;
  Key* key = nullptr;
  uint32_t answers = 0;
  uint64_t unread_then = 0;
  store::Stage stage;
};

struct Process {
  Process(const io::MemoryConfig& config, io::MemoryDevice& device, Arena& arena, const Clock& clock,
          std::function<void(const io::Request&)> seen)
      : memory(config, {&device}),
        crash(*new CrashEngine(memory, std::move(seen))),
        engine(std::unique_ptr<io::Engine>(&crash), io::kLatencyGoalUsDefault, config.queue_depth, pressure, clock),
        slots(arena) {}

  io::MemoryEngine memory;
  io::DevicePressure pressure{64 * KiB};  // so that little is enough for one to give way to another
  CrashEngine& crash;                     // the engine's
  io::Scheduler engine;
  SlotPool slots;
  std::deque<std::unique_ptr<WriteInFlight>> writes;
  std::deque<std::unique_ptr<ReadInFlight>> reads;
  std::deque<std::unique_ptr<StrangerInFlight>> strangers;
  std::deque<std::unique_ptr<StageInFlight>> stages;
  // Of keys that somebody reads or stages, as long as the device is busy: what had failed when the first of them began. Who
  // comes later joins its read, with the pieces of it that have failed already.
  std::map<const Key*, uint64_t> unread_before;
  std::deque<std::unique_ptr<RemoveInFlight>> removes;
  std::deque<std::unique_ptr<ExpireInFlight>> expires;
  std::deque<store::Change> releases;  // of holds that are not logged: answered at once, nobody waits
  uint64_t tombstones = 0;             // at most so many are in the log
  uint64_t device_bytes = 0;           // written
  bool open_flush_failed = false;
  bool scopes_died = false;                           // blocks of a deleted namespace may still be in the gauges
  uint64_t recovered_at = 0;                          // turn of the run
  uint64_t hits_before_open = 0, hits_recovered = 0;  // of media, by faults: equal if the start read all rightly
  bool recovering = false;                            // what is looked at when it has ended is still to be
  std::vector<bool> reports_due;                      // by shard
  bool gave_up = false;                               // close() had no segment for a block
  std::unique_ptr<store::Store> store;
};

}  // namespace halfstep::sim
