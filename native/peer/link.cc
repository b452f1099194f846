// link.cc — the client's connections: the seed it was given, then as many to every shard as the map names.
#include <algorithm>
#include <chrono>
#include <cstring>
#include <string>
#include <string_view>

#include "peer/client.h"
#include "peer/text.h"

namespace halfstep::peer {
namespace {

using wire::Answer;
using wire::Reason;

// Of one shard's unix socket the path is known: where is another one's?
std::string socket_path(std::string path, uint32_t shard_of_path, uint32_t shard) {
  const std::string own = net::unix_path_of_shard("", shard_of_path);
  if (path.ends_with(own)) path.resize(path.size() - own.size());
  return net::unix_path_of_shard(path, shard);
}

// How often all addresses of a name are tried before another store than the client's is taken for it.
constexpr uint32_t kStorePatience = 4;

std::string hex(const std::array<std::byte, 16>& uuid) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string text;
  for (const std::byte octet : uuid) {
    text += kDigits[std::to_integer<size_t>(octet) >> 4];
    text += kDigits[std::to_integer<size_t>(octet) & 15];
  }
  return text;
}

}  // namespace

void Client::open_seed() {
  map_known_ = false;
  links_.clear();
  links_.emplace_back();
  links_[0].address = options_.address;
  open_link(links_[0], Connection::kAnyShard);
}

void Client::open_link(Link& link, uint32_t shard) {
  // Of several cards the shards begin with different ones.
  const uint32_t first = shard == Connection::kAnyShard ? 0 : shard;
  for (uint32_t i = 0; i < options_.connections; ++i) {
    link.connections.push_back(std::make_unique<Connection>(*this, link.address, shard, first + i));
  }
}

std::string Client::take_store(const Connection& connection) {
  const auto& uuid = connection.hello().store_uuid;
  if (store_known_ && uuid != store_uuid_) {
    bool held = connection.hosts() > 1 && connection.attempts() < kStorePatience * connection.hosts();
    for (const Link& link : links_) {
      for (const auto& other : link.connections) held = held || (other.get() != &connection && other->greeted());
    }
    if (held) {
      return "the store " + hex(uuid) + " answers there, the client's is " + hex(store_uuid_) +
             ": name one daemon's address, not a name or balancer of several";
    }
  }
  store_known_ = true;
  store_uuid_ = uuid;
  return "";
}

std::string Client::on_greeted(Connection& connection, const wire::PackedArray<wire::ShardAddress>& map,
                               const wire::ShardHostsView& hosts) {
  if (std::string why = take_store(connection); !why.empty()) return why;
  const wire::HelloServer& hello = connection.hello();
  std::vector<ShardPort> ports;
  for (uint32_t s = 0; s < map.size(); ++s) {
    const uint16_t host = map[s].host;
    ports.push_back({map[s].port, host == 0 ? std::string() : std::string(hosts.hosts[host - 1])});
  }
  if (!map_known_) {
    ports_ = ports;
    std::vector<Link> links(hello.shards);
    links[hello.shard] = std::move(links_[0]);
    for (auto& other : links[hello.shard].connections) other->set_shard(hello.shard);
    links_ = std::move(links);
    map_known_ = true;
    for (uint32_t s = 0; s < links_.size(); ++s) {
      if (s == hello.shard) continue;
      Link& link = links_[s];
      link.address = options_.address;
      const auto& [port, host] = ports[s];
      if (!host.empty()) {
        link.address = {.is_unix = false, .host = host, .port = port};
      } else if (port != 0) {
        // A unix socket that knows of ports: they are reached over loopback.
        if (link.address.is_unix) link.address = {.is_unix = false, .host = "127.0.0.1", .port = port};
        link.address.port = port;
      } else if (link.address.is_unix) {
        link.address.host = socket_path(options_.address.host, hello.shard, s);
      }
      open_link(link, s);
      for (auto& other : link.connections) other->start();
    }
  }
  if (hello.shards != links_.size() || hello.shard != connection.shard() || ports != ports_) {
    forget_map();
    return "the shard map has changed";
  }
  {
    const std::lock_guard lock(state_mutex_);
    std::memcpy(facts_.store_uuid, hello.store_uuid.data(), sizeof(facts_.store_uuid));
    std::memcpy(facts_.boot_id, hello.boot_id.data(), sizeof(facts_.boot_id));
    facts_.block_bytes_max = hello.block_bytes_max;
    facts_.keys_max = hello.keys_max;
    loads_.resize(hello.shards);
    copy_text(facts_.congestion, sizeof(facts_.congestion),
              connection.shared_memory() ? "" : net::congestion_control(connection.descriptor()));
  }
  return "";
}

