// evictor.h — takes blocks out of the index for which nobody asked: counts why, and tells those who follow.
// Thread: the shard's.
#pragma once

#include "store/account/block_events.h"
#include "store/catalog/catalog.h"
#include "store/format/report.h"
#include "store/format/store_time.h"
#include "store/memory/memory.h"
#include "store/memory/staleness.h"

namespace halfstep::store {

// Why a block left the index without anybody asking for it.
// Unreadable: its bytes failed their check; Failed: the device did.
enum class Eviction : uint8_t { Age, Expired, DeadScope, Quota, Unreadable, Failed };

class Evictor {
 public:
  Evictor(Catalog& catalog, Memory& memory, const Names& names, StoreTime& store_time, BlockEvents& events,
          Counters& counters) noexcept
      : catalog_(catalog), memory_(memory), names_(names), store_time_(store_time), events_(events), counters_(counters) {}

  // Out of the index for this reason, or for a better one; what memory keeps of it goes, too.
  void evict(const EventOf& name, const Block& block, Eviction why) {
    events_.removed(name, reason_of(count(block, why)));
    forget(catalog_, memory_, name.key, block.location);
  }
  // The same for what the sweep takes out of the index, where no key is known: what memory keeps of it is stale (staleness.h).
  // Returns what it counted as.
  Eviction count(const Block& block, Eviction why) noexcept {
    if (store_time_.expired(block.expiry_s)) why = Eviction::Expired;
    if (!names_.alive(block.scope)) why = Eviction::DeadScope;
    count_blocks(catalog_.segment(block.location.segment), why, 1);
    return why;
  }
  // All that is alive in the segment, without a look at its blocks.
  void evict_all(Segment& segment) {
    const Eviction why = segment.all_expired(store_time_.now_s()) ? Eviction::Expired : Eviction::Age;
    uint64_t unnamed = 0;
    for (const Share& share : segment.shares) {
      const bool alive = names_.alive(catalog_.scope_of(share));
      count_blocks(segment, alive ? why : Eviction::DeadScope, share.blocks);
      unnamed += alive ? share.blocks : 0;
    }
    events_.removed_unnamed(unnamed);
    catalog_.void_segment(segment);
  }

 private:
  void count_blocks(Segment& segment, Eviction why, uint64_t blocks) noexcept {
    // A name of a dead scope is never used again; what was unreadable is buried by who found it so.
    const bool bad = why == Eviction::Unreadable || why == Eviction::Failed;
    if (why != Eviction::DeadScope && !bad) segment.may_return = true;
    if (bad) segment.note_media_error();
    if (why == Eviction::Failed) ++counters_.blocks_given_up;
    counters_.blocks_evicted += blocks;
    switch (why) {
      case Eviction::Age: counters_.blocks_evicted_age += blocks; break;
      case Eviction::Expired: counters_.blocks_evicted_expired += blocks; break;
      case Eviction::DeadScope: counters_.blocks_evicted_dead_scope += blocks; break;
      case Eviction::Quota: counters_.blocks_evicted_quota += blocks; break;
      case Eviction::Unreadable:
      case Eviction::Failed: counters_.blocks_evicted_unreadable += blocks; break;
    }
  }
  static EventReason reason_of(Eviction why) noexcept {
    switch (why) {
      case Eviction::Expired: return EventReason::Expired;
      case Eviction::Quota: return EventReason::Quota;
      case Eviction::Unreadable: return EventReason::Corrupt;
      case Eviction::Failed: return EventReason::Io;
      default: return EventReason::Evicted;
    }
  }

  Catalog& catalog_;
  Memory& memory_;
  const Names& names_;
  StoreTime& store_time_;
  BlockEvents& events_;
  Counters& counters_;
};

}  // namespace halfstep::store
