// samples.h — metrics as values: what is told to Prometheus, to Stat and to tests.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace halfstep::shard {

// One number with its name and labels, Prometheus style: {"halfstep_requests_total", {{"command", "get"}}, 12}.
struct Sample {
  const char* name;
  std::vector<std::pair<const char*, std::string>> labels;
  double value;
};
// Latencies by command, microseconds; bounds are shared by all.
struct Histogram {
  std::string command;
  std::vector<uint64_t> counts;  // one more than bounds
  uint64_t sum_us = 0;
};
struct Metrics {
  std::vector<Sample> counters;
  std::vector<Sample> gauges;
  std::vector<uint64_t> latency_bounds_us;
  std::vector<Histogram> latencies;
};

}  // namespace halfstep::shard
