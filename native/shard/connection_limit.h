// connection_limit.h — how many connections a shard may have, and who gives way to a newcomer when it has them all.
// Some are kept for the unix socket, where whoever runs the daemon comes in. A connection that idles gives way to a newcomer:
// of the peer that has most connections (an address, or a user of this machine) the one that has idled longest. So a peer that
// opens many keeps out itself before it keeps out others. Nobody gives way who has something under way. One that has asked for
// nothing yet idles from the beginning: sockets that are opened faster than they can be told from clients take each other's
// places, and a client that comes among them has as many of them before it as there are places.
// Thread: the shard's.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "net/socket.h"

namespace halfstep::shard {

class Connection;

// A client that has been heard in this time does not idle.
inline constexpr uint64_t kIdleUsMin = 1'000'000;

// Of `connections_max` so many are for the unix socket alone, where there is one.
constexpr uint32_t kept_for_unix(uint32_t connections_max) noexcept {
  return connections_max < 16 ? (connections_max > 1 ? 1 : 0) : connections_max / 16;
}

// Whose connections are counted together.
std::string peer_of(const net::Accepted& accepted);

// Null: nobody idles.
Connection* who_gives_way(std::span<const std::unique_ptr<Connection>> connections, const Connection& newcomer,
                          uint64_t now_us);

}  // namespace halfstep::shard
