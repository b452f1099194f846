#include "base/arena.h"

#include <linux/memfd.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>

namespace halfstep {
namespace {

constexpr uint64_t kHugePageBytes = 2 * MiB;

std::byte* map_shared(int descriptor, uint64_t bytes) noexcept {
  // MAP_POPULATE: a missing page must fail here, at start, not as a SIGBUS under load (hugetlb) or a stall (ordinary pages).
  void* at = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, descriptor, 0);
  return at == MAP_FAILED ? nullptr : static_cast<std::byte*>(at);
}

}  // namespace

Fault Arena::create(uint64_t bytes, bool huge_pages, std::unique_ptr<Arena>* out) {
  bytes = round_up(bytes, kHugePageBytes);
  if (bytes == 0 || bytes > kArenaBytesMax) {
    return {Code::Invalid, "arena_bytes=" + std::to_string(bytes) + ": must be 1 to " + std::to_string(kArenaBytesMax)};
  }
  std::unique_ptr<Arena> arena(new Arena);
  arena->facts_ = {bytes, kHugePageBytes, static_cast<uint32_t>(div_up(bytes, kArenaRegionBytesMax))};
  if (huge_pages) {
    arena->descriptor_ = memfd_create("halfstep-arena", MFD_CLOEXEC | MFD_HUGETLB | MFD_HUGE_2MB);
    if (arena->descriptor_ >= 0) {
      // mmap of a hugetlb memfd reserves its pages, so it fails here when the pool is too small.
      if (ftruncate(arena->descriptor_, static_cast<off_t>(bytes)) == 0) arena->base_ = map_shared(arena->descriptor_, bytes);
      if (arena->base_ == nullptr) {
        close(arena->descriptor_);
        arena->descriptor_ = -1;
      }
    }
  }
  if (arena->base_ == nullptr) {
    arena->facts_.page_bytes = static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
    arena->descriptor_ = memfd_create("halfstep-arena", MFD_CLOEXEC);
    if (arena->descriptor_ < 0 || ftruncate(arena->descriptor_, static_cast<off_t>(bytes)) != 0) {
      return {{Code::IoError, -errno}, "memfd of " + std::to_string(bytes) + " bytes for the arena: " + errno_name(errno)};
    }
    arena->base_ = map_shared(arena->descriptor_, bytes);
    if (arena->base_ == nullptr) {
      return {{Code::IoError, -errno},
              "mapping an arena of " + std::to_string(bytes) + " bytes: " + errno_name(errno) +
                  "; lower --arena or raise the memory limit"};
    }
  }
  *out = std::move(arena);
  return {};
}

Arena::~Arena() {
  if (base_ != nullptr) munmap(base_, facts_.bytes);
  if (descriptor_ >= 0) close(descriptor_);
}

Bytes Arena::region(uint32_t index) const noexcept {
  const uint64_t start = index * kArenaRegionBytesMax;
  const uint64_t left = facts_.bytes - start;
  return bytes().subspan(start, left < kArenaRegionBytesMax ? left : kArenaRegionBytesMax);
}

}  // namespace halfstep
