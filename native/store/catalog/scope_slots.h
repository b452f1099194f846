// scope_slots.h — the 16 bits by which an index entry names its block's scope (index/entry.h).
// A scope gets a slot with its first block. The slot of a scope that has died is given to another only after a whole lap of the
// sweep over the index, which began when the scope was dead: until then entries may still name it.
// Invariants: slot 0 is nobody's; a slot names one scope from when it is given until it is freed.
// Thread: the shard's.
#pragma once

#include <cstdint>
#include <vector>

namespace halfstep::store {

class ScopeSlots {
 public:
  static constexpr uint16_t kNone = 0;

  // kNone: there is none free. Scopes are numbers that are never used again, so the table by scope only grows.
  uint16_t take(uint32_t scope) {
    if (scope >= slots_.size()) slots_.resize(scope + 1, kNone);
    if (slots_[scope] != kNone) return slots_[scope];
    if (free_.empty() && scopes_.size() > UINT16_MAX) return kNone;
    if (free_.empty()) {
      free_.push_back(static_cast<uint16_t>(scopes_.size()));
      scopes_.push_back(0);
    }
    const uint16_t slot = free_.back();
    free_.pop_back();
    scopes_[slot] = scope;
    slots_[scope] = slot;
    return slot;
  }
  // 0: nobody's.
  uint32_t scope(uint16_t slot) const noexcept { return slot < scopes_.size() ? scopes_[slot] : 0; }

  // alive(uint32_t scope): the lap that begins now drops all entries of the others.
  template <typename Alive>
  void lap_begins(Alive&& alive) {
    doomed_.clear();
    for (uint16_t slot = 1; slot < scopes_.size(); ++slot) {
      if (scopes_[slot] != 0 && !alive(scopes_[slot])) doomed_.push_back(slot);
    }
  }
  void lap_ended() {
    for (const uint16_t slot : doomed_) {
      slots_[scopes_[slot]] = kNone;
      scopes_[slot] = 0;
      free_.push_back(slot);
    }
    doomed_.clear();
  }

 private:
  std::vector<uint16_t> slots_;      // by scope
  std::vector<uint32_t> scopes_{0};  // by slot
  std::vector<uint16_t> free_, doomed_;
};

}  // namespace halfstep::store
