// client_climb.cc — back from TCP to RDMA. A client whose path over RDMA failed goes on over TCP. From time to time it makes
// one more connection to such a shard, which offers rings anew: with rings it takes the place of one over TCP, which goes when
// what it has under way is over; without it goes itself. Nobody waits for it, and nothing that is under way is touched.
// Invariants: one climber a shard; it is up, with its layouts registered through the rings, before it gets a request; a client
// whose path never failed tries nothing: what it was refused it asks for with its next connection. The first try is a second
// after the fall, then after twice as long each time, up to a minute; and never before RdmaChoice offers.
#include <algorithm>
#include <utility>

#include "peer/client.h"

namespace halfstep::peer {

bool Client::fell_back(const Link& link) noexcept {
  return !link.address.is_unix && std::any_of(link.connections.begin(), link.connections.end(), [](const auto& connection) {
    return connection != nullptr && connection->up() && !connection->rdma();
  });
}

void Client::watch_for_rdma() {
  if (climb_timer_.armed() || options_.carrier != Carrier::Auto || rdma_choice_.failures() == 0) return;
  if (std::none_of(links_.begin(), links_.end(), &Client::fell_back)) return;
  loop_.arm(climb_timer_, loop_.now_us() + climb_wait_us_);
}

void Client::on_climb(void* self) {
  auto& client = *static_cast<Client*>(self);
  if (client.stopping_.load(std::memory_order_acquire)) return;
  if (client.map_known_ && client.rdma_choice_.offers(client.loop_.now_us())) {
    for (uint32_t shard = 0; shard < client.links_.size(); ++shard) {
      Link& link = client.links_[shard];
      if (link.climber != nullptr || !fell_back(link)) continue;
      // Over the card of one that fell: of another one each time, as a card may be dead.
      std::vector<uint32_t> lanes;
      for (const auto& connection : link.connections) {
        if (connection != nullptr && connection->up() && !connection->rdma()) lanes.push_back(connection->lane());
      }
      link.climber = std::make_unique<Connection>(client, link.address, shard, lanes[client.climbs_++ % lanes.size()]);
      link.climber->set_extra(true);
      link.climber->start();
    }
    client.climb_wait_us_ = std::min(2 * client.climb_wait_us_, kClimbUsMax);
  }
  client.watch_for_rdma();
}

// It is up.
void Client::settle_climber(Connection& connection) {
  if (!connection.extra() || connection.shard() >= links_.size()) return;
  Link& link = links_[connection.shard()];
  if (link.climber.get() != &connection) return;
  const auto old = std::find_if(link.connections.begin(), link.connections.end(),
                                [](const auto& other) { return other->up() && !other->rdma(); });
  if (!connection.rdma() || old == link.connections.end()) return retire_climber(connection);
  connection.set_extra(false);
  (*old)->set_extra(true);
  std::swap(*old, link.climber);
  leaving_.push_back(std::move(link.climber));
  climb_wait_us_ = kClimbUsMin;
  // The others follow at once.
  if (fell_back(link)) loop_.arm(climb_timer_, loop_.now_us());
}

void Client::retire_climber(const Connection& connection) {
  for (Link& link : links_) {
    if (link.climber.get() != &connection) continue;
    link.climber->stop();
    retired_.push_back(std::move(link.climber));
  }
}

// Those that have nothing under way any more, or were lost.
void Client::sweep_leaving() {
  std::erase_if(leaving_, [this](auto& connection) {
    if (connection->up() && connection->load_bytes() != 0) return false;
    connection->stop();
    retired_.push_back(std::move(connection));
    return true;
  });
}

}  // namespace halfstep::peer
