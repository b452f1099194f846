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

// Live blocks of a namespace, of one group of its layouts and of one set of codecs: logical bytes were put, stored ones are
// those of their parts, and flash has whole pages, with trailers and padding. Blocks that are in no frame yet are not among
// them, nor is what is not found yet of a store that recovers.
struct NamespaceStock {
  std::string name_space;
  uint32_t number = 0;  // of the namespace
  uint16_t group = 0;
  bool any = false;     // of several groups and codecs: there are more kinds than are told apart
  uint64_t codecs = 0;  // bit c: parts of them have codec c; 0: all are raw
  uint64_t blocks = 0;
  uint64_t logical_bytes = 0;
  uint64_t stored_bytes = 0;
  uint64_t flash_bytes = 0;
};

// What a scope stands for, or stood for as far as that is remembered (events.h): else nothing.
struct ScopeName {
  std::string name_space;
  wire::LayoutId layout{};
};

}  // namespace halfstep::store
