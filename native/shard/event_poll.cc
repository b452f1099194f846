#include "shard/event_poll.h"

#include <unordered_map>

namespace halfstep::shard {

PolledEvents poll_events(const store::Store& store, uint64_t after, uint32_t limit) {
  PolledEvents out;
  std::unordered_map<uint32_t, store::ScopeName> names;  // a page of events is of a few scopes
  out.polled = store.events().poll(after, limit, [&](const store::Event& event, ConstBytes engine_key) {
    const auto [name, fresh] = names.try_emplace(event.scope);
    if (fresh) name->second = store.name_of(event.scope);
    out.events.push_back({event, std::string(as_text(engine_key)), name->second});
  });
  return out;
}

}  // namespace halfstep::shard
