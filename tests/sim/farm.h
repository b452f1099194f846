// farm.h — many seeds over several processes, so that every core has work and a run that ends its process, or never ends, is
// one failure among others. Invariants: every seed of the range is run exactly once unless a failure or an interrupt ends all
// of it; the children that were begun are gone when run_seeds() returns. Thread: one; forks.
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "sim/run.h"
#include "sim/shrink.h"

namespace halfstep::sim {

struct FarmConfig {
  uint64_t start = 0;
  uint64_t seeds = 1000;
  uint32_t jobs = 1;
  HistoryOptions history;
  bool progress = false;            // a line on stderr
  uint32_t seed_seconds_max = 120;  // of CPU time: one that takes more hangs, or one that takes 30 times as long by the clock
};

struct Failure {
  uint64_t seed = 0;
  std::string why;  // "signal 11", "hangs", or empty: a rule was broken
};

struct FarmResult {
  Tally tally;
  uint64_t seeds_done = 0;
  double seconds = 0;
  bool interrupted = false;
  std::optional<Failure> failure;  // the one with the lowest seed of those seen
};

FarmResult run_seeds(const FarmConfig& config);

// run() in a process of its own. A run that ends its process breaks the rule Ended, one that does not end Stuck.
std::optional<Violation> run_apart(const History& history, uint32_t seconds_max);

}  // namespace halfstep::sim
