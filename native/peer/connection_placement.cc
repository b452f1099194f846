// connection_placement.cc — gets whose bytes the daemon writes into the caller's own memory: which regions and templates this
// connection's daemon knows, what a request says of its places, and what a Placed tells.
// Invariants: a region is told before the request that names it, and forgotten when none does; from the sending of such a
// request to its Final, or to the end of the queue pair, its ticket is not finished. Whatever a daemon writes, where, and when,
// only what verifies in its place becomes ok.
#include <algorithm>
#include <cstring>
#include <utility>

#include "peer/connection.h"
#include "peer/connection_host.h"

namespace halfstep::peer {
namespace {

using wire::Answer;
using wire::Opcode;

// As many parts as a daemon keeps of a connection (docs/wire-protocol.md, section 16).
constexpr size_t kPartsMax = 8192;

bool same(const std::vector<wire::PlacePart>& one, const std::vector<wire::PlacePart>& other) noexcept {
  return one.size() == other.size() && std::memcmp(one.data(), other.data(), one.size() * sizeof(wire::PlacePart)) == 0;
}

}  // namespace

// What cannot be placed travels as ever.
void Connection::prepare_places(Request& request) {
  request.placed_by.clear();
  const bool may = stream_->rdma() && (hello_.features & wire::kFeaturePlace) != 0 && !places_.refused;
  if (!may || request.ticket->regions.empty()) return;
  request.placed_by.assign(request.slices.size(), Request::kUnplaced);
  uint32_t pieces = 0;
  bool any = false;
  for (uint16_t s = 0; s < request.slices.size(); ++s) {
    const Section& section = request.section(s);
    if ((section.places.empty() && section.place_parts.empty()) || !tell_regions(section, *request.ticket)) continue;
    if (section.target.by_rows()) {
      any = tell_template(section.place_parts, &request.placed_by[s]) || any;
      continue;
    }
    uint32_t more = 0;
    for (uint32_t i = 0; i < request.items_of(s); ++i) {
      const auto [first, end] = section.target.pieces_of(request.item_of(s, i));
      more += end - first;
    }
    if (more > wire::kPiecesMax - pieces) continue;
    pieces += more;
    request.placed_by[s] = Request::kByPieces;
    any = true;
  }
  // A template may have had to go for another one of the same request.
  for (uint16_t s = 0; s < request.slices.size(); ++s) {
    uint8_t& by = request.placed_by[s];
    if (by < Request::kByPieces && !same(places_.templates[by], request.section(s).place_parts)) by = Request::kUnplaced;
  }
  if (!any) return request.placed_by.clear();
  stream_->accept_places();
  request.placing = request.ticket;
  ++request.ticket->placements;
}

bool Connection::tell_regions(const Section& section, const Ticket& ticket) {
  std::array<bool, wire::kRegionsMax> named{};
  for (const wire::PlacePiece& piece : section.places) named[piece.region] = true;
  for (const wire::PlacePart& part : section.place_parts) named[part.region] = true;
  return std::all_of(ticket.regions.begin(), ticket.regions.end(),
                     [&](const RegionUse& use) { return !named[use->number()] || tell_region(*use); });
}

// False: it cannot be had by this daemon's device.
bool Connection::tell_region(DirectRegion& region) {
  const DirectRegion*& told = places_.regions[region.number()];
  if (told == &region) return true;
  uint32_t key = 0;
  if (const Fault fault = region.key(places_.device, &key); !fault.ok()) {
    client_.on_placement_refused(fault.what);
    return false;
  }
  frame_.clear();
  wire::FrameWriter frame(frame_);
  frame.begin(Opcode::RegisterRegion, kPlacing | (++serial_ & ~kKind));
  frame.tlv(wire::Tlv::RdmaRegion, wire::RegionRecord{.number = region.number(),
                                                      .key = key,
                                                      .address = reinterpret_cast<uint64_t>(region.memory().data()),
                                                      .bytes = region.memory().size()});
  frame.finish();
  stream_->send(frame_);
  told = &region;
  return true;
}

void Connection::forget_region(const DirectRegion& region) {
  const DirectRegion*& told = places_.regions[region.number()];
  if (told != &region) return;
  told = nullptr;
  frame_.clear();
  wire::FrameWriter frame(frame_);
  frame.begin(Opcode::RegisterRegion, kPlacing | (++serial_ & ~kKind));
  frame.tlv(wire::Tlv::RdmaRegion, wire::RegionRecord{.number = region.number()});
  frame.finish();
  stream_->send(frame_);
}

// The daemon keeps what a request has named for as long as that lasts: a template may be another one's place at any time.
bool Connection::tell_template(const std::vector<wire::PlacePart>& parts, uint8_t* number) {
  const auto known =
      std::find_if(places_.templates.begin(), places_.templates.end(), [&](const auto& other) { return same(other, parts); });
  if (known != places_.templates.end()) {
    *number = static_cast<uint8_t>(known - places_.templates.begin());
    return true;
  }
  if (parts.size() > kPartsMax) return false;
  uint32_t at = 0;
  do {
    at = places_.next_template++ % wire::kTemplatesMax;
    places_.parts -= places_.templates[at].size();
    const bool was = !std::exchange(places_.templates[at], {}).empty();
    if (was && places_.parts + parts.size() > kPartsMax) send_template(at);
  } while (places_.parts + parts.size() > kPartsMax);
  places_.templates[at] = parts;
  places_.parts += parts.size();
  send_template(at);
  *number = static_cast<uint8_t>(at);
  return true;
}

void Connection::send_template(uint32_t number) {
  const std::vector<wire::PlacePart>& parts = places_.templates[number];
  frame_.clear();
  wire::FrameWriter frame(frame_);
  frame.begin(Opcode::RegisterTemplate, kPlacing | (++serial_ & ~kKind));
  frame.open_tlv(wire::Tlv::PlaceTemplate);
  frame.value().put(wire::TemplateHead{.number = number, .part_count = static_cast<uint32_t>(parts.size())});
  frame.value().put_all(std::span<const wire::PlacePart>(parts));
  frame.close_tlv();
  frame.finish();
  stream_->send(frame_);
}

// A daemon that takes no region, or has no room: what follows goes without.
Status Connection::on_placing_answered(ConstBytes body) {
  FinalNotes notes;
  if (Status s = take_notes(body, &notes); !s.ok()) return s;
  if (notes.whole.answer == Answer::Ok || notes.whole.answer == Answer::Pending) return {};
  places_.refused = true;
  client_.on_placement_refused(address_.text() + ": refused: " + notes.reason);
  return {};
}

Status Connection::on_placed(Request& request, ConstBytes body) {
  if (request.placing == nullptr) return Code::Invalid;
  if (request.ticket == nullptr) return {};  // it is over, and waits for the Final
  if (Status s = lander_.take_placed(request, body, hello_.block_bytes_max); !s.ok()) return s;
  client_.tell_progress(*request.ticket);
  return {};
}

// Nothing is written for it any more: its Final has come, behind all that was, or the queue pair is gone.
void Connection::end_placing(Request& request) {
  if (request.placing == nullptr) return;
  Ticket& ticket = *std::exchange(request.placing, nullptr);
  const auto fenced = std::find(ticket.fence.begin(), ticket.fence.end(), this);
  if (fenced != ticket.fence.end()) ticket.fence.erase(fenced);
  ticket.host.on_placement_over(ticket);
}

void Connection::forget_places() noexcept { places_ = {}; }

}  // namespace halfstep::peer
