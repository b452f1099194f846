// request_names.h — whether the layouts and keys that a request names are this shard's to serve. Thread: the shard's.
#pragma once

#include <cstdint>

#include "wire/message.h"
#include "wire/records.h"

namespace halfstep::shard {

class Client;

// Every layout is one that this client registered and whose scope is alive, and every key is this shard's. Otherwise the
// request is answered as a whole (with the shard map where that is the remedy), and false comes back.
bool check_names(Client& client, wire::Opcode command, uint64_t request_id, const wire::RequestView& view);
void answer_wrong_shard(Client& client, wire::Opcode command, uint64_t id);

}  // namespace halfstep::shard
