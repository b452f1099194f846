// life_records.h — what a restart has to know of persistent holds and of expiry changes: the newest record of each, in memory.
// The record log applies records here once they are on media, and copies what is here into every snapshot.
// Invariants: at most one hold per (key, owner) and one expiry per key; a record applies only to births below its own sequence;
// one is forgotten only when it is superseded, or when nothing can come back that it applies to (record_log.h says when). The
// holds of one owner are a list, so that a release of all of them looks at these alone: a batch of the log has thousands of
// such records at most, and there may be a hundred thousand holds.
// Thread: the shard's.
#pragma once

#include <vector>

#include "index/table.h"
#include "store/format/block.h"
#include "store/format/format.h"

namespace halfstep::store {

class LifeRecords {
 public:
  struct Entry {
    IndexKey key;
    uint64_t owner = 0;  // holds
    uint64_t value = 0;  // hold: until, kHoldNoEnd; expiry: the new one, 0 = never. Store time
    uint64_t sequence = 0;
    format::RecordKind kind = format::RecordKind::Hold;
  };

  explicit LifeRecords(const HashKey& secret = {}) noexcept : secret_(secret) {}

  // Of a hold that ends the owner's others, or one of them, what it ends is forgotten, and it itself need not be kept: the next
  // snapshot just lacks them.
  void apply(const format::Record& record);
  size_t size() const noexcept { return entries_.size(); }
  const std::vector<Entry>& entries() const noexcept { return entries_; }
  format::Record record(size_t number) const noexcept;
  // When a block ends whose frame says so: as it says, unless that was changed.
  uint32_t expiry_s(const format::Entry& entry) const noexcept;
  bool changes_expiry(const format::Entry& entry) const noexcept { return expiry_record(entry) != nullptr; }
  // Entries that releases of all of an owner's have looked at, ever: what these cost.
  uint64_t looked_at() const noexcept { return looked_at_; }
  // Keeps those of which keep(const Entry&) says yes.
  template <typename Keep>
  void forget_unless(Keep&& keep) {
    std::erase_if(entries_, [&](const Entry& entry) { return !keep(entry); });
    index_again();
  }

 private:
  static constexpr uint64_t kNone = index::Table::kNone;
  struct Links {
    uint64_t previous = kNone;
    uint64_t next = kNone;
  };

  Hash128 place_of(format::RecordKind kind, const IndexKey& key, uint64_t owner) const noexcept;
  Hash128 place_of(const Entry& entry) const noexcept { return place_of(entry.kind, entry.key, entry.owner); }
  Hash128 owner_key(uint64_t owner) const noexcept { return keyed_hash(secret_, object_bytes(owner)); }
  const Entry* expiry_record(const format::Entry& entry) const noexcept;
  void put(const Entry& entry);
  void release_all(uint64_t owner, uint64_t sequence);
  void erase(uint64_t number);
  void link(uint64_t number);
  void unlink(uint64_t number);
  void relink(uint64_t number);
  void index_again();

  HashKey secret_;
  std::vector<Entry> entries_;
  std::vector<Links> same_owner_;  // by number; of holds
  index::Table places_;            // to the number in entries_
  index::Table by_owner_;          // to the number of the owner's first hold
  uint64_t looked_at_ = 0;
};

}  // namespace halfstep::store
