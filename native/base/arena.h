// arena.h — the memory that the kernel, a NIC or another process may touch (DESIGN section 2).
// One memfd, mapped once, in equal regions that are few enough to be registered one by one. hugetlb pages where they are to be
// had, ordinary ones where not; `facts()` says which.
// Invariants: base and size never change; the arena outlives every ring and slot that uses it.
// Thread: any may read; the slots in it belong to slots.h.
#pragma once

#include <cstdint>
#include <memory>

#include "base/bytes.h"
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
    uint64_t page_bytes = 0;  // 2 MiB when hugetlb is in force
    uint32_t regions = 0;
  };

  // `bytes` is rounded up to 2 MiB. Huge pages are tried unless `huge_pages` is false; falling back is not an error.
  static Fault create(uint64_t bytes, bool huge_pages, std::unique_ptr<Arena>* out);
  ~Arena();
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  Bytes bytes() const noexcept { return {base_, static_cast<size_t>(facts_.bytes)}; }
  Bytes region(uint32_t index) const noexcept;
  uint32_t region_of(const std::byte* address) const noexcept {
    return static_cast<uint32_t>(static_cast<uint64_t>(address - base_) / kArenaRegionBytesMax);
  }
  int descriptor() const noexcept { return descriptor_; }
  const Facts& facts() const noexcept { return facts_; }

 private:
  Arena() = default;
  std::byte* base_ = nullptr;
  int descriptor_ = -1;
  Facts facts_;
};

}  // namespace halfstep
