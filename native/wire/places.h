// places.h — where a get's bytes are to be written in the client's own memory (docs/wire-protocol.md, section 16).
//   RdmaRegion     = RegionRecord                                     memory that the server may write into
//   PlaceKeys      = RegionRecord[1 to 64]                            such memory for one request alone
//   PlaceTemplate  = TemplateHead, PlacePart[part_count]              how the parts of a row lie in such memory
//   Places         = PlacesHead, PlacePiece[piece_count], u32 pieces[item_count]     an item's bytes over its pieces, in order
//   PlaceRows      = PlaceRowsHead, i64 row[item_count]               an item's parts at a row of a template
// Invariants: what parses is within its bounds, and every count agrees with the bytes that are there. Whether a place lies in a
// region that exists is for whoever has the regions to say. A view points into the body it was parsed from.
#pragma once

#include <cstdint>

#include "base/bytes.h"
#include "base/status.h"
#include "wire/message.h"
#include "wire/records.h"

namespace halfstep::wire {

inline constexpr uint32_t kRegionsMax = 64;    // of a connection
inline constexpr uint32_t kTemplatesMax = 16;  // of a connection
inline constexpr uint32_t kPiecesMax = 16384;  // of one request, all sections together

struct RegionRecord {
  uint32_t number = 0;  // the client's choice, below kRegionsMax
  uint32_t key = 0;     // remote key
  uint64_t address = 0;
  uint64_t bytes = 0;  // 0: forgotten
};
static_assert(sizeof(RegionRecord) == 24);

struct TemplateHead {
  uint32_t number = 0;      // the client's choice, below kTemplatesMax
  uint32_t part_count = 0;  // 0: forgotten
};
static_assert(sizeof(TemplateHead) == 8);

// One part of a row: inner_count pieces of inner_bytes, inner_stride apart, from offset + row * row_stride in its region.
struct PlacePart {
  uint64_t offset = 0;
  int64_t row_stride = 0;
  int64_t inner_stride = 0;
  uint32_t inner_count = 0;
  uint32_t inner_bytes = 0;
  uint32_t region = 0;
  uint32_t zero = 0;
};
static_assert(sizeof(PlacePart) == 40);

struct PlacesHead {
  uint16_t section = 0;
  uint16_t zero = 0;
  uint32_t item_count = 0;
  uint32_t piece_count = 0;
  uint32_t reserved = 0;
};
static_assert(sizeof(PlacesHead) == 16);

struct PlacePiece {
  uint64_t offset = 0;  // in its region
  uint32_t region = 0;
  uint32_t bytes = 0;
};
static_assert(sizeof(PlacePiece) == 16);

struct PlaceRowsHead {
  uint16_t section = 0;
  uint16_t zero = 0;
  uint32_t item_count = 0;
  uint32_t number = 0;  // of the template
  uint32_t reserved = 0;
};
static_assert(sizeof(PlaceRowsHead) == 16);

struct TemplateView {
  TemplateHead head;
  PackedArray<PlacePart> parts;
};
struct PlacesView {
  PlacesHead head;
  PackedArray<PlacePiece> pieces;
  PackedArray<uint32_t> counts;  // by item
};
struct PlaceRowsView {
  PlaceRowsHead head;
  PackedArray<int64_t> rows;
};

Status parse_region(ConstBytes value, RegionRecord* out) noexcept;
// Numbers ascend; none is forgotten.
Status parse_place_keys(ConstBytes value, PackedArray<RegionRecord>* out) noexcept;
Status parse_template(ConstBytes value, TemplateView* out) noexcept;
Status parse_places(ConstBytes value, PlacesView* out) noexcept;
Status parse_place_rows(ConstBytes value, PlaceRowsView* out) noexcept;

// Whether every piece of a part, at each row between these two, lies within `region_bytes`.
bool part_stays_inside(const PlacePart& part, int64_t row_min, int64_t row_max, uint64_t region_bytes) noexcept;

// The body of a Placed: that of a Chunk, whose payload is as long as its runs say.
Status parse_placed(ConstBytes body, RunsView* out, uint32_t* payload_bytes) noexcept;

}  // namespace halfstep::wire
