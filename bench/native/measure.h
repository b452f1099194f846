// measure.h — for programs that time short stretches of one thread: its CPU time, medians, and how a spread is written.
#pragma once

#include <time.h>

#include <algorithm>
#include <cstdio>
#include <vector>

#include "program.h"

namespace halfstep::bench {

// CPU time of this thread: others on the same cores cost it caches, but no waiting.
inline double thread_cpu_seconds() {
  timespec now{};
  if (clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now) != 0) fail("this kernel does not count a thread's time");
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

template <typename Work>
double seconds_of(Work&& work) {
  const double start = thread_cpu_seconds();
  work();
  return thread_cpu_seconds() - start;
}

inline double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const size_t middle = values.size() / 2;
  return values.size() % 2 == 1 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}

// One member of a JSON object. `end`: what follows it.
inline void print_samples(const char* name, const std::vector<double>& samples, const char* end) {
  const auto [low, high] = std::minmax_element(samples.begin(), samples.end());
  std::printf("\"%s\": {\"median\": %.3f, \"min\": %.3f, \"max\": %.3f}%s", name, median(samples), *low, *high, end);
}

}  // namespace halfstep::bench
