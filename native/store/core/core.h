// core.h — what the pieces of one shard's store share: the device, the clock, the counters, the order of things.
// Invariants: `sequence` only grows and starts above everything that was ever on flash; store time never runs backwards.
// Thread: the shard's.
#pragma once

#include <algorithm>
#include <deque>

#include "base/check.h"
#include "index/table.h"
#include "store/account/events.h"
#include "store/account/holds.h"
#include "store/catalog/catalog.h"
#include "store/catalog/device_health.h"
#include "store/catalog/names.h"
#include "store/durable/flusher.h"
#include "store/durable/header_keeper.h"
#include "store/durable/record_log.h"
#include "store/durable/shard_place.h"
#include "store/format/geometry.h"
#include "store/format/header.h"
#include "store/format/mutant.h"
#include "store/format/options.h"
#include "store/format/store_time.h"
#include "store/format/transfer.h"
#include "store/memory/memory.h"
#include "store/memory/staged_blocks.h"

namespace halfstep::store {

// Frames in flight at once, of one writer and of all; each has header pages of its own, taken from the arena at open.
inline constexpr uint32_t kFramesInFlightMax = 4;
inline constexpr uint32_t kFrameHeaders = 6;
inline constexpr uint64_t kFrameHeaderBytes = uint64_t{format::kFrameHeaderPagesMax} * kPageBytes;

// Memory for reclaim, taken from the arena at open: what it copies must never wait for what reads and writes hold. A store of
// fewer segments copies nothing: the segment that copies go to would be too large a part of it.
inline constexpr uint32_t kRewriteSegmentsMin = 8;
inline constexpr uint64_t kRewriteBufferBytesMax = 8 * MiB;
inline uint64_t rewrite_buffer_bytes(uint32_t segments, uint64_t pool_bytes) noexcept {
  if (segments < kRewriteSegmentsMin) return 0;
  return std::min(round_down(pool_bytes / 8, kPieceBytesMax), kRewriteBufferBytesMax);
}
// What the store takes of the pool for itself; the rest is for blocks.
inline constexpr uint64_t kOwnMemoryBytesMax = kFrameHeaders * kFrameHeaderBytes + kRewriteBufferBytesMax;
inline uint64_t own_memory_bytes(uint32_t segments, uint64_t pool_bytes) noexcept {
  return kFrameHeaders * kFrameHeaderBytes + rewrite_buffer_bytes(segments, pool_bytes);
}

// What one request does with a block, its get, its touches and its repeated offers, is one use of it: memory counts the uses of
// so long a time as one.
inline constexpr uint64_t kMomentUs = 1'000'000;

// Why a block left the index without anybody asking for it.
// Unreadable: its bytes failed their check; Failed: the device did.
enum class Eviction : uint8_t { Age, Expired, DeadScope, Quota, Unreadable, Failed };

// A moment of store time on the monotonic clock.
inline uint64_t until_us_of(uint64_t until_s, uint64_t now_s, uint64_t now_us) noexcept {
  if (until_s == format::kHoldNoEnd) return Holds::kNoEnd;
  constexpr uint64_t kLongestS = uint64_t{1} << 40;
  return now_us + std::min(until_s - std::min(until_s, now_s), kLongestS) * 1'000'000;
}

struct Core {
  Core(io::Engine& engine_in, SlotPool& slots_in, const Clock& clock_in, const Options& options_in, HeaderState header_in,
       const ShardPlace& place, std::unique_ptr<index::BlockIndex> index)
      : engine(engine_in),
        slots(slots_in),
        clock(clock_in),
        options(share_of(options_in, header_in.fixed.shards)),
        header(std::move(header_in)),
        places(header.places().of_shard(place.number)),
        index_secret(header.index_secret()),
        page_secret(header.page_secret()),
        owner_secret(derived(index_secret)),
        rewrite_bytes(rewrite_buffer_bytes(places.segments(), slots.capacity_bytes())),
        names(leases_max_bytes(places, options.lease_share), &place.keeper->scope_use()),
        catalog({places.segments(), places.geometry.segment_bytes, std::move(index)}, names),
        events(options.events_max),
        flusher(engine, counters.flushes, &place.keeper->flushes(), place.wake),
        names_uncertain(place.keeper->names_uncertain()),
        scope_use(place.keeper->scope_use()),
        log({&engine, &flusher, places, page_secret, &Core::born_before, this}),
        memory(slots, own_memory_bytes(places.segments(), slots.capacity_bytes()), options.write_share),
        staged(memory, counters, places.geometry.block_bytes_max),
        holds(options.holds_max, options.lease_ms_max * 1000, index_secret, names),
        store_time(clock, header.fixed.store_time_s) {
    names.refresh(header);
    for (uint32_t i = 0; i < kFrameHeaders; ++i) {
      frame_headers.push_back(slots.take(kFrameHeaderBytes));
      HALFSTEP_DCHECK(!frame_headers.back().empty() && frame_headers.back().piece_count() == 1,
                      frame_headers.back().piece_count());
    }
  }
  Core(const Core&) = delete;
  Core& operator=(const Core&) = delete;

