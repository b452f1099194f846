#include "base/arena.h"

#include <sys/mman.h>

#include <cerrno>
#include <string>

#include "base/numa.h"

namespace halfstep {
namespace {

constexpr uint64_t kRoundedToBytes = 2 * MiB;

Fault refused_size(uint64_t bytes) {
  return {Code::Invalid, "arena=" + std::to_string(bytes) + ": must be 1 to " + std::to_string(kArenaBytesMax)};
}

}  // namespace

Fault Arena::create(uint64_t bytes, bool huge_pages, std::unique_ptr<Arena>* out, int node, MemorySource* source) {
  bytes = round_up(bytes, kRoundedToBytes);
  if (bytes == 0 || bytes > kArenaBytesMax) return refused_size(bytes);
  std::unique_ptr<Arena> arena(new Arena);
  Status node_asked;
  const auto prepare = [&](Bytes memory) {
    node_asked = node < 0 ? Status() : numa::prefer(memory, static_cast<uint32_t>(node));
    for (const int advice : {MADV_DONTFORK, MADV_DONTDUMP}) {
      if (::madvise(memory.data(), memory.size(), advice) != 0) return errno;
    }
    return 0;
  };
  const Mapping::Request request{
      .bytes = bytes, .large_pages = huge_pages, .what = "arena", .prepare = prepare, .source = source};
  if (Fault fault = Mapping::create(request, &arena->mapping_); !fault.ok()) return fault;
  const bool large = arena->mapping_.pages() != Mapping::Pages::Ordinary;
  arena->facts_ = {.bytes = bytes,
                   .large_bytes = large ? arena->mapping_.large_bytes() : 0,
                   .reserved = arena->mapping_.pages() == Mapping::Pages::Reserved,
                   .regions = static_cast<uint32_t>(div_up(bytes, kArenaRegionBytesMax)),
                   .node_asked = node_asked,
                   .why_smaller = arena->mapping_.why_smaller()};
  *out = std::move(arena);
  return {};
}

Fault Arena::create_shared(uint64_t bytes, bool huge_pages, std::unique_ptr<Arena>* out, int node) {
  bytes = round_up(bytes, kRoundedToBytes);
  if (bytes == 0 || bytes > kArenaBytesMax) return refused_size(bytes);
  std::unique_ptr<Arena> arena(new Arena);
  const SharedMapping::Request request{.bytes = bytes, .large_pages = huge_pages, .what = "arena", .node = node};
  if (Fault fault = SharedMapping::create(request, &arena->shared_); !fault.ok()) return fault;
  arena->facts_ = {.bytes = bytes,
                   .large_bytes = arena->shared_.large_bytes(),
                   .reserved = arena->shared_.reserved(),
                   .regions = static_cast<uint32_t>(div_up(bytes, kArenaRegionBytesMax)),
                   .node_asked = arena->shared_.node_asked(),
                   .why_smaller = {},
                   .shared = true};
  *out = std::move(arena);
  return {};
}

Bytes Arena::region(uint32_t index) const noexcept {
  const uint64_t start = index * kArenaRegionBytesMax;
  const uint64_t left = facts_.bytes - start;
  return bytes().subspan(start, left < kArenaRegionBytesMax ? left : kArenaRegionBytesMax);
}

}  // namespace halfstep
