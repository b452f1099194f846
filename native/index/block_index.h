// block_index.h — which blocks this shard has, and where: 24-byte entries in 128-byte buckets of five, sized once, for good.
//
// Every key has two buckets. An entry stands in its *home* if there was room, else in its *other* one, as a stray. The other
// bucket follows from the fingerprint and the bucket that one stands in, and is the same way back, so entries can move, leave
// and be counted where no key is known. A lookup reads the home and, only while some entry of that home is away, the other
// bucket: never a third one. Nothing marks where an entry has been, so erasing leaves no trace.
//
// What becomes of the 128 bits of a key:
//   low 63…24    fingerprint, in the entry, compared; it also chooses the other bucket
//   low 23…16    tag, in the bucket's header, compared (0 counts as 1: 0 is an empty slot)
//   high 63…32, low 15…0    scaled to the number of buckets: the home, compared whole through the bucket and the stray bit
//   high 31…0    checksum_bits(): not compared, but xored into the checksum by the caller (store/catalog/catalog.h)
// At 20 million blocks 22 + 8 + 40 bits are compared and 32 bound, 102 of 128; the rest rounds away in the home.
//
// False matches: an absent key meets 4.4 entries of its home (5 x 0.88, at any size), equal in tag with 1/254 and in
// fingerprint with 2^-40: 1.6e-14 a lookup, that is once in two years of a million absent lookups a second. A match then says
// present, and a get reads what fails its check, but for one in 2^32: wrong bytes once in 2.7e23 lookups. This assumes that
// keys are a keyed hash whose secret nobody outside knows. Two blocks of one shard that match each other falsely (1.6e-7 of a
// chance among 20 million) are one entry to the index: the later insert is told that its block is present.
//
// Invariants: no key is in two slots (but for a moment, to readers elsewhere, while an entry moves); a bucket's count of strays
// is exact; memory never grows, moves or is rehashed. What cannot be placed within kSteps is refused (NoSpace): the caller
// reclaims, and counts index_full. Up to the design load that does not happen; beyond it, from about 0.96 on.
// Thread: one, the shard's, does everything; find_shared() may run on any other meanwhile (bucket.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "base/hash.h"
#include "base/mapping.h"
#include "base/status.h"
#include "index/bucket.h"
#include "index/entry.h"

namespace halfstep::index {

constexpr uint32_t checksum_bits(const Hash128& key) noexcept { return static_cast<uint32_t>(key.high); }

// A slot as of when it was found. Inserts move entries, so what uses a handle names the location that it expects there.
struct Handle {
  uint64_t place = UINT64_MAX;
};

struct Found {
  Entry entry;
  Handle handle;
  explicit operator bool() const noexcept { return handle.place != UINT64_MAX; }
};
static_assert(sizeof(Found) == 32);

class BlockIndex {
 public:
  enum class Verdict : uint8_t { Keep, Replace, Erase };

  // For so many blocks at the design load of 0.88: 29.1 bytes a block.
  static constexpr uint64_t bytes_for(uint64_t blocks) noexcept { return (blocks * 5 / 22 + 1) * sizeof(Bucket); }

  // In a mapping of its own, all of whose pages are there; large ones are tried unless `large_pages` is false.
  static Fault create(uint64_t index_bytes, bool large_pages, std::unique_ptr<BlockIndex>* out);
  // In the caller's memory, which outlives it: aligned to a bucket, at least one bucket, overwritten.
  explicit BlockIndex(Bytes memory) noexcept;
  BlockIndex(const BlockIndex&) = delete;
  BlockIndex& operator=(const BlockIndex&) = delete;

  // Lookups ----------------------------------------------------------------------------------------------------------------
  Found find(const Hash128& key) const noexcept;
  // The same from any other thread; its handle is of no use there. May wait for one bucket's write to end.
  Found find_shared(const Hash128& key) const noexcept;
  // One for each key, in order; out is as long as keys. Memory is asked for kAhead keys ahead.
  void find_many(std::span<const Hash128> keys, std::span<Found> out) const noexcept;
  // How many of the first keys are there without a gap; those are found in `out`, what follows them there is undefined.
  size_t longest_prefix(std::span<const Hash128> keys, std::span<Found> out) const noexcept;
  // For a caller that inserts or erases many keys: some ten keys before it does.
  [[gnu::always_inline]] void prefetch(const Hash128& key) const noexcept { prefetch(home_of(key)); }