  io::Engine& engine;
  SlotPool& slots;
  const Clock& clock;
  const Options options;
  HeaderState header;
  const Places places;
  const HashKey index_secret;
  const HashKey page_secret;
  const HashKey owner_secret;       // of holds
  const uint64_t rewrite_bytes;     // of the rewriter's buffer
  std::vector<Slot> frame_headers;  // those that no frame uses
  Counters counters;
  Names names;
  Catalog catalog;
  Events events;
  Flusher flusher;
  // Nothing is called durable meanwhile: a start might take the scope that it stands in for a deleted one.
  const std::atomic<bool>& names_uncertain;
  ScopeUse& scope_use;
  RecordLog log;
  Memory memory;
  StagedBlocks staged;
  Holds holds;
  WriteHealth writes;
  UnreadBlocks unread;
  TransferPool transfers;
  // While blocks are being recovered: the keys that were deleted, with the sequence of their newest tombstone, so that a delete
  // counts for what has not been found yet. Null: all that is on flash is known.
  std::unique_ptr<index::Table> buried;
  uint64_t sequence = 0;
  StoreTime store_time;

  // A segment that ends behind the end of its backing, which was cut: it takes no frame any more.
  bool cut_off(uint32_t segment) const noexcept {
    const uint64_t there = engine.device_bytes(0);
    return there != 0 && places.segment(segment) + places.geometry.segment_bytes > there;
  }
  bool recovering() const noexcept { return buried != nullptr; }
  uint64_t draw() noexcept { return ++sequence; }
  uint64_t store_time_s() noexcept { return store_time.now_s(); }
  bool expired(uint32_t expiry_s) noexcept {
    if (HALFSTEP_MUTANT(ExpiryIgnored)) return false;
    return expiry_s != 0 && expiry_s <= store_time_s();
  }

