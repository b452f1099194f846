// memory_place.h — on which memory node a shard's memory shall be, and where it really is.
// A shard's arena is mapped and populated by the thread that starts the server, so it is told its node (mbind); all else is
// first touched by the shard's own thread, which prefers the node for itself: the index, what the kernel allocates for its
// ring, heap. The rings of its clients are told as that thread is (net/shm_setup.cc), or a client's first touch would decide.
// Invariant: nothing here refuses to start but a node that is named and not there; what the kernel refuses is said.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/numa.h"
#include "base/status.h"

namespace halfstep::shard {

struct MemoryConfig {
  // The node of a shard's core, where shards are bound to cores and the machine has several nodes with memory.
  bool automatic = true;
  std::vector<uint32_t> nodes;  // else shard n's is node n of the list, which is gone round; empty: none is preferred
  std::string node_directory = numa::kNodeDirectory;
};

// -1: none, and why.
struct MemoryPlace {
  int node = -1;
  std::string why;
};

class MemoryPlaces {
 public:
  // Invalid: a node that is not there, or has no memory.
  static Fault make(const MemoryConfig& config, MemoryPlaces* out);
  // core: the shard's, -1 for any.
  MemoryPlace of(uint32_t shard, int core) const;

 private:
  MemoryConfig config_;
  std::vector<numa::Node> nodes_;
};

// What is in force, as the kernel says.
struct MemoryFacts {
  int node = -1;            // preferred for the arena and by the thread; -1: none, or that is not known
  std::string why_no_node;  // also where the kernel refused what was asked for
  numa::Pages arena;        // of some pages, where they lie
  numa::Pages index;
  std::string why_no_pages;  // that is not known
};

// On the shard's thread. asked: what asking for the node came to, for the arena and for the thread.
MemoryFacts look_at_memory(const MemoryPlace& place, Status asked_arena, Status asked_thread, ConstBytes arena,
                           ConstBytes index);

// So many of each are looked at.
inline constexpr uint32_t kPagesSampled = 64;

}  // namespace halfstep::shard
