// store_check.h — the whole state of a store against its invariants: what every sum, list and account says, beside a walk of
// what it is about. For debug builds, at the end of every so many turns, and for the simulator. Cost: that of a walk of the
// index, the segments, the extents in memory and the holds. Thread: the shard's, between two calls.
#pragma once

#include "store/store.h"

namespace halfstep::store {

// Ends the process, and says what differs (base/check.h). `store`: one that open() or open_shard() made.
void check_invariants(const Store& store);

}  // namespace halfstep::store
