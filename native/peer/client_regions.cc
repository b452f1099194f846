// client_regions.cc — a client's regions: memory that daemons may write into, which targets lie in it, and how it is let go of.
#include <algorithm>
#include <chrono>
#include <string>

#include "base/check.h"
#include "peer/client.h"
#include "peer/text.h"

namespace halfstep::peer {
namespace {

constexpr std::chrono::milliseconds kLook{50};
constexpr uint64_t kTurnUs = 1'000;

using Regions = std::vector<std::shared_ptr<DirectRegion>>;

std::shared_ptr<DirectRegion> region_of(const Regions& regions, int device, const void* at, uint64_t bytes) {
  const auto found = std::find_if(regions.begin(), regions.end(), [&](const auto& region) {
    return region != nullptr && region->device() == device && !region->closing.load(std::memory_order_relaxed) &&
           region->has(at, bytes);
  });
  return found != regions.end() ? *found : nullptr;
}

uint64_t offset_in(const DirectRegion& region, const void* at) noexcept {
  return static_cast<uint64_t>(static_cast<const std::byte*>(at) - region.memory().data());
}

}  // namespace

Fault Client::open_region(Bytes memory, int device, std::shared_ptr<DirectRegion>* out) {
  if (memory.empty()) return {Code::Invalid, "region of 0 bytes: it needs memory"};
  std::shared_ptr<gpu::Device> gpu;
  if (device >= 0) {
    Fault fault = devices_.open(device, 0, &gpu);
    if (fault.ok()) fault = gpu->check(reinterpret_cast<gpu::DevicePointer>(memory.data()));
    if (!fault.ok()) {
      on_placement_refused(fault.what);
      return fault;
    }
  }
  {
    const std::lock_guard lock(mutex_);
    if (closed_) return {Code::Closed, "closed: this client was closed"};
    auto place = std::find(regions_.begin(), regions_.end(), nullptr);
    if (place == regions_.end() && regions_.size() < wire::kRegionsMax) place = regions_.insert(place, nullptr);
    if (place != regions_.end()) {
      const auto number = static_cast<uint32_t>(place - regions_.begin());
      *place = std::make_shared<DirectRegion>(memory, std::move(gpu), number, region_budget_);
      *out = *place;
      has_regions_.store(true, std::memory_order_release);
      return {};
    }
  }
  const std::string why = "regions: a client has at most " + std::to_string(wire::kRegionsMax) +
                          "; close one, or register what lies together as one";
  on_placement_refused(why);  // who goes on without finds it in the facts
  return {Code::NoSpace, why};
}

void Client::close_region(DirectRegion& region) {
  {
    const std::lock_guard lock(mutex_);
    region.closing.store(true, std::memory_order_relaxed);
    regions_closing_.store(true, std::memory_order_release);
  }
  loop_.wake();
  std::unique_lock lock(mutex_);
  const auto gone = [&] { return over_ || region.number() >= regions_.size() || regions_[region.number()].get() != &region; };
  while (!regions_changed_.wait_for(lock, kLook, gone)) {
    if (!stopping_.load(std::memory_order_acquire)) continue;
    // The process ends: nobody else turns for it.
    lock.unlock();
    {
      const std::lock_guard baton(baton_);
      loop_.turn(kTurnUs);
      after_turn();
    }
    lock.lock();
  }
}

// The client's thread. Nobody finds one that closes: its uses only go down.
void Client::sweep_regions() {
  std::vector<std::shared_ptr<DirectRegion>> over;
  {
    const std::lock_guard lock(mutex_);
    bool closing = false;
    for (const auto& region : regions_) {
      if (region == nullptr || !region->closing.load(std::memory_order_relaxed)) continue;
      closing = closing || region->used();
      if (!region->used()) over.push_back(region);
    }
    if (!closing) regions_closing_.store(false, std::memory_order_release);
  }
  for (const auto& region : over) {
    for (Link& link : links_) {
      for (auto& connection : link.connections) {
        if (connection != nullptr) connection->forget_region(*region);
      }
    }
    for (auto& connection : retired_) connection->forget_region(*region);
    region->release();
  }
  if (over.empty()) return;
  const std::lock_guard lock(mutex_);
  for (const auto& region : over) regions_[region->number()] = nullptr;
  regions_changed_.notify_all();
}

// Also of those in use: no queue pair is left that would reach them through it.
void Client::on_device_gone(const rdma::Device& device) {
  const std::lock_guard lock(mutex_);
  for (const auto& region : regions_) {
    if (region != nullptr) region->let_go(device);
  }
}

// No connection is left, and no ticket.
void Client::drop_regions() {
  const std::lock_guard lock(mutex_);
  for (auto& region : regions_) {
    if (region != nullptr) region->release();
    region = nullptr;
  }
  regions_changed_.notify_all();
}

// The submitter's thread.
void Client::place(Section& section, Ticket& ticket) {
  if (!has_regions_.load(std::memory_order_acquire)) return;
  const std::lock_guard lock(mutex_);
  // Nearly always the one that had the piece before: the client's thread waits for this lock.
  std::shared_ptr<DirectRegion> last;
  const auto find = [&](const void* at, uint64_t bytes) -> const std::shared_ptr<DirectRegion>& {
    if (last == nullptr || !last->has(at, bytes)) last = region_of(regions_, section.device, at, bytes);
    return last;
  };
  const auto use = [&](const std::shared_ptr<DirectRegion>& region) {
    const bool known = std::any_of(ticket.regions.begin(), ticket.regions.end(),
                                   [&](const RegionUse& other) { return &*other == region.get(); });
    if (!known) ticket.regions.emplace_back(region);
    return region->number();
  };
  const auto none = [&] {
    section.places.clear();
    section.place_parts.clear();
  };
  if (!section.target.by_rows()) {
    for (const Target::Piece& piece : section.target.pieces()) {
      if (piece.bytes > UINT32_MAX) return none();
      const auto& region = find(piece.base, piece.bytes);
      if (region == nullptr) return none();
      section.places.push_back(
          {.offset = offset_in(*region, piece.base), .region = use(region), .bytes = static_cast<uint32_t>(piece.bytes)});
    }
    return;
  }
  const std::span<const hs_part_descriptor> parts = section.target.parts();
  for (uint32_t p = 0; p < parts.size(); ++p) {
    // What nobody asks for lies nowhere in particular: in the first byte of the first region.
    if (section.selection.ordinal(p) == Selection::kNone) {
      section.place_parts.push_back({.inner_count = 1, .inner_bytes = 1, .region = UINT32_MAX});
      continue;
    }
    const auto& region = find(parts[p].base, parts[p].base_bytes);
    if (region == nullptr) return none();
    section.place_parts.push_back({.offset = offset_in(*region, parts[p].base) + parts[p].offset,
                                   .row_stride = parts[p].row_stride,
                                   .inner_stride = parts[p].inner_stride,
                                   .inner_count = parts[p].inner_count,
                                   .inner_bytes = parts[p].inner_bytes,
                                   .region = use(region)});
  }
  const auto first = std::find_if(section.place_parts.begin(), section.place_parts.end(),
                                  [](const wire::PlacePart& part) { return part.region != UINT32_MAX; });
  if (first == section.place_parts.end()) return none();
  for (wire::PlacePart& part : section.place_parts) {
    if (part.region == UINT32_MAX) part.region = first->region;
  }
}

void Client::on_placement_over(Ticket& ticket) {
  HALFSTEP_CHECK(ticket.placements > 0, ticket.placements);
  --ticket.placements;
  if (ticket.state == Ticket::State::Fencing || ticket.state == Ticket::State::Copying) finish_if_fenced(ticket);
}

void Client::finish_if_fenced(Ticket& ticket) {
  if (ticket.payload_references == 0 && ticket.copies == 0 && ticket.placements == 0) finish(ticket);
}

void Client::on_placement_refused(const std::string& what) {
  const std::lock_guard lock(state_mutex_);
  copy_text(facts_.placement, sizeof(facts_.placement), what);
}

}  // namespace halfstep::peer
