// shm_transport.h — a connection whose bytes travel through two rings; its socket stays open as the sign of life.
// A bell is an eventfd that a side writes to when the other one waits (shm_ring.h). It is watched by edge and never read, so
// what the other end does to its counter or its flags changes nothing here.
// Invariants: what the peer put into the ring before it closed is still received; nothing but receive() and send() touches the
// memory; it is unmapped with the transport, its pages given back by the server, at once or through the graveyard.
#pragma once

#include <memory>

#include "net/shm_setup.h"

namespace halfstep::net {

// Both take all descriptors. `rings`: written to, to wake the other end. `rung`: polled. `graveyard` outlives the transport.
std::unique_ptr<Transport> server_rings(RingMemory memory, int socket, int rings, int rung, RingGraveyard& graveyard);
std::unique_ptr<Transport> client_rings(RingMemory memory, int socket, int rings, int rung);

}  // namespace halfstep::net
