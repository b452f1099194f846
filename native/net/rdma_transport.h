// rdma_transport.h — a connection whose bytes travel through rings that RDMA fills (rdma_pipe.h); its socket stays open as the
// sign of life.
// Invariants: what the other end wrote before it closed is still received, since it keeps its socket open until its writes have
// arrived; so does this one (RdmaRings::linger). A device that fails, or a path that dies, ends the connection as a socket's
// error would.
#pragma once

#include <memory>

#include "net/rdma_rings.h"

namespace halfstep::net {

// Payload in smaller runs is copied: a write of its own costs more.
inline constexpr size_t kRdmaRunBytesMin = 16 * KiB;

// Takes the descriptor. `rings` outlives it.
std::unique_ptr<Transport> rdma_transport(std::unique_ptr<RdmaPipe> pipe, int socket, uint64_t socket_bytes, RdmaRings& rings);

}  // namespace halfstep::net
