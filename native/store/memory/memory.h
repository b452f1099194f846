// memory.h — extents in memory: being filled, dirty, being read, or clean and kept as a cache until their slots are needed.
// Invariants: `listed` extents are found by their key, at most one per key; an extent's slot is given back only when nobody
// pins it, no transfer runs on it and it is not dirty; what is clean and not pinned gives way to whoever needs memory, in the
// order of hot_policy.h, which knows every listed extent and is told which are busy.
// Thread: the shard's. Extent objects are pooled: nothing is allocated per block in the steady state.
#pragma once

#include <array>
#include <deque>

#include "base/slots.h"
#include "index/table.h"
#include "io/request.h"
#include "store/catalog/catalog.h"
#include "store/format/extent_layout.h"
#include "store/format/requests.h"
#include "store/memory/hot_policy.h"
#include "wire/prefetch_kind.h"

namespace halfstep::store {

class BlockReader;
struct EarlyRead;
struct Transfer;

enum class ExtentState : uint8_t {
  Unused,
  Filling,  // between begin_write() and commit_write()
  Dirty,    // readable; not yet in a frame that has landed
  Reading,  // on its way in; readers wait
  Clean,
};

class Extent;

// Who writes a copy of a stored block (rewriter.h), and hears what became of it.
class CopyOwner {
 public:
  // The frame that ends with this page has landed.
  virtual void landed(Extent& copy, uint32_t end_page) = 0;
  // The copy will never be in one.
  virtual void failed(Extent& copy) = 0;

 protected:
  ~CopyOwner() = default;
};

// What an extent is beside a block in memory, while it is that.
// A copy that reclaim writes: its bytes are a part of the rewriter's buffer, and nobody finds it by its key.
struct CopyLife {
  CopyOwner* owner = nullptr;  // null: it is none
  const Slot* lent = nullptr;
  uint64_t lent_at = 0;
  Location original;
};
// A read of some parts: the slot begins with the pages that name their sums, of the frame's header or of the extent's trailer,
// and goes on with the extent's from `first_page` on. Of a block with a trailer those pages come first, for nothing else says
// which the parts' are; a trailer that is known takes none.
struct PartsLife {
  bool reads = false;
  bool awaits_trailer = false;
  uint32_t first_part = 0;
  uint32_t part_count = 0;
  uint32_t header_pages = 0;
  uint32_t first_page = 0;
  uint32_t pages = 0;
};

static_assert(sizeof(Resident) == 80, "what every get looks at, to `location_`, is two lines of the cache");
class alignas(64) Extent final : public Resident {
 public:
  static Extent& of(Resident& resident) noexcept { return static_cast<Extent&>(resident); }
  static Extent& of_slot(void* own) noexcept { return *static_cast<Extent*>(own); }

  Slot& slot_memory() noexcept { return slot_; }
  PartTable& part_table() noexcept { return parts_; }
  void set_block_bytes(uint32_t bytes) noexcept { block_bytes_ = bytes; }
  void set_checksum(uint32_t checksum) noexcept { checksum_ = checksum; }
  // Once in a frame; for a read, where it comes from.
  const Location& location() const noexcept { return location_; }
  // What the index said was of another place.
  void set_location(const Location& at) noexcept {
    location_ = at;
    departed_seen = Catalog::kNotSeen;
    counts_from = 0;
  }

  // Brought ahead of its first read: on its way; on its way, and asked for meanwhile; there, and kept.
  enum class Staged : uint8_t { No, Coming, Late, Kept };

  // What every get of a block in memory looks at stands in three lines of the cache: Resident and what follows it in two, and
  // what the entry says of scope and expiry beside what the index said (memory_test.cc counts).
  IndexKey key;
  ExtentState state = ExtentState::Unused;
  bool listed = false;
  Staged staged = Staged::No;
  uint8_t staged_kind = 0;  // while it is staged: what for (wire/prefetch_kind.h)
  uint32_t pins = 0;
  uint32_t number = 0;                 // among all extents, for good
  uint32_t record = HotPolicy::kNone;  // of the policy, while listed

