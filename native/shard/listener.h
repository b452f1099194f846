// listener.h — one listening socket of a shard.
// Invariants: a listener that cannot accept for want of descriptors pauses, so that it does not keep the loop busy.
// Thread: the shard's.
#pragma once

#include <functional>

#include "net/loop.h"
#include "net/socket.h"
#include "shard/listening.h"

namespace halfstep::shard {

class Listener final : public net::Watch {
 public:
  // False: no more of those that wait are taken in this turn.
  using OnAccepted = std::function<bool(const net::Accepted& peer, const ShardMap& map)>;

  // Takes the descriptor, and the file of a unix socket: both are gone with the listener.
  Listener(net::Loop& loop, ListeningSocket socket, OnAccepted on_accepted);
  ~Listener() override;
  Status start();
  void on_ready(uint32_t epoll_events) override;

 private:
  static void on_pause_over(void* self);

  net::Loop& loop_;
  const OnAccepted on_accepted_;
  int descriptor_;
  ShardMap map_;
  net::SocketFile file_;
  net::Timer pause_;
};

}  // namespace halfstep::shard
