// arrivals.h — when the calls of an open loop are due: moments with exponential gaps, drawn before the clock starts.
#pragma once

#include <cmath>
#include <cstdint>
#include <vector>

#include "base/prng.h"

namespace halfstep::bench {

// A timer wakes a process by so much too late; the rest of the way is looked, not slept.
inline constexpr uint64_t kLookNs = 200'000;

inline uint64_t ns_of(double seconds) { return static_cast<uint64_t>(seconds * 1e9); }

// From the start on. There is one at least.
inline std::vector<uint64_t> due_ns(Prng& gaps, double calls_per_s, double seconds) {
  std::vector<uint64_t> due;
  for (double at = 0;;) {
    const double uniform = static_cast<double>(gaps.next() >> 11) * 0x1.0p-53;
    at += -std::log1p(-uniform) / calls_per_s;
    if (at >= seconds) break;
    due.push_back(ns_of(at));
  }
  if (due.empty()) due.push_back(0);
  return due;
}

}  // namespace halfstep::bench