void Client::on_coding(const wire::CodingRecord& coding) {
  const std::lock_guard lock(state_mutex_);
  facts_.namespace_policy = coding.policy;
  facts_.namespace_step_limit = coding.step_limit;
}

void Client::retire_all() {
  for (Link& link : links_) {
    if (link.climber != nullptr) link.connections.push_back(std::move(link.climber));
    for (auto& connection : link.connections) leaving_.push_back(std::move(connection));
  }
  for (auto& connection : leaving_) {
    connection->stop();
    retired_.push_back(std::move(connection));
  }
  leaving_.clear();
}

// Another daemon stands where the old one did. What is under way there ends with its connections.
void Client::forget_map() {
  retire_all();
  open_seed();
  // Not at once: a daemon whose map contradicts itself sends the client here again and again.
  for (auto& connection : links_[0].connections) connection->start_later();
}

void Client::sweep_retired() {
  std::erase_if(retired_, [](const auto& connection) { return connection->stopped(); });
}

void Client::stop_connections() {
  retire_all();
  links_.clear();
  loop_.disarm(climb_timer_);
  for (sweep_retired(); !retired_.empty(); sweep_retired()) loop_.turn(1000);
  const std::lock_guard lock(state_mutex_);
  ready_ = false;
  facts_.connected = 0;
}

bool Client::reached() const noexcept {
  return !links_.empty() &&
         std::all_of(links_.begin(), links_.end(), [](const Link& link) { return link.reached || link.tried; });
}

bool Client::connected() const noexcept {
  return std::any_of(links_.begin(), links_.end(), [](const Link& link) {
    return std::any_of(link.connections.begin(), link.connections.end(), [](const auto& one) { return one->up(); });
  });
}

void Client::on_connection_up(Connection& connection, bool newly) {
  refused_ = false;
  if (newly) settle_climber(connection);
  if (newly) {
    const std::lock_guard lock(state_mutex_);
    ++facts_.handshakes;
  }
  if (connection.shard() < links_.size() && !links_[connection.shard()].reached) {
    links_[connection.shard()].reached = true;
    links_[connection.shard()].failure.clear();
    tell_unreached();
  }
  tell_state();
  dispatch_waiting();
}

void Client::dispatch_waiting() {
  if (!reached()) return;
  for (Ticket* ticket = running_; ticket != nullptr;) {
    Ticket* next = ticket->next;
    if (ticket->state == Ticket::State::Waiting) go_on(*ticket);
    ticket = next;
  }
}

void Client::on_attempt_failed(const Connection& connection, const std::string& what) {
  if (connection.extra()) return;
  if (map_known_ && connection.shard() < links_.size() && !links_[connection.shard()].reached) {
    links_[connection.shard()].failure = what;
  }
  tell_error(what + remedy_of(connection.shard()));
}

// What is to be done about the shards that could not be reached is another thing now that one of them is.
void Client::tell_unreached() {
  for (uint32_t shard = 0; shard < links_.size(); ++shard) {
    if (!links_[shard].failure.empty()) tell_error(links_[shard].failure + remedy_of(shard));
  }
}

void Client::on_rings_refused(const Connection& connection, const std::string& what) {
  tell_error(connection.address().text() + ": " + what);
}

void Client::on_attempt_over(const Connection& connection) {
  if (connection.extra()) return retire_climber(connection);
  const uint32_t shard = map_known_ ? connection.shard() : 0;  // the seed is alone until it has told the map
  if (shard >= links_.size()) return;
  Link& link = links_[shard];
  if (link.reached || link.tried) return;
  link.tried = std::all_of(link.connections.begin(), link.connections.end(),
                           [](const auto& other) { return other->attempts() >= other->hosts(); });
  if (link.tried) dispatch_waiting();
}

