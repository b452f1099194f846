#include "shard/placement.h"

#include <algorithm>
#include <string>
#include <utility>

#include "shard/client.h"
#include "shard/reply.h"
#include "shard/tlvs.h"

namespace halfstep::shard {

using wire::Answer;
using wire::Opcode;
using wire::Reason;

namespace {

// Null: the connection has no way to write there, and the request is answered.
Placement* placement_of(Client& client, Opcode opcode, uint64_t id, const char* name) {
  Placement* placement = client.make_placement();
  if (placement == nullptr) {
    answer_whole(client, opcode, id, {Answer::Rejected, Reason::Unsupported},
                 std::string(name) + ": memory is written into over RDMA alone, and this connection has none");
  }
  return placement;
}

}  // namespace

Status Placement::set_template(const wire::TemplateView& view) {
  auto& kept = templates_[view.head.number];
  const uint32_t before = kept != nullptr ? static_cast<uint32_t>(kept->size()) : 0;
  if (parts_ - before + view.parts.size() > kPartsMax) return Code::TooLarge;
  parts_ -= before;
  kept = nullptr;
  if (view.parts.empty()) return {};
  std::vector<wire::PlacePart> parts;
  parts.reserve(view.parts.size());
  for (uint32_t p = 0; p < view.parts.size(); ++p) parts.push_back(view.parts[p]);
  parts_ += view.parts.size();
  kept = std::make_shared<const std::vector<wire::PlacePart>>(std::move(parts));
  return {};
}

// ---- Of one get ----------------------------------------------------------------------------------------------------------

void RequestPlaces::clear() noexcept {
  sections_.clear();
  for (const wire::RegionRecord& own : own_) own_at_[own.number] = 0;
  own_.clear();
  placement_ = nullptr;
  any_ = false;
}

Fault RequestPlaces::begin(const wire::RequestView& view, const Placement* placement) {
  if (placement == nullptr) return {};
  placement_ = placement;
  const wire::PackedArray<wire::RegionRecord> keys(view.place_keys);
  for (uint32_t i = 0; i < keys.size(); ++i) {
    own_.push_back(keys[i]);
    own_at_[keys[i].number] = static_cast<uint8_t>(own_.size());
  }
  sections_.resize(view.section_count);
  for (uint32_t s = 0; s < view.section_count; ++s) {
    const wire::SectionView& section = view.sections[s];
    if (section.places.empty()) continue;
    Fault fault = section.by_rows ? begin_rows(s, section.places) : begin_pieces(s, section.places);
    if (!fault.ok()) return fault;
    any_ = any_ || sections_[s].placed;
  }
  return {};
}

Fault RequestPlaces::begin_pieces(uint32_t number, ConstBytes value) {
  Section& to = sections_[number];
  if (!wire::parse_places(value, &to.pieces).ok()) return {Code::Invalid, "places: they do not parse"};
  to.placed = true;
  to.piece_ends.reserve(to.pieces.pieces.size());
  uint64_t end = 0;
  for (uint32_t i = 0; i < to.pieces.pieces.size(); ++i) {
    const wire::PlacePiece piece = to.pieces.pieces[i];
    to.piece_ends.push_back(end += piece.bytes);
    const wire::RegionRecord& region = this->region(piece.region);
    to.placed = to.placed && region.bytes != 0;
    if (region.bytes != 0 && piece.offset + piece.bytes > region.bytes) {
      return {Code::Invalid, "places: piece " + std::to_string(i) + " ends at " + std::to_string(piece.offset + piece.bytes) +
                                 "; its region has " + std::to_string(region.bytes) + " bytes"};
    }
  }
  to.first_piece.reserve(to.pieces.counts.size() + 1);
  to.first_piece.push_back(0);
  for (uint32_t i = 0; i < to.pieces.counts.size(); ++i) to.first_piece.push_back(to.first_piece.back() + to.pieces.counts[i]);
  return {};
}

Fault RequestPlaces::begin_rows(uint32_t number, ConstBytes value) {
  Section& to = sections_[number];
  if (!wire::parse_place_rows(value, &to.rows).ok()) return {Code::Invalid, "places: rows do not parse"};
  to.parts = placement_->parts(to.rows.head.number);
  to.placed = to.parts != nullptr;
  if (!to.placed) return {};
  int64_t low = INT64_MAX;
  int64_t high = INT64_MIN;
  for (uint32_t i = 0; i < to.rows.rows.size(); ++i) {
    low = std::min(low, to.rows.rows[i]);
    high = std::max(high, to.rows.rows[i]);
  }
  for (size_t p = 0; p < to.parts->size(); ++p) {
    const wire::PlacePart& part = (*to.parts)[p];
    const wire::RegionRecord& region = this->region(part.region);
    to.placed = to.placed && region.bytes != 0;
    if (region.bytes != 0 && !wire::part_stays_inside(part, low, high, region.bytes)) {
      return {Code::Invalid, "places: part " + std::to_string(p) + " of rows " + std::to_string(low) + " to " +
                                 std::to_string(high) + " leaves its region of " + std::to_string(region.bytes) + " bytes"};
    }
  }
  return {};
}

const wire::RegionRecord& RequestPlaces::region(uint32_t number) const noexcept {
  const uint8_t own = own_at_[number];
  return own != 0 ? own_[own - 1U] : placement_->region(number);
}

// Looked at once more: the client may have said since that a region is another one.
bool RequestPlaces::add(uint32_t number, uint64_t offset, uint32_t bytes, std::vector<net::RemoteRun>& out) const {
  const wire::RegionRecord& region = this->region(number);
  if (offset > region.bytes || bytes > region.bytes - offset) return false;
  const uint64_t address = region.address + offset;
  if (!out.empty() && out.back().key == region.key && out.back().address + out.back().bytes == address) {
    out.back().bytes += bytes;
  } else {
    out.push_back({.address = address, .key = region.key, .bytes = bytes});
  }
  return true;
}

bool RequestPlaces::find(uint32_t number, uint32_t item, uint32_t part, uint64_t at, uint32_t offset, uint32_t count,
                         size_t runs_max, std::vector<net::RemoteRun>& out) const {
  const Section& section = sections_[number];
  if (section.parts != nullptr) {
    if (part >= section.parts->size()) return false;
    const wire::PlacePart& to = (*section.parts)[part];
    if (uint64_t{offset} + count > uint64_t{to.inner_count} * to.inner_bytes) return false;
    const int64_t row_at = static_cast<int64_t>(to.offset) + section.rows.rows[item] * to.row_stride;
    const bool together = to.inner_stride == to.inner_bytes;
    for (uint32_t inner = offset / to.inner_bytes, within = offset % to.inner_bytes; count > 0; ++inner, within = 0) {
      const uint32_t step = together ? count : std::min(count, to.inner_bytes - within);
      const int64_t from = row_at + int64_t{inner} * to.inner_stride + within;
      if (from < 0 || !add(to.region, static_cast<uint64_t>(from), step, out) || out.size() > runs_max) return false;
      count -= step;
    }
    return true;
  }
  return find_in_pieces(section, item, at + offset, count, runs_max, out);
}

// `at`: among the bytes of the item's pieces.
bool RequestPlaces::find_in_pieces(const Section& section, uint32_t item, uint64_t at, uint32_t count, size_t runs_max,
                                   std::vector<net::RemoteRun>& out) const {
  const uint32_t first = section.first_piece[item];
  const uint32_t last = section.first_piece[item + 1];
  const auto ends = section.piece_ends.begin();
  if (first != 0) at += ends[first - 1];
  auto i = static_cast<uint32_t>(std::upper_bound(ends + first, ends + last, at) - ends);
  for (; count > 0 && i < last; ++i) {
    const wire::PlacePiece piece = section.pieces.pieces[i];
    const auto within = static_cast<uint32_t>(at - (section.piece_ends[i] - piece.bytes));
    const uint32_t step = std::min(count, piece.bytes - within);
    if (!add(piece.region, piece.offset + within, step, out) || out.size() > runs_max) return false;
    count -= step;
    at += step;
  }
  return count == 0;
}

// ---- Registering ---------------------------------------------------------------------------------------------------------

const Placement* placement_for(Client& client, const wire::RequestView& view) {
  return view.place_keys.empty() ? client.placement() : client.make_placement();
}

void register_region(Client& client, uint64_t id, ConstBytes body) {
  std::array<TlvSlot, 1> slots{{{wire::Tlv::RdmaRegion}}};
  if (!take_tlvs(client, Opcode::RegisterRegion, id, body, slots)) return;
  wire::RegionRecord region;
  if (!slots[0].there || !wire::parse_region(slots[0].value, &region).ok()) {
    return answer_whole(client, Opcode::RegisterRegion, id, {Answer::Rejected, Reason::Malformed},
                        "register_region: one region, of a number below " + std::to_string(wire::kRegionsMax));
  }
  Placement* placement = placement_of(client, Opcode::RegisterRegion, id, "register_region");
  if (placement == nullptr) return;
  placement->set_region(region);
  answer_whole(client, Opcode::RegisterRegion, id, {Answer::Ok, Reason::None});
}

void register_template(Client& client, uint64_t id, ConstBytes body) {
  std::array<TlvSlot, 1> slots{{{wire::Tlv::PlaceTemplate}}};
  if (!take_tlvs(client, Opcode::RegisterTemplate, id, body, slots)) return;
  wire::TemplateView view;
  if (!slots[0].there || !wire::parse_template(slots[0].value, &view).ok()) {
    return answer_whole(client, Opcode::RegisterTemplate, id, {Answer::Rejected, Reason::Malformed},
                        "register_template: one template, of a number below " + std::to_string(wire::kTemplatesMax) +
                            ", whose parts have a region and pieces");
  }
  Placement* placement = placement_of(client, Opcode::RegisterTemplate, id, "register_template");
  if (placement == nullptr) return;
  if (!placement->set_template(view).ok()) {
    return answer_whole(client, Opcode::RegisterTemplate, id, {Answer::Rejected, Reason::Limit},
                        "register_template: the templates of a connection have at most " +
                            std::to_string(Placement::kPartsMax) + " parts together");
  }
  answer_whole(client, Opcode::RegisterTemplate, id, {Answer::Ok, Reason::None});
}

}  // namespace halfstep::shard
