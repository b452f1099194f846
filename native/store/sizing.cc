#include "store/sizing.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "index/block_index.h"
#include "store/catalog/footer.h"
#include "store/format/options.h"

namespace halfstep::store {
namespace {

// Of a shard's segments those that may hold little: four that are open, one kept ready, one for what reclaim copies.
constexpr uint64_t kSegmentsAside = 6;
constexpr uint64_t kDeviceBytesMax = uint64_t{64} * 1024 * GiB;

// Blocks are 256 KiB and larger where flash is large. A small store can afford to know a block for every page.
constexpr uint64_t kMeanBlockBytes = 256 * KiB;
constexpr uint64_t kSmallIndexBytes = 16 * MiB;

uint64_t extent_bytes_of(const SizingQuestion& question) noexcept {
  const bool plain = question.block_bytes % question.parts == 0 && question.block_bytes / question.parts % kPageBytes == 0;
  return plain ? question.block_bytes : round_up(question.block_bytes + format::trailer_bytes(question.parts), kPageBytes);
}

// The header of a frame that holds one block: its entry, its key if it is long, the sums of its parts.
uint64_t header_pages_of(const SizingQuestion& question, uint64_t extent_bytes) noexcept {
  const uint64_t key = question.key_bytes > format::kEngineKeyInline ? question.key_bytes : 0;
  const uint64_t sums = extent_bytes == question.block_bytes ? uint64_t{question.parts} * sizeof(uint32_t) : 0;
  const uint64_t tables = round_up(key, format::kTableUnit) + round_up(sums, format::kTableUnit);
  return 1 + div_up(tables, format::kPageBodyBytes);
}

uint64_t blocks_per_segment_of(const SizingQuestion& question, uint64_t segment_bytes) noexcept {
  const uint64_t extent_bytes = extent_bytes_of(question);
  const uint64_t pages = header_pages_of(question, extent_bytes) + extent_bytes / kPageBytes;
  const uint64_t segment_pages = segment_bytes / kPageBytes;
  uint64_t blocks = segment_pages / pages;
  while (blocks > 0 && blocks * pages + footer_pages(blocks, blocks * footer_key_bytes(question.key_bytes)) > segment_pages) {
    --blocks;
  }
  return blocks;
}

// Keys fall on shards like dice: the fullest of them has more than its share.
uint64_t of_fullest_shard(uint64_t blocks, uint32_t shards) noexcept {
  if (shards <= 1) return blocks;
  const double share = static_cast<double>(blocks) / shards;
  return static_cast<uint64_t>(std::ceil(share + 4 * std::sqrt(share)));
}

Fault plan(const SizingQuestion& question, uint64_t device_bytes, Geometry* out) {
  return plan_geometry(device_bytes, question.segment_bytes, question.arena_bytes / question.shards / 2, out, question.shards);
}

uint64_t blocks_of_shard(const SizingQuestion& question, const Geometry& geometry) noexcept {
  const uint64_t segments = geometry.segments / geometry.shards;
  return segments <= kSegmentsAside ? 0 : (segments - kSegmentsAside) * blocks_per_segment_of(question, geometry.segment_bytes);
}

}  // namespace

uint64_t default_index_bytes(uint64_t shard_bytes, uint32_t shards) noexcept {
  return std::max(index::BlockIndex::bytes_for(shard_bytes / kMeanBlockBytes),
                  std::min(index::BlockIndex::bytes_for(shard_bytes / kPageBytes), share_of(kSmallIndexBytes, shards)));
}

Fault size_store(const SizingQuestion& question, Sizing* out) {
  if (question.block_bytes == 0 || question.parts == 0 || question.blocks == 0) {
    return {Code::Invalid, "blocks, block_bytes and parts must be above 0"};
  }
  if (question.shards == 0 || question.shards > format::kShardsMax) {
    return {Code::Invalid,
            "shards=" + std::to_string(question.shards) + ": must be 1 to " + std::to_string(format::kShardsMax)};
  }
  const uint64_t extent_bytes = extent_bytes_of(question);
  const uint64_t wanted = of_fullest_shard(question.blocks, question.shards);
  const auto fits = [&](uint64_t device_bytes, Geometry* geometry) {
    return plan(question, device_bytes, geometry).ok() && geometry->block_bytes_max >= question.block_bytes &&
           blocks_of_shard(question, *geometry) >= wanted;
  };
  Geometry geometry;
  if (!fits(kDeviceBytesMax, &geometry)) {
    if (const Fault fault = plan(question, kDeviceBytesMax, &geometry); !fault.ok()) return fault;
    if (geometry.block_bytes_max < question.block_bytes) {
      return {Code::TooLarge, "block_bytes=" + std::to_string(question.block_bytes) +
                                  ": with this arena and these shards a block" + " has at most " +
                                  std::to_string(geometry.block_bytes_max) +
                                  " bytes; give a larger arena, larger segments or fewer shards"};
    }
    return {Code::TooLarge,
            "blocks=" + std::to_string(question.blocks) + ": a store reaches 64 TiB; divide them among several daemons"};
  }
  uint64_t low = 0;
  uint64_t high = kDeviceBytesMax / MiB;
  while (low + 1 < high) {
    const uint64_t middle = low + (high - low) / 2;
    (fits(middle * MiB, &geometry) ? high : low) = middle;
  }
  if (!fits(high * MiB, &geometry)) return {Code::Invalid, "sizing: no size was found; report this question"};
  // The index has to know what full segments hold, of which some may be packed more closely.
  const uint64_t pages = extent_bytes / kPageBytes;
  const uint64_t most = std::min(question.blocks + question.blocks / 8,
                                 geometry.segments * (geometry.segment_bytes / kPageBytes / std::max<uint64_t>(pages, 1)));
  *out = {
      .geometry = geometry,
      .blocks_per_segment = blocks_per_segment_of(question, geometry.segment_bytes),
      .blocks = blocks_of_shard(question, geometry) * question.shards,
      .extent_bytes = extent_bytes,
      .index_bytes = index::BlockIndex::bytes_for(of_fullest_shard(most, question.shards)) * question.shards,
      .index_bytes_default =
          default_index_bytes(geometry.segments / geometry.shards * geometry.segment_bytes, question.shards) * question.shards};
  return {};
}

}  // namespace halfstep::store
