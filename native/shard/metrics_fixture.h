// metrics_fixture.h — for tests: a metric by the name that Prometheus shows.
#pragma once

#include <string>

#include "shard/metrics.h"

namespace halfstep::shard {

// -1: there is none.
inline double value_of(const Metrics& metrics, const std::string& name) {
  for (const auto* samples : {&metrics.counters, &metrics.gauges}) {
    for (const Sample& sample : *samples) {
      if (sample_name(sample) == name) return sample.value;
    }
  }
  return -1;
}

}  // namespace halfstep::shard
