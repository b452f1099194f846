// connection_placement.cc — gets whose bytes the daemon writes into the caller's own memory, and puts whose bytes it reads from
// there: which regions and templates this connection's daemon knows, what a request says of its places, and what a Placed
// tells. Where the device has memory windows and the daemon knows what they are, a request brings keys of its own, which go
// with it, and no region of the host's is told. Invariants: a region is told before the request that names it, and forgotten
// when none does; from the sending of such a request to its Final and the closing of its windows, or to the end of the queue
// pair, its ticket is not finished. Whatever a daemon writes, where, and when, only what verifies in its place becomes ok, or,
// on a GPU, what the daemon says that it has verified, and then the answer says so.
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
constexpr uint64_t kTlvBytes = 16;  // around a section's places: its head, and what rounds it up

bool same(const std::vector<wire::PlacePart>& one, const std::vector<wire::PlacePart>& other) noexcept {
  return one.size() == other.size() && std::memcmp(one.data(), other.data(), one.size() * sizeof(wire::PlacePart)) == 0;
}

}  // namespace

// What cannot be placed travels as ever.
void Connection::prepare_places(Request& request) {
  request.placed_by.clear();
  const bool known = request.opcode == Opcode::Get ? (hello_.features & wire::kFeaturePlace) != 0 : places_.reads != 0;
  const bool may = stream_->rdma() && known && !places_.refused;
  if (!may || request.ticket->regions.empty()) return;
  request.placed_by.assign(request.slices.size(), Request::kUnplaced);
  uint32_t pieces = 0;
  uint64_t bytes = 0;
  const uint64_t bytes_max = request.opcode == Opcode::Put ? kPutPlacesBytesMax : UINT64_MAX;
  bool any = false;
  for (uint16_t s = 0; s < request.slices.size(); ++s) {
    const Section& section = request.section(s);
    const uint64_t items = request.items_of(s);
    if ((section.places.empty() && section.place_parts.empty()) || !tell_regions(section, request)) continue;
    if (section.target.by_rows()) {
      const uint64_t more = sizeof(wire::PlaceRowsHead) + items * sizeof(int64_t) + kTlvBytes;
      if (more > bytes_max - bytes) continue;
      bytes += more;
      any = tell_template(section.place_parts, &request.placed_by[s]) || any;
      continue;
    }
    uint32_t more = 0;
    for (uint32_t i = 0; i < items; ++i) {
      const auto [first, end] = section.target.pieces_of(request.item_of(s, i));
      more += end - first;
    }
    const uint64_t more_bytes =
        sizeof(wire::PlacesHead) + more * sizeof(wire::PlacePiece) + items * sizeof(uint32_t) + kTlvBytes;
    if (more > wire::kPiecesMax - pieces || more_bytes > bytes_max - bytes) continue;
    pieces += more;
    bytes += more_bytes;
    request.placed_by[s] = Request::kByPieces;
    any = true;
  }
  // A template may have had to go for another one of the same request.
  for (uint16_t s = 0; s < request.slices.size(); ++s) {
    uint8_t& by = request.placed_by[s];
    if (by < Request::kByPieces && !same(places_.templates[by], request.section(s).place_parts)) by = Request::kUnplaced;
  }
  if (!any) {
    request.placed_by.clear();
    if (request.windows.empty()) return;
  }
  stream_->accept_places();
  request.placing = request.ticket;
  std::sort(request.windows.begin(), request.windows.end(),
            [](const Request::Window& one, const Request::Window& other) { return one.region.number < other.region.number; });
  request.ticket->placements += std::max<uint32_t>(1, static_cast<uint32_t>(request.windows.size()));
}

bool Connection::tell_regions(const Section& section, Request& request) {
  std::array<bool, wire::kRegionsMax> named{};
  for (const wire::PlacePiece& piece : section.places) named[piece.region] = true;
  for (const wire::PlacePart& part : section.place_parts) named[part.region] = true;
  const bool windows = places_.device->has_windows() && (hello_.features & wire::kFeaturePlaceKeys) != 0;
  const std::vector<RegionUse>& regions = request.ticket->regions;
  return std::all_of(regions.begin(), regions.end(), [&](const RegionUse& use) {
    // The kernel binds no window to a GPU's memory.
    return !named[use->number()] || (windows && use->device() < 0 ? open_window(*use, request) : tell_region(*use));
  });
}

