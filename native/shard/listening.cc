#include "shard/listening.h"

#include <unistd.h>

#include <utility>

namespace halfstep::shard {

Listening::~Listening() {
  for (Family& family : families_) {
    for (const Socket& socket : family.sockets) {
      if (socket.descriptor < 0) continue;
      net::SocketFile(socket.descriptor).remove();
      ::close(socket.descriptor);
    }
  }
}

Fault Listening::open(const std::vector<std::string>& addresses, bool beyond_loopback) {
  for (const std::string& text : addresses) {
    Family family;
    if (Fault fault = net::Address::parse(text, &family.asked); !fault.ok()) return fault;
    if (!family.asked.loopback() && !beyond_loopback) {
      return {Code::Invalid, "listen=" + text +
                                 ": anybody who reaches it could read and delete blocks, since clients are not "
                                 "authenticated yet; listen on 127.0.0.1, or allow it with --insecure-listen"};
    }
    families_.push_back(std::move(family));
    if (Fault fault = add(families_.back(), families_.back().asked); !fault.ok()) return fault;
  }
  return {};
}

Fault Listening::open_others(uint32_t shards) {
  for (Family& family : families_) {
    for (auto shard = static_cast<uint32_t>(family.sockets.size()); shard < shards; ++shard) {
      net::Address address;
      if (Fault fault = address_of(family, shard, &address); !fault.ok()) return fault;
      if (Fault fault = add(family, address); !fault.ok()) return fault;
    }
  }
  return {};
}

Fault Listening::address_of(const Family& family, uint32_t shard, net::Address* out) {
  *out = family.asked;
  if (out->is_unix) {
    out->host = net::unix_path_of_shard(out->host, shard);
  } else if (out->port != 0) {
    if (out->port + shard > UINT16_MAX) {
      return {Code::Invalid, "listen=" + out->text() + ": shard " + std::to_string(shard) +
                                 " listens so many ports above, and there are none above 65535; give a lower port"};
    }
    out->port = static_cast<uint16_t>(out->port + shard);
  }
  return {};
}

Fault Listening::add(Family& family, const net::Address& address) {
  Socket socket;
  if (Fault fault = net::listen_on(address, &socket.descriptor, &socket.bound); !fault.ok()) return fault;
  if (!socket.bound.is_unix) congestion_control_ = net::congestion_control(socket.descriptor);
  family.sockets.push_back(std::move(socket));
  return {};
}

std::vector<ListeningSocket> Listening::take(uint32_t shard) {
  std::vector<ListeningSocket> out;
  for (Family& family : families_) {
    std::vector<wire::ShardAddress> map(family.sockets.size());
    // One shard is where it was found. So is every other over unix sockets: there are no ports there.
    if (map.size() > 1 && !family.asked.is_unix) {
      for (size_t s = 0; s < map.size(); ++s) map[s].port = family.sockets[s].bound.port;
    }
    out.push_back({std::exchange(family.sockets[shard].descriptor, -1),
                   std::make_shared<const std::vector<wire::ShardAddress>>(std::move(map))});
  }
  return out;
}

std::vector<std::string> Listening::addresses(uint32_t shard) const {
  std::vector<std::string> out;
  for (const Family& family : families_) out.push_back(family.sockets[shard].bound.text());
  return out;
}

}  // namespace halfstep::shard
