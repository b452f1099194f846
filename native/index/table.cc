#include "index/table.h"

#include <bit>

#include "base/check.h"

namespace halfstep::index {
namespace {

constexpr size_t kSlotsMin = 64;

constexpr bool too_full(size_t used, size_t slots) noexcept { return used > slots - slots / 8; }

}  // namespace

Table::Table(size_t expected) {
  size_t slots = kSlotsMin;
  while (too_full(expected, slots)) slots *= 2;
  slots_.resize(slots);
  mask_ = slots - 1;
}

size_t Table::probe(const Hash128& key) const noexcept {
  size_t at = key.low & mask_;
  while (slots_[at].value != kNone && !(slots_[at].key == key)) at = (at + 1) & mask_;
  return at;
}

uint64_t Table::find(const Hash128& key) const noexcept { return slots_[probe(key)].value; }

uint64_t Table::put(const Hash128& key, uint64_t value) {
  HALFSTEP_DCHECK(value != kNone);
  size_t at = probe(key);
  const uint64_t before = slots_[at].value;
  if (before == kNone) {
    if (too_full(used_ + 1, slots_.size())) {
      grow();
      at = probe(key);
    }
    ++used_;
  }
  slots_[at] = {key, value};
  return before;
}

bool Table::replace(const Hash128& key, uint64_t expected, uint64_t value) noexcept {
  HALFSTEP_DCHECK(value != kNone && expected != kNone);
  Slot& slot = slots_[probe(key)];
  if (slot.value != expected) return false;
  slot.value = value;
  return true;
}

bool Table::erase(const Hash128& key) noexcept {
  const size_t at = probe(key);
  if (slots_[at].value == kNone) return false;
  erase_slot(at);
  return true;
}

bool Table::erase(const Hash128& key, uint64_t expected) noexcept {
  HALFSTEP_DCHECK(expected != kNone);
  const size_t at = probe(key);
  if (slots_[at].value != expected) return false;
  erase_slot(at);
  return true;
}

void Table::erase_slot(size_t at) noexcept {
  // Knuth, volume 3, 6.4 R: a follower moves into the hole unless its home lies cyclically behind the hole.
  size_t hole = at;
  for (size_t next = (at + 1) & mask_; slots_[next].value != kNone; next = (next + 1) & mask_) {
    const size_t home = slots_[next].key.low & mask_;
    if (((next - home) & mask_) < ((next - hole) & mask_)) continue;
    slots_[hole] = slots_[next];
    hole = next;
  }
  slots_[hole].value = kNone;
  --used_;
}

void Table::clear() noexcept {
  for (Slot& slot : slots_) slot.value = kNone;
  used_ = 0;
}

void Table::grow() {
  std::vector<Slot> old(slots_.size() * 2);
  old.swap(slots_);
  mask_ = slots_.size() - 1;
  for (const Slot& slot : old) {
    if (slot.value != kNone) slots_[probe(slot.key)] = slot;
  }
}

}  // namespace halfstep::index
