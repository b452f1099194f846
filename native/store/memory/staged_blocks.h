// staged_blocks.h — blocks in memory that wait for their first read, and how much memory they may take while they wait.
// Invariants: a kept block is pinned once by this; what is kept and what is on its way never takes more than a quarter of
// memory, nor more than half of what writes leave, and the largest block there may be finds room beside it and all that writes
// may hold; a block is kept until its first read, or until its time is over.
// Thread: the shard's.
#pragma once

#include <algorithm>
#include <vector>

#include "base/check.h"
#include "store/format/report.h"
#include "store/memory/memory.h"
#include "wire/layout.h"

namespace halfstep::store {

class StagedBlocks {
 public:
  StagedBlocks(Memory& memory, Counters& counters, uint64_t block_bytes_max) noexcept
      : memory_(memory), counters_(counters), bytes_max_(bytes_max_of(memory, block_bytes_max)) {}

  uint64_t bytes() const noexcept { return bytes_; }
  bool fits(uint64_t bytes) const noexcept { return bytes_ + bytes <= bytes_max_; }
  bool ever_fits(uint64_t bytes) const noexcept { return bytes <= bytes_max_; }
  // For a block on its way: what it will take. Given back when it does not come to be kept.
  void reserve(uint64_t bytes) noexcept { bytes_ += bytes; }
  void give_back(uint64_t bytes) noexcept {
    HALFSTEP_CHECK(bytes <= bytes_, bytes, bytes_);
    bytes_ -= bytes;
    ++freed_;
  }

  // Its read has begun, and its bytes are reserved.
  void coming(Extent& extent, uint8_t kind) noexcept {
    extent.staged = Extent::Staged::Coming;
    extent.staged_kind = kind;
    extent.staged_until_us = 0;
  }
  // Somebody wants it kept while it is on its way: also when a get, before, has said that it takes it.
  void wanted_too(Extent& extent) noexcept {
    if (extent.staged == Extent::Staged::Late) extent.staged = Extent::Staged::Coming;
  }
  // Pinned by the caller, who reserved its bytes; both are this one's from now on.
  void keep(Extent& extent, uint64_t until_us, uint8_t kind) {
    if (extent.staged != Extent::Staged::Coming) extent.staged_kind = kind;
    const uint64_t until_others_us = extent.staged == Extent::Staged::Coming ? extent.staged_until_us : 0;
    extent.staged = Extent::Staged::Kept;
    ++kept_;
    note_end(extent, std::max(until_us, until_others_us));
  }
  // Of one that is kept, or will be: who asks for longest says for how long.
  void keep_until(Extent& extent, uint64_t until_us) {
    if (until_us <= extent.staged_until_us) return;
    if (extent.staged == Extent::Staged::Kept) return note_end(extent, until_us);
    extent.staged_until_us = until_us;
  }
  // A get has pinned it, and takes it: nothing of the get's window can fail any more.
  void used(Extent& extent) noexcept {
    if (extent.staged == Extent::Staged::Coming) {
      extent.staged = Extent::Staged::Late;
      ++counters_.staged_late;
      of_kind(extent).late_bytes += extent.slot().held_bytes();
    } else if (extent.staged == Extent::Staged::Kept) {
      ++counters_.staged_used;
      of_kind(extent).used_bytes += extent.slot().held_bytes();
      let_go(extent);
    }
  }
  // Lets go of what is due, as much of it as one turn may: for the rest the next one is due at once.
  void turn(uint64_t now_us) noexcept {
    overdue_ = false;
    for (uint32_t ended = 0; !ends_.empty() && ends_.front().until_us <= now_us; ++ended) {
      overdue_ = ended == kEndedInTurn;
      if (overdue_) return;
      const End end = ends_.front();
      std::pop_heap(ends_.begin(), ends_.end(), later);
      ends_.pop_back();
      if (!current(end)) continue;
      ++counters_.staged_unused;
      Extent& extent = memory_.extent(end.extent);
      of_kind(extent).unused_bytes += extent.slot().held_bytes();
      let_go(extent);
    }
  }
  // Of everything, however much it is.
  void let_all_go() noexcept {
    while (!ends_.empty()) turn(UINT64_MAX);
  }
  uint64_t next_due_us() const noexcept {
    if (overdue_) return 0;
    return ends_.empty() ? UINT64_MAX : ends_.front().until_us;
  }
  // How often room came free.
  uint64_t freed() const noexcept { return freed_; }

  void check_invariants() const {
    uint64_t kept = 0;
    uint64_t kept_bytes = 0;
    for (const Extent& extent : memory_.extents()) {
      if (extent.state == ExtentState::Unused || extent.staged != Extent::Staged::Kept) continue;
      const bool there = extent.state == ExtentState::Clean || extent.state == ExtentState::Dirty;
      HALFSTEP_CHECK(there && extent.pins > 0, extent.state, extent.pins);
      ++kept;
      kept_bytes += extent.slot().held_bytes();
    }
    HALFSTEP_CHECK(kept == kept_, kept, kept_);
    HALFSTEP_CHECK(kept_bytes <= bytes_ && bytes_ <= bytes_max_, kept_bytes, bytes_, bytes_max_);
    HALFSTEP_CHECK(ends_.size() >= kept_, ends_.size(), kept_);
  }

 private:
  static constexpr uint64_t kShareOfMemory = 4;
  static uint64_t bytes_max_of(const Memory& memory, uint64_t block_bytes_max) noexcept {
    const uint64_t reads = memory.read_bytes_max();
    const uint64_t largest = SlotPool::held_bytes(block_bytes_max + format::trailer_bytes(wire::kPartsMax));
    return std::min({memory.capacity_bytes() / kShareOfMemory, reads / 2, reads - std::min(reads, largest)});
  }
  static constexpr size_t kEndsMin = 256;
  static constexpr uint32_t kEndedInTurn = 1024;
  struct End {
    uint64_t until_us;
    uint32_t extent;
    uint32_t stamp;
  };
  static bool later(const End& a, const End& b) noexcept { return a.until_us > b.until_us; }
  bool current(const End& end) const noexcept {
    const Extent& extent = memory_.extents()[end.extent];
    return extent.staged == Extent::Staged::Kept && extent.staged_stamp == end.stamp;
  }

  void note_end(Extent& extent, uint64_t until_us) {
    // What was read in time leaves its end behind: never more of those than of the others.
    if (ends_.size() >= 2 * kept_ + kEndsMin) {
      std::erase_if(ends_, [this](const End& end) { return !current(end); });
      std::make_heap(ends_.begin(), ends_.end(), later);
    }
    extent.staged_until_us = until_us;
    extent.staged_stamp = ++stamp_;
    ends_.push_back({until_us, extent.number, extent.staged_stamp});
    std::push_heap(ends_.begin(), ends_.end(), later);
  }
  Counters::StagedOfKind& of_kind(const Extent& extent) noexcept { return counters_.staged_kinds[extent.staged_kind]; }
  void let_go(Extent& extent) noexcept {
    extent.staged = Extent::Staged::No;
    --kept_;
    give_back(extent.slot().held_bytes());
    memory_.unpin(extent);
  }

  Memory& memory_;
  Counters& counters_;
  const uint64_t bytes_max_;
  uint64_t bytes_ = 0;
  uint64_t freed_ = 0;
  uint64_t kept_ = 0;
  uint32_t stamp_ = 0;
  bool overdue_ = false;
  std::vector<End> ends_;  // a heap, the earliest in front; also of blocks that are not kept any more
};

}  // namespace halfstep::store
