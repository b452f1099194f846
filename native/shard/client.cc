#include "shard/client.h"

#include "shard/request_host.h"

namespace halfstep::shard {

uint64_t Client::owner_of(uint64_t owner) const noexcept { return host_.store().owner_of(namespace_, owner); }

}  // namespace halfstep::shard
