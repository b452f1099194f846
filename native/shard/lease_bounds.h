// lease_bounds.h — how long a lease may be, and what is said of one that may not be. Thread: the shard's.
#pragma once

#include <algorithm>
#include <cstdint>

#include "shard/request_host.h"
#include "store/store.h"

namespace halfstep::shard {

// When a lease of so many milliseconds from now ends.
inline uint64_t lease_until_us(RequestHost& host, uint64_t hold_ms) {
  return host.loop().now_us() + std::min<uint64_t>(hold_ms, host.hello().lease_ms_max) * 1000;
}

// For people.
inline const char* budget_sentence(int32_t detail) noexcept {
  switch (detail) {
    case store::kThrottledLeases:
      return "this namespace leases as many bytes as it may: half of its quota, and what others leave of three quarters of the "
             "store; release leases, or let them end";
    case store::kThrottledHolds:
      return "this namespace has as many holds as others leave of the table (holds_max): release some, or let them end";
    case store::kThrottledPins: return "the pin budget of this namespace is used up: release pins, or have it raised";
    default: return "";
  }
}

}  // namespace halfstep::shard