 private:
  Location location_;

 public:
  ExtentShape shape;
  Write* write = nullptr;  // null once it is answered, or when it was handed to those who wait for a flush
  BlockReader* reader = nullptr;
  Read* waiters = nullptr;
  Transfer* pieces = nullptr;  // in order of offset: those whose bytes have not been verified yet
  Extent* next_pending = nullptr;
  format::Entry entry;
  // What the index said of the block at location(), so that it need not be asked for each use: Catalog::still_live(), and the
  // first time of the log at which a use counts once more.
  uint64_t departed_seen = Catalog::kNotSeen;
  uint64_t counts_from = 0;

  // Write
  std::array<std::byte, format::kEngineKeyBytesMax> engine_key{};
  uint8_t attempts = 0;  // frames that failed
  bool in_frame = false;
  bool touched = false;  // before it was in a frame

  CopyLife as_copy;

  // Read
  uint32_t outstanding = 0;
  int32_t error = 0;
  io::IoClass io_class = io::IoClass::Demand;
  Block block;  // as the index had it when the read began
  PartsLife as_parts;
  ExtentVerifier verifier;
  uint32_t piece_bytes = 0;    // that its reader wants it in; 0: as large ones as there may be
  EarlyRead* early = nullptr;  // while parts may be handed out before the rest has landed

  uint64_t staged_until_us = 0;  // kept, or to be kept once it is there
  uint32_t staged_stamp = 0;     // of the entry in StagedBlocks that says so

  template <typename Visit>
  void for_range(uint64_t offset, uint64_t count, Visit&& visit) const {
    const bool lent = as_copy.lent != nullptr;
    (lent ? *as_copy.lent : slot_).for_range(offset + (lent ? as_copy.lent_at : 0), count, std::forward<Visit>(visit));
  }
  bool is_copy() const noexcept { return as_copy.owner != nullptr; }
  ConstBytes engine_key_bytes() const noexcept { return ConstBytes(engine_key).first(entry.engine_key_bytes); }
  bool dirty() const noexcept { return state == ExtentState::Filling || state == ExtentState::Dirty; }
};

class Memory {
 public:
  // Of what is free of the pool now, `reserved_bytes` will be taken by others for good.
  Memory(SlotPool& slots, uint64_t reserved_bytes, double write_share);

  Extent* find(const IndexKey& key) const noexcept;
  // Many lookups wait for memory side by side. First prefetch_place() of all, then find_ahead() of all, or find_state_ahead()
  // by who looks at the extent's state alone; before they are used prefetch_use() of all, and prefetch_touch() of each when it
  // is pinned; prefetch_list() of all that are not there before they are made.
  [[gnu::always_inline]] void prefetch_place(const IndexKey& key) const noexcept { table_.prefetch(hash_of(key)); }
  Extent* find_ahead(const IndexKey& key) const noexcept;
  const Extent* find_state_ahead(const IndexKey& key) const noexcept;
  void prefetch_use(const Extent& extent) const noexcept;
  void prefetch_touch(const Extent& extent) const noexcept;
  [[gnu::always_inline]] void prefetch_list(const IndexKey& key) const noexcept { hot_.prefetch_ghost(key.low); }
  // Committed, and not yet in a frame that has landed.
  const Extent* find_dirty(const IndexKey& key) const noexcept {
    const Extent* extent = find(key);
    return extent != nullptr && extent->state == ExtentState::Dirty ? extent : nullptr;
  }
  // An unlisted extent with a slot of so many bytes, evicting what is clean; null when there is no memory now.
  Extent* make(const IndexKey& key, uint64_t bytes, ExtentState state) noexcept;
  // A slot for somebody's own use, evicting what is clean; empty when there is no memory now.
  Slot take(uint64_t bytes) noexcept;
  // Evicts until so many bytes are free, if that can be: several slots that are taken then lie together, and a device moves
  // what lies together in fewer pieces. Where each took the place of one that was evicted for it, they would not.
  void make_room(uint64_t bytes) noexcept;
  // `used`: it is, now.
  void list(Extent& extent, bool used = true);
  void unlist(Extent& extent) noexcept;
  // Unlists what was wanted and could not be had now: when it is asked for again, that it was is known.
  void put_off(Extent& extent) noexcept;

