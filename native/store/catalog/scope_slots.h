// scope_slots.h — the 16 bits by which an index entry names its block's scope, group and codecs (index/entry.h).
// A scope gets a slot with the first block of each kind: of a group, and of the codecs that its parts have. So what a segment
// has of a slot is known by kind, though an entry says nothing else of it. Where slots become few, or a scope has many, it gets
// no more: one of those that it has is then of any kind. The slots of a scope that has died are given to another only after a
// whole lap of the sweep over the index, which began when the scope was dead: until then entries may still name them.
// Invariants: slot 0 is nobody's; a slot names one scope from when it is given until it is freed.
// Thread: the shard's.
#pragma once

#include <cstdint>
#include <vector>

namespace halfstep::store {

class ScopeSlots {
 public:
  static constexpr uint16_t kNone = 0;
  // The rest is kept for scopes that have none yet.
  static constexpr size_t kKindsMax = 49'152;
  // Of one scope; a list of them is walked for each block that is written.
  static constexpr uint32_t kScopeKindsMax = 64;

  struct Kind {
    uint32_t scope = 0;  // 0: nobody's
    uint16_t group = 0;
    bool any = false;     // of several groups or codecs
    uint64_t codecs = 0;  // bit c: a part of these blocks has codec c; 0: all of them are raw
  };

  // kNone: there is none free. Scopes are numbers that are never used again, so the table by scope only grows.
  uint16_t take(uint32_t scope, uint16_t group = 0, uint64_t codecs = 0) {
    if (scope >= slots_.size()) slots_.resize(scope + 1, kNone);
    const uint16_t first = slots_[scope];
    uint32_t kinds = 0;
    uint16_t any = kNone;
    for (uint16_t slot = first; slot != kNone; slot = next_[slot]) {
      const Kind& kind = kinds_[slot];
      if (!kind.any && kind.group == group && kind.codecs == codecs) return slot;
      if (kind.any) any = slot;
      ++kinds;
    }
    if (first != kNone && (kinds >= kScopeKindsMax || taken_ >= kKindsMax)) {
      if (any == kNone) kinds_[any = first].any = true;
      return any;
    }
    const uint16_t slot = take_free();
    if (slot == kNone) return kNone;
    kinds_[slot] = {scope, group, false, codecs};
    next_[slot] = first;
    slots_[scope] = slot;
    return slot;
  }
  // 0: nobody's.
  uint32_t scope(uint16_t slot) const noexcept { return kind(slot).scope; }
  const Kind& kind(uint16_t slot) const noexcept { return kinds_[slot < kinds_.size() ? slot : kNone]; }

  // alive(uint32_t scope): the lap that begins now drops all entries of the others.
  template <typename Alive>
  void lap_begins(Alive&& alive) {
    doomed_.clear();
    for (size_t slot = 1; slot < kinds_.size(); ++slot) {
      if (kinds_[slot].scope != 0 && !alive(kinds_[slot].scope)) doomed_.push_back(static_cast<uint16_t>(slot));
    }
  }
  void lap_ended() {
    for (const uint16_t slot : doomed_) {
      slots_[kinds_[slot].scope] = kNone;
      kinds_[slot] = {};
      next_[slot] = kNone;
      free_.push_back(slot);
    }
    taken_ -= doomed_.size();
    doomed_.clear();
  }

 private:
  uint16_t take_free() {
    if (free_.empty() && kinds_.size() > UINT16_MAX) return kNone;
    if (free_.empty()) {
      free_.push_back(static_cast<uint16_t>(kinds_.size()));
      kinds_.emplace_back();
      next_.push_back(kNone);
    }
    const uint16_t slot = free_.back();
    free_.pop_back();
    ++taken_;
    return slot;
  }

  std::vector<uint16_t> slots_;        // by scope: the last that it was given
  std::vector<Kind> kinds_{Kind()};    // by slot
  std::vector<uint16_t> next_{kNone};  // of the same scope, by slot
  std::vector<uint16_t> free_, doomed_;
  size_t taken_ = 0;
};

}  // namespace halfstep::store
