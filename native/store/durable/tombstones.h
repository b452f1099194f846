// tombstones.h — deletes, as a restart has to know them: each is logged (record_log.h), and what must not come back is tried
// again until its tombstone is on media.
// While blocks are being recovered it also knows the keys that were deleted, with the sequence of their newest tombstone, so
// that a delete counts for what has not been found yet.
// Invariants: a tombstone that failed keeps its sequence, as the block may have been put again since. Thread: the shard's.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "index/table.h"
#include "store/durable/record_log.h"
#include "store/format/mutant.h"
#include "store/format/sequence.h"

namespace halfstep::store {

class Tombstones {
 public:
  Tombstones(RecordLog& log, Sequence& sequence, const Clock& clock) noexcept : log_(log), sequence_(sequence), clock_(clock) {}
  Tombstones(const Tombstones&) = delete;
  Tombstones& operator=(const Tombstones&) = delete;

  // Of the key, with a fresh sequence. `done` hands its record to answered().
  void log(const IndexKey& key, void (*done)(RecordLog::Pending& pending, Status status), void* owner) {
    RecordLog::Pending& pending = log_.take_pending();
    pending.record.kind = static_cast<uint8_t>(format::RecordKind::Tombstone);
    pending.record.sequence = sequence_.draw();
    pending.record.key_low = key.low;
    pending.record.key_high = key.high;
    if (recovering() && !HALFSTEP_MUTANT(RecoveredDespiteDelete)) newest_->put(hash_of(key), pending.record.sequence);
    pending.done = done;
    pending.owner = owner;
    log_.append(pending);
  }
  // What became of it: one that failed is logged again.
  void answered(RecordLog::Pending& pending, Status status) {
    if (!status.ok()) {
      unburied_.push_back(pending.record);
      again_us_ = clock_.now_us() + kAgainUs;
    }
    log_.give_pending(pending);
  }

  // A block that left the index though its frame may be found again: a restart must not bring it back after somebody was
  // told that it is gone. Tried until it is on media.
  void bury(const IndexKey& key) { log(key, &Tombstones::on_buried, this); }
  bool all_buried() const noexcept { return unburied_.empty(); }
  uint64_t next_turn_us() const noexcept { return unburied_.empty() ? UINT64_MAX : again_us_; }
  // Logs again what failed, when it is due.
  void turn() {
    if (clock_.now_us() >= again_us_) bury_now();
  }
  void bury_now() {
    for (const format::Record& record : unburied_) {
      RecordLog::Pending& pending = log_.take_pending();
      pending.record = record;
      pending.owner = this;
      pending.done = &Tombstones::on_buried;
      log_.append(pending);
    }
    unburied_.clear();
  }

  // Blocks are found from now on of which some were deleted: `newest` has the sequence of each key's newest tombstone.
  void begin_recovery(index::Table newest) { newest_ = std::make_unique<index::Table>(std::move(newest)); }
  // All that is on flash is known.
  void end_recovery() noexcept { newest_.reset(); }
  bool recovering() const noexcept { return newest_ != nullptr; }
  // While recovering: the sequence of the key's newest tombstone, index::Table::kNone where there is none.
  uint64_t newest(const IndexKey& key) const noexcept {
    return newest_->size() == 0 ? index::Table::kNone : newest_->find(hash_of(key));
  }

 private:
  static constexpr uint64_t kAgainUs = 100'000;

  static void on_buried(RecordLog::Pending& pending, Status status) {
    static_cast<Tombstones*>(pending.owner)->answered(pending, status);
  }

  RecordLog& log_;
  Sequence& sequence_;
  const Clock& clock_;
  std::vector<format::Record> unburied_;  // their tombstones failed
  uint64_t again_us_ = 0;
  std::unique_ptr<index::Table> newest_;  // null: not recovering
};

}  // namespace halfstep::store
