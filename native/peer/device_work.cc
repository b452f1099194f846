#include "peer/device_work.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "peer/text.h"

namespace halfstep::peer {
namespace {

// How soon it is looked at again what is under way: a slot is copied in some 10 us.
constexpr uint64_t kPollUs = 50;
// Copies of a put that are submitted before others have their turn: some 2 us each.
constexpr size_t kRangesPerTurn = 256;
constexpr size_t kIdleCopiesMax = 64;

}  // namespace

DeviceWork::DeviceWork(net::Loop& loop, DeviceHost& host, Find find, gpu::StagingLimits limits)
    : loop_(loop), host_(host), find_(std::move(find)), timer_(&DeviceWork::on_timer, this), staging_(limits) {}

DeviceWork::~DeviceWork() { HALFSTEP_CHECK(gated_.empty() && wanting_.empty() && staging_now_.empty()); }

// ---- Any thread ----------------------------------------------------------------------------------------------------------

Fault DeviceWork::open(int ordinal, uint64_t put_bytes, std::shared_ptr<gpu::Device>* out) {
  const std::lock_guard lock(mutex_);
  auto at = devices_.find(ordinal);
  if (at == devices_.end()) {
    std::string why;
    gpu::Cuda* cuda = find_(&why);
    if (cuda == nullptr) return {Code::Unsupported, "cuda:" + std::to_string(ordinal) + " cannot be reached: " + why};
    OpenDevice opened;
    if (Fault fault = gpu::Device::open(*cuda, ordinal, &opened.device); !fault.ok()) return fault;
    if (Fault fault = gpu::Copier::open(opened.device, &opened.copier); !fault.ok()) return fault;
    at = devices_.emplace(ordinal, std::move(opened)).first;
  }
  const std::shared_ptr<gpu::Device>& device = at->second.device;
  if (Fault fault = staging_.grow(device, gpu::Use::Get, staging_.limit(gpu::Use::Get)); !fault.ok()) return fault;
  const auto slots = static_cast<uint32_t>((put_bytes + gpu::Staging::kSlotBytes - 1) / gpu::Staging::kSlotBytes);
  if (Fault fault = staging_.grow(device, gpu::Use::Put, slots); !fault.ok()) return fault;
  *out = device;
  return {};
}

void DeviceWork::get_facts(hs_client_facts* out) {
  const std::lock_guard lock(mutex_);
  std::string names;
  for (const auto& [ordinal, open] : devices_) names += (names.empty() ? "" : ", ") + open.device->name();
  copy_text(out->gpu, sizeof(out->gpu), names);
  copy_text(out->gpu_error, sizeof(out->gpu_error), error_);
  out->gpu_slots = staging_.slots();
  out->gpu_slots_used = staging_.used();
  out->gpu_slot_waits = waits_;
  out->gpu_copies = copies_;
  out->gpu_bytes_to_device = bytes_to_device_;
  out->gpu_bytes_to_host = bytes_to_host_;
  out->gpu_failures = failures_;
}

// ---- The client's thread -------------------------------------------------------------------------------------------------

gpu::Copier& DeviceWork::copier_of(int ordinal) {
  const std::lock_guard lock(mutex_);
  return *devices_.at(ordinal).copier;  // opened by whoever submitted, and never closed
}

void DeviceWork::arm() {
  if (!timer_.armed()) loop_.arm(timer_, loop_.now_us() + kPollUs);
}

void DeviceWork::on_timer(void* self) { static_cast<DeviceWork*>(self)->poll(); }

void DeviceWork::poll() {
  poll_gates();
  std::vector<gpu::Copier*> copiers;
  {
    const std::lock_guard lock(mutex_);
    for (const auto& [ordinal, open] : devices_) copiers.push_back(open.copier.get());
  }
  for (gpu::Copier* copier : copiers) copier->poll();
  begin_staging();
  if (!waiters_.empty()) tell_slots();  // slots that came back without a copy
  count_copies();
  const bool busy = std::any_of(copiers.begin(), copiers.end(), [](const gpu::Copier* copier) { return copier->busy(); });
  if (busy || !gated_.empty() || !staging_now_.empty()) arm();
}

// Before anybody hears of an answer: who then looks at the numbers finds what it was of.
void DeviceWork::count_copies() {
  const std::lock_guard lock(mutex_);
  copies_ = bytes_to_device_ = bytes_to_host_ = failures_ = 0;
  for (auto& [ordinal, open] : devices_) {
    const gpu::Copier& copier = *open.copier;
    copies_ += copier.copies();
    bytes_to_device_ += copier.bytes(gpu::Direction::ToDevice);
    bytes_to_host_ += copier.bytes(gpu::Direction::ToHost);
    failures_ += copier.failures();
    if (copier.failures() != std::exchange(open.failures, copier.failures()) || open.told != copier.last_error()) {
      error_ = open.told = copier.last_error();
    }
  }
}

void DeviceWork::tell(const std::string& error) {
  const std::lock_guard lock(mutex_);
  error_ = error;
}

void DeviceWork::wait_for_gates(Ticket& ticket) {
  gated_.push_back(&ticket);
  poll_gates();  // most are open by now
  if (!gated_.empty()) arm();
}

void DeviceWork::poll_gates() {
  const std::vector<Ticket*> waiting = std::exchange(gated_, {});
  for (Ticket* ticket : waiting) {
    bool failed = false;
    std::erase_if(ticket->gates, [&](const std::unique_ptr<gpu::Gate>& gate) {
      const gpu::Gate::State state = gate->state();
      failed = failed || state == gpu::Gate::State::Failed;
      return state == gpu::Gate::State::Open;
    });
    if (failed) {
      ticket->gates.clear();
      const std::lock_guard lock(mutex_);
      error_ = "what a stream had under way before a batch has failed";
    }
    if (ticket->gates.empty()) {
      host_.on_gates(*ticket, !failed);
    } else {
      gated_.push_back(ticket);
    }
  }
}

void DeviceWork::stage(Ticket& ticket) {
  wanting_.push_back(&ticket);
  begin_staging();
  arm();
}

void DeviceWork::begin_staging() {
  while (!wanting_.empty()) {
    Ticket& ticket = *wanting_.front();
    const auto slots =
        static_cast<uint32_t>((ticket.staging.bytes_all + gpu::Staging::kSlotBytes - 1) / gpu::Staging::kSlotBytes);
    if (!staging_.take_all(gpu::Use::Put, slots, &ticket.staging.slots)) {
      if (!std::exchange(ticket.staging.waited, true)) {
        const std::lock_guard lock(mutex_);
        ++waits_;
      }
      break;
    }
    wanting_.pop_front();
    staging_now_.push_back(&ticket);
  }
  std::vector<Ticket*> over;
  std::erase_if(staging_now_, [&](Ticket* ticket) {
    if (!stage_more(*ticket)) return false;
    if (ticket->copies == 0) over.push_back(ticket);
    return true;
  });
  for (Ticket* ticket : over) host_.on_staged(*ticket, !ticket->staging.failed);
}

// Submits some of its copies. True: that were all.
bool DeviceWork::stage_more(Ticket& ticket) {
  Ticket::Staging& at = ticket.staging;
  std::vector<gpu::Range> ranges;
  int device = -1;
  while (at.section < ticket.section_count && ranges.size() < kRangesPerTurn) {
    Section& section = ticket.sections[at.section];
    if (section.device < 0 || at.item == section.item_count) {
      if (section.device >= 0) section.target.set_staged(section.offers, at.slots, gpu::Staging::kSlotBytes, at.section_at);
      ++at.section;
      at.item = 0;
      at.section_at = at.bytes;
      continue;
    }
    device = section.device;
    const uint32_t block_bytes = section.offers[at.item].block_bytes;
    const uint32_t parts = section.shape.parts_of(block_bytes);
    for (uint32_t p = 0; p < parts; ++p) {
      const uint32_t part_bytes = section.shape.bytes_of(p, block_bytes);
      section.target.for_range(at.item, p, section.shape.offset_of(p), 0, part_bytes, [&](Bytes piece) {
        while (!piece.empty()) {
          const size_t within = at.bytes % gpu::Staging::kSlotBytes;
          const size_t step = std::min(piece.size(), gpu::Staging::kSlotBytes - within);
          std::byte* const slot = at.slots[at.bytes / gpu::Staging::kSlotBytes];
          ranges.push_back({slot + within, reinterpret_cast<gpu::DevicePointer>(piece.data()), step});
          piece = piece.subspan(step);
          at.bytes += step;
        }
      });
    }
    ++at.item;
  }
  if (!ranges.empty()) {
    ++ticket.copies;
    copier_of(device).submit(gpu::Direction::ToHost, ranges, &DeviceWork::on_staged_copy, new StagedCopy{this, &ticket});
  }
  return at.section == ticket.section_count;
}

void DeviceWork::on_staged_copy(void* staged, Status status) {
  const std::unique_ptr<StagedCopy> owned(static_cast<StagedCopy*>(staged));
  DeviceWork& self = *owned->self;
  Ticket& ticket = *owned->ticket;
  if (!status.ok()) ticket.staging.failed = true;
  HALFSTEP_CHECK(ticket.copies > 0, ticket.copies);
  --ticket.copies;
  self.count_copies();
  const bool over = ticket.staging.section == ticket.section_count && ticket.copies == 0;
  if (ticket.end.answer != wire::Answer::Pending) return self.host_.on_copied(ticket);
  if (over) self.host_.on_staged(ticket, !ticket.staging.failed);
}

void DeviceWork::forget(Ticket& ticket) {
  std::erase(gated_, &ticket);
  std::erase(wanting_, &ticket);
  std::erase(staging_now_, &ticket);
  ticket.gates.clear();
}

void DeviceWork::take_back(Ticket& ticket) {
  if (ticket.staging.slots.empty()) return;
  for (std::byte* slot : ticket.staging.slots) staging_.give_back(gpu::Use::Put, slot);
  ticket.staging.slots.clear();
  if (!wanting_.empty()) arm();  // not from here: whoever ends a ticket is in the midst of its own work
}

// ---- Slots of gets -------------------------------------------------------------------------------------------------------

void DeviceWork::give_back_slot(std::byte* slot) {
  staging_.give_back(gpu::Use::Get, slot);
  if (!waiters_.empty()) arm();
}

void DeviceWork::wait_for_slot(SlotWaiter& waiter) {
  waiters_.push_back(&waiter);
  const std::lock_guard lock(mutex_);
  ++waits_;
}

void DeviceWork::forget(SlotWaiter& waiter) { std::erase(waiters_, &waiter); }

// In turn: who still has too few goes behind the others.
void DeviceWork::tell_slots() {
  const std::vector<SlotWaiter*> told = waiters_;
  for (SlotWaiter* waiter : told) {
    if (std::erase(waiters_, waiter) > 0) waiter->on_slot();
  }
}

std::unique_ptr<DeviceCopy> DeviceWork::make_copy() {
  if (idle_.empty()) return std::make_unique<DeviceCopy>();
  std::unique_ptr<DeviceCopy> copy = std::move(idle_.back());
  idle_.pop_back();
  return copy;
}

void DeviceWork::copy(std::unique_ptr<DeviceCopy> what) {
  ++what->ticket->copies;
  gpu::Copier& copier = copier_of(what->ticket->device);
  auto* const landing = new Landing{this, std::move(what)};
  copier.submit(gpu::Direction::ToDevice, landing->what->ranges, &DeviceWork::on_landed, landing);
  arm();
}

void DeviceWork::on_landed(void* of, Status status) {
  const std::unique_ptr<Landing> landing(static_cast<Landing*>(of));
  DeviceWork& self = *landing->self;
  std::unique_ptr<DeviceCopy> copy = std::move(landing->what);
  Ticket& ticket = *copy->ticket;
  HALFSTEP_CHECK(ticket.copies > 0, ticket.copies);
  --ticket.copies;
  self.count_copies();
  // Of one that has ended nobody wants to know more than that nothing is under way.
  if (ticket.end.answer == wire::Answer::Pending) {
    for (const DeviceCopy::Entry& entry : copy->entries) {
      if (!status.ok())
        ticket.fail_part(*entry.section, entry.item, entry.part, {wire::Answer::Unavailable, wire::Reason::Copy});
      if (entry.ends) ticket.part_copied(*entry.section, entry.item, entry.part);
    }
  }
  self.staging_.give_back(gpu::Use::Get, std::exchange(copy->slot, nullptr));
  copy->entries.clear();
  copy->ranges.clear();
  if (self.idle_.size() < kIdleCopiesMax) self.idle_.push_back(std::move(copy));
  self.host_.on_copied(ticket);
  self.tell_slots();
}

}  // namespace halfstep::peer
