// connection_host.h — what a connection asks of its client, and tells it. Client (client.h) is one.
// Thread: the client's.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/prng.h"
#include "net/loop.h"
#include "net/rdma_rings.h"
#include "peer/options.h"
#include "peer/rdma_choice.h"
#include "wire/layout.h"
#include "wire/message.h"
#include "wire/records.h"

namespace halfstep::peer {

class Connection;
class DeviceWork;
class Request;
class Ticket;

class ConnectionHost {
 public:
  ConnectionHost(const ConnectionHost&) = delete;
  ConnectionHost& operator=(const ConnectionHost&) = delete;

  const Options& options() const noexcept { return options_; }
  net::Loop& loop() noexcept { return loop_; }
  Prng& prng() noexcept { return prng_; }
  uint64_t id() const noexcept { return client_id_; }
  // Those that a connection has to register, in this order.
  const std::vector<std::shared_ptr<const wire::Layout>>& layouts() const noexcept { return layouts_; }
  net::RdmaRings& rdma_rings() noexcept { return rdma_rings_; }
  RdmaChoice& rdma_choice() noexcept { return rdma_choice_; }
  // Why a daemon does not write into a region.
  virtual void on_placement_refused(const std::string& what) = 0;
  // Into regions of the host, and into those on GPUs.
  virtual void count_placed(uint64_t bytes, uint64_t gpu_bytes) noexcept = 0;
  virtual void count_placing_key() noexcept = 0;
  virtual DeviceWork& devices() noexcept = 0;
  // An RDMA device is taken away, and no connection has it any more.
  virtual void on_device_gone(const rdma::Device& device) = 0;
  // A daemon has greeted it.
  bool met() const noexcept { return store_known_; }

  // The life of a connection -----------------------------------------------------------------------------------------------
  virtual void on_attempt_failed(const Connection& connection, const std::string& what) = 0;
  // It goes on through the socket: the daemon gave it no shared memory.
  virtual void on_rings_refused(const Connection& connection, const std::string& what) = 0;
  // It waits for its next attempt.
  virtual void on_attempt_over(const Connection& connection) = 0;
  virtual void on_refused(wire::Reason reason, const std::string& what) = 0;
  virtual void on_layout_refused(const std::string& what) = 0;
  // Why the daemon is not to be had, or "". Where the map is not what the other connections know, all of them begin again.
  virtual std::string on_greeted(Connection& connection, const wire::PackedArray<wire::ShardAddress>& map,
                                 const wire::ShardHostsView& hosts) = 0;
  // How blocks of the namespace are to be coded, as its greeting says; it may say it anew.
  virtual void on_coding(const wire::CodingRecord& coding) = 0;
  // Its handshake is done (`newly`), or the layouts that came since then are registered.
  virtual void on_connection_up(Connection& connection, bool newly) = 0;
  // Its socket reads no ticket's memory any more.
  virtual void on_connection_lost(Connection& connection, const std::string& what) = 0;
  // It has become silent, or "": is heard again.
  virtual void on_silence(const std::string& what) = 0;

  // What it carries --------------------------------------------------------------------------------------------------------
  virtual void on_load(uint32_t shard, const wire::LoadRecord& load) = 0;
  virtual void count_traffic(uint64_t received, uint64_t sent, uint64_t failures, uint64_t undecoded) noexcept = 0;
  // A request that should wait goes to a daemon that does not know how.
  virtual void count_not_waited() noexcept = 0;
  virtual void tell_progress(Ticket& ticket) = 0;
  // Every item of it is answered.
  virtual void on_request_over(Request& request) = 0;
  // One whose ticket is over already: nothing refers to it any more.
  virtual void recycle(Request& request) = 0;

 protected:
  // For rings, of all connections of a client.
  static constexpr uint64_t kRdmaPinnedBytesMax = 64ULL << 20;

  explicit ConnectionHost(Options options)
      : options_(std::move(options)),
        loop_(clock_),
        prng_(0),
        rdma_rings_(loop_, {.verbs = options_.verbs,
                            .budget = &rdma_budget_,
                            .gone = [this](const std::shared_ptr<rdma::Device>& device) { on_device_gone(*device); }}),
        region_budget_(options_.region_bytes_max),
        rdma_choice_(options_.carrier) {}
  ~ConnectionHost() = default;

  const Options options_;
  const SystemClock clock_;
  net::Loop loop_;
  Prng prng_;
  net::RdmaBudget rdma_budget_{kRdmaPinnedBytesMax};
  net::RdmaRings rdma_rings_;
  net::RdmaBudget region_budget_;
  RdmaChoice rdma_choice_;
  uint64_t client_id_ = 0;
  std::vector<std::shared_ptr<const wire::Layout>> layouts_;
  bool store_known_ = false;
};

}  // namespace halfstep::peer
