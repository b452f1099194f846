#include "store/memory.h"

#include <cassert>

namespace halfstep::store {

Memory::Memory(SlotPool& slots, uint64_t reserved_bytes, double write_share)
    : slots_(slots),
      capacity_bytes_(slots.capacity_bytes() - reserved_bytes),
      write_bytes_max_(static_cast<uint64_t>(static_cast<double>(capacity_bytes_) * write_share)) {}

Extent* Memory::find(const IndexKey& key) const noexcept {
  const uint64_t value = table_.find(hash_of(key));
  return value == index::Table::kNone ? nullptr : reinterpret_cast<Extent*>(static_cast<uintptr_t>(value));
}

Slot Memory::take(uint64_t bytes) noexcept {
  Slot slot = slots_.take(bytes);
  while (slot.empty() && oldest_ != nullptr) {
    Extent& victim = *oldest_;
    unlist(victim);
    settle(victim);
    slot = slots_.take(bytes);
  }
  return slot;
}

Extent* Memory::make(const IndexKey& key, uint64_t bytes, ExtentState state) noexcept {
  Slot slot = take(bytes);
  if (slot.empty()) return nullptr;
  if (unused_.empty()) unused_.push_back(&extents_.emplace_back());
  Extent& extent = *unused_.back();
  unused_.pop_back();
  extent.slot_memory() = std::move(slot);
  extent.key = key;
  extent.pins = 0;
  extent.write = nullptr;
  extent.attempts = 0;
  extent.in_frame = false;
  extent.touched = false;
  extent.location = {};
  extent.waiters = nullptr;
  extent.error = 0;
  resident_bytes_ += extent.slot().held_bytes();
  set_state(extent, state);
  return &extent;
}

void Memory::list(Extent& extent) {
  assert(find(extent.key) == nullptr);
  table_.put(hash_of(extent.key), reinterpret_cast<uintptr_t>(&extent));
  extent.listed = true;
}

void Memory::unlist(Extent& extent) noexcept {
  if (!extent.listed) return;
  if (evictable(extent)) unlink(extent);
  table_.erase(hash_of(extent.key));
  extent.listed = false;
}

void Memory::unlink(Extent& extent) noexcept {
  (extent.newer != nullptr ? extent.newer->older : newest_) = extent.older;
  (extent.older != nullptr ? extent.older->newer : oldest_) = extent.newer;
  evictable_bytes_ -= extent.slot().held_bytes();
}

void Memory::pin(Extent& extent) noexcept {
  if (evictable(extent)) unlink(extent);
  ++extent.pins;
}

void Memory::unpin(Extent& extent) noexcept {
  assert(extent.pins > 0);
  --extent.pins;
  settle(extent);
}

void Memory::set_state(Extent& extent, ExtentState state) noexcept {
  const bool was_dirty = extent.dirty();
  extent.state = state;
  if (was_dirty == extent.dirty()) return;
  if (was_dirty) {
    dirty_bytes_ -= extent.slot().held_bytes();
    relieved_ = true;
  } else {
    dirty_bytes_ += extent.slot().held_bytes();
  }
}

void Memory::touch(Extent& extent) noexcept {
  if (!evictable(extent)) return;
  unlink(extent);
  settle(extent);
}

// Called exactly when the extent came out of use: it is in no list of evictable ones here.
void Memory::settle(Extent& extent) noexcept {
  if (extent.pins > 0 || extent.state != ExtentState::Clean) return;
  relieved_ = true;
  if (!extent.listed) return free(extent);
  extent.older = newest_;
  extent.newer = nullptr;
  (newest_ != nullptr ? newest_->newer : oldest_) = &extent;
  newest_ = &extent;
  evictable_bytes_ += extent.slot().held_bytes();
}

void Memory::free(Extent& extent) noexcept {
  assert(!extent.listed && extent.pins == 0);
  resident_bytes_ -= extent.slot().held_bytes();
  extent.slot_memory() = Slot();
  extent.state = ExtentState::Unused;
  unused_.push_back(&extent);
}

}  // namespace halfstep::store
