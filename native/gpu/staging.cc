#include "gpu/staging.h"

#include <algorithm>

#include "base/check.h"

namespace halfstep::gpu {

Staging::~Staging() {
  for (const Account& account : accounts_) {
    HALFSTEP_CHECK(account.free.size() == account.slots, account.free.size(), account.slots);
  }
  for (const Slab& slab : slabs_) {
    const Entered entered(slab.device->cuda(), slab.device->context());
    (void)slab.device->cuda().mem_free_host(slab.memory);
  }
}

Fault Staging::grow(const std::shared_ptr<Device>& device, Use use, uint32_t slots) {
  const std::lock_guard lock(mutex_);
  Account& account = accounts_[static_cast<size_t>(use)];
  slots = std::min(slots, limit(use));
  while (account.slots < slots) {
    const uint32_t more = std::min(kSlabSlots, limit(use) - account.slots);
    const Entered entered(device->cuda(), device->context());
    if (entered.error() != kSuccess) return {Code::IoError, device->text_of("cuCtxPushCurrent", entered.error())};
    account.free.reserve(account.slots + size_t{more});
    slabs_.reserve(slabs_.size() + 1);
    void* memory = nullptr;
    if (const int error = device->cuda().mem_host_alloc(&memory, more * kSlotBytes, kHostAllocPortable); error != kSuccess) {
      return {Code::NoSpace,
              "pinned memory for " + std::to_string(more) + " slots of 256 KiB: " + device->text_of("cuMemHostAlloc", error)};
    }
    slabs_.push_back({device, memory});
    for (uint32_t i = 0; i < more; ++i) account.free.push_back(static_cast<std::byte*>(memory) + i * kSlotBytes);
    account.slots += more;
  }
  return {};
}

std::byte* Staging::take(Use use) {
  const std::lock_guard lock(mutex_);
  Account& account = accounts_[static_cast<size_t>(use)];
  if (account.free.empty()) return nullptr;
  std::byte* const slot = account.free.back();
  account.free.pop_back();
  return slot;
}

bool Staging::take_all(Use use, uint32_t slots, std::vector<std::byte*>* out) {
  const std::lock_guard lock(mutex_);
  Account& account = accounts_[static_cast<size_t>(use)];
  if (account.free.size() < slots) return false;
  out->insert(out->end(), account.free.end() - slots, account.free.end());
  account.free.resize(account.free.size() - slots);
  return true;
}

void Staging::give_back(Use use, std::byte* slot) noexcept {
  const std::lock_guard lock(mutex_);
  Account& account = accounts_[static_cast<size_t>(use)];
  HALFSTEP_CHECK(account.free.size() < account.slots, account.free.size(), account.slots);
  account.free.push_back(slot);  // there is room: grow() reserved it
}

uint32_t Staging::slots() const {
  const std::lock_guard lock(mutex_);
  return accounts_[0].slots + accounts_[1].slots;
}

uint32_t Staging::used() const {
  const std::lock_guard lock(mutex_);
  uint32_t used = 0;
  for (const Account& account : accounts_) used += account.slots - static_cast<uint32_t>(account.free.size());
  return used;
}

}  // namespace halfstep::gpu
