// zero_copy_linger.h — sockets of connections that are over, of whose payload the kernel may still read.
// A socket that is closed goes on sending by itself, from the payload's pages, and says no more when it is done with
// them: its notifications end with it (SOCK_DEAD). If the memory were used again meanwhile, the peer would be sent, or
// sent again, other bytes than those. So the socket stays open here, with its sending half shut, until everything is
// notified; then the payload is released and the socket closed.
// A peer that takes too long, or one too many, is disconnected by connect(AF_UNSPEC): that resets the connection and
// drops the queues of what is to be sent and what was not acknowledged, but leaves the socket alive, with its error
// queue (net/ipv4/tcp.c, tcp_disconnect()). What the queue discipline and the NIC have taken keeps its pages: a
// notification is queued when the last packet that refers to them is freed, whatever became of the connection
// (net/core/skbuff.c). Nothing but driver and queue bounds that time, and nothing is released before.
// close_all() is for when nobody will ever write to the payload again: the kernel has references to the pages, so
// unmapping them, or the end of the process, leaves them as they are until it is done.
// Invariants: each payload adopted is released once, never from inside adopt(); at most `grace_sockets_max` wait for
// their peers.
// Thread: the loop's.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "net/loop.h"
#include "net/zero_copy.h"

namespace halfstep::net {

class ZeroCopyLinger {
 public:
  // How long a peer may take to acknowledge what it was sent, an Abort among it.
  static constexpr uint64_t kGraceUs = 5'000'000;

  // grace_sockets_max: how many may take that long at once. Each holds what its connection held, so this bounds memory.
  ZeroCopyLinger(Loop& loop, size_t grace_sockets_max) noexcept;
  // Everything has to be released by then: close_all(), as long as the owners of the payload live.
  ~ZeroCopyLinger();
  ZeroCopyLinger(const ZeroCopyLinger&) = delete;
  ZeroCopyLinger& operator=(const ZeroCopyLinger&) = delete;

  // Takes the socket, and what it holds.
  void adopt(int descriptor, ZeroCopyLedger ledger);
  // Nobody is disconnected any more: what is adopted from here on may take until close_all().
  void be_patient() noexcept { patient_ = true; }
  // Nobody will write to any payload again: releases everything, and leaves the rest to the kernel.
  void close_all();

  size_t sockets() const noexcept { return sockets_.size(); }
  // Of those, the ones that were not disconnected.
  size_t grace_sockets() const noexcept;
  uint64_t bytes() const noexcept;
  ZeroCopyCounts& counts() noexcept { return counts_; }

 private:
  class Socket;
  static void on_timer(void* self);
  bool settle(Socket& socket);
  void remove(const Socket& socket);

  Loop& loop_;
  const size_t grace_sockets_max_;
  Timer timer_;
  std::vector<std::unique_ptr<Socket>> sockets_;  // in the order in which they came
  ZeroCopyCounts counts_;
  bool patient_ = false;
};

}  // namespace halfstep::net
