// block_events.h — what became of single blocks, for those who follow: events.h with the store's time and the living scopes.
// Invariants: blocks of a retired scope have no event of their own, they went with its Cleared. Thread: the shard's.
#pragma once

#include "store/account/events.h"
#include "store/catalog/names.h"
#include "store/format/store_time.h"
#include "store/memory/memory.h"

namespace halfstep::store {

inline EventOf event_of(const format::Entry& entry, ConstBytes engine_key) noexcept {
  return {{entry.key_low, entry.key_high}, entry.scope, entry.component, entry.raw_bytes, engine_key};
}

class BlockEvents {
 public:
  BlockEvents(Events& events, const Names& names, StoreTime& store_time) noexcept
      : events_(events), names_(names), store_time_(store_time) {}

  // False: nobody remembers any.
  bool enabled() const noexcept { return events_.enabled(); }
  void stored(const Extent& extent) {
    EventOf of = event_of(extent.entry, extent.engine_key_bytes());
    of.parent_kind = static_cast<Parent>((extent.entry.flags & format::kEntryParentMask) >> format::kEntryParentShift);
    of.parent = of.parent_kind == Parent::Known ? extent.entry.parent : 0;
    events_.note(EventReason::Put, of, store_time_.now_s());
  }
  void removed(const Extent& extent, EventReason why) { removed(event_of(extent.entry, extent.engine_key_bytes()), why); }
  void removed(const EventOf& name, EventReason why) {
    if (names_.alive(name.scope)) events_.note(why, name, store_time_.now_s());
  }
  // So many went whose names nobody can tell.
  void removed_unnamed(uint64_t blocks) {
    if (blocks > 0) events_.note_unnamed(blocks, store_time_.now_s());
  }

 private:
  Events& events_;
  const Names& names_;
  StoreTime& store_time_;
};

}  // namespace halfstep::store
