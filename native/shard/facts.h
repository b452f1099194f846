// facts.h — what is really in force in a daemon that runs.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "base/arena.h"
#include "io/backing.h"
#include "io/engine.h"
#include "shard/memory_place.h"
#include "store/format/geometry.h"
#include "store/format/options.h"
#include "store/format/report.h"

namespace halfstep::shard {

struct ShardFacts {
  std::vector<std::string> listening;  // with the real ports
  io::EngineFacts engine;
  store::RecoveryReport recovery;
  int core = -1;  // -1: any
  MemoryFacts memory;
};

// Of all shards together, unless it says otherwise.
struct Facts {
  std::vector<ShardFacts> shards;
  std::vector<std::string> listening;  // of the first shard
  io::BackingFacts backing;
  io::EngineFacts engine;  // of the first shard
  Arena::Facts arena;
  store::Geometry geometry;
  store::RecoveryReport recovery;
  store::Options store;
  std::string congestion_control;
  bool zero_copy = false;           // asked for, and this kernel has it
  bool zero_copy_possible = false;  // this kernel has it
  uint64_t index_bytes = 0;         // right after recovery
  uint64_t scrub_bytes_per_s = 0;
  uint64_t latency_goal_us = 0;
  std::array<std::byte, 16> store_uuid{};
  std::array<std::byte, 16> boot_id{};
  bool created = false;
};

}  // namespace halfstep::shard
