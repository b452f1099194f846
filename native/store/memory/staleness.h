// staleness.h — memory and index side by side: whether what memory has of a block is still what the index names, and what is to
// be done with it when it is not.
// Thread: the shard's.
#pragma once

#include "store/catalog/catalog.h"
#include "store/memory/memory.h"

namespace halfstep::store {

// Whether unless_stale() and a use now look at the index.
inline bool wants_index(const Catalog& catalog, const Extent& extent) noexcept {
  return catalog.unseen(extent.location(), extent.departed_seen) || catalog.clock().now() >= extent.counts_from;
}

// What memory has of a key, unless its block has left the index since it was read or written. What is stale is gone afterwards,
// unless somebody has pinned it.
inline Extent* unless_stale(const Catalog& catalog, Memory& memory, Extent* extent) noexcept {
  if (extent == nullptr || extent->dirty() || catalog.still_live(extent->key, extent->location(), extent->departed_seen))
    return extent;
  memory.unlist(*extent);
  memory.settle(*extent);
  return nullptr;
}
inline Extent* resident(const Catalog& catalog, Memory& memory, const IndexKey& key) noexcept {
  return unless_stale(catalog, memory, memory.find(key));
}

// Out of both.
inline void forget(Catalog& catalog, Memory& memory, const IndexKey& key, const Location& location) noexcept {
  (void)catalog.drop(key, location);
  if (Extent* extent = memory.find(key); extent != nullptr && extent->location() == location) {
    memory.unlist(*extent);
    memory.settle(*extent);
  }
}

// Memory and index say of a block that is on flash that it ends at the same time: the index rounds it down.
inline void round_expiry(const Catalog& catalog, Extent& extent) noexcept {
  const Block block = catalog.find(extent.key);
  if (block && block.location == extent.location()) extent.entry.expiry_s = block.expiry_s;
}

}  // namespace halfstep::store