  // Changes. The fingerprint in a given entry is not looked at ----------------------------------------------------------------
  // Ok; Present, and nothing changed; NoSpace.
  Status insert(const Hash128& key, const Entry& entry) noexcept;
  // Only if that entry is at this location now: so a rewrite publishes the new location or finds that the block is gone, and a
  // touch, a hold or an expiry changes the entry that it read. False: nothing changed. By handle it is also false when an
  // insert has moved the entry since; then the key still finds it.
  bool replace(const Hash128& key, Location expected, const Entry& entry) noexcept;
  bool replace(Handle handle, Location expected, const Entry& entry) noexcept;
  bool erase(const Hash128& key, Location expected) noexcept;
  bool erase(Handle handle, Location expected) noexcept;

  // Sweeping ---------------------------------------------------------------------------------------------------------------
  // Visits the entries of the next `buckets` buckets: visit(Entry&) -> Verdict; it may not call the index. True at the end of a
  // lap. What is there during a whole lap is visited in it: while a lap is on, inserts move nothing from the part to come into
  // the part that was seen. So a scope's slot is free once a lap that began after its end is done.
  template <typename Visit>
  bool sweep(uint64_t buckets, Visit&& visit);
  uint64_t laps() const noexcept { return laps_; }
  // visit(const Entry&) for every entry there is, in no order; the index must not change meanwhile.
  template <typename Visit>
  void for_each(Visit&& visit) const {
    for (uint64_t b = 0; b < bucket_count_; ++b) {
      for (unsigned slot = 0; slot < kSlotsPerBucket; ++slot) {
        if (buckets_[b].header_own().tag(slot) != 0) visit(buckets_[b].entry_own(slot));
      }
    }
  }

  // Facts ------------------------------------------------------------------------------------------------------------------
  uint64_t size() const noexcept { return size_; }
  uint64_t slots() const noexcept { return bucket_count_ * kSlotsPerBucket; }
  uint64_t buckets() const noexcept { return bucket_count_; }
  uint64_t bytes() const noexcept { return bucket_count_ * sizeof(Bucket); }
  // Entries in their other bucket, and how often one was moved to make room.
  uint64_t strays() const noexcept { return strays_; }
  uint64_t moves() const noexcept { return moves_; }
  // Empty where the memory was given.
  const Mapping& mapping() const noexcept { return mapping_; }

 private:
  static constexpr size_t kAhead = 32;  // lookups: enough to cover the latency of memory, few enough for its queues
  static constexpr size_t kWaitingMax = 16;
  static constexpr size_t kSteps = 64;  // inserts: buckets from which entries may be moved on

  struct Probe {
    uint64_t home;
    uint64_t fingerprint;
    uint8_t tag;
  };
  struct Step;

  BlockIndex(Mapping mapping, uint64_t index_bytes) noexcept;
  void construct(Bytes memory) noexcept;

  static constexpr uint64_t fingerprint_of(const Hash128& key) noexcept { return key.low >> 24; }
  static constexpr uint8_t tag_of(const Hash128& key) noexcept {
    const auto tag = static_cast<uint8_t>(key.low >> 16);
    return tag == 0 ? 1 : tag;
  }
  uint64_t home_of(const Hash128& key) const noexcept {
    return scaled((key.high & ~uint64_t{UINT32_MAX}) | (key.low & UINT16_MAX) << 16);
  }
  static Probe probe_of(const Hash128& key, uint64_t home) noexcept { return {home, fingerprint_of(key), tag_of(key)}; }
  Probe probe_of(const Hash128& key) const noexcept { return probe_of(key, home_of(key)); }
  // other_of(other_of(b, f), f) == b, for any number of buckets.
  uint64_t other_of(uint64_t bucket, uint64_t fingerprint) const noexcept {
    const uint64_t sum = scaled(fingerprint << 24);
    return sum >= bucket ? sum - bucket : sum + bucket_count_ - bucket;
  }
  uint64_t scaled(uint64_t uniform) const noexcept {
    return static_cast<uint64_t>((static_cast<unsigned __int128>(uniform) * bucket_count_) >> 64);
  }

