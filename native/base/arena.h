// arena.h — the memory that the kernel or a NIC may touch (DESIGN section 2, docs/adr/0006).
// Mapped once, in equal regions that are few enough to be registered one by one, and in the largest pages that are to be had:
// a device reads into 2 MiB pages in requests of megabytes, and into ordinary ones in many small pieces. `facts()` says which.
// Invariants: base and size never change, and every page is there from the start; a child of this process has none of it, so
// that no fork() puts a copy where the kernel writes; no core dump has it; the arena outlives every ring and slot that uses it.
// Thread: any may read; the slots in it belong to slots.h.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "base/bytes.h"
#include "base/mapping.h"
#include "base/shared_mapping.h"
#include "base/status.h"
#include "base/units.h"

namespace halfstep {

// A registered buffer of io_uring is at most 1 GiB; vhost-user takes at most 8 regions. Both bound the arena.
inline constexpr uint64_t kArenaRegionBytesMax = 1 * GiB;
inline constexpr uint32_t kArenaRegionsMax = 8;
inline constexpr uint64_t kArenaBytesMax = kArenaRegionBytesMax * kArenaRegionsMax;

class Arena {
 public:
  struct Facts {
    uint64_t bytes = 0;
    uint64_t large_bytes = 0;  // of them in 2 MiB pages, as counted at the start
    bool reserved = false;     // those are from the pool of reserved pages
    uint32_t regions = 0;
    Status node_asked;        // what preferring the node came to
    std::string why_smaller;  // not empty where the pool of reserved pages promised them and did not give them
    bool shared = false;      // a memfd, for a vhost-user target to map
  };

  // `bytes` is rounded up to 2 MiB. Huge pages are tried unless `huge_pages` is false; falling back is not an error.
  // node: a memory node to prefer, -1 for none; a kernel that refuses that refuses nothing else.
  static Fault create(uint64_t bytes, bool huge_pages, std::unique_ptr<Arena>* out, int node = -1,
                      MemorySource* source = nullptr);
  // A memfd, which a vhost-user target maps (docs/adr/0022); for nobody else.
  static Fault create_shared(uint64_t bytes, bool huge_pages, std::unique_ptr<Arena>* out, int node = -1);
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  Bytes bytes() const noexcept { return facts_.shared ? shared_.bytes() : mapping_.bytes(); }
  Bytes region(uint32_t index) const noexcept;
  uint32_t region_of(const std::byte* address) const noexcept {
    return static_cast<uint32_t>(static_cast<uint64_t>(address - bytes().data()) / kArenaRegionBytesMax);
  }
  const Facts& facts() const noexcept { return facts_; }
  // Null unless it is shared. For the engine that gives it to a target, and takes it back.
  SharedMapping* shared() noexcept { return facts_.shared ? &shared_ : nullptr; }

 private:
  Arena() = default;
  Mapping mapping_;  // one of the two
  SharedMapping shared_;
  Facts facts_;
};

}  // namespace halfstep
