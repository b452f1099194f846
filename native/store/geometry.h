// geometry.h — where everything lies on a device, computed from the numbers in the store header alone.
// Invariants: places do not overlap and end with the device (checked by valid()); nothing here trusts a number from flash
// before valid() said yes.
// Thread: immutable.
#pragma once

#include "store/format.h"
#include "store/store.h"

namespace halfstep::store {

struct Places {
  Geometry geometry;
  uint32_t log_half_pages = 0;
  uint32_t touch_pages = 0;  // per segment

  uint32_t segment_pages() const noexcept { return static_cast<uint32_t>(geometry.segment_bytes / kPageBytes); }
  uint64_t header(uint32_t copy) const noexcept { return copy == 0 ? 0 : geometry.device_bytes - format::kHeaderReserveBytes; }
  uint64_t log(uint32_t copy, uint32_t shard, uint32_t half) const noexcept {
    const uint64_t half_bytes = uint64_t{log_half_pages} * kPageBytes;
    const uint64_t start = copy == 0 ? format::kHeaderReserveBytes : header(1) - logs_bytes();
    return start + (uint64_t{shard} * 2 + half) * half_bytes;
  }
  uint64_t touch_map(uint32_t segment) const noexcept {
    return format::kHeaderReserveBytes + logs_bytes() + uint64_t{segment} * touch_pages * kPageBytes;
  }
  uint64_t segment(uint32_t number) const noexcept {
    return round_up(touch_map(geometry.segments), MiB) + uint64_t{number} * geometry.segment_bytes;
  }
  // All copies of one end: 2 halves a shard.
  uint64_t logs_bytes() const noexcept { return uint64_t{geometry.shards} * 2 * log_half_pages * kPageBytes; }

  bool valid() const noexcept;
};

// The parts that follow from the geometry's own numbers when a store is made; afterwards they stand in the store header.
Places places_of(const Geometry& geometry) noexcept;

// The largest block that a segment of this size takes (V1 section 5), write buffer aside.
uint64_t block_bytes_max_of(uint64_t segment_bytes) noexcept;

}  // namespace halfstep::store