  // Records in the log: pooled, because removes come by the thousand.
  RecordLog::Pending& take_pending() {
    if (free_pending_ == nullptr) return pending_.emplace_back();
    RecordLog::Pending& pending = *free_pending_;
    free_pending_ = pending.next;
    pending = {};
    return pending;
  }
  void give_pending(RecordLog::Pending& pending) noexcept {
    pending.next = free_pending_;
    free_pending_ = &pending;
  }
  void log_tombstone(const IndexKey& key, void (*done)(RecordLog::Pending&, Status), void* owner) {
    RecordLog::Pending& pending = take_pending();
    pending.record.kind = static_cast<uint8_t>(format::RecordKind::Tombstone);
    pending.record.sequence = draw();
    pending.record.key_low = key.low;
    pending.record.key_high = key.high;
    if (recovering() && !HALFSTEP_MUTANT(RecoveredDespiteDelete)) buried->put(hash_of(key), pending.record.sequence);
    pending.done = done;
    pending.owner = owner;
    log.append(pending);
  }
  // A block that left the index though its frame may be found again: a restart must not bring it back after somebody was
  // told that it is gone. Tried until it is on media.
  void bury(const IndexKey& key) {
    log_tombstone(
        key,
        [](RecordLog::Pending& pending, Status status) {
          auto* self = static_cast<Core*>(pending.owner);
          status.ok() ? self->give_pending(pending) : self->keep_burying(pending);
        },
        this);
  }
  // A tombstone that failed keeps its sequence: the block may have been put again since.
  void keep_burying(RecordLog::Pending& pending) {
    const format::Record record = pending.record;
    give_pending(pending);
    unburied_.push_back(record);
    bury_again_us_ = clock.now_us() + kBuryAgainUs;
  }
  bool all_buried() const noexcept { return unburied_.empty(); }
  uint64_t bury_again_us() const noexcept { return unburied_.empty() ? UINT64_MAX : bury_again_us_; }
  void bury_again() {
    if (clock.now_us() >= bury_again_us_) bury_now();
  }
  void bury_now() {
    for (const format::Record& record : unburied_) {
      RecordLog::Pending& pending = take_pending();
      pending.record = record;
      pending.owner = this;
      pending.done = [](RecordLog::Pending& done, Status status) {
        auto* self = static_cast<Core*>(done.owner);
        status.ok() ? self->give_pending(done) : self->keep_burying(done);
      };
      log.append(pending);
    }
    unburied_.clear();
  }
  // Before the uses of a request.
  void note_moment() noexcept {
    const uint64_t now_us = clock.now_us();
    if (now_us < moment_ends_us_) return;
    moment_ends_us_ = now_us + kMomentUs;
    memory.begin_moment();
  }
  Moment moment() noexcept { return {true, catalog.clock().now(), store_time_s()}; }
  void touch(const IndexKey& key) { touch(key, moment()); }
  void touch(const IndexKey& key, const Moment& at) { touch(key, memory.find(key), at); }
  // `extent`: what memory has of the key.
  void touch(const IndexKey& key, Extent* extent, const Moment& at) {
    if (extent != nullptr) {
      memory.touch(*extent);
      if (at.log_time < extent->counts_from) return;
    }
    const Used used = catalog.touch(key, at.log_time);
    if (used == Used::There) {
      if (extent != nullptr && extent->state == ExtentState::Clean) extent->counts_from = at.log_time + 1;
      return;
    }
    if (used == Used::Absent && (extent == nullptr || extent->state != ExtentState::Dirty)) return;
    if (used == Used::Slides) {
      const uint32_t end_s = catalog.slide(key, at.store_s);
      if (extent != nullptr && extent->state != ExtentState::Filling) extent->entry.expiry_s = end_s;
      return;
    }
    extent->touched = true;
    if ((extent->entry.flags & format::kEntrySliding) != 0) slide_unwritten(extent->entry, at.store_s);
  }
  // No frame says it yet: its frame will.
  void slide_unwritten(format::Entry& entry, uint64_t used_s) noexcept {
    const uint64_t ttl_s = names.sliding_ttl_s(entry.scope);
    const uint64_t end_s = std::min<uint64_t>(used_s + ttl_s, UINT32_MAX);
    if (ttl_s != 0) entry.expiry_s = std::max(entry.expiry_s, static_cast<uint32_t>(end_s));
  }
  // A key's last hold is gone.
  void unhold(const IndexKey& key) noexcept { catalog.set_held(key, false); }
  // How many reads the device has answered well: what grows says that it can be read.
  uint64_t reads_answered() const noexcept { return engine.counters().reads; }
  // Out of the index for this reason, or for a better one; what memory keeps of it goes, too.
  void evict(const EventOf& name, const Block& block, Eviction why) {
    note_removed(name, event_of(count_eviction(block, why)));
    forget(name.key, block.location);
  }
  // The same for what the sweep takes out of the index, where no key is known: what memory keeps of it is stale (resident()).
  // Returns what it counted as.
  Eviction count_eviction(const Block& block, Eviction why) noexcept {
    if (expired(block.expiry_s)) why = Eviction::Expired;
    if (!names.alive(block.scope)) why = Eviction::DeadScope;
    count_evictions(catalog.segment(block.location.segment), why, 1);
    return why;
  }
  // All that is alive in the segment, without a look at its blocks.
  void evict_all(Segment& segment) {
    const Eviction why = segment.all_expired(store_time_s()) ? Eviction::Expired : Eviction::Age;
    uint64_t unnamed = 0;
    for (const Share& share : segment.shares) {
      const bool alive = names.alive(catalog.scope_of(share));
      count_evictions(segment, alive ? why : Eviction::DeadScope, share.blocks);
      unnamed += alive ? share.blocks : 0;
    }
    if (unnamed > 0) events.note_unnamed(unnamed, store_time_s());
    catalog.void_segment(segment);
  }
  // For who follows. Blocks of a retired scope went with its Cleared.
  void note_stored(const Extent& extent) {
    EventOf of = about(extent.entry, extent.engine_key_bytes());
    of.parent_kind = static_cast<Parent>((extent.entry.flags & format::kEntryParentMask) >> format::kEntryParentShift);
    of.parent = of.parent_kind == Parent::Known ? extent.entry.parent : 0;
    events.note(EventReason::Put, of, store_time_s());
  }
  void note_removed(const Extent& extent, EventReason why) {
    note_removed(about(extent.entry, extent.engine_key_bytes()), why);
  }
  void note_removed(const EventOf& name, EventReason why) {
    if (names.alive(name.scope)) events.note(why, name, store_time_s());
  }
  static EventOf about(const format::Entry& entry, ConstBytes engine_key) noexcept {
    return {{entry.key_low, entry.key_high}, entry.scope, entry.component, entry.raw_bytes, engine_key};
  }
  // Out of index and memory.
  void forget(const IndexKey& key, const Location& location) noexcept {
    (void)catalog.drop(key, location);
    if (Extent* extent = memory.find(key); extent != nullptr && extent->location() == location) {
      memory.unlist(*extent);
      memory.settle(*extent);
    }
  }
  // When a block ends, to the second as far as anything but the index says it.
  uint32_t exact_expiry_s(const format::Entry& entry, const Block& block) const noexcept {
    const uint32_t expiry_s = log.life().expiry_s(entry);
    const Segment& segment = catalog.segment(block.location.segment);
    return segment.marks.code(block.location.page, expiry_s) == block.expiry_code ? expiry_s : block.expiry_s;
  }
  // Memory and index say of a block that is on flash that it ends at the same time: the index rounds it down.
  void round_expiry(Extent& extent) const noexcept {
    const Block block = catalog.find(extent.key);
    if (block && block.location == extent.location()) extent.entry.expiry_s = block.expiry_s;
  }
  // Whether resident() and a use now look at the index.
  bool wants_index(const Extent& extent) const noexcept {
    return catalog.unseen(extent.location(), extent.departed_seen) || catalog.clock().now() >= extent.counts_from;
  }
  // What memory has of the key, unless its block has left the index since it was read or written.
  Extent* resident(const IndexKey& key) noexcept { return unless_stale(memory.find(key)); }
  // The same of what memory has of a key. What is stale is gone afterwards, unless somebody has pinned it.
  Extent* unless_stale(Extent* extent) noexcept {
    if (extent == nullptr || extent->dirty() || catalog.still_live(extent->key, extent->location(), extent->departed_seen))
      return extent;
    memory.unlist(*extent);
    memory.settle(*extent);
    return nullptr;
  }

