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
  uint64_t bytes_max = 0;  // that a request moves, if it has more than one key; 0: any number
  // By shard: over how many connections its share may spread.
  std::vector<uint32_t> connections;
};

// `make()` gives a request of the ticket, reset; `plan` fills it in and appends it to ticket.requests. Blocks need not be coded
// yet: there is room for the largest part tables that they can have.
void plan(Ticket& ticket, const PlanLimits& limits, const std::function<Request&()>& make);

// Once the blocks of a request are coded: where the part tables of one key are too many for it, blocks become plain.
void bound_tables(Request& request);

}  // namespace halfstep::peer
