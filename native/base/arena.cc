#include "base/arena.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <string>

#include "base/numa.h"

namespace halfstep {
namespace {

constexpr uint64_t kRoundedToBytes = 2 * MiB;

// A page that is missing fails here, at the start, and not as a stall under load. 0 or an errno.
int populate(Bytes memory) noexcept {
#ifdef MADV_POPULATE_WRITE
  if (::madvise(memory.data(), memory.size(), MADV_POPULATE_WRITE) == 0) return 0;
  if (errno != EINVAL) return errno;  // a kernel before 5.14 does not know it
#endif
  const auto step = static_cast<size_t>(::sysconf(_SC_PAGESIZE));
  for (size_t at = 0; at < memory.size(); at += step) *static_cast<volatile std::byte*>(memory.data() + at) = std::byte{0};
  return 0;
}

}  // namespace

Fault Arena::create(uint64_t bytes, bool huge_pages, std::unique_ptr<Arena>* out, int node) {
  bytes = round_up(bytes, kRoundedToBytes);
  if (bytes == 0 || bytes > kArenaBytesMax) {
    return {Code::Invalid, "arena_bytes=" + std::to_string(bytes) + ": must be 1 to " + std::to_string(kArenaBytesMax)};
  }
  std::unique_ptr<Arena> arena(new Arena);
  if (Fault fault = Mapping::create(bytes, huge_pages, "arena", &arena->mapping_); !fault.ok()) return fault;
  const Bytes memory = arena->bytes();
  // Before the first page is there.
  const Status node_asked = node < 0 ? Status() : numa::prefer(memory, static_cast<uint32_t>(node));
  int error = 0;
  for (const int advice : {MADV_DONTFORK, MADV_DONTDUMP}) {
    if (error == 0 && ::madvise(memory.data(), memory.size(), advice) != 0) error = errno;
  }
  if (error == 0) error = populate(memory);
  if (error != 0) {
    return {{Code::IoError, -error},
            "memory of " + std::to_string(bytes) + " bytes for the arena: " + errno_name(error) +
                "; lower --arena or raise the memory limit"};
  }
  const bool large = arena->mapping_.pages() != Mapping::Pages::Ordinary;
  arena->facts_ = {.bytes = bytes,
                   .large_bytes = large ? arena->mapping_.large_bytes() : 0,
                   .reserved = arena->mapping_.pages() == Mapping::Pages::Reserved,
                   .regions = static_cast<uint32_t>(div_up(bytes, kArenaRegionBytesMax)),
                   .node_asked = node_asked};
  *out = std::move(arena);
  return {};
}

Bytes Arena::region(uint32_t index) const noexcept {
  const uint64_t start = index * kArenaRegionBytesMax;
  const uint64_t left = facts_.bytes - start;
  return bytes().subspan(start, left < kArenaRegionBytesMax ? left : kArenaRegionBytesMax);
}

}  // namespace halfstep
