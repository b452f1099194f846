// hot_policy.h — which block of memory gives way. It is told which blocks come in, are used, are busy and leave, and picks the
// victim: of the least recently used block of each class, the one that is worth least by the model of reuse (reuse_model.h).
// What it picked it remembers as a ghost, four times as many bytes as memory has: a ghost that comes in again was used again.
// All uses of a block in one moment are one use; a later one of them still moves it. A request uses its deepest block first and
// its root last, so that no block goes before one that follows it.
// It knows neither memory nor flash: a block is a tag, a number of pages and its owner's number.
// Invariants: a busy block is never picked; it keeps its place in the order, or the oldest place once that has come to it;
// a record is in the list of its class, parked, a ghost, or free. One takes 32 bytes, and a block of memory has five, four of
// them its ghosts'; to find ghosts takes up to 8 bytes a page of memory: for blocks of 256 KiB 0.3 % of it, of 16 KiB 1.2 %.
// Thread: its owner's. Allocates only while it grows to its largest size.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <vector>

#include "store/memory/reuse_model.h"

namespace halfstep::store {

class HotPolicy {
 public:
  static constexpr uint32_t kNone = UINT32_MAX;
  static constexpr uint64_t kGhostShare = 4;
  static constexpr uint32_t kPagesMax = 1U << 17;  // of one block

  // Of memory that holds so many pages, no block less than one.
  explicit HotPolicy(uint64_t capacity_pages);

  // A block comes in, busy, and is used unless it comes ahead of its first use. `tag`: 64 bits of its key, which a keyed hash
  // made; who meets another's ghost inherits its past, no more. Returns the record by which the block is known until it leaves.
  uint32_t insert(uint64_t tag, uint32_t pages, uint32_t owner, bool used = true) noexcept;
  void use(uint32_t record) noexcept;
  // It soon will be.
  [[gnu::always_inline]] void prefetch(uint32_t record) const noexcept { __builtin_prefetch(&records_[record], kToWrite); }
  // The same, a moment later: what it is tied to.
  [[gnu::always_inline]] void prefetch_ties(uint32_t record) const noexcept {
    const Record& of = records_[record];
    if (of.older != kNone) prefetch(of.older);
    if (of.newer != kNone) prefetch(of.newer);
  }
  // insert() of this tag soon will be: where its ghost may be, and, some time later, the ghost.
  [[gnu::always_inline]] void prefetch_place(uint64_t tag) const noexcept {
    __builtin_prefetch(&heads_[tag & (heads_.size() - 1)], kToWrite);
  }
  [[gnu::always_inline]] void prefetch_ghost(uint64_t tag) const noexcept {
    if (const uint32_t first = heads_[tag & (heads_.size() - 1)]; first != kNone) prefetch(first);
  }
  void set_busy(uint32_t record, bool busy) noexcept;
  // It leaves, and is remembered as a ghost.
  void dismiss(uint32_t record) noexcept;
  // It leaves by somebody's wish, and nothing is learned from it.
  void remove(uint32_t record) noexcept;
  // The owner of the block that gives way, whose record is a ghost's from now on; kNone when all are busy.
  uint32_t evict() noexcept;
  // The owner of one that is likely to be next; kNone: nobody knows.
  uint32_t likely_next() const noexcept;
  // What was used until now is used again when it is used from here on.
  void begin_moment() noexcept { uses_in_moment_ = 0; }

  uint64_t ghosts() const noexcept { return ghosts_; }
  uint64_t memory_bytes() const noexcept { return records_.size() * sizeof(Record) + heads_.size() * sizeof(uint32_t); }

 private:
  enum Where : uint8_t { InClass, Parked, Ghost };
  struct Record {
    uint64_t tag;
    uint64_t used_at : 41;  // of `uses_`: comes round when nobody remembers
    uint64_t unused : 1;    // came ahead of its first use, and had none
    uint64_t touch_class : 2;
    uint64_t where : 2;
    uint64_t busy : 1;
    uint64_t pages_less_one : 17;
    uint32_t owner;
    uint32_t older;
    uint32_t newer;
    uint32_t next;  // ghosts of one bucket, free records
  };
  static_assert(sizeof(Record) == 32, "the head of this file says so");
  struct List {
    uint32_t oldest = kNone;
    uint32_t newest = kNone;
  };

  List& list_of(const Record& record) noexcept {
    return record.where == Ghost ? ghost_list_ : by_class_[static_cast<size_t>(record.touch_class)];
  }
  uint32_t pages_of(const Record& record) const noexcept { return static_cast<uint32_t>(record.pages_less_one) + 1; }
  uint64_t age_of(const Record& record) const noexcept { return (uses_ - record.used_at) & kUsesMask; }
  void link_newest(uint32_t record) noexcept;
  void link_oldest(uint32_t record) noexcept;
  void unlink(uint32_t record) noexcept;
  void count_use(Record& record) noexcept;
  void note_use() noexcept;
  uint32_t take_record() noexcept;
  void give_record(uint32_t record) noexcept;
  uint32_t& head_of(uint64_t tag) noexcept { return heads_[tag & (heads_.size() - 1)]; }
  // Out of the list of ghosts and its bucket.
  void unghost(uint32_t record) noexcept;
  void forget_ghost() noexcept;
  // What the next to leave is tied to: many leave one after the other. Inline, or g++ 12 drops it.
  [[gnu::always_inline]] void prefetch_leaving(const List& list) const noexcept {
    if (list.oldest == kNone) return;
    const Record& oldest = records_[list.oldest];
    prefetch_place(oldest.tag);
    if (oldest.newer != kNone) prefetch(oldest.newer);
  }

  static constexpr int kToWrite = 1;  // of __builtin_prefetch
  static constexpr uint64_t kUsesMask = (uint64_t{1} << 41) - 1;

  const uint64_t ghost_pages_max_;
  ReuseModel model_;
  std::deque<Record> records_;
  std::vector<uint32_t> heads_;  // of ghosts by tag
  std::array<List, ReuseModel::kClasses> by_class_;
  List ghost_list_;
  uint8_t last_class_ = 0;  // of which one gave way
  uint32_t free_ = kNone;
  uint64_t ghosts_ = 0;
  uint64_t ghost_pages_ = 0;
  uint64_t uses_ = 0;
  uint64_t uses_in_moment_ = 0;
};

}  // namespace halfstep::store
