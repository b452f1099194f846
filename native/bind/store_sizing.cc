#include "bind/store_sizing.h"

#include <algorithm>
#include <string>

#include "store/catalog/footer.h"
#include "store/format/format.h"
#include "store/format/geometry.h"
#include "store/write/segment_writer.h"

namespace halfstep::bind {
namespace {

using store::format::kEntriesPerPage;

// Larger blocks cost memory and make nothing more exact.
constexpr uint64_t kBlockPagesEnough = 8;

// The most blocks of so many pages that one frame can carry.
uint64_t blocks_per_frame_max(uint64_t block_pages) noexcept {
  const uint64_t by_bytes = store::kFramePayloadBytesMax / kPageBytes / block_pages;
  const uint64_t by_distance = store::format::kPagesBackMax / block_pages + 1;
  const uint64_t by_header = uint64_t{store::format::kFrameHeaderPagesMax} * kEntriesPerPage;
  return std::max<uint64_t>(1, std::min({by_bytes, by_distance, by_header}));
}

// A lower bound of the pages that a segment with so many blocks takes: each frame has a page of part sums, too.
uint64_t segment_pages_min(uint64_t blocks, uint64_t block_pages) noexcept {
  return blocks * block_pages + div_up(blocks, kEntriesPerPage) + div_up(blocks, blocks_per_frame_max(block_pages)) +
         store::footer_pages(blocks, 0);
}

// As many segments as asked or up to a quarter more, so that they hold as nearly as possible what was asked.
uint32_t choose_segments(uint64_t capacity_blocks, uint32_t segments) noexcept {
  const auto fewest =
      static_cast<uint32_t>(std::clamp<uint64_t>(capacity_blocks / kSizingBlocksPerSegmentMin, kSizingSegmentsMin, segments));
  uint32_t best = fewest;
  for (uint32_t count = fewest; count <= fewest + fewest / 4; ++count) {
    if (capacity_blocks / count < kSizingBlocksPerSegmentMin) break;
    if (count * (capacity_blocks / count) > best * (capacity_blocks / best)) best = count;
  }
  return best;
}

}  // namespace

Fault size_store(uint64_t capacity_blocks, uint32_t segments, uint64_t device_bytes, Sizing* out) {
  if (capacity_blocks < kSizingCapacityBlocksMin) {
    return {Code::Invalid, "capacity of " + std::to_string(capacity_blocks) + " blocks: a store needs room for " +
                               std::to_string(kSizingCapacityBlocksMin) + " at least; give more capacity or a longer trace"};
  }
  if (segments < kSizingSegmentsMin) {
    return {Code::Invalid, "segments=" + std::to_string(segments) + ": must be at least " + std::to_string(kSizingSegmentsMin)};
  }
  const uint32_t count = choose_segments(capacity_blocks, segments);
  const uint64_t each = capacity_blocks / count;
  // One page less than what one block more would need.
  uint64_t block_pages = std::clamp<uint64_t>(device_bytes / kPageBytes / capacity_blocks, 1, kBlockPagesEnough);
  const auto segment_bytes = [&] { return (segment_pages_min(each + 1, block_pages) - 1) * kPageBytes; };
  while (segment_bytes() < store::format::kSegmentBytesMin ||
         block_pages * kPageBytes > store::block_bytes_max_of(segment_bytes())) {
    ++block_pages;
  }
  if (segment_bytes() > store::format::kSegmentBytesMax) {
    return {Code::TooLarge, "capacity of " + std::to_string(capacity_blocks) + " blocks in " + std::to_string(count) +
                                " segments: a segment would be larger than 16 GiB; give more segments"};
  }
  store::Geometry geometry{count * segment_bytes(), segment_bytes(), count, 1,
                           static_cast<uint32_t>(store::block_bytes_max_of(segment_bytes()))};
  geometry.device_bytes = round_up(geometry.device_bytes + store::format::kHeaderReserveBytes * 2, MiB);
  while (!store::places_of(geometry).valid()) geometry.device_bytes += MiB;
  *out = {geometry, static_cast<uint32_t>(block_pages * kPageBytes), static_cast<uint32_t>(each), 0};
  return {};
}

Fault size_dram(uint64_t dram_blocks, Sizing* sizing) {
  const uint64_t block_bytes = SlotPool::held_bytes(sizing->block_bytes);
  const double write_share = store::Options().write_share;
  const auto needed_bytes = static_cast<uint64_t>(static_cast<double>(sizing->gather_blocks() * block_bytes) / write_share);
  const uint64_t needed_blocks = round_up(needed_bytes, kPieceBytesMax) / block_bytes;
  if (dram_blocks < needed_blocks) {
    return {Code::Invalid, "dram of " + std::to_string(dram_blocks) + " blocks: must hold at least " +
                               std::to_string(needed_blocks) + ", because a half of it is the write buffer, which gathers " +
                               std::to_string(sizing->gather_blocks()) + "; give more, or less capacity"};
  }
  if (dram_blocks > kSizingDramBytesMax / block_bytes) {
    return {Code::TooLarge, "dram of " + std::to_string(dram_blocks) + " blocks of " + std::to_string(sizing->block_bytes) +
                                " scaled bytes: more than " + std::to_string(kSizingDramBytesMax) + " in all; give less"};
  }
  sizing->dram_bytes = round_down(dram_blocks * block_bytes, kPieceBytesMax);
  return {};
}

}  // namespace halfstep::bind
