// Any bytes as a region, keys of a request, a template, places, rows of a template, and the body of a Placed. What parses is
// within its bounds, and a part that is said to stay inside its region does so at every row between two.
#include <cstdlib>

#include "wire/places.h"

namespace halfstep::wire {
namespace {

void require(bool kept) {
  if (!kept) std::abort();
}

void parse_as_region(ConstBytes value) {
  RegionRecord region;
  if (!parse_region(value, &region).ok()) return;
  require(region.number < kRegionsMax && region.address + region.bytes >= region.address);
}

void parse_as_keys(ConstBytes value) {
  PackedArray<RegionRecord> keys;
  if (!parse_place_keys(value, &keys).ok()) return;
  require(!keys.empty() && keys.size() <= kRegionsMax);
  for (uint32_t i = 0; i < keys.size(); ++i) {
    const RegionRecord key = keys[i];
    require(key.number < kRegionsMax && key.bytes > 0 && key.address + key.bytes >= key.address);
    require(i == 0 || key.number > keys[i - 1].number);
  }
}

void parse_as_template(ConstBytes value) {
  TemplateView view;
  if (!parse_template(value, &view).ok()) return;
  require(view.head.number < kTemplatesMax && view.parts.size() == view.head.part_count);
  for (uint32_t p = 0; p < view.parts.size(); ++p) {
    const PlacePart part = view.parts[p];
    require(part.region < kRegionsMax && part.inner_bytes > 0 && part.inner_count > 0);
    constexpr uint64_t kRegionBytes = 1 << 20;
    constexpr int64_t kRows = 7;
    if (!part_stays_inside(part, -kRows, kRows, kRegionBytes)) continue;
    for (int64_t row = -kRows; row <= kRows; ++row) {
      for (const uint32_t inner : {uint32_t{0}, part.inner_count / 2, part.inner_count - 1}) {
        const int64_t at = static_cast<int64_t>(part.offset) + row * part.row_stride + int64_t{inner} * part.inner_stride;
        require(at >= 0 && static_cast<uint64_t>(at) + part.inner_bytes <= kRegionBytes);
      }
    }
  }
}

void parse_as_places(ConstBytes value) {
  PlacesView view;
  if (!parse_places(value, &view).ok()) return;
  require(view.pieces.size() == view.head.piece_count && view.counts.size() == view.head.item_count);
  uint64_t pieces = 0;
  for (uint32_t i = 0; i < view.counts.size(); ++i) pieces += view.counts[i];
  require(pieces == view.pieces.size() && pieces <= kPiecesMax);
  for (uint32_t i = 0; i < view.pieces.size(); ++i) {
    const PlacePiece piece = view.pieces[i];
    require(piece.region < kRegionsMax && piece.bytes > 0 && piece.offset + piece.bytes > piece.offset);
  }
}

void parse_as_rows(ConstBytes value) {
  PlaceRowsView view;
  if (!parse_place_rows(value, &view).ok()) return;
  require(view.rows.size() == view.head.item_count && view.head.number < kTemplatesMax);
}

void parse_as_placed(ConstBytes body) {
  RunsView runs;
  uint32_t payload_bytes = 0;
  if (!parse_placed(body, &runs, &payload_bytes).ok()) return;
  uint64_t bytes = 0;
  for (uint32_t i = 0; i < runs.run_count; ++i) bytes += runs.run(i).bytes;
  require(bytes == payload_bytes && payload_bytes <= kChunkBytesMax);
}

}  // namespace
}  // namespace halfstep::wire

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace halfstep;
  using namespace halfstep::wire;
  if (size == 0) return 0;
  const ConstBytes value = ConstBytes(reinterpret_cast<const std::byte*>(data), size).subspan(1);
  switch (data[0] % 6) {
    case 0: parse_as_region(value); break;
    case 1: parse_as_template(value); break;
    case 2: parse_as_places(value); break;
    case 3: parse_as_rows(value); break;
    case 5: parse_as_keys(value); break;
    default: parse_as_placed(value); break;
  }
  return 0;
}
