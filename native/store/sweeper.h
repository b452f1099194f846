// sweeper.h — drops in the background what no longer counts: blocks of retired scopes, expired ones, and the oldest ones of a
// namespace that is to have less (V1 section 7). A pass walks the records of all segments, oldest segment first, some in each
// turn; it starts only when something is known to be there for it.
// Invariants: nothing here is written to flash: what a pass drops is dropped again after a restart (recovery leaves out
// retired and expired blocks, and a quota is swept again); a held block is not dropped for a quota.
// Thread: the shard's.
#pragma once

#include <vector>

#include "store/core.h"

namespace halfstep::store {

class Sweeper {
 public:
  explicit Sweeper(Core& core) : core_(core) {}

  void turn();
  // Scopes were retired.
  void want_pass() noexcept { wanted_ = true; }
  // Somebody's block ends then; 0 = never.
  void note_expiry(uint32_t expiry_s) noexcept {
    if (expiry_s != 0) next_expiry_s_ = std::min(next_expiry_s_, expiry_s);
  }
  uint64_t next_turn_us() const noexcept { return pass_ != Pass::None ? 0 : due_us_; }

 private:
  enum class Pass : uint8_t { None, Full, Quota };  // Quota: over as soon as no namespace has too much

  Pass due() noexcept;
  void begin(Pass pass);
  void finish() noexcept;
  void visit(Location location);

  // A turn of this many records takes some tens of microseconds.
  static constexpr uint32_t kRecordsPerTurn = 2048;
  // Between two passes for expired blocks, and after one that did not reach a quota: all that was left is held.
  static constexpr uint64_t kPassGapUs = 1'000'000;

  Core& core_;
  struct Place {
    uint32_t segment = 0;
    uint64_t generation = 0;
  };
  std::vector<Place> order_;  // of the pass
  size_t at_ = 0;
  uint32_t ordinal_ = 0;
  Pass pass_ = Pass::None;
  bool wanted_ = true;  // the first pass learns when blocks expire
  uint32_t next_expiry_s_ = UINT32_MAX;
  uint64_t full_not_before_us_ = 0;
  uint64_t quota_not_before_us_ = 0;
  uint64_t due_us_ = 0;
};

}  // namespace halfstep::store
