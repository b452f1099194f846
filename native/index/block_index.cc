#include "index/block_index.h"

#include <memory>
#include <thread>
#include <utility>

#include "base/check.h"

namespace halfstep::index {

Fault BlockIndex::create(uint64_t index_bytes, bool large_pages, std::unique_ptr<BlockIndex>* out) {
  if (index_bytes < sizeof(Bucket)) {
    return {Code::Invalid, "index=" + std::to_string(index_bytes) + ": must be at least " + std::to_string(sizeof(Bucket)) +
                               "; a block takes 29.1 at the design load"};
  }
  Mapping mapping;
  if (Fault fault = Mapping::create({.bytes = index_bytes, .large_pages = large_pages, .what = "index"}, &mapping); !fault.ok())
    return fault;
  out->reset(new BlockIndex(std::move(mapping), index_bytes));
  return {};
}

// No more than was asked for, though the mapping is rounded up.
BlockIndex::BlockIndex(Mapping mapping, uint64_t index_bytes) noexcept : mapping_(std::move(mapping)) {
  construct(mapping_.bytes().first(index_bytes));
}

BlockIndex::BlockIndex(Bytes memory) noexcept { construct(memory); }

void BlockIndex::construct(Bytes memory) noexcept {
  HALFSTEP_CHECK(memory.size() >= sizeof(Bucket) && reinterpret_cast<uintptr_t>(memory.data()) % alignof(Bucket) == 0,
                 memory.size(), sizeof(Bucket));
  buckets_ = reinterpret_cast<Bucket*>(memory.data());
  bucket_count_ = memory.size() / sizeof(Bucket);
  std::uninitialized_default_construct_n(buckets_, bucket_count_);
}

// ---- Lookups ---------------------------------------------------------------------------------------------------------------

Found BlockIndex::find(const Hash128& key) const noexcept { return find(probe_of(key)); }

Found BlockIndex::find(const Probe& probe) const noexcept {
  const Bucket& home = buckets_[probe.home];
  const Header header = home.header_own();
  if (const unsigned slot = slot_of(home, header, probe, false); slot < kSlotsPerBucket) {
    return {home.entry_own(slot), handle_of(probe.home, slot)};
  }
  if (header.strays_away() == 0) return {};
  const uint64_t number = other_of(probe.home, probe.fingerprint);
  const Bucket& other = buckets_[number];
  const unsigned slot = slot_of(other, other.header_own(), probe, true);
  return slot < kSlotsPerBucket ? Found{other.entry_own(slot), handle_of(number, slot)} : Found{};
}

Found BlockIndex::find_shared(const Hash128& key) const noexcept {
  const Probe probe = probe_of(key);
  // Reads one bucket until it held still. Null when the key is not in it; `seen` is the header that says so.
  const auto read = [&](uint64_t number, bool stray, Header* seen) -> Found {
    const Bucket& bucket = buckets_[number];
    for (;;) {
      const Header header = bucket.header();
      if (header.open()) {
        std::this_thread::yield();
        continue;
      }
      Found found;
      for (uint64_t left = header.matches(probe.tag); left != 0 && !found; left = Header::without_first(left)) {
        const unsigned slot = Header::first(left);
        const Entry entry = bucket.entry(slot);
        if (entry.fingerprint() == probe.fingerprint && header.stray(slot) == stray) found = {entry, handle_of(number, slot)};
      }
      *seen = header;
      if (bucket.still(header)) return found;
    }
  };
  for (;;) {
    Header home{0};
    Header other{0};
    if (const Found found = read(probe.home, false, &home)) return found;
    if (home.strays_away() == 0) return {};
    if (const Found found = read(other_of(probe.home, probe.fingerprint), true, &other)) return found;
    // An entry that went home in between was seen in neither, but it changed its home.
    if (buckets_[probe.home].still(home)) return {};
  }
}

// ---- Changes ---------------------------------------------------------------------------------------------------------------

Status BlockIndex::insert(const Hash128& key, const Entry& entry) noexcept {
  const Probe probe = probe_of(key);
  if (find(probe)) return Code::Present;
  Entry placed = entry;
  placed.set_fingerprint(probe.fingerprint);
  const auto place = [&] {
    return place_home(probe, placed) || (send_stray_home(probe.home) && place_home(probe, placed)) || place_away(probe, placed);
  };
  if (!place() && !(make_room(probe) && place())) return Code::NoSpace;
  ++size_;
  return {};
}

bool BlockIndex::place_home(const Probe& probe, const Entry& entry) noexcept {
  Bucket& home = buckets_[probe.home];
  const Header header = home.header_own();
  if (const uint64_t free = header.matches(0); free != 0) {
    const unsigned slot = Header::first(free);
    home.write(slot, entry, header.with(slot, probe.tag, false));
    return true;
  }
  return false;
}

bool BlockIndex::place_away(const Probe& probe, const Entry& entry) noexcept {
  Bucket& home = buckets_[probe.home];
  const Header header = home.header_own();
  const uint64_t number = other_of(probe.home, probe.fingerprint);
  if (number == probe.home || header.strays_away() == Header::kStraysAwayMax) return false;
  Bucket& other = buckets_[number];
  const uint64_t free = other.header_own().matches(0);
  if (free == 0) return false;
  const unsigned slot = Header::first(free);
  other.write(slot, entry, other.header_own().with(slot, probe.tag, true));
  home.write(header.with_strays_away(header.strays_away() + 1));
  ++strays_;
  return true;
}

bool BlockIndex::replace(const Hash128& key, Location expected, const Entry& entry) noexcept {
  const Found found = find(key);
  return found && replace(found.handle, expected, entry);
}

bool BlockIndex::replace(Handle handle, Location expected, const Entry& entry) noexcept {
  const unsigned slot = handle.place & 7;
  Bucket& bucket = buckets_[handle.place >> 3];
  const Entry before = bucket.entry_own(slot);
  if (bucket.header_own().tag(slot) == 0 || !(before.location() == expected)) return false;
  Entry placed = entry;
  placed.set_fingerprint(before.fingerprint());
  bucket.write(slot, placed, bucket.header_own());
  return true;
}

bool BlockIndex::erase(const Hash128& key, Location expected) noexcept {
  const Found found = find(key);
  return found && erase(found.handle, expected);
}

bool BlockIndex::erase(Handle handle, Location expected) noexcept {
  const unsigned slot = handle.place & 7;
  const Bucket& bucket = buckets_[handle.place >> 3];
  if (bucket.header_own().tag(slot) == 0 || !(bucket.entry_own(slot).location() == expected)) return false;
  erase_slot(handle.place >> 3, slot);
  return true;
}

void BlockIndex::erase_slot(uint64_t number, unsigned slot) noexcept {
  Bucket& bucket = buckets_[number];
  const Header header = bucket.header_own();
  bucket.write(header.without(slot));
  if (header.stray(slot)) {
    Bucket& home = buckets_[other_of(number, bucket.peek_own<field::Fingerprint>(slot))];
    const Header counted = home.header_own();
    HALFSTEP_CHECK(counted.strays_away() > 0, counted.strays_away());
    home.write(counted.with_strays_away(counted.strays_away() - 1));
    --strays_;
  }
  --size_;
}

}  // namespace halfstep::index
