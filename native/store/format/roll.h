// roll.h — the roll of a segment: its entries by ordinal, and the engine keys that are too long for them.
// It is in memory while a segment is being written, because the footer is made of it. Afterwards it is on flash alone, and who
// has to go through a segment's blocks reads it again (roll_reader.h).
// Thread: a plain value.
#pragma once

#include <vector>

#include "base/bytes.h"
#include "store/format/format.h"

namespace halfstep::store {

struct FoundEntry {
  format::Entry entry;
  bool present = false;
  bool gone = false;      // void in the footer, whose word for it this is
  uint8_t key_bytes = 0;  // 0: the engine key is longer than its field and its page is lost
  uint32_t key_at = 0;    // of a key that is longer than its field
};

struct Roll {
  std::vector<FoundEntry> entries;  // by ordinal; holes are not present
  std::vector<std::byte> keys;

  ConstBytes key_of(const FoundEntry& found) const noexcept {
    return found.key_bytes <= format::kEngineKeyInline ? ConstBytes(found.entry.engine_key).first(found.key_bytes)
                                                       : ConstBytes(keys).subspan(found.key_at, found.key_bytes);
  }
  void add(const format::Entry& entry, ConstBytes engine_key) {
    FoundEntry& found = entries.emplace_back();
    found.entry = entry;
    found.present = true;
    keep_key(engine_key, &found);
  }
  void keep_key(ConstBytes key, FoundEntry* found) {
    found->key_bytes = static_cast<uint8_t>(key.size());
    if (key.size() <= format::kEngineKeyInline) return;
    found->key_at = static_cast<uint32_t>(keys.size());
    keys.insert(keys.end(), key.begin(), key.end());
  }
  uint64_t memory_bytes() const noexcept { return entries.capacity() * sizeof(FoundEntry) + keys.capacity(); }
};

}  // namespace halfstep::store
