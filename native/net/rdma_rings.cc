#include "net/rdma_rings.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "base/check.h"
#include "net/rdma_transport.h"

namespace halfstep::net {
namespace {

// 127.0.0.0/8 and ::1.
bool is_loopback(const rdma::Gid& gid) noexcept {
  in6_addr address{};
  std::memcpy(&address, gid.data(), sizeof(address));
  return IN6_IS_ADDR_LOOPBACK(&address) || (IN6_IS_ADDR_V4MAPPED(&address) && address.s6_addr[12] == 127);
}

}  // namespace

bool gid_of_socket(int socket, bool peer, rdma::Gid* out) noexcept {
  sockaddr_storage address{};
  socklen_t bytes = sizeof(address);
  auto* generic = reinterpret_cast<sockaddr*>(&address);
  if ((peer ? ::getpeername(socket, generic, &bytes) : ::getsockname(socket, generic, &bytes)) != 0) return false;
  if (address.ss_family == AF_INET) {
    sockaddr_in ipv4{};
    std::memcpy(&ipv4, &address, sizeof(ipv4));
    *out = {};
    (*out)[10] = (*out)[11] = std::byte{0xFF};
    std::memcpy(out->data() + 12, &ipv4.sin_addr, 4);
    return true;
  }
  if (address.ss_family != AF_INET6) return false;
  sockaddr_in6 ipv6{};
  std::memcpy(&ipv6, &address, sizeof(ipv6));
  std::memcpy(out->data(), &ipv6.sin6_addr, out->size());
  return true;
}

RdmaRings::RdmaRings(Loop& loop, const Setup& setup)
    : loop_(loop), setup_(setup), timer_(&RdmaRings::on_timer, this), watch_(&RdmaRings::on_watch, this) {}

RdmaRings::~RdmaRings() {
  loop_.disarm(watch_);
  drop_all();
}

void RdmaRings::drop_all() {
  for (std::vector<Lingering> over; !lingering_.empty();) {
    over.swap(lingering_);
    for (Lingering& lingering : over) drop(lingering);
    over.clear();
  }
}

// ---- Ends ----------------------------------------------------------------------------------------------------------------

// Looking for a device lists and opens all of them, on the loop. So what was looked for in vain is remembered for some seconds,
// and loopback is not looked for: a device has an address that other machines reach.
Fault RdmaRings::find_path(const rdma::Gid& gid, rdma::Path* path) {
  if (is_loopback(gid) && !devices_->verbs().on_loopback()) {
    return {Code::Unsupported, rdma::gid_text(gid) + " is loopback, which no RDMA device has"};
  }
  const uint64_t now_us = loop_.now_us();
  std::erase_if(missing_, [&](const Missing& missing) { return missing.until_us <= now_us; });
  for (const Missing& missing : missing_) {
    if (missing.gid == gid) return missing.fault;
  }
  Fault fault = devices_->find(gid, path);
  if (fault.status == Code::Unsupported) {
    if (missing_.size() == kMissingMax) missing_.erase(missing_.begin());
    missing_.push_back({.gid = gid, .until_us = now_us + kMissingUs, .fault = fault});
  }
  return fault;
}

Fault RdmaRings::make_end(int socket, uint32_t ring_bytes, std::unique_ptr<RdmaEnd>* end) {
  rdma::Gid gid;
  if (!gid_of_socket(socket, false, &gid)) return {Code::Unsupported, "a connection over a unix socket has no route"};
  const uint64_t bytes = RdmaEnd::pinned_bytes(ring_bytes);
  if (!setup_.budget->has(bytes)) return beyond_budget(*setup_.budget, bytes);
  if (!devices_) {
    std::string why_not;
    rdma::Verbs* verbs = setup_.verbs(&why_not);
    if (verbs == nullptr) return {Code::Unsupported, std::move(why_not)};
    devices_.emplace(*verbs);
  }
  rdma::Path path;
  if (Fault fault = find_path(gid, &path); !fault.ok()) return fault;
  if (Fault fault = RdmaEnd::make(path, ring_bytes, *setup_.budget, end); !fault.ok()) return fault;
  device_name_ = path.device->name();
  if (!watch_.armed()) loop_.arm(watch_, loop_.now_us() + kWatchUs);
  register_payload(path.device);
  return {};
}

// One that was opened afresh under the same name has taken the place of what no longer answers: with the region goes the last
// that held that.
void RdmaRings::register_payload(const std::shared_ptr<rdma::Device>& device) {
  const auto has = [&](const Registered& one) { return one.device == device; };
  if (setup_.payload.empty() || std::any_of(registered_.begin(), registered_.end(), has)) return;
  std::erase_if(registered_, [&](const Registered& one) { return one.device->name() == device->name(); });
  const Bytes memory(const_cast<std::byte*>(setup_.payload.data()), setup_.payload.size());
  Registered& one = registered_.emplace_back();
  one.device = device;
  one.why_not = rdma::MemoryRegion::make(device, memory, rdma::MemoryRegion::Access::LocalWrite, &one.region).what;
}

bool RdmaRings::payload_registered(const rdma::Device& device) const noexcept {
  return std::any_of(registered_.begin(), registered_.end(),
                     [&](const Registered& one) { return one.device.get() == &device && one.region.made(); });
}

std::string RdmaRings::why_payload_is_copied(const rdma::Device& device) const {
  for (const Registered& one : registered_) {
    if (one.device.get() == &device) return one.why_not;
  }
  return {};
}

bool RdmaRings::local_key(const rdma::Device& device, ConstBytes bytes, uint32_t* key) noexcept {
  const auto one = std::find_if(registered_.begin(), registered_.end(),
                                [&](const Registered& other) { return other.device.get() == &device; });
  if (one == registered_.end() || !one->region.made()) return false;
  const std::byte* const begin = setup_.payload.data();
  if (bytes.data() < begin || bytes.data() + bytes.size() > begin + setup_.payload.size()) return false;
  *key = one->region.local_key();
  return true;
}

Fault RdmaRings::offer(int socket, std::unique_ptr<RdmaEnd>* end, wire::RdmaPath* offered) {
  Fault fault = make_end(socket, setup_.ring_bytes, end);
  if (fault.ok()) *offered = (*end)->description();
  return fault;
}

Fault RdmaRings::accept(RdmaEnd& end, int socket, const wire::RdmaPath& answered, uint32_t reads) {
  rdma::Gid peer;
  if (!gid_of_socket(socket, true, &peer) || peer != answered.gid) {
    return {Code::Invalid, "the daemon answers with the device of another address, " + rdma::gid_text(answered.gid)};
  }
  return end.connect(answered, {.in = reads, .out = 0});
}

wire::RdmaRefusal RdmaRings::answer(int socket, const wire::RdmaOfferView& offer, uint32_t reads, std::unique_ptr<RdmaEnd>* end,
                                    wire::RdmaAnswerHead* head, wire::RdmaPath* answered, std::string* why) {
  const auto refuse = [&](wire::RdmaRefusal refusal, std::string what) {
    *head = {.version = 0, .refusal = refusal};
    *why = std::move(what);
    *end = nullptr;
    return refusal;
  };
  if (offer.paths.empty()) return refuse(wire::RdmaRefusal::Version, "an offer of another version");
  rdma::Gid peer;
  uint32_t chosen = offer.paths.size();
  if (gid_of_socket(socket, true, &peer)) {
    for (uint32_t i = offer.paths.size(); i > 0; --i) chosen = offer.paths[i - 1].gid == peer ? i - 1 : chosen;
  }
  if (chosen == offer.paths.size()) {
    return refuse(wire::RdmaRefusal::Path, "an offer of devices that have not the address it comes from");
  }
  if (Fault fault = make_end(socket, setup_.ring_bytes, end); !fault.ok()) {
    const bool memory = fault.status == Code::NoSpace;
    const bool absent = fault.status == Code::Unsupported;
    return refuse(memory   ? wire::RdmaRefusal::Memory
                  : absent ? wire::RdmaRefusal::NotHere
                           : wire::RdmaRefusal::Device,
                  std::move(fault.what));
  }
  const uint32_t out = payload_registered(*(*end)->device()) ? std::min(reads, (*end)->queue_pair().reads_max().out) : 0;
  if (Fault fault = (*end)->connect(offer.paths[chosen], {.in = 0, .out = out}); !fault.ok()) {
    return refuse(wire::RdmaRefusal::Path, std::move(fault.what));
  }
  *head = {.path = static_cast<uint16_t>(chosen)};
  *answered = (*end)->description();
  *why = why_payload_is_copied(*(*end)->device());
  return wire::RdmaRefusal::None;
}

Status RdmaRings::transport(std::unique_ptr<RdmaEnd> end, int socket, uint64_t socket_bytes, bool client,
                            std::unique_ptr<Transport>* out) {
  const int own = ::fcntl(socket, F_DUPFD_CLOEXEC, 0);
  if (own < 0) return {Code::IoError, -errno};
  RegisteredMemory& registered = *this;
  auto pipe = std::make_unique<RdmaPipe>(std::move(end), registered, counts_, client);
  *out = rdma_transport(std::move(pipe), own, socket_bytes, *this);
  return {};
}

// ---- Devices that go -----------------------------------------------------------------------------------------------------

void RdmaRings::on_watch(void* self) {
  auto& rings = *static_cast<RdmaRings*>(self);
  for (const auto& device : rings.devices_->gone()) {
    rings.gone_.push_back(device);
    if (rings.device_name_ == device->name()) rings.device_name_.clear();
  }
  std::erase_if(rings.gone_, [&](const auto& gone) {
    if (const auto device = gone.lock()) rings.let_go(device);
    return gone.expired();
  });
  const bool going = !rings.gone_.empty();
  if (going || rings.devices_->any_open()) rings.loop_.arm(rings.watch_, rings.loop_.now_us() + (going ? kGoingUs : kWatchUs));
}

// What connections have of it goes first, also of those that were in the midst of their handshake, and the registrations last.
void RdmaRings::let_go(const std::shared_ptr<rdma::Device>& device) {
  const std::vector<DeviceUser*> users = users_;
  for (DeviceUser* user : users) {
    if (user->uses(*device)) user->end();
  }
  const bool used =
      std::any_of(users_.begin(), users_.end(), [&](const DeviceUser* user) { return user->uses(*device); }) ||
      std::any_of(lingering_.begin(), lingering_.end(), [&](const auto& lingering) { return lingering.pipe->uses(*device); });
  if (used) return;
  if (setup_.gone) setup_.gone(device);
  std::erase_if(registered_, [&](const Registered& one) { return one.device == device; });
}

// ---- The last bytes ------------------------------------------------------------------------------------------------------

void RdmaRings::drop(Lingering& lingering) {
  lingering.pipe->drop_end();
  Release release;
  while (lingering.pipe->take_any(&release)) release();
  ::close(lingering.socket);
}

void RdmaRings::linger(std::unique_ptr<RdmaPipe> pipe, int socket, bool peer_gone) {
  if (!peer_gone) pipe->flush();
  lingering_.push_back({std::move(pipe), socket, peer_gone ? 0 : loop_.now_us() + kGraceUs});
  if (lingering_.size() > kLingeringMax) lingering_.front().due_us = 0;
  if (!timer_.armed()) loop_.arm(timer_, loop_.now_us());
}

// A release may bring another one here.
void RdmaRings::on_timer(void* self) {
  auto& rings = *static_cast<RdmaRings*>(self);
  const uint64_t now_us = rings.loop_.now_us();
  std::vector<Lingering> over;
  for (size_t i = 0; i < rings.lingering_.size();) {
    Lingering& lingering = rings.lingering_[i];
    lingering.pipe->flush();
    lingering.pipe->poll();
    if (!lingering.pipe->settled() && lingering.due_us > now_us) {
      ++i;
      continue;
    }
    over.push_back(std::move(lingering));
    rings.lingering_.erase(rings.lingering_.begin() + static_cast<ptrdiff_t>(i));
  }
  for (Lingering& lingering : over) drop(lingering);
  if (!rings.lingering_.empty()) rings.loop_.arm(rings.timer_, now_us + kLookUs);
}

}  // namespace halfstep::net