 private:
  static uint64_t leases_max_bytes(const Places& places, double share) noexcept {
    return static_cast<uint64_t>(1.5 * share * static_cast<double>(places.segments() * places.geometry.segment_bytes));
  }
  static HashKey derived(const HashKey& secret) noexcept {
    const Hash128 hash = keyed_hash(secret, as_bytes("halfstep: owners of holds"));
    return {hash.low, hash.high};
  }
  void count_evictions(Segment& segment, Eviction why, uint64_t blocks) noexcept {
    // A name of a dead scope is never used again; what was unreadable is buried by who found it so.
    const bool bad = why == Eviction::Unreadable || why == Eviction::Failed;
    if (why != Eviction::DeadScope && !bad) segment.may_return = true;
    if (bad) segment.note_media_error();
    if (why == Eviction::Failed) ++counters.blocks_given_up;
    counters.blocks_evicted += blocks;
    switch (why) {
      case Eviction::Age: counters.blocks_evicted_age += blocks; break;
      case Eviction::Expired: counters.blocks_evicted_expired += blocks; break;
      case Eviction::DeadScope: counters.blocks_evicted_dead_scope += blocks; break;
      case Eviction::Quota: counters.blocks_evicted_quota += blocks; break;
      case Eviction::Unreadable:
      case Eviction::Failed: counters.blocks_evicted_unreadable += blocks; break;
    }
  }
  static EventReason event_of(Eviction why) noexcept {
    switch (why) {
      case Eviction::Expired: return EventReason::Expired;
      case Eviction::Quota: return EventReason::Quota;
      case Eviction::Unreadable: return EventReason::Corrupt;
      case Eviction::Failed: return EventReason::Io;
      default: return EventReason::Evicted;
    }
  }
  // For the log: whether there is a block that a record of this sequence applies to. Of one in frames nothing in memory says
  // when it was born: then it may.
  static bool born_before(void* core, const IndexKey& key, uint64_t sequence) {
    const auto& self = *static_cast<const Core*>(core);
    if (self.recovering() || self.catalog.find(key)) return true;
    const Extent* extent = self.memory.find(key);
    return extent != nullptr && extent->state == ExtentState::Dirty && extent->entry.birth < sequence;
  }

  static constexpr uint64_t kBuryAgainUs = 100'000;
  std::vector<format::Record> unburied_;
  uint64_t bury_again_us_ = 0;
  uint64_t moment_ends_us_ = 0;
  std::deque<RecordLog::Pending> pending_;
  RecordLog::Pending* free_pending_ = nullptr;
};

}  // namespace halfstep::store
