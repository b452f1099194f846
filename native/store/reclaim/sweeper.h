// sweeper.h — drops in the background what no longer counts: blocks of retired scopes, expired ones, index entries of voided
// segments, and the oldest blocks of a namespace that is to have less. Two passes, some entries in each turn,
// begun only when something is known to be there for them:
//   - a lap over the index, in its own order, for what an entry itself says is over;
//   - for a quota the rolls of the segments that hold something of the namespace, oldest first.
// Invariants: nothing here is written to flash: what a pass drops is dropped again after a restart (recovery leaves out
// retired and expired blocks, and a quota is swept again); a held block is not dropped for a quota.
// Thread: the shard's.
#pragma once

#include <vector>

#include "base/clock.h"
#include "store/account/evictor.h"
#include "store/account/holds.h"
#include "store/catalog/catalog.h"
#include "store/catalog/names.h"
#include "store/format/store_time.h"
#include "store/memory/memory.h"
#include "store/reclaim/teller.h"
#include "store/segment/roll_reader.h"

namespace halfstep::store {

class Sweeper {
 public:
  struct Needs {
    Catalog& catalog;
    Memory& memory;
    Names& names;
    Holds& holds;
    Evictor& evictor;
    const Clock& clock;
    StoreTime& store_time;
  };
  Sweeper(const Needs& needs, RollReader& rolls, Teller& teller);

  void turn();
  // Scopes were retired.
  void want_pass() noexcept { wanted_ = true; }
  // Somebody's block ends then; 0 = never.
  void note_expiry(uint32_t expiry_s) noexcept {
    if (expiry_s != 0) next_expiry_s_ = std::min(next_expiry_s_, expiry_s);
  }
  uint64_t next_turn_us() const noexcept {
    if (lap_ || (quota_ && !request_.busy)) return 0;
    return quota_ ? UINT64_MAX : due_us_;
  }

 private:
  void look_for_work() noexcept;
  void begin_lap();
  void go_on_with_lap();
  void begin_quota();
  void go_on_with_quota();
  void end_quota() noexcept;
  bool has_what_sweeps(const Segment& segment) const noexcept;
  const Roll* roll_of(const Segment& segment) noexcept;

  // A turn over so many takes some tens of microseconds.
  static constexpr uint32_t kBucketsPerTurn = 1024;
  static constexpr uint32_t kEntriesPerTurn = 2048;
  // Between two laps for expired blocks, and after a pass that did not reach a quota: all that was left is held.
  static constexpr uint64_t kPassGapUs = 1'000'000;

  Catalog& catalog_;
  Memory& memory_;
  Names& names_;
  Holds& holds_;
  Evictor& evictor_;
  const Clock& clock_;
  StoreTime& store_time_;
  RollReader& rolls_;
  Teller& teller_;
  bool wanted_ = true;  // the first lap learns when blocks expire
  uint32_t next_expiry_s_ = UINT32_MAX;
  uint64_t lap_not_before_us_ = 0;
  uint64_t quota_not_before_us_ = 0;
  uint64_t due_us_ = 0;

  bool lap_ = false;
  bool lap_dropped_ = false;

  bool quota_ = false;
  struct Place {
    uint32_t segment = 0;
    uint64_t generation = 0;
  };
  std::vector<Place> order_;  // of the quota's pass
  size_t at_ = 0;
  uint32_t ordinal_ = 0;
  RollRequest request_;  // of the segment at `at_`, unless that one's roll is in memory
  bool rolled_ = false;  // it has been read
};

}  // namespace halfstep::store
