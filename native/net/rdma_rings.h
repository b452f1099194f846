// rdma_rings.h — how the two ends of a TCP connection come to rings over RDMA: what a client offers in its Hello, what the
// server answers in the Final, and the transport from there on. One for each loop.
//
//   client   offer()  -> Hello                          server   answer() -> Final, then transport()
//            Final    -> accept(), then transport()
//
// Whoever has sent an offer sends nothing else before the Final, and the server nothing after it over the socket: at that
// border the bytes change to the rings. The socket stays open and silent, as the sign of life. Invariants: a path is of the
// address that the socket has here and leads to the one that it has there, so that nobody has a device write to a third party;
// an end is dropped with its last completion, or a second after its connection; memory that was registered for sending is
// unregistered with this, or with its device, where that is taken away: so that whoever does it need not wait for an idle
// connection. Thread: the loop's.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "net/loop.h"
#include "net/rdma_end.h"
#include "net/rdma_pipe.h"
#include "net/transport.h"
#include "rdma/device.h"
#include "wire/rdma.h"

namespace halfstep::net {

// A transport, while its device is watched.
class DeviceUser {
 public:
  virtual bool uses(const rdma::Device& device) const noexcept = 0;
  // It is taken away: the connection ends in the next turn, and lets go of it.
  virtual void end() noexcept = 0;

 protected:
  ~DeviceUser() = default;
};

class RdmaRings final : private RegisteredMemory {
 public:
  struct Setup {
    // Asked with the first connection that could use it; null with the reason where there is none.
    std::function<rdma::Verbs*(std::string* why_not)> verbs = &rdma::system_verbs;
    RdmaBudget* budget = nullptr;  // outlives it
    uint32_t ring_bytes = 1U << 20;
    ConstBytes payload = {};  // memory from which is sent without a copy: registered with each device that is used
    // A device is taken away, and no connection uses it any more: whoever else has it lets go of it.
    std::function<void(const std::shared_ptr<rdma::Device>&)> gone = {};
  };

  RdmaRings(Loop& loop, const Setup& setup);
  // Transports are gone by then. What lingers is dropped.
  ~RdmaRings() override;
  RdmaRings(const RdmaRings&) = delete;
  RdmaRings& operator=(const RdmaRings&) = delete;

  // The client's: what it could use for this connected socket. Otherwise why it cannot: that is no error.
  Fault offer(int socket, std::unique_ptr<RdmaEnd>* end, wire::RdmaPath* offered);
  // After the server has accepted it. reads: those of the server's that it answers at once, at most what its queue pair can.
  static Fault accept(RdmaEnd& end, int socket, const wire::RdmaPath& answered, uint32_t reads = 0);
  // The server's: a connected end, or the reason for which the client gets none, of which `why` says more to the operator.
  // reads: those that the client answers at once; the end has as many out as both can, where memory for them is registered; of
  // one that has not `why` says why, too.
  wire::RdmaRefusal answer(int socket, const wire::RdmaOfferView& offer, uint32_t reads, std::unique_ptr<RdmaEnd>* end,
                           wire::RdmaAnswerHead* head, wire::RdmaPath* answered, std::string* why);

  // Of a connected end. `socket` is not taken: a copy of the descriptor is. socket_bytes: so many of what is sent first still
  // leave by the socket, the Final of the server.
  Status transport(std::unique_ptr<RdmaEnd> end, int socket, uint64_t socket_bytes, bool client,
                   std::unique_ptr<Transport>* out);

  // For transports that are over: keeps what a device may still read, and the socket, whose end would tell the other side
  // before the last bytes do. Takes the descriptor. peer_gone: nobody reads them. Releases nothing before the loop turns.
  void linger(std::unique_ptr<RdmaPipe> pipe, int socket, bool peer_gone);
  // Whoever carries bytes over a device is known from the first to the last.
  void add(DeviceUser& user) { users_.push_back(&user); }
  void remove(DeviceUser& user) noexcept { std::erase(users_, &user); }
  // Nothing of that any more, and all that was held is released: while its owners live.
  void drop_all();
  uint32_t ring_bytes() const noexcept { return setup_.ring_bytes; }
  size_t lingering() const noexcept { return lingering_.size(); }
  // A device that is in use, by name; empty while there is none.
  const std::string& device_name() const noexcept { return device_name_; }
  RdmaCounts& counts() noexcept { return counts_; }
  // Payload is sent by this device from where it lies.
  bool payload_registered(const rdma::Device& device) const noexcept;
  // Empty: it is not, or there is none.
  std::string why_payload_is_copied(const rdma::Device& device) const;

 private:
  static constexpr uint64_t kGraceUs = 1'000'000;
  static constexpr uint64_t kLookUs = 1'000;
  static constexpr size_t kLingeringMax = 64;
  struct Lingering {
    std::unique_ptr<RdmaPipe> pipe;
    int socket = -1;
    uint64_t due_us = 0;
  };

  // Payload, with a device: registered, or why it is not.
  struct Registered {
    std::shared_ptr<rdma::Device> device;
    rdma::MemoryRegion region;
    std::string why_not;
  };

  // An address that no device had, and until when none is looked for.
  struct Missing {
    rdma::Gid gid{};
    uint64_t until_us = 0;
    Fault fault;
  };
  static constexpr uint64_t kMissingUs = 5'000'000;
  // So often devices in use are looked for in the list.
  static constexpr uint64_t kWatchUs = 3'000'000;
  static constexpr uint64_t kGoingUs = 100'000;  // whether they are given back
  static constexpr size_t kMissingMax = 16;

  Fault find_path(const rdma::Gid& gid, rdma::Path* path);
  Fault make_end(int socket, uint32_t ring_bytes, std::unique_ptr<RdmaEnd>* end);
  void register_payload(const std::shared_ptr<rdma::Device>& device);
  bool local_key(const rdma::Device& device, ConstBytes bytes, uint32_t* key) noexcept override;
  static void on_timer(void* self);
  static void on_watch(void* self);
  void let_go(const std::shared_ptr<rdma::Device>& device);
  static void drop(Lingering& lingering);

  Loop& loop_;
  const Setup setup_;
  std::optional<rdma::Devices> devices_;
  std::vector<Missing> missing_;
  std::string device_name_;
  std::vector<Registered> registered_;
  RdmaCounts counts_;
  std::vector<Lingering> lingering_;
  Timer timer_;
  std::vector<DeviceUser*> users_;
  std::vector<std::weak_ptr<rdma::Device>> gone_;
  Timer watch_;
};

// The address that a connected TCP socket has here, and the other one's, as a RoCE v2 GID. False: it has none.
bool gid_of_socket(int socket, bool peer, rdma::Gid* out) noexcept;

}  // namespace halfstep::net
