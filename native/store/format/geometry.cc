#include "store/format/geometry.h"

#include <algorithm>
#include <bit>

namespace halfstep::store {
namespace {

// A record of 64 bytes for every 64 KiB of device, in each half: as many deletes may be alive at once as there are such blocks.
constexpr uint64_t kLogShare = 1024;
constexpr uint64_t kLogHalfBytesMin = 128 * KiB;
constexpr uint64_t kLogHalfBytesMax = 256 * MiB;

uint32_t log_half_pages_of(uint64_t device_bytes, uint32_t shards) noexcept {
  const uint64_t bytes = std::clamp(device_bytes / kLogShare / shards, kLogHalfBytesMin, kLogHalfBytesMax);
  return static_cast<uint32_t>(div_up(bytes, kPageBytes));
}

uint32_t touch_pages_of(uint64_t segment_bytes) noexcept {
  return static_cast<uint32_t>(div_up(segment_bytes / kPageBytes, format::kTouchesPerPage));
}

std::string mebibytes(uint64_t bytes) { return std::to_string(div_up(bytes, MiB)) + " MiB"; }

// Segments of this size that fit the device, as many for each shard.
uint32_t segments_that_fit(uint64_t device_bytes, uint64_t segment_bytes, uint32_t shards) noexcept {
  Geometry geometry{device_bytes, segment_bytes, 0, shards, 0};
  const Places none = places_of(geometry);
  const uint64_t ends = 2 * (format::kHeaderReserveBytes + none.logs_bytes()) + MiB;
  if (device_bytes <= ends) return 0;
  const uint64_t each = segment_bytes + uint64_t{none.touch_pages} * kPageBytes;
  const auto fitting = static_cast<uint32_t>(std::min<uint64_t>((device_bytes - ends) / each, UINT32_MAX / 2));
  return fitting - fitting % shards;
}

uint64_t device_bytes_needed(uint64_t segment_bytes, uint32_t shards) noexcept {
  const uint32_t enough = format::kSegmentsPerShardMin * shards;
  uint64_t bytes = enough * segment_bytes;
  while (segments_that_fit(bytes, segment_bytes, shards) < enough) bytes += MiB;
  return bytes;
}

}  // namespace

uint64_t block_bytes_max_of(uint64_t segment_bytes) noexcept {
  const uint64_t quarter = std::min(segment_bytes / 4, wire::kBlockBytesMax + format::kBlockSlackBytes);
  return quarter > format::kBlockSlackBytes ? quarter - format::kBlockSlackBytes : 0;
}

Places places_of(const Geometry& geometry) noexcept {
  Places places;
  places.geometry = geometry;
  places.log_half_pages = log_half_pages_of(geometry.device_bytes, geometry.shards == 0 ? 1 : geometry.shards);
  places.touch_pages = touch_pages_of(geometry.segment_bytes);
  return places;
}

bool Places::valid() const noexcept {
  const Geometry& g = geometry;
  if (g.device_bytes % kPageBytes != 0 || g.device_bytes > kDeviceBytesMax) return false;
  if (g.segment_bytes < format::kSegmentBytesMin || g.segment_bytes > format::kSegmentBytesMax) return false;
  if (g.segment_bytes % kPageBytes != 0) return false;
  if (g.shards == 0 || g.shards > format::kShardsMax || g.segments % g.shards != 0 || g.segments / g.shards < 4) return false;
  if (g.segments > g.device_bytes / g.segment_bytes) return false;
  if (g.block_bytes_max == 0 || g.block_bytes_max > block_bytes_max_of(g.segment_bytes)) return false;
  if (log_half_pages < 2 || uint64_t{log_half_pages} * kPageBytes > kLogHalfBytesMax) return false;
  if (touch_pages != touch_pages_of(g.segment_bytes)) return false;
  if (g.device_bytes < 2 * (format::kHeaderReserveBytes + logs_bytes())) return false;
  return segments_end() <= log(1, 0, 0);
}

Fault plan_geometry(uint64_t device_bytes, uint64_t segment_bytes_or_0, uint64_t write_buffer_bytes, Geometry* out,
                    uint32_t shards) {
  if (shards == 0 || shards > format::kShardsMax) {
    return {Code::Invalid, "shards=" + std::to_string(shards) + ": must be 1 to " + std::to_string(format::kShardsMax)};
  }
  const uint32_t enough = format::kSegmentsPerShardMin * shards;
  device_bytes = round_down(device_bytes, kPageBytes);
  if (device_bytes > kDeviceBytesMax) {
    return {Code::TooLarge, "size=" + mebibytes(device_bytes) + ": a store reaches 64 TiB, which is " +
                                mebibytes(kDeviceBytesMax) + "; give a smaller size"};
  }
  uint64_t segment_bytes = segment_bytes_or_0;
  if (segment_bytes != 0) {
    if (segment_bytes < format::kSegmentBytesMin || segment_bytes > format::kSegmentBytesMax || segment_bytes % MiB != 0) {
      return {Code::Invalid, "segment=" + std::to_string(segment_bytes) + ": must be a multiple of 1 MiB from " +
                                 mebibytes(format::kSegmentBytesMin) + " to " + mebibytes(format::kSegmentBytesMax)};
    }
  } else {
    // The largest of which enough fit: a quarter of it bounds a block, which is what a small store runs out of first.
    segment_bytes = std::clamp(round_down(device_bytes / enough, MiB), format::kSegmentBytesMin, format::kSegmentBytesDefault);
    while (segment_bytes > format::kSegmentBytesMin && segments_that_fit(device_bytes, segment_bytes, shards) < enough) {
      segment_bytes -= MiB;
    }
  }
  const uint32_t segments = segments_that_fit(device_bytes, segment_bytes, shards);
  if (segments < enough) {
    const std::string whose = shards == 1 ? "" : " for each of " + std::to_string(shards) + " shards";
    return {Code::NoSpace, "size=" + std::to_string(device_bytes) + ": too small for " +
                               std::to_string(format::kSegmentsPerShardMin) + " segments of " + mebibytes(segment_bytes) +
                               whose + "; the smallest size is " + mebibytes(device_bytes_needed(segment_bytes, shards)) +
                               (shards == 1 ? "" : ", or give fewer shards")};
  }
  const uint64_t block_max = std::min(block_bytes_max_of(segment_bytes), round_down(write_buffer_bytes / 2, kPageBytes));
  if (block_max < kPageBytes) {
    return {Code::Invalid, "write_buffer_bytes=" + std::to_string(write_buffer_bytes) +
                               ": a block may take half of it and at least one page; the smallest is 8192"};
  }
  *out = {device_bytes, segment_bytes, segments, shards, static_cast<uint32_t>(block_max)};
  return {};
}

}  // namespace halfstep::store
