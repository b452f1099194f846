// connection_host.h — what a connection asks of its shard beyond what its requests do. Shard (shard.h) is one.
// Invariant: the pools outlive the connections, the store and the engine, which hold pointers to what is in them.
// Thread: the shard's.
#pragma once

#include "net/rdma_rings.h"
#include "shard/commands.h"
#include "shard/config.h"
#include "shard/credit.h"
#include "shard/request_host.h"

namespace halfstep::shard {

class Connection;

class ConnectionHost : public RequestHost {
 public:
  const Config& config() const noexcept { return config_; }
  // No new requests are taken.
  bool stopping() const noexcept { return stopping_; }
  RequestPools& pools() noexcept { return pools_; }
  Credit::Common& get_credits() noexcept { return get_credits_; }
  Credit::Common& put_credits() noexcept { return put_credits_; }
  // The buffers' share of the memory of requests is exceeded: ends the connection whose frame has been coming in part for
  // longest, or, where unread answers have more, the one that leaves most of them.
  virtual void relieve() = 0;
  // The end of the turn: resume_waiters() is called, unless it is forgotten before.
  virtual void add_dirty(Connection& connection) = 0;
  virtual void forget_dirty(Connection& connection) noexcept = 0;
  using RequestHost::add_dirty;
  using RequestHost::forget_dirty;
  // Null: the operator wants none.
  virtual net::RdmaRings* rdma_rings() noexcept = 0;
  // Why an offer was refused, or is less than it could be, for the operator: more than the client is told.
  virtual void tell_of_rdma(const std::string& what) = 0;
  // Destroys it.
  virtual void closed(Connection& connection) = 0;

 protected:
  ConnectionHost(const Config& config, const Clock& clock) : RequestHost(clock, config.request_bytes_max), config_(config) {}
  ~ConnectionHost() = default;

  const Config& config_;
  RequestPools pools_;
  Credit::Common get_credits_;
  Credit::Common put_credits_;
  bool stopping_ = false;
};

}  // namespace halfstep::shard
