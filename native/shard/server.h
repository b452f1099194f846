// server.h — a running daemon core: one store, its shards' threads, their listeners. What bind/ starts and stops.
// Thread: start(), stop() and the accessors from any thread; the rest is the shard's own.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "base/status.h"
#include "shard/config.h"
#include "shard/facts.h"
#include "shard/polled_events.h"
#include "shard/samples.h"

namespace halfstep::shard {

class Server {
 public:
  // Opens or makes the store, recovers, listens, starts the shard threads. On a Fault nothing is left running or half made.
  static Fault start(const Config& config, std::unique_ptr<Server>* out);
  virtual ~Server() = default;  // stops

  virtual const Facts& facts() const noexcept = 0;
  // A consistent copy, taken on the shard's thread; any thread may ask.
  virtual Metrics metrics() const = 0;
  // Up to `limit` events of one shard (below facts().shards.size()) after its number `after`, taken on the shard's thread; none
  // when it has ended. Any thread.
  virtual PolledEvents poll_events(uint64_t after, uint32_t limit, uint32_t shard = 0) const = 0;
  // No new requests, what is running gets `grace_ms`, then everything is sealed and flushed. Idempotent.
  virtual Status stop(uint32_t grace_ms) = 0;
  // Not empty while the store's device is back and is not used: why, and the remedy. Any thread.
  virtual std::string why_device_refused() const { return {}; }
  // False when a shard stopped by itself (another daemon took the store, the engine died): `why` says it.
  virtual bool running(std::string* why) const = 0;
};

}  // namespace halfstep::shard