// Of several shards one that was never reached, while others are.
std::string Client::remedy_of(uint32_t shard) const {
  if (!map_known_ || shard >= links_.size() || links_[shard].reached) return "";
  if (std::none_of(links_.begin(), links_.end(), [](const Link& link) { return link.reached; })) return "";
  const std::string which =
      "; shard " + std::to_string(shard) + " of " + std::to_string(links_.size()) + " is not reached while others are: ";
  if (links_[shard].address.is_unix) return which + "share the sockets of all shards, PATH, PATH.1 and so on";
  // Those of its own host: a map may name several.
  const std::string& host = ports_[shard].host;
  std::vector<uint16_t> ports;
  for (const ShardPort& other : ports_) {
    if (other.host == host) ports.push_back(other.port);
  }
  std::sort(ports.begin(), ports.end());
  const std::string open =
      which + (host.empty() ? "" : "on " + host + " ") + (ports.size() == 1 ? "open port " : "open ports ");
  if (ports.size() > 1 && size_t{ports.back()} - ports.front() + 1 == ports.size()) {
    return open + std::to_string(ports.front()) + " to " + std::to_string(ports.back());
  }
  std::string list;
  for (const uint16_t port : ports) list += (list.empty() ? "" : ", ") + std::to_string(port);
  return open + list;
}

void Client::tell_error(const std::string& what) {
  const std::lock_guard lock(state_mutex_);
  copy_text(facts_.last_error, sizeof(facts_.last_error), what);
}

void Client::on_layout_refused(const std::string& what) { tell_error(what); }

void Client::on_refused(Reason reason, const std::string& what) {
  refused_ = true;
  refusal_ = reason;
  tell_error(what);
  tell_state();
  for (Ticket* ticket = running_; ticket != nullptr;) {
    Ticket* next = ticket->next;
    if (ticket->state == Ticket::State::Waiting) end(*ticket, {Answer::Rejected, reason});
    ticket = next;
  }
}

void Client::on_connection_lost(Connection& connection, const std::string& what) {
  // The next socket of the connection has nothing to do with what this one held.
  for (Ticket* ticket = running_; ticket != nullptr; ticket = ticket->next) std::erase(ticket->fence, &connection);
  on_attempt_failed(connection, what);
  tell_state();
}

void Client::tell_state() {
  uint32_t connected = 0;
  uint32_t connections = 0;
  uint32_t over_rdma = 0;
  const char* transport = "";  // of those that have no rings, if there are any
  bool ready = map_known_;
  for (const Link& link : links_) {
    bool link_ready = false;
    connections += static_cast<uint32_t>(link.connections.size());
    for (const auto& connection : link.connections) {
      if (connection == nullptr || !connection->up()) continue;
      ++connected;
      over_rdma += connection->rdma() ? 1 : 0;
      if (!connection->rdma()) transport = connection->shared_memory() ? "shm" : link.address.is_unix ? "unix" : "tcp";
      link_ready = link_ready || connection->layouts_settled();
    }
    ready = ready && link_ready;
  }
  const bool all_over_rdma = connected > 0 && over_rdma == connected;
  if (all_over_rdma) transport = "rdma";
  if (over_rdma == connections) rdma_choice_.made();
  watch_for_rdma();
  const std::lock_guard lock(state_mutex_);
  facts_.connected = connected;
  facts_.connections = connections;
  copy_text(facts_.transport, sizeof(facts_.transport), transport);
  copy_text(facts_.rdma, sizeof(facts_.rdma), all_over_rdma ? "" : rdma_choice_.why_not());
  facts_.rdma_failures = rdma_choice_.failures();
  ready_ = ready;
  layouts_ready_ = layouts_.size();
  told_refused_ = refused_;
  state_changed_.notify_all();
}

Connection* Client::choose(Link& link) noexcept {
  Connection* best = nullptr;
  for (const auto& connection : link.connections) {
    if (!connection->up()) continue;
    if (best == nullptr || connection->load_bytes() < best->load_bytes()) best = connection.get();
  }
  return best;
}

Reason Client::why_none(const Link& link) noexcept {
  const bool silent = std::any_of(link.connections.begin(), link.connections.end(),
                                  [](const auto& connection) { return connection->unresponsive(); });
  return silent ? Reason::Unresponsive : Reason::NoConnection;
}

