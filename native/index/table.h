// table.h — the plain table for what is few: 128-bit keys to 64-bit values, open addressing with linear probing. Blocks are
// found through block_index.h. Keys come out of a keyed hash, so their low bits are the bucket and nobody outside can steer
// them. Invariants: at most 7/8 full; erasing moves followers back, so that there are no dead slots and a miss ends at the
// first hole. Thread: the shard's. Growing doubles the table in one go; a table made for `expected` keys never grows below that
// many.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/hash.h"

namespace halfstep::index {

class Table {
 public:
  static constexpr uint64_t kNone = UINT64_MAX;  // no value may be this

  explicit Table(size_t expected = 0);

  // kNone when the key is not there.
  uint64_t find(const Hash128& key) const noexcept;
  // For a caller that looks many keys up: some before it does. Inline, or g++ 12 drops it, as block_index.h says.
  [[gnu::always_inline]] void prefetch(const Hash128& key) const noexcept { __builtin_prefetch(&slots_[key.low & mask_]); }
  // Sets the key's value, whatever it was; returns the former one or kNone.
  uint64_t put(const Hash128& key, uint64_t value);
  // Only if the key's value is `expected` now.
  bool replace(const Hash128& key, uint64_t expected, uint64_t value) noexcept;
  bool erase(const Hash128& key) noexcept;
  // Only if the key's value is `expected` now.
  bool erase(const Hash128& key, uint64_t expected) noexcept;
  void clear() noexcept;

  size_t size() const noexcept { return used_; }
  size_t memory_bytes() const noexcept { return slots_.size() * sizeof(Slot); }

  // visit(const Hash128& key, uint64_t value), in no order; the table must not change meanwhile.
  template <typename Visit>
  void for_each(Visit&& visit) const {
    for (const Slot& slot : slots_) {
      if (slot.value != kNone) visit(slot.key, slot.value);
    }
  }

 private:
  struct Slot {
    Hash128 key;
    uint64_t value = kNone;
  };
  static_assert(sizeof(Slot) == 24);

  // The slot that holds the key, or the hole where it belongs.
  size_t probe(const Hash128& key) const noexcept;
  void erase_slot(size_t at) noexcept;
  void grow();

  std::vector<Slot> slots_;
  size_t mask_ = 0;
  size_t used_ = 0;
};

}  // namespace halfstep::index
