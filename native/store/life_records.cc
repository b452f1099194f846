#include "store/life_records.h"

#include <algorithm>
#include <array>

namespace halfstep::store {

Hash128 LifeRecords::place_of(format::RecordKind kind, const IndexKey& key, uint64_t owner) const noexcept {
  const std::array<uint64_t, 4> name{static_cast<uint64_t>(kind), key.low, key.high, owner};
  return keyed_hash(secret_, object_bytes(name));
}

void LifeRecords::apply(const format::Record& record) {
  const auto kind = static_cast<format::RecordKind>(record.kind);
  const Entry entry{{record.key_low, record.key_high}, record.owner, record.value, record.sequence, kind};
  if (kind == format::RecordKind::Expiry) return put({entry.key, 0, entry.value, entry.sequence, kind});
  if ((record.flags & format::kHoldAllKeys) != 0) {
    // One by one: to index all that stays again would cost a hash for each of them, at every such record.
    for (size_t number = entries_.size(); number-- > 0;) {
      const Entry& e = entries_[number];
      if (e.kind != format::RecordKind::Hold || e.owner != entry.owner || e.sequence > entry.sequence) continue;
      erase(place_of(e.kind, e.key, e.owner));
    }
  } else if (record.value == format::kHoldReleased) {
    erase(place_of(kind, entry.key, entry.owner));
  } else {
    put(entry);
  }
}

format::Record LifeRecords::record(size_t number) const noexcept {
  const Entry& entry = entries_[number];
  format::Record record;
  record.kind = static_cast<uint8_t>(entry.kind);
  record.sequence = entry.sequence;
  record.key_low = entry.key.low;
  record.key_high = entry.key.high;
  record.owner = entry.owner;
  record.value = entry.value;
  return record;
}

const LifeRecords::Entry* LifeRecords::expiry_record(const format::Entry& entry) const noexcept {
  if (entries_.empty()) return nullptr;
  const uint64_t number = places_.find(place_of(format::RecordKind::Expiry, {entry.key_low, entry.key_high}, 0));
  return number == index::Table::kNone || entry.birth >= entries_[number].sequence ? nullptr : &entries_[number];
}

uint32_t LifeRecords::expiry_s(const format::Entry& entry) const noexcept {
  const Entry* record = expiry_record(entry);
  return record == nullptr ? entry.expiry_s : static_cast<uint32_t>(std::min<uint64_t>(record->value, UINT32_MAX));
}

void LifeRecords::put(const Entry& entry) {
  const Hash128 place = place_of(entry.kind, entry.key, entry.owner);
  const uint64_t number = places_.find(place);
  if (number == index::Table::kNone) {
    places_.put(place, entries_.size());
    entries_.push_back(entry);
  } else if (entries_[number].sequence <= entry.sequence) {
    entries_[number] = entry;
  }
}

void LifeRecords::erase(const Hash128& place) {
  const uint64_t number = places_.find(place);
  if (number == index::Table::kNone) return;
  places_.erase(place);
  entries_[number] = entries_.back();
  entries_.pop_back();
  if (number == entries_.size()) return;
  const Entry& moved = entries_[number];
  places_.put(place_of(moved.kind, moved.key, moved.owner), number);
}

void LifeRecords::index_again() {
  places_.clear();
  for (size_t number = 0; number < entries_.size(); ++number) {
    const Entry& entry = entries_[number];
    places_.put(place_of(entry.kind, entry.key, entry.owner), number);
  }
}

}  // namespace halfstep::store
