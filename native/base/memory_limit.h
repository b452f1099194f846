// memory_limit.h — how much memory the control groups of this process still allow it.
// The kernel kills what goes beyond; nothing else would say so.
// Thread: any.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace halfstep {

struct MemoryLimit {
  std::string file;  // the one that says it: …/memory.max or …/memory.limit_in_bytes
  uint64_t limit_bytes = 0;
  uint64_t used_bytes = 0;  // by all of the group, without page cache, which gives way
  uint64_t left_bytes() const noexcept { return used_bytes < limit_bytes ? limit_bytes - used_bytes : 0; }
};

struct ControlGroupFiles {
  std::string of_process = "/proc/self/cgroup";
  std::string mounted = "/sys/fs/cgroup";
};

// The tightest one of the process's groups and all above them, version 1 or 2; nullopt: there is none, or nobody says.
std::optional<MemoryLimit> memory_limit(const ControlGroupFiles& files = {});

}  // namespace halfstep
