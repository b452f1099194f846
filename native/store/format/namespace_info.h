// namespace_info.h — a namespace as callers name and limit it.
#pragma once

#include <cstdint>
#include <string>

#include "wire/layout.h"
#include "wire/records.h"

namespace halfstep::store {

struct NamespaceInfo {
  std::string name;
  uint64_t quota_bytes = 0;    // 0 = no limit but the store's
  uint32_t default_ttl_s = 0;  // 0 = none
  uint64_t pin_budget_bytes = 0;
  bool sliding_ttl = false;  // the default TTL counts from a block's last use
  wire::CodingRecord coding{};
  // Told, never taken:
  uint64_t used_bytes = 0;  // what the quota counts
  uint64_t pinned_bytes = 0;
  uint64_t leased_bytes = 0;  // of blocks with a lease
  uint64_t holds = 0;         // leases and pins
  uint32_t number = 0;        // grows with each that is made
};

// What a scope stands for, or stood for as far as that is remembered (events.h): else nothing.
struct ScopeName {
  std::string name_space;
  wire::LayoutId layout{};
};

}  // namespace halfstep::store
