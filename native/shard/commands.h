// commands.h — the commands of the protocol: which code serves each, and the pools of those that take longer than a call.
// Thread: the shard's.
#pragma once

#include <cstdint>

#include "base/bytes.h"
#include "shard/pool.h"
#include "shard/request_asked.h"
#include "shard/request_catalog.h"
#include "shard/request_get.h"
#include "shard/request_keys.h"
#include "shard/request_match.h"
#include "shard/request_prefetch.h"
#include "shard/request_put.h"
#include "wire/message.h"

namespace halfstep::shard {

class Client;

struct RequestPools {
  GetPools gets;
  PutPools puts;
  Pool<MatchRequest> matches;
  Pool<PrefetchRequest> prefetches;
  Pool<ChangeRequest> changes;
  Pool<StoreCall> store_calls;
  Pool<AskedRequest> asked;
  AsksFirst* elsewhere = nullptr;  // the store, where its blocks are not its own

  // Frees what a burst has left. Returns whether there was any.
  bool trim();
  // None of any kind is in use.
  bool idle() const noexcept;
};

// Begins to serve what a client asks for, or answers it at once. `body` lives as long as the call.
void begin_command(RequestPools& pools, Client& client, wire::Opcode opcode, uint64_t id, ConstBytes body);
// The same of a store that knows all that it is asked for, or has been told.
void begin_known_command(RequestPools& pools, Client& client, wire::Opcode opcode, uint64_t id, ConstBytes body);

}  // namespace halfstep::shard
