// plan.h — cuts a ticket into requests: by shard, by the protocol's limits, and over a shard's connections.
// Thread: the client's.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "peer/request.h"

namespace halfstep::peer {

// A batch that moves less than this through one shard stays on one connection.
inline constexpr uint64_t kSpreadBytesMin = 512 * 1024;

struct PlanLimits {
  uint32_t shards = 1;
  uint32_t keys_max = wire::kKeysMax;
  // By shard: over how many connections its share may spread.
  std::vector<uint32_t> connections;
};

// Coded blocks of a key whose part tables are too many for one request become plain. `make()` gives a request of the ticket,
// reset; `plan` fills it in and appends it to ticket.requests.
void plan(Ticket& ticket, const PlanLimits& limits, const std::function<Request&()>& make);

}  // namespace halfstep::peer
