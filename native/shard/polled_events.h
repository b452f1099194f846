// polled_events.h — events of a store, copied for another thread.
#pragma once

#include <string>
#include <vector>

#include "store/account/events.h"
#include "store/format/namespace_info.h"

namespace halfstep::shard {

// Events of the store, copied for another thread.
struct PolledEvent {
  store::Event event;
  std::string engine_key;  // empty: not remembered
  store::ScopeName scope;
};
struct PolledEvents {
  store::Events::Polled polled;
  std::vector<PolledEvent> events;
};

}  // namespace halfstep::shard
