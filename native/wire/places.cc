#include "wire/places.h"

#include <algorithm>

namespace halfstep::wire {
namespace {

using Wide = __int128;

// Offsets are computed in 64 bits where they are used; nothing that comes near their end is memory.
constexpr Wide kFar = Wide{1} << 61;

bool part_allowed(const PlacePart& part) noexcept {
  return part.zero == 0 && part.region < kRegionsMax && part.inner_count != 0 && part.inner_bytes != 0;
}

bool region_allowed(const RegionRecord& region) noexcept {
  return region.number < kRegionsMax && region.address <= UINT64_MAX - region.bytes;
}

}  // namespace

Status parse_region(ConstBytes value, RegionRecord* out) noexcept {
  Reader reader(value);
  *out = reader.take<RegionRecord>();
  return reader.finished() && region_allowed(*out) ? Status() : Status(Code::Invalid);
}

Status parse_place_keys(ConstBytes value, PackedArray<RegionRecord>* out) noexcept {
  *out = PackedArray<RegionRecord>(value);
  if (value.empty() || value.size() % sizeof(RegionRecord) != 0) return Code::Invalid;
  uint32_t next = 0;
  for (uint32_t i = 0; i < out->size(); ++i) {
    const RegionRecord key = (*out)[i];
    if (!region_allowed(key) || key.number < next || key.bytes == 0) return Code::Invalid;
    next = key.number + 1;
  }
  return {};
}

Status parse_template(ConstBytes value, TemplateView* out) noexcept {
  *out = {};
  Reader reader(value);
  out->head = reader.take<TemplateHead>();
  if (reader.failed() || out->head.number >= kTemplatesMax || out->head.part_count > kPartsMax) return Code::Invalid;
  if (reader.left() != size_t{out->head.part_count} * sizeof(PlacePart)) return Code::Invalid;
  out->parts = PackedArray<PlacePart>(reader.rest());
  for (uint32_t p = 0; p < out->parts.size(); ++p) {
    if (!part_allowed(out->parts[p])) return Code::Invalid;
  }
  return {};
}

Status parse_places(ConstBytes value, PlacesView* out) noexcept {
  *out = {};
  Reader reader(value);
  out->head = reader.take<PlacesHead>();
  const PlacesHead& head = out->head;
  if (reader.failed() || head.zero != 0 || head.reserved != 0) return Code::Invalid;
  if (head.section >= kSectionsMax || head.item_count > kItemsMax || head.piece_count > kPiecesMax) return Code::Invalid;
  out->pieces = PackedArray<PlacePiece>(reader.take_bytes(size_t{head.piece_count} * sizeof(PlacePiece)));
  out->counts = PackedArray<uint32_t>(reader.take_bytes(size_t{head.item_count} * sizeof(uint32_t)));
  if (!reader.finished()) return Code::Invalid;
  for (uint32_t i = 0; i < out->pieces.size(); ++i) {
    const PlacePiece piece = out->pieces[i];
    if (piece.region >= kRegionsMax || piece.bytes == 0 || piece.offset > UINT64_MAX - piece.bytes) return Code::Invalid;
  }
  uint64_t pieces = 0;
  for (uint32_t i = 0; i < out->counts.size(); ++i) pieces += out->counts[i];
  return pieces == head.piece_count ? Status() : Status(Code::Invalid);
}

Status parse_place_rows(ConstBytes value, PlaceRowsView* out) noexcept {
  *out = {};
  Reader reader(value);
  out->head = reader.take<PlaceRowsHead>();
  const PlaceRowsHead& head = out->head;
  if (reader.failed() || head.zero != 0 || head.reserved != 0) return Code::Invalid;
  if (head.section >= kSectionsMax || head.item_count > kItemsMax || head.number >= kTemplatesMax) return Code::Invalid;
  if (reader.left() != size_t{head.item_count} * sizeof(int64_t)) return Code::Invalid;
  out->rows = PackedArray<int64_t>(reader.rest());
  return {};
}

bool part_stays_inside(const PlacePart& part, int64_t row_min, int64_t row_max, uint64_t region_bytes) noexcept {
  const Wide at_min = Wide{part.offset} + Wide{row_min} * part.row_stride;
  const Wide at_max = Wide{part.offset} + Wide{row_max} * part.row_stride;
  const Wide inner = Wide{part.inner_count - 1} * part.inner_stride;
  const Wide low = std::min(at_min, at_max) + std::min(inner, Wide{0});
  const Wide high = std::max(at_min, at_max) + std::max(inner, Wide{0}) + part.inner_bytes;
  const bool near = part.offset < kFar && at_min > -kFar && at_max > -kFar && at_min < kFar && at_max < kFar;
  return near && region_bytes < kFar && low >= 0 && high <= Wide{region_bytes};
}

Status parse_placed(ConstBytes body, RunsView* out, uint32_t* payload_bytes) noexcept {
  uint64_t bytes = 0;
  TlvReader reader(body);
  TlvView tlv;
  while (reader.next(&tlv)) {
    if (tlv.kind != static_cast<uint16_t>(Tlv::Runs)) continue;
    Reader value(tlv.value);
    const auto run_count = value.take<uint32_t>();
    value.take<uint32_t>();
    for (uint32_t i = 0; i < run_count && value.left() >= sizeof(Run); ++i) bytes += value.take<Run>().bytes;
  }
  if (!reader.status().ok()) return reader.status();
  if (bytes > kChunkBytesMax) return Code::TooLarge;
  *payload_bytes = static_cast<uint32_t>(bytes);
  return parse_chunk(body, *payload_bytes, out);
}

}  // namespace halfstep::wire
