// place.h — what stands at the path of a store, before anything is opened or made there.
// A store is made only where nothing is. Nothing is where the path and every directory before it are simply missing; a link to
// a drive that is away, a circle of links, a mount point without its mount or a device that has not appeared say that a store
// is meant that is elsewhere, or not there yet. Made all the same, it would fill the root disk, or memory, and hide the real
// one. Invariants: nothing is opened, made or changed; what is refused is named with its remedy. Thread: any.
#pragma once

#include <string>

#include "base/status.h"

namespace halfstep::io {

// Where the system says what is mounted, and what should be.
struct MountTables {
  std::string wanted = "/etc/fstab";
  std::string present = "/proc/self/mountinfo";
};

// Ok with `there`: something is at the path. Ok without it: nothing is, and a store may be made there.
Fault look_at_place(const std::string& path, bool* there, const MountTables& tables = {});

}  // namespace halfstep::io
