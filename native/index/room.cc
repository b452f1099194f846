// room.cc — what an insert does when both of its buckets are full: entries move to their other buckets until a slot is free.
// The search goes breadth first, so the chain of moves is as short as there is one: at the design load one move nearly always.
// Invariants: every move keeps its entry findable, also for readers on other threads: the copy is there before the original
// goes, and the home's count changes in the same store as the home's slot.
#include <array>

#include "base/check.h"
#include "index/block_index.h"

namespace halfstep::index {

// A full bucket, and the entry that leads to it: `slot` of the bucket of step `from`.
struct BlockIndex::Step {
  static constexpr uint8_t kRoot = UINT8_MAX;
  uint64_t bucket = 0;
  uint8_t from = kRoot;
  uint8_t slot = 0;
};

bool BlockIndex::make_room(const Probe& probe) noexcept {
  static_assert(kSteps < Step::kRoot);
  std::array<Step, kSteps> steps;
  size_t count = 0;
  steps[count++].bucket = probe.home;
  if (buckets_[probe.home].header_own().strays_away() < Header::kStraysAwayMax) {
    const uint64_t other = other_of(probe.home, probe.fingerprint);
    if (other != probe.home) steps[count++].bucket = other;
  }
  for (size_t at = 0; at < count; ++at) {
    const uint64_t from = steps[at].bucket;
    std::array<uint64_t, kSlotsPerBucket> others;
    for (unsigned slot = 0; slot < kSlotsPerBucket; ++slot) {
      others[slot] = other_of(from, buckets_[from].peek_own<field::Fingerprint>(slot));
      __builtin_prefetch(&buckets_[others[slot]]);
    }
    for (unsigned slot = 0; slot < kSlotsPerBucket; ++slot) {
      if (!may_move(from, others[slot])) continue;
      if (buckets_[others[slot]].header_own().full()) {
        if (count < kSteps) steps[count++] = {others[slot], static_cast<uint8_t>(at), static_cast<uint8_t>(slot)};
        continue;
      }
      // From the free slot back to the root. A chain that crosses itself may find a move undone: then there is no room here.
      if (!move(from, slot)) continue;
      size_t freed = at;
      while (steps[freed].from != Step::kRoot && move(steps[steps[freed].from].bucket, steps[freed].slot)) {
        freed = steps[freed].from;
      }
      return steps[freed].from == Step::kRoot;
    }
  }
  return false;
}

bool BlockIndex::send_stray_home(uint64_t bucket) noexcept {
  const Header header = buckets_[bucket].header_own();
  for (unsigned slot = 0; slot < kSlotsPerBucket; ++slot) {
    if (header.stray(slot) && move(bucket, slot)) return true;
  }
  return false;
}

bool BlockIndex::move(uint64_t from, unsigned slot) noexcept {
  Bucket& source = buckets_[from];
  const Header leaves = source.header_own();
  const Entry entry = source.entry_own(slot);
  const uint64_t to = other_of(from, entry.fingerprint());
  Bucket& target = buckets_[to];
  const Header enters = target.header_own();
  if (leaves.tag(slot) == 0 || enters.full() || !may_move(from, to)) return false;
  const unsigned free = Header::first(enters.matches(0));
  if (leaves.stray(slot)) {
    HALFSTEP_CHECK(enters.strays_away() > 0, enters.strays_away());
    target.write(free, entry, enters.with(free, leaves.tag(slot), false).with_strays_away(enters.strays_away() - 1));
    source.write(leaves.without(slot));
    --strays_;
  } else {
    if (leaves.strays_away() == Header::kStraysAwayMax) return false;
    target.write(free, entry, enters.with(free, leaves.tag(slot), true));
    source.write(leaves.without(slot).with_strays_away(leaves.strays_away() + 1));
    ++strays_;
  }
  ++moves_;
  return true;
}

}  // namespace halfstep::index
