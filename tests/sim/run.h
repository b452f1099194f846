// run.h — one history, carried out: the real store over a memory device that fails as the profile says, an oracle beside it.
// Invariants: the same history gives the same trace, bit by bit, whatever ran before (docs/store-rules.md, rule 22).
// Thread: one at a time; a process may do many runs, one after the other.
#pragma once

#include <array>
#include <optional>

#include "sim/history.h"
#include "sim/rules.h"

namespace halfstep::sim {

// How often each fault fired and what the store did; summed over runs for the table at the end.
struct Tally {
  std::array<uint64_t, kFaultKinds> faults{};
  uint64_t lost_writes = 0;  // by crashes
  uint64_t crashes_in_open = 0, crashes_in_recovery = 0, crashes_in_close = 0, served_recovering = 0, stages = 0, part_hits = 0,
           parts_landed = 0;
  uint64_t operations = 0, puts = 0, persists = 0, hits = 0, misses = 0, removes = 0, expiries = 0, restarts = 0;
  uint64_t segments_reclaimed = 0, blocks_evicted = 0, stores_lost = 0;
  uint64_t hint_looks = 0;  // with a segment that was given up whole
  uint64_t segments_retired = 0, segments_tried_again = 0, frames_repeated = 0;

  void add(const Tally& other) noexcept;
};

struct Outcome {
  std::optional<Violation> violation;
  uint64_t trace = 0;  // a hash of everything that was answered
  Tally tally;
};

Outcome run(const History& history);

}  // namespace halfstep::sim