void Client::on_silence(const std::string& what) {
  if (!what.empty()) tell_error(what);
  tell_state();
}

void Client::on_load(uint32_t shard, const wire::LoadRecord& load) {
  const std::lock_guard lock(state_mutex_);
  if (shard >= loads_.size()) return;
  loads_[shard] = {.queue_depth = load.queue_depth, .queue_us = load.queue_us, .bytes_per_s = load.bytes_per_s};
}

void Client::count_traffic(uint64_t received, uint64_t sent, uint64_t failures, uint64_t undecoded) noexcept {
  bytes_received_.fetch_add(received, std::memory_order_relaxed);
  bytes_sent_.fetch_add(sent, std::memory_order_relaxed);
  checksum_failures_.fetch_add(failures, std::memory_order_relaxed);
  decode_failures_.fetch_add(undecoded, std::memory_order_relaxed);
  link_rate_.add(received + sent, clock_.now_us());
  link_bytes_per_s_.store(link_rate_.bytes_per_s(), std::memory_order_relaxed);
}

CodingInputs Client::path_speeds() {
  CodingInputs inputs;
  inputs.link_bytes_per_s = link_bytes_per_s_.load(std::memory_order_relaxed);
  const std::lock_guard lock(state_mutex_);
  for (const hs_shard_load& load : loads_) inputs.service_bytes_per_s += load.bytes_per_s;
  return inputs;
}

void Client::count_not_waited() noexcept { not_waited_.fetch_add(1, std::memory_order_relaxed); }

int Client::wait_ready(uint32_t timeout_ms, std::string* why) {
  size_t layouts = 0;
  {
    const std::lock_guard lock(mutex_);
    layouts = all_layouts_.size();
  }
  std::unique_lock lock(state_mutex_);
  const auto ready = [&] { return ready_ && layouts_ready_ >= layouts; };
  const auto until = std::chrono::steady_clock::now() + std::chrono::milliseconds(timeout_ms);
  state_changed_.wait_until(lock, until, [&] { return ready() || told_refused_ || told_closed_; });
  if (told_closed_) {
    *why = "closed: this client was closed";
    return -1;
  }
  if (ready()) return 1;
  *why = facts_.last_error;
  return told_refused_ ? -1 : 0;
}

void Client::get_facts(hs_client_facts* out) {
  {
    const std::lock_guard lock(state_mutex_);
    *out = facts_;
    for (const hs_shard_load& load : loads_) {
      out->queue_depth += load.queue_depth;
      out->queue_us = std::max(out->queue_us, load.queue_us);
      out->bytes_per_s += load.bytes_per_s;
    }
  }
  out->bytes_received = bytes_received_.load(std::memory_order_relaxed);
  out->bytes_sent = bytes_sent_.load(std::memory_order_relaxed);
  out->checksum_failures = checksum_failures_.load(std::memory_order_relaxed);
  out->decode_failures = decode_failures_.load(std::memory_order_relaxed);
  const CodingSpeeds::Facts coding = encoder_.facts();
  out->encode_bytes_per_s = coding.last.encode_bytes_per_s;
  out->unit_decode_bytes_per_s = coding.last.decode_bytes_per_s;
  out->link_bytes_per_s = coding.last.link_bytes_per_s;
  out->service_bytes_per_s = coding.last.service_bytes_per_s;
  out->coding_ratio_milli = coding.last.ratio_milli;
  static_assert(std::size(decltype(out->coding_blocks){}) == kCodingReasons);
  std::copy(coding.blocks.begin(), coding.blocks.end(), out->coding_blocks);
  out->not_waited = not_waited_.load(std::memory_order_relaxed);
  out->placed_bytes = placed_bytes_.load(std::memory_order_relaxed);
  out->gpu_placed_bytes = gpu_placed_bytes_.load(std::memory_order_relaxed);
  out->placing_keys = placing_keys_.load(std::memory_order_relaxed);
  devices_.get_facts(out);
}

size_t Client::get_loads(hs_shard_load* out, size_t max) {
  const std::lock_guard lock(state_mutex_);
  std::copy_n(loads_.begin(), std::min(max, loads_.size()), out);
  return loads_.size();
}

}  // namespace halfstep::peer
