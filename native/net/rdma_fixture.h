// rdma_fixture.h — for tests: two ends of a connection through rings over a table of verbs that moves bytes within the process.
#pragma once

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <memory>
#include <utility>

#include "net/rdma_rings.h"
#include "net/shm_fixture.h"
#include "net/socket.h"
#include "rdma/fake_verbs.h"

namespace halfstep::net {

inline std::array<int, 2> tcp_pair() {
  std::array<int, 2> pair{-1, -1};
  Address any;
  EXPECT_TRUE(Address::parse("127.0.0.1:0", &any).ok());
  int listener = -1;
  Address bound;
  EXPECT_TRUE(listen_on(any, &listener, &bound).ok());
  EXPECT_TRUE(start_connect(bound, &pair[0]).ok());
  Accepted accepted;
  while (accept_on(listener, &accepted) == Code::Throttled) {
  }
  pair[1] = accepted.descriptor;
  ::close(listener);
  return pair;
}

// The rings of one loop, both ends of its connections among them.
struct FakeRdma {
  explicit FakeRdma(Loop& loop, uint32_t ring_bytes = 64 * KiB, ConstBytes payload = {})
      : rings(loop, {.verbs = [this](std::string*) { return &verbs; },
                     .budget = &budget,
                     .ring_bytes = ring_bytes,
                     .payload = payload}) {}
  rdma::FakeVerbs verbs;
  RdmaBudget budget{64 * MiB};
  RdmaRings rings;
};

struct RdmaEnds {
  std::unique_ptr<RdmaEnd> server;
  std::unique_ptr<RdmaEnd> client;
};

// As the Hello and its Final connect them. The sockets stay the caller's: [0] the client's.
inline RdmaEnds rdma_ends(RdmaRings& rings, const std::array<int, 2>& sockets) {
  RdmaEnds ends;
  wire::RdmaPath offered;
  Fault fault = rings.offer(sockets[0], &ends.client, &offered);
  EXPECT_TRUE(fault.ok()) << fault.what;
  const uint32_t reads = ends.client->queue_pair().reads_max().in;
  const wire::RdmaOfferView offer{.head = {.path_count = 1}, .paths = wire::PackedArray<wire::RdmaPath>(object_bytes(offered))};
  wire::RdmaAnswerHead head;
  wire::RdmaPath answered;
  std::string why;
  EXPECT_EQ(rings.answer(sockets[1], offer, reads, &ends.server, &head, &answered, &why), wire::RdmaRefusal::None) << why;
  fault = RdmaRings::accept(*ends.client, sockets[0], answered, ends.server->reads_out());
  EXPECT_TRUE(fault.ok()) << fault.what;
  return ends;
}

inline RingPair rdma_pair(RdmaRings& rings) {
  const std::array<int, 2> sockets = tcp_pair();
  RdmaEnds ends = rdma_ends(rings, sockets);
  RingPair pair;
  EXPECT_TRUE(rings.transport(std::move(ends.server), sockets[1], 0, false, &pair.server).ok());
  EXPECT_TRUE(rings.transport(std::move(ends.client), sockets[0], 0, true, &pair.client).ok());
  for (const int socket : sockets) ::close(socket);
  return pair;
}

}  // namespace halfstep::net