// False: it cannot be had, now or ever.
bool Connection::open_window(DirectRegion& region, Request& request) {
  const auto has = [&](const Request::Window& window) { return window.region.number == region.number(); };
  if (std::any_of(request.windows.begin(), request.windows.end(), has)) return true;
  const rdma::MemoryRegion* whole = nullptr;
  net::RemoteWindow window;
  Fault fault = region.for_windows(places_.device, &whole);
  const int access = request.opcode == Opcode::Get ? rdma::abi::kAccessRemoteWrite : rdma::abi::kAccessRemoteRead;
  if (fault.ok()) fault = stream_->open_window(*whole, region.memory(), access, &window);
  if (!fault.ok()) {
    client_.on_placement_refused(fault.what);
    return false;
  }
  client_.count_placing_key();
  request.windows.push_back({window.number,
                             {.number = region.number(),
                              .key = window.key,
                              .address = reinterpret_cast<uint64_t>(region.memory().data()),
                              .bytes = region.memory().size()}});
  return true;
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
  client_.on_placement_refused(called() + ": refused: " + notes.reason);
  return {};
}

Status Connection::on_placed(Request& request, ConstBytes body) {
  if (request.opcode != Opcode::Get) return Code::Invalid;
  if (request.ticket == nullptr) return {};  // it is over, and waits for the Final
  if (request.placing == nullptr) return Code::Invalid;
  if (Status s = lander_.take_placed(request, body, hello_.block_bytes_max, settle_gpu(*request.ticket)); !s.ok()) return s;
  client_.tell_progress(*request.ticket);
  return {};
}

// Once for all that has come by now; of one batch all is on one.
bool Connection::settle_gpu(const Ticket& ticket) {
  const auto on_gpu =
      std::find_if(ticket.regions.begin(), ticket.regions.end(), [](const RegionUse& use) { return use->opened(); });
  if (on_gpu == ticket.regions.end()) return true;
  const Fault fault = (*on_gpu)->settle();
  if (!fault.ok()) client_.devices().tell(fault.what);
  return fault.ok();
}

// Nothing is written for it any more: its Final has come, behind all that was, or the queue pair is gone. Its keys go with it.
void Connection::end_placing(Request& request) {
  if (request.placing == nullptr) return;
  Ticket& ticket = *std::exchange(request.placing, nullptr);
  (void)settle_gpu(ticket);  // what came of it and was told to nobody, too
  if (request.windows.empty()) return placing_over(ticket);
  if (stream_ == nullptr) {
    for (size_t i = request.windows.size(); i != 0; --i) placing_over(ticket);
    return request.windows.clear();
  }
  unfence(ticket);
  for (const Request::Window& window : request.windows) {
    if (places_.closing.size() <= window.number) places_.closing.resize(window.number + 1);
    places_.closing[window.number] = &ticket;
    ticket.fence.push_back(this);
    stream_->close_window(window.number);
  }
  request.windows.clear();
}

// One of those that it waits for.
void Connection::unfence(Ticket& ticket) {
  const auto fenced = std::find(ticket.fence.begin(), ticket.fence.end(), this);
  if (fenced != ticket.fence.end()) ticket.fence.erase(fenced);
}

void Connection::placing_over(Ticket& ticket) {
  unfence(ticket);
  ticket.host.on_placement_over(ticket);
}

void Connection::on_window_closed(uint32_t number) {
  if (number >= places_.closing.size() || places_.closing[number] == nullptr) return;
  placing_over(*std::exchange(places_.closing[number], nullptr));
}

// The stream is gone, and its windows are.
void Connection::forget_places() {
  const std::vector<Ticket*> closing = std::move(places_.closing);
  places_ = {};
  for (Ticket* ticket : closing) {
    if (ticket != nullptr) placing_over(*ticket);
  }
}

}  // namespace halfstep::peer
