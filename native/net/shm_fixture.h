// shm_fixture.h — for tests: two ends of a connection through rings, without the set-up.
#pragma once

#include <gtest/gtest.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <memory>
#include <utility>

#include "net/shm_setup.h"
#include "net/shm_transport.h"

namespace halfstep::net {

struct RingPair {
  std::unique_ptr<Transport> server;
  std::unique_ptr<Transport> client;
};

inline RingPair ring_pair(RingGraveyard& graveyard, uint32_t ring_bytes = 64 * 1024) {
  RingMemory memory;
  RingMemory mapped_again;
  int descriptor = -1;
  EXPECT_TRUE(RingMemory::create(ring_bytes, ring_bytes, &memory, &descriptor).ok());
  EXPECT_TRUE(graveyard.take(memory.bytes()));
  const ShmAnswer answer{.memory_bytes = memory.bytes(), .to_server_bytes = ring_bytes, .to_client_bytes = ring_bytes};
  const Fault fault = RingMemory::map(descriptor, answer, &mapped_again);
  EXPECT_TRUE(fault.ok()) << fault.what;
  ::close(descriptor);
  std::array<int, 2> sockets{-1, -1};
  EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, sockets.data()), 0);
  const int to_client = ::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
  const int to_server = ::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
  RingPair pair;
  pair.server = server_rings(std::move(memory), sockets[0], to_client, to_server, graveyard);
  pair.client = client_rings(std::move(mapped_again), sockets[1], ::dup(to_server), ::dup(to_client));
  return pair;
}

}  // namespace halfstep::net
