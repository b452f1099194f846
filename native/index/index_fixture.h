// index_fixture.h — for tests of the block index: memory for a few buckets, and keys whose parts are chosen one by one.
#pragma once

#include <memory>
#include <tuple>

#include "base/prng.h"
#include "index/block_index.h"

namespace halfstep::index {

// An index in memory that a test can look into.
struct SmallIndex {
  explicit SmallIndex(uint64_t count)
      : memory(new Bucket[count]), index({reinterpret_cast<std::byte*>(memory.get()), count * sizeof(Bucket)}) {}
  std::unique_ptr<Bucket[]> memory;
  BlockIndex index;
};

// What the index compares of a key, and what chooses its buckets.
struct KeyParts {
  uint64_t home = 0;         // 48 bits, scaled to the number of buckets
  uint64_t fingerprint = 0;  // 40 bits
  uint8_t tag = 1;
  uint32_t bound = 0;  // goes into the checksum alone

  Hash128 key() const noexcept {
    return {fingerprint << 24 | uint64_t{tag} << 16 | (home & 0xFFFF), (home >> 16) << 32 | bound};
  }
  static KeyParts random(Prng& prng) noexcept {
    return {prng.next() >> 16, prng.next() >> 24, static_cast<uint8_t>(prng.below(255) + 1),
            static_cast<uint32_t>(prng.next())};
  }
};

// An entry that says by itself whether it is whole: everything follows from the page.
inline Entry entry_of(uint64_t page) noexcept {
  Entry entry;
  entry.set_location({page, static_cast<uint8_t>(page * 7)});
  entry.set_pages(static_cast<uint32_t>(page * 11 % kExtentPagesMax) + 1);
  entry.set_checksum(static_cast<uint32_t>(page * 0x9E37'79B9U));
  entry.set_touch(static_cast<uint16_t>(page * 13), static_cast<uint8_t>(page % 4));
  entry.set_scope_slot(static_cast<uint16_t>(page * 17));
  return entry;
}
inline bool same_but_for_the_fingerprint(Entry a, Entry b) noexcept {
  a.set_fingerprint(0);
  b.set_fingerprint(0);
  return a == b;
}
inline bool whole(const Entry& entry) noexcept { return same_but_for_the_fingerprint(entry, entry_of(entry.location().page)); }

}  // namespace halfstep::index
