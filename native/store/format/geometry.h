// geometry.h — where everything lies on a device, computed from the numbers in the store header alone.
// Invariants: places do not overlap and end with the device (checked by valid()); nothing here trusts a number from flash
// before valid() said yes.
// The segments are divided among the shards in equal runs; a shard counts its own from 0, and so does everything below that is
// told a segment's number.
// Thread: immutable.
#pragma once

#include "base/status.h"
#include "index/entry.h"
#include "store/format/format.h"

namespace halfstep::store {

// A page's number has 34 bits in an index entry (index/entry.h).
inline constexpr uint64_t kDeviceBytesMax = index::kPageAddressLimit * kPageBytes;

struct Geometry {
  uint64_t device_bytes = 0;
  uint64_t segment_bytes = 0;
  uint32_t segments = 0;  // of all shards
  uint32_t shards = 1;
  uint32_t block_bytes_max = 0;
};
// What format() would make of a device of this size, and with a write buffer a shard of this one; Fault names the smallest size
// that works.
Fault plan_geometry(uint64_t device_bytes, uint64_t segment_bytes_or_0, uint64_t write_buffer_bytes, Geometry* out,
                    uint32_t shards = 1);

struct Places {
  Geometry geometry;
  uint32_t log_half_pages = 0;
  uint32_t touch_pages = 0;  // per segment
  uint32_t shard = 0;        // whose segments are meant

  Places of_shard(uint32_t number) const noexcept {
    Places places = *this;
    places.shard = number;
    return places;
  }
  // Of one shard.
  uint32_t segments() const noexcept { return geometry.segments / geometry.shards; }
  uint32_t segment_pages() const noexcept { return static_cast<uint32_t>(geometry.segment_bytes / kPageBytes); }
  uint64_t header(uint32_t copy) const noexcept { return copy == 0 ? 0 : geometry.device_bytes - format::kHeaderReserveBytes; }
  uint64_t log(uint32_t copy, uint32_t of_shard, uint32_t half) const noexcept {
    const uint64_t half_bytes = uint64_t{log_half_pages} * kPageBytes;
    const uint64_t start = copy == 0 ? format::kHeaderReserveBytes : header(1) - logs_bytes();
    return start + (uint64_t{of_shard} * 2 + half) * half_bytes;
  }
  uint64_t touch_map(uint32_t number) const noexcept { return touch_map_of_all(first_segment() + number); }
  uint64_t segment(uint32_t number) const noexcept {
    return segments_begin() + (first_segment() + number) * geometry.segment_bytes;
  }
  // Whether these bytes lie in that segment alone: nothing that writes or discards may reach beyond.
  bool in_segment(uint32_t number, uint64_t offset, uint64_t bytes) const noexcept {
    const uint64_t begin = segment(number);
    return number < segments() && offset >= begin && bytes <= geometry.segment_bytes &&
           offset - begin <= geometry.segment_bytes - bytes;
  }
  // It ends behind the end of its backing, which was cut: it takes no frame any more. `there`: the bytes of the backing; 0:
  // not known.
  bool cut_off(uint32_t number, uint64_t there) const noexcept {
    return there != 0 && segment(number) + geometry.segment_bytes > there;
  }
  uint64_t segments_end() const noexcept { return segments_begin() + geometry.segments * geometry.segment_bytes; }
  // All copies of one end: 2 halves a shard.
  uint64_t logs_bytes() const noexcept { return uint64_t{geometry.shards} * 2 * log_half_pages * kPageBytes; }

  bool valid() const noexcept;

 private:
  uint64_t first_segment() const noexcept { return uint64_t{shard} * segments(); }
  uint64_t touch_map_of_all(uint64_t segment) const noexcept {
    return format::kHeaderReserveBytes + logs_bytes() + segment * touch_pages * kPageBytes;
  }
  uint64_t segments_begin() const noexcept { return round_up(touch_map_of_all(geometry.segments), MiB); }
};

// The parts that follow from the geometry's own numbers when a store is made; afterwards they stand in the store header.
Places places_of(const Geometry& geometry) noexcept;

// The largest block that a segment of this size takes (docs/on-flash-format.md, *Device*), write buffer aside.
uint64_t block_bytes_max_of(uint64_t segment_bytes) noexcept;

}  // namespace halfstep::store
