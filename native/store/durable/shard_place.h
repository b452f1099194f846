// shard_place.h — one shard of a store that has several: what it shares, and which one it is.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

namespace halfstep::store {

class HeaderKeeper;

// One shard of a store that has several: what it shares with the others, which one it is, and what wakes its thread when the
// others have changed the store's header (any thread calls it). `yield`: where one thread drives several shards, the others'
// turns, for one that can only go on after them; null: it sleeps.
struct ShardPlace {
  std::shared_ptr<HeaderKeeper> keeper;
  uint32_t number = 0;
  std::function<void()> wake;
  std::function<void()> yield;
};

}  // namespace halfstep::store
