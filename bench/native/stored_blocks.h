// stored_blocks.h — blocks of one size in a store of these programs' own, named by their numbers, and the store that holds
// them. Every block has the same bytes, from a seed, but for its number in its first word. Thread: one.
#pragma once

#include <fcntl.h>
#include <unistd.h>

#include <cstring>
#include <string>
#include <vector>

#include "base/crc.h"
#include "base/prng.h"
#include "machine.h"
#include "store/format/geometry.h"

namespace halfstep::bench {

inline wire::Layout layout_of_one_part(const char* purpose, uint64_t block_bytes) {
  wire::GroupShape group;
  group.part_count = 1;
  group.part_bytes[0] = static_cast<uint32_t>(block_bytes);
  wire::Layout layout;
  check(wire::Layout::make({{"purpose", purpose}}, {group}, &layout), "layout");
  return layout;
}

// Of so many segments, and of what else a store has.
inline store::Geometry geometry_of(uint32_t segments, uint64_t segment_bytes) {
  store::Geometry geometry{segments * segment_bytes, segment_bytes, segments, 1,
                           static_cast<uint32_t>(store::block_bytes_max_of(segment_bytes))};
  while (!store::places_of(geometry).valid()) geometry.device_bytes += 16 * MiB;
  return geometry;
}
// A third more than the blocks take: nothing is reclaimed.
inline store::Geometry roomy_geometry(uint64_t blocks, uint64_t block_bytes, uint64_t segment_bytes) {
  return geometry_of(static_cast<uint32_t>(blocks * (block_bytes + kPageBytes) * 4 / 3 / segment_bytes + 8), segment_bytes);
}

// A file that was not there before; sparse: without blocks of the file system until they are written.
inline void make_file(const std::string& path, uint64_t bytes, bool sparse) {
  const int file = ::open(path.c_str(), O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC, 0600);
  if (file < 0) fail_errno(path);
  const auto size = static_cast<off_t>(bytes);
  if (sparse ? ::ftruncate(file, size) != 0 : (errno = ::posix_fallocate(file, 0, size)) != 0) fail_errno(path);
  ::close(file);
}

class StoredBlocks {
 public:
  StoredBlocks(Machine& machine, store::Store& opened, const wire::Layout& layout, uint64_t block_bytes, uint64_t seed)
      : machine_(machine), store_(opened), scope_(machine.scope_of(opened, layout)), content_(block_bytes) {
    Prng prng(seed);
    for (size_t at = 0; at < content_.size(); at += 8) store_le(content_.data() + at, prng.next());
  }

  // `block` has to outlive it.
  store::BlockName name(const uint64_t& block) const { return {scope_, wire::Component::of(0, 0, 0), object_bytes(block)}; }
  // What it holds; until the next call.
  ConstBytes bytes_of(uint64_t block) {
    store_le(content_.data(), block);
    return content_;
  }
  void put(const uint64_t& block, bool persist) {
    store::Write write;
    write.name = name(block);
    write.key = store_.key_of(write.name);
    write.block_bytes = static_cast<uint32_t>(content_.size());
    write.persist = persist;
    bool done = false;
    write.owner = &done;
    write.done = [](store::Write& w) { *static_cast<bool*>(w.owner) = true; };
    Status status;
    while ((status = store_.begin_write(write)) == Code::Throttled) machine_.turn(store_);
    check(status, "begin_write");
    ConstBytes left = bytes_of(block);
    write.slot->for_range(0, content_.size(), [&](Bytes piece) {
      std::memcpy(piece.data(), left.data(), piece.size());
      left = left.subspan(piece.size());
    });
    write.parts[0].stored_crc = crc32c(content_);
    store_.commit_write(write);
    while (!done) machine_.turn(store_);
    check(write.status, "put");
  }

 private:
  Machine& machine_;
  store::Store& store_;
  const uint32_t scope_;
  std::vector<std::byte> content_;
};

}  // namespace halfstep::bench
