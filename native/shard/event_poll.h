// event_poll.h — the store's events for another thread: copied, with the names that a consumer outside knows scopes by.
// Thread: the shard's.
#pragma once

#include "shard/polled_events.h"
#include "store/store.h"

namespace halfstep::shard {

PolledEvents poll_events(const store::Store& store, uint64_t after, uint32_t limit);

}  // namespace halfstep::shard
