// recovery.h — from what is on flash to a catalog that may be served (V1 section 8).
// Order: record log; every segment that has a generation, newest first, by footer or by frames; of one key the higher birth
// wins; what lies past the last recorded watermark is read and verified; deleted, expired and dead-scoped blocks are left
// out, expiry changes applied; segments that were walked get their footer; the log is written afresh into its other half;
// persistent holds are taken again.
// Invariants: never refuses for bad media; never publishes an unverified tail; after it, `core.sequence` is above all that
// was ever on flash.
// Thread: the shard's, outside its loop (blocking).
#pragma once

#include "store/core.h"

namespace halfstep::store {

Status recover(Core& core, RecoveryReport* report);

}  // namespace halfstep::store
