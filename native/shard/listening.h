// listening.h — the listening sockets of all shards, opened before the shards' threads are there.
// Every address that a daemon listens on is a family of sockets, one a shard: the first shard's is the address itself, the
// others' follow from it, the ports behind its port (any free ones for port 0), or the socket's path and ".1", ".2", …. Who
// comes in by one of a family is told of that family, so that no client is sent where it cannot go. Thread: one at a time.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/status.h"
#include "net/socket.h"
#include "wire/records.h"

namespace halfstep::shard {

// By shard: where it listens, as clients of this family are told.
using ShardMap = std::shared_ptr<const std::vector<wire::ShardAddress>>;

struct ListeningSocket {
  int descriptor = -1;
  ShardMap map;
};

class Listening {
 public:
  Listening() = default;
  Listening(const Listening&) = delete;
  Listening& operator=(const Listening&) = delete;
  // Closes what nobody took.
  ~Listening();

  // Of the first shard: "127.0.0.1:7350", "unix:/run/…".
  Fault open(const std::vector<std::string>& addresses, bool beyond_loopback);
  // Of all the others; after open().
  Fault open_others(uint32_t shards);

  // What a shard listens on, and with it the sockets: the caller closes them.
  std::vector<ListeningSocket> take(uint32_t shard);
  // As text, with the real ports.
  std::vector<std::string> addresses(uint32_t shard) const;
  const std::string& congestion_control() const noexcept { return congestion_control_; }

 private:
  struct Socket {
    int descriptor = -1;
    net::Address bound;
  };
  struct Family {
    net::Address asked;
    std::vector<Socket> sockets;  // by shard
  };
  Fault add(Family& family, const net::Address& address);
  static Fault address_of(const Family& family, uint32_t shard, net::Address* out);

  std::vector<Family> families_;
  std::string congestion_control_;
};

}  // namespace halfstep::shard
