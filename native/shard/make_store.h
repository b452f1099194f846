// make_store.h — makes a store ahead of its first daemon, exactly as that daemon would: `halfstep device format`.
// Invariants: what is there is changed only where `wipe` says so, and then only once it is locked, so that it is no daemon's
// and is mounted nowhere; the header, which makes it a store, is written last. Thread: one, blocking.
#pragma once

#include "base/status.h"
#include "io/backing.h"
#include "shard/config.h"
#include "store/format/geometry.h"

namespace halfstep::shard {

struct MadeStore {
  io::BackingFacts backing;
  store::Geometry geometry;
};

// Of `config`: store_path, store_bytes, segment_bytes, shards, arena_bytes and progress. Invalid: something is there, and
// `wipe` is false. A file that is wiped is removed first, and the new one is as large unless store_bytes says another size.
Fault make_store(const Config& config, bool wipe, MadeStore* out);

}  // namespace halfstep::shard
