// shard_media.h — a shard's part of its device: how its bytes are moved, where they lie, and the secret that seals its pages.
// Whoever reads or writes pages needs all three. Invariants: what it names outlives whoever holds it. Thread: the shard's.
#pragma once

#include "base/hash.h"
#include "io/engine.h"
#include "store/format/geometry.h"

namespace halfstep::store {

struct ShardMedia {
  io::Engine& engine;
  const Places& places;
  const HashKey& page_secret;
};

}  // namespace halfstep::store
