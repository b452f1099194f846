#include "store/durable/life_records.h"

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
  if ((record.flags & format::kHoldAllKeys) != 0) return release_all(entry.owner, entry.sequence);
  if (record.value != format::kHoldReleased) return put(entry);
  if (const uint64_t number = places_.find(place_of(entry)); number != kNone) erase(number);
}

// What was taken after the record stays. The last entry may move to the place of one that goes.
void LifeRecords::release_all(uint64_t owner, uint64_t sequence) {
  const uint64_t first = by_owner_.find(owner_key(owner));
  for (uint64_t number = first, next; number != kNone; number = next) {
    ++looked_at_;
    next = same_owner_[number].next;
    if (entries_[number].sequence > sequence) continue;
    if (next == entries_.size() - 1) next = number;
    erase(number);
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
  const Hash128 place = place_of(entry);
  const uint64_t number = places_.find(place);
  if (number == kNone) {
    places_.put(place, entries_.size());
    entries_.push_back(entry);
    same_owner_.emplace_back();
    link(entries_.size() - 1);
  } else if (entries_[number].sequence <= entry.sequence) {
    entries_[number] = entry;  // of the same owner
  }
}

// The last one takes the place of one that goes, in its list, too: who walks along that list still meets it.
void LifeRecords::erase(uint64_t number) {
  places_.erase(place_of(entries_[number]));
  unlink(number);
  if (const uint64_t last = entries_.size() - 1; number != last) {
    entries_[number] = entries_[last];
    same_owner_[number] = same_owner_[last];
    places_.put(place_of(entries_[number]), number);
    relink(number);
  }
  entries_.pop_back();
  same_owner_.pop_back();
}

void LifeRecords::link(uint64_t number) {
  if (entries_[number].kind != format::RecordKind::Hold) return;
  const uint64_t first = by_owner_.put(owner_key(entries_[number].owner), number);
  same_owner_[number] = {kNone, first};
  if (first != kNone) same_owner_[first].previous = number;
}

void LifeRecords::unlink(uint64_t number) {
  if (entries_[number].kind != format::RecordKind::Hold) return;
  const Links links = same_owner_[number];
  if (links.next != kNone) same_owner_[links.next].previous = links.previous;
  if (links.previous != kNone) {
    same_owner_[links.previous].next = links.next;
  } else if (links.next != kNone) {
    by_owner_.put(owner_key(entries_[number].owner), links.next);
  } else {
    by_owner_.erase(owner_key(entries_[number].owner));
  }
}

// Its neighbours know it by another number.
void LifeRecords::relink(uint64_t number) {
  if (entries_[number].kind != format::RecordKind::Hold) return;
  const Links links = same_owner_[number];
  if (links.next != kNone) same_owner_[links.next].previous = number;
  if (links.previous != kNone) {
    same_owner_[links.previous].next = number;
  } else {
    by_owner_.put(owner_key(entries_[number].owner), number);
  }
}

void LifeRecords::index_again() {
  places_.clear();
  by_owner_.clear();
  same_owner_.assign(entries_.size(), {});
  for (uint64_t number = 0; number < entries_.size(); ++number) {
    places_.put(place_of(entries_[number]), number);
    link(number);
  }
}

}  // namespace halfstep::store