  Found find(const Probe& probe) const noexcept;
  static Handle handle_of(uint64_t bucket, unsigned slot) noexcept { return {bucket << 3 | slot}; }
  // The slot of the bucket that holds the key as a stray or not, or kSlotsPerBucket.
  static unsigned slot_of(const Bucket& bucket, Header header, const Probe& probe, bool stray) noexcept {
    for (uint64_t left = header.matches(probe.tag); left != 0; left = Header::without_first(left)) {
      const unsigned slot = Header::first(left);
      if (bucket.peek_own<field::Fingerprint>(slot) == probe.fingerprint && header.stray(slot) == stray) return slot;
    }
    return kSlotsPerBucket;
  }
  // Into the second level of cache, which takes more requests at once than the first and is near enough. Inlined always: a
  // function that only prefetches is pure to g++ 12, and its calls are dropped.
  [[gnu::always_inline]] void prefetch(uint64_t bucket) const noexcept {
    constexpr int kToRead = 0;
    constexpr int kSecondLevel = 2;
    __builtin_prefetch(&buckets_[bucket], kToRead, kSecondLevel);
    __builtin_prefetch(reinterpret_cast<const std::byte*>(&buckets_[bucket]) + sizeof(Bucket) / 2, kToRead, kSecondLevel);
  }
  template <bool kStopAtMiss>
  size_t match(std::span<const Hash128> keys, std::span<Found> out) const noexcept;

  bool place_home(const Probe& probe, const Entry& entry) noexcept;
  bool place_away(const Probe& probe, const Entry& entry) noexcept;
  // Of the strays in a full bucket, one whose home has room again: or strays would become more with every block that leaves.
  bool send_stray_home(uint64_t bucket) noexcept;
  // Moves entries on until there is a free slot in the home, or in the other bucket.
  bool make_room(const Probe& probe) noexcept;
  bool move(uint64_t from, unsigned slot) noexcept;
  // Not where it is, and not from the part of a sweep to come into the part that was seen.
  bool may_move(uint64_t from, uint64_t to) const noexcept { return from != to && (from < cursor_ || to >= cursor_); }
  void erase_slot(uint64_t bucket, unsigned slot) noexcept;

  Mapping mapping_;
  Bucket* buckets_ = nullptr;
  uint64_t bucket_count_ = 0;
  uint64_t size_ = 0;
  uint64_t strays_ = 0;
  uint64_t moves_ = 0;
  uint64_t cursor_ = 0;  // of the sweep: buckets below it were visited in this lap
  uint64_t laps_ = 0;
};

template <typename Visit>
bool BlockIndex::sweep(uint64_t buckets, Visit&& visit) {
  const uint64_t left = bucket_count_ - cursor_;
  const uint64_t end = cursor_ + (buckets < left ? buckets : left);
  for (; cursor_ < end; ++cursor_) {
    Bucket& bucket = buckets_[cursor_];
    for (unsigned slot = 0; slot < kSlotsPerBucket; ++slot) {
      if (bucket.header_own().tag(slot) == 0) continue;
      const Entry before = bucket.entry_own(slot);
      Entry entry = before;
      switch (visit(entry)) {
        case Verdict::Keep: break;
        case Verdict::Replace:
          entry.set_fingerprint(before.fingerprint());
          bucket.write(slot, entry, bucket.header_own());
          break;
        case Verdict::Erase: erase_slot(cursor_, slot); break;
      }
    }
  }
  if (cursor_ < bucket_count_) return false;
  cursor_ = 0;
  ++laps_;
  return true;
}

}  // namespace halfstep::index
