#include "store/memory/memory.h"

#include "base/check.h"
#include "store/format/mutant.h"

namespace halfstep::store {

Memory::Memory(SlotPool& slots, uint64_t reserved_bytes, double write_share)
    : slots_(slots),
      capacity_bytes_(slots.free_bytes() - reserved_bytes),
      write_bytes_max_(static_cast<uint64_t>(static_cast<double>(capacity_bytes_) * write_share)),
      hot_(capacity_bytes_ / kPageBytes) {}

Extent* Memory::find(const IndexKey& key) const noexcept {
  const uint64_t value = table_.find(hash_of(key));
  return value == index::Table::kNone ? nullptr : reinterpret_cast<Extent*>(static_cast<uintptr_t>(value));
}

// What finding, pinning and sending a resident extent looks at.
Extent* Memory::find_ahead(const IndexKey& key) const noexcept {
  Extent* extent = find(key);
  if (extent == nullptr) {
    hot_.prefetch_place(key.low);
    return nullptr;
  }
  __builtin_prefetch(static_cast<const Resident*>(extent));
  __builtin_prefetch(&extent->key);
  __builtin_prefetch(&extent->entry.scope);
  return extent;
}

const Extent* Memory::find_state_ahead(const IndexKey& key) const noexcept {
  const Extent* extent = find(key);
  if (extent != nullptr) {
    __builtin_prefetch(static_cast<const Resident*>(extent));
    __builtin_prefetch(&extent->state);
    __builtin_prefetch(&extent->entry.scope);
  }
  return extent;
}

void Memory::prefetch_use(const Extent& extent) const noexcept {
  __builtin_prefetch(extent.parts().data());
  if (extent.record != HotPolicy::kNone) hot_.prefetch(extent.record);
}

void Memory::prefetch_touch(const Extent& extent) const noexcept {
  if (extent.record != HotPolicy::kNone) hot_.prefetch_ties(extent.record);
}

Slot Memory::take(uint64_t bytes) noexcept {
  Slot slot = slots_.take(bytes);
  if (HALFSTEP_MUTANT(DirtyGivesWay) && slot.empty()) {
    for (Extent& extent : extents_) {
      if (extent.state == ExtentState::Dirty) unlist(extent);
    }
  }
  while (slot.empty() && evict()) slot = slots_.take(bytes);
  return slot;
}

bool Memory::evict() noexcept {
  const uint32_t number = hot_.evict();
  if (number == HotPolicy::kNone) return false;
  Extent& victim = extents_[number];
  victim.record = HotPolicy::kNone;  // a ghost's now
  if (const uint32_t next = hot_.likely_next(); next != HotPolicy::kNone) prefetch_victim(extents_[next]);
  unlist(victim);
  settle(victim);
  return true;
}

void Memory::make_room(uint64_t bytes) noexcept {
  if (bytes > slots_.free_bytes() + evictable_bytes_) return;
  while (slots_.free_bytes() < bytes && evict()) continue;
}

Extent* Memory::make(const IndexKey& key, uint64_t bytes, ExtentState state) noexcept {
  Slot slot = take(bytes);
  if (slot.empty()) return nullptr;
  if (unused_.empty()) {
    unused_.push_back(&extents_.emplace_back());
    unused_.back()->number = static_cast<uint32_t>(extents_.size() - 1);
  }
  Extent& extent = *unused_.back();
  unused_.pop_back();
  extent.slot_memory() = std::move(slot);
  extent.key = key;
  extent.pins = 0;
  extent.write = nullptr;
  extent.attempts = 0;
  extent.in_frame = false;
  extent.touched = false;
  extent.set_location({});
  extent.waiters = nullptr;
  extent.error = 0;
  extent.as_parts.reads = false;
  extent.staged = Extent::Staged::No;
  resident_bytes_ += extent.slot().held_bytes();
  set_state(extent, state);
  return &extent;
}

void Memory::list(Extent& extent, bool used) {
  HALFSTEP_CHECK(find(extent.key) == nullptr && extent.state != ExtentState::Clean, find(extent.key), extent.state);
  table_.put(hash_of(extent.key), reinterpret_cast<uintptr_t>(&extent));
  extent.listed = true;
  const auto pages = static_cast<uint32_t>(extent.slot().held_bytes() / kPageBytes);
  extent.record = hot_.insert(extent.key.low, pages, extent.number, used);
}

void Memory::unlist(Extent& extent) noexcept {
  if (!extent.listed) return;
  if (evictable(extent)) {
    HALFSTEP_CHECK(extent.slot().held_bytes() <= evictable_bytes_, extent.slot().held_bytes(), evictable_bytes_);
    evictable_bytes_ -= extent.slot().held_bytes();
  }
  if (extent.record != HotPolicy::kNone) hot_.remove(extent.record);
  extent.record = HotPolicy::kNone;
  table_.erase(hash_of(extent.key));
  extent.listed = false;
}

void Memory::put_off(Extent& extent) noexcept {
  hot_.dismiss(extent.record);
  extent.record = HotPolicy::kNone;
  unlist(extent);
}

void Memory::pin(Extent& extent) noexcept {
  if (evictable(extent)) {
    hot_.set_busy(extent.record, true);
    HALFSTEP_CHECK(extent.slot().held_bytes() <= evictable_bytes_, extent.slot().held_bytes(), evictable_bytes_);
    evictable_bytes_ -= extent.slot().held_bytes();
  }
  ++extent.pins;
}

void Memory::unpin(Extent& extent) noexcept {
  HALFSTEP_CHECK(extent.pins > 0, extent.pins);
  if (--extent.pins == 0) settle(extent);
}

void Memory::set_state(Extent& extent, ExtentState state) noexcept {
  const bool was_dirty = extent.dirty();
  extent.state = state;
  if (was_dirty == extent.dirty()) return;
  if (was_dirty) {
    HALFSTEP_CHECK(extent.slot().held_bytes() <= dirty_bytes_, extent.slot().held_bytes(), dirty_bytes_);
    dirty_bytes_ -= extent.slot().held_bytes();
    relieved_ = true;
  } else {
    dirty_bytes_ += extent.slot().held_bytes();
  }
}

void Memory::touch(Extent& extent) noexcept {
  if (extent.listed) hot_.use(extent.record);
}

// Called exactly when the extent came out of use: the policy thinks it busy.
void Memory::settle(Extent& extent) noexcept {
  if (extent.pins > 0 || extent.state != ExtentState::Clean) return;
  relieved_ = true;
  if (!extent.listed) return free(extent);
  hot_.set_busy(extent.record, false);
  evictable_bytes_ += extent.slot().held_bytes();
}

void Memory::free(Extent& extent) noexcept {
  HALFSTEP_CHECK(!extent.listed && extent.pins == 0, extent.pins);
  HALFSTEP_CHECK(extent.slot().held_bytes() <= resident_bytes_, extent.slot().held_bytes(), resident_bytes_);
  resident_bytes_ -= extent.slot().held_bytes();
  if (extent.staged == Extent::Staged::Kept) {
    ++unread_blocks_;
    unread_bytes_[extent.staged_kind] += extent.slot().held_bytes();
  }
  extent.slot_memory() = Slot();
  extent.state = ExtentState::Unused;
  unused_.push_back(&extent);
}

void Memory::check_invariants() const {
  uint64_t resident_bytes = 0, evictable_bytes = 0, dirty_bytes = 0;
  size_t listed = 0, unused = 0;
  for (const Extent& extent : extents_) {
    if (extent.state == ExtentState::Unused) {
      HALFSTEP_CHECK(!extent.listed && extent.pins == 0 && extent.slot().empty(), extent.number, extent.pins);
      ++unused;
      continue;
    }
    const uint64_t bytes = extent.slot().held_bytes();
    HALFSTEP_CHECK(bytes != 0, extent.number, extent.state);
    // What nobody needs is gone, or may be evicted.
    HALFSTEP_CHECK(extent.listed || extent.pins != 0 || extent.state != ExtentState::Clean, extent.number);
    resident_bytes += bytes;
    evictable_bytes += evictable(extent) ? bytes : 0;
    dirty_bytes += extent.dirty() ? bytes : 0;
    listed += extent.listed ? 1 : 0;
    HALFSTEP_CHECK(!extent.listed || find(extent.key) == &extent, extent.number);
  }
  HALFSTEP_CHECK(listed == table_.size() && unused == unused_.size(), listed, table_.size(), unused, unused_.size());
  HALFSTEP_CHECK(resident_bytes == resident_bytes_ && resident_bytes <= slots_.capacity_bytes(), resident_bytes,
                 resident_bytes_);
  HALFSTEP_CHECK(evictable_bytes == evictable_bytes_, evictable_bytes, evictable_bytes_);
  HALFSTEP_CHECK(dirty_bytes == dirty_bytes_ && dirty_bytes <= write_bytes_max_, dirty_bytes, dirty_bytes_, write_bytes_max_);
}

}  // namespace halfstep::store