  void pin(Extent& extent) noexcept;
  void unpin(Extent& extent) noexcept;
  // The writes' share follows the state.
  void set_state(Extent& extent, ExtentState state) noexcept;
  // Frees it if nothing needs it, or lets it be evicted.
  void settle(Extent& extent) noexcept;

  bool write_fits(uint64_t bytes) const noexcept { return dirty_bytes_ + SlotPool::held_bytes(bytes) <= write_bytes_max_; }
  uint64_t write_bytes_max() const noexcept { return write_bytes_max_; }
  // What one window of reads may need at most.
  uint64_t read_bytes_max() const noexcept { return capacity_bytes_ - write_bytes_max_; }

  // All that there are, in use or not, each at its place for good.
  const std::deque<Extent>& extents() const noexcept { return extents_; }
  Extent& extent(uint32_t number) noexcept { return extents_[number]; }
  // It is used: now, if it is listed.
  void touch(Extent& extent) noexcept;
  // Uses before and after this are different ones, also of the same block.
  void begin_moment() noexcept { hot_.begin_moment(); }

  uint64_t capacity_bytes() const noexcept { return capacity_bytes_; }
  uint64_t resident_bytes() const noexcept { return resident_bytes_; }
  uint64_t pinned_bytes() const noexcept { return resident_bytes_ - evictable_bytes_; }
  uint64_t dirty_bytes() const noexcept { return dirty_bytes_; }
  // Of what was brought ahead of its first read and gave way before that, by kind: where nothing pins it till then (mount).
  const std::array<uint64_t, wire::kPrefetchKinds>& unread_bytes() const noexcept { return unread_bytes_; }
  uint64_t unread_blocks() const noexcept { return unread_blocks_; }

  // Ends the process where a sum or a list is not what a walk of all extents says.
  void check_invariants() const;

  // True once after memory came free since somebody was refused.
  bool take_relief() noexcept {
    const bool relief = refused_ && relieved_;
    if (relief) refused_ = relieved_ = false;
    return relief;
  }
  // That it did has not been told yet to those who were refused.
  bool relief_pending() const noexcept { return refused_ && relieved_; }
  // `pending`: it was when what is refused now began. What that took for itself meanwhile and gave back relieves nobody.
  void note_refusal(bool pending) noexcept {
    refused_ = true;
    relieved_ = pending;
  }

 private:
  void free(Extent& extent) noexcept;
  // False: there is nothing to evict.
  bool evict() noexcept;
  // What unlist() and settle() look at.
  [[gnu::always_inline]] static void prefetch_victim(const Extent& extent) noexcept {
    __builtin_prefetch(static_cast<const Resident*>(&extent));
    __builtin_prefetch(&extent.key);
  }
  static bool evictable(const Extent& extent) noexcept {
    return extent.state == ExtentState::Clean && extent.pins == 0 && extent.listed;
  }

  SlotPool& slots_;
  uint64_t capacity_bytes_;
  uint64_t write_bytes_max_;
  uint64_t resident_bytes_ = 0;
  uint64_t evictable_bytes_ = 0;
  uint64_t dirty_bytes_ = 0;
  std::array<uint64_t, wire::kPrefetchKinds> unread_bytes_{};
  uint64_t unread_blocks_ = 0;
  bool refused_ = false;
  bool relieved_ = false;
  index::Table table_;
  std::deque<Extent> extents_;
  std::vector<Extent*> unused_;
  HotPolicy hot_;
};

}  // namespace halfstep::store
