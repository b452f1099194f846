#include "store/sizing.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "index/block_index.h"
#include "store/catalog/footer.h"
#include "store/format/extent_layout.h"
#include "store/format/options.h"

namespace halfstep::store {
namespace {

// Of a shard's segments those that may hold little: four that are open, one kept ready, one for what reclaim copies.
constexpr uint64_t kSegmentsAside = 6;

// Blocks are 256 KiB and larger where flash is large. A small store can afford to know a block for every page.
constexpr uint64_t kMeanBlockBytes = 256 * KiB;
constexpr uint64_t kSmallIndexBytes = 16 * MiB;

uint64_t extent_bytes_of(const SizedBlocks& of) noexcept {
  const bool plain = of.block_bytes % of.parts == 0 && of.block_bytes / of.parts % kPageBytes == 0;
  return ExtentShape{of.parts, static_cast<uint32_t>(of.block_bytes), !plain}.extent_bytes();
}

// A frame that holds one block: its entry, its key if it is long, the sums of its parts, its extent.
uint64_t frame_pages_of(const SizedBlocks& of, uint32_t key_bytes) noexcept {
  const uint64_t extent_bytes = extent_bytes_of(of);
  const uint64_t key = key_bytes > format::kEngineKeyInline ? key_bytes : 0;
  const uint64_t sums = extent_bytes == of.block_bytes ? uint64_t{of.parts} * sizeof(uint32_t) : 0;
  const uint64_t tables = round_up(key, format::kTableUnit) + round_up(sums, format::kTableUnit);
  return 1 + div_up(tables, format::kPageBodyBytes) + extent_bytes / kPageBytes;
}

// Keys fall on shards like dice: the fullest of them has more than its share.
double of_fullest_shard(const SizingQuestion& question, uint64_t keys) noexcept {
  if (question.shards <= 1) return 1;
  const double share = static_cast<double>(keys) / question.shards;
  return (share + 4 * std::sqrt(share)) / share / question.shards;
}

// What one shard has to hold at most.
struct Demand {
  double blocks = 0;
  double pages = 0;  // of frames
  uint64_t frame_pages_max = 0;
  uint64_t frame_pages_min = UINT64_MAX;
};

Demand demand_of(const SizingQuestion& question) noexcept {
  Demand demand;
  uint64_t blocks = 0;
  for (const SizedBlocks& of : question.of) blocks += of.blocks;
  const double share = of_fullest_shard(question, question.keys == 0 ? blocks : question.keys);
  for (const SizedBlocks& of : question.of) {
    const uint64_t pages = frame_pages_of(of, question.key_bytes);
    demand.blocks += static_cast<double>(of.blocks) * share;
    demand.pages += static_cast<double>(of.blocks) * share * static_cast<double>(pages);
    demand.frame_pages_max = std::max(demand.frame_pages_max, pages);
    demand.frame_pages_min = std::min(demand.frame_pages_min, pages);
  }
  return demand;
}

// Pages of frames that a segment holds for certain: it is sealed when the next one does not fit.
uint64_t pages_for_certain(const SizingQuestion& question, const Demand& demand, uint64_t segment_bytes) noexcept {
  const uint64_t segment_pages = segment_bytes / kPageBytes;
  const uint64_t entries = segment_pages / demand.frame_pages_min;
  const uint64_t taken = footer_pages(entries, entries * footer_key_bytes(question.key_bytes));
  const uint64_t room = segment_pages - std::min(taken, segment_pages);
  if (demand.frame_pages_min == demand.frame_pages_max) return room / demand.frame_pages_max * demand.frame_pages_max;
  return room - std::min(room, demand.frame_pages_max - 1);
}

Fault too_many(uint64_t blocks) {
  return {Code::TooLarge, "blocks=" + std::to_string(blocks) + ": a store reaches 64 TiB; divide them among several daemons"};
}

Fault too_large(uint64_t block_bytes, uint64_t bytes_max) {
  return {Code::TooLarge, "block_bytes=" + std::to_string(block_bytes) +
                              ": with this arena and these shards a block has at most " + std::to_string(bytes_max) +
                              " bytes; give a larger arena, larger segments or fewer shards"};
}

Fault plan(const SizingQuestion& question, uint64_t device_bytes, Geometry* out) {
  const auto arena_bytes = static_cast<double>(question.arena_bytes / question.shards);
  const auto write_bytes = static_cast<uint64_t>(arena_bytes * Options{}.write_share);
  return plan_geometry(device_bytes, question.segment_bytes, write_bytes, out, question.shards);
}

bool holds(const SizingQuestion& question, const Demand& demand, const Geometry& geometry) noexcept {
  const uint64_t segments = geometry.segments / geometry.shards;
  const uint64_t pages = pages_for_certain(question, demand, geometry.segment_bytes);
  return segments > kSegmentsAside && static_cast<double>((segments - kSegmentsAside) * pages) >= demand.pages;
}

}  // namespace

uint64_t default_index_bytes(uint64_t shard_bytes, uint32_t shards) noexcept {
  return std::max(index::BlockIndex::bytes_for(shard_bytes / kMeanBlockBytes),
                  std::min(index::BlockIndex::bytes_for(shard_bytes / kPageBytes), share_of(kSmallIndexBytes, shards)));
}

Fault size_store(const SizingQuestion& question, Sizing* out) {
  uint64_t largest = 0;
  uint64_t blocks = 0;
  for (const SizedBlocks& of : question.of) {
    if (of.block_bytes == 0 || of.parts == 0 || of.blocks == 0)
      return {Code::Invalid, "blocks, block_bytes, parts: must be above 0"};
    if (of.block_bytes > wire::kBlockBytesMax) {
      return {Code::TooLarge, "block_bytes=" + std::to_string(of.block_bytes) + ": no block has more than " +
                                  std::to_string(wire::kBlockBytesMax) + " bytes; cut it into smaller ones"};
    }
    if (of.blocks > kDeviceBytesMax / kPageBytes) return too_many(of.blocks);
    largest = std::max(largest, of.block_bytes);
    blocks += of.blocks;
  }
  if (question.of.empty()) return {Code::Invalid, "blocks: there have to be some"};
  if (question.shards == 0 || question.shards > format::kShardsMax) {
    return {Code::Invalid,
            "shards=" + std::to_string(question.shards) + ": must be 1 to " + std::to_string(format::kShardsMax)};
  }
  const Demand demand = demand_of(question);
  const auto fits = [&](uint64_t device_bytes, Geometry* geometry) {
    return plan(question, device_bytes, geometry).ok() && geometry->block_bytes_max >= largest &&
           holds(question, demand, *geometry);
  };
  Geometry geometry;
  if (!fits(kDeviceBytesMax, &geometry)) {
    if (const Fault fault = plan(question, kDeviceBytesMax, &geometry); !fault.ok()) return fault;
    if (geometry.block_bytes_max >= largest) return too_many(blocks);
    return too_large(largest, geometry.block_bytes_max);
  }
  // `high` always fits. A larger store may have larger segments, so that a smaller one may fit, too: never much smaller.
  uint64_t low = 0;
  uint64_t high = kDeviceBytesMax / MiB;
  while (low + 1 < high) {
    const uint64_t middle = low + (high - low) / 2;
    (fits(middle * MiB, &geometry) ? high : low) = middle;
  }
  if (!fits(high * MiB, &geometry)) return {Code::Invalid, "sizing: no size was found; report this question"};
  // The index has to know what full segments hold, which may be packed more closely.
  const auto most = static_cast<uint64_t>(std::ceil(demand.blocks * 1.125));
  const uint64_t shard_bytes = geometry.segments / geometry.shards * geometry.segment_bytes;
  *out = {.geometry = geometry,
          .index_bytes = index::BlockIndex::bytes_for(most) * question.shards,
          .index_bytes_default = default_index_bytes(shard_bytes, question.shards) * question.shards};
  return {};
}

}  // namespace halfstep::store
