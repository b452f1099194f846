// server.h — a running daemon core: one store, its shards' threads, their listeners. What bind/ starts and stops.
// Configuration is one frozen struct, validated once by start(); what is really in force comes back in Facts.
// Thread: start(), stop() and the accessors from any thread; the rest is the shard's own.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/arena.h"
#include "base/status.h"
#include "io/backing.h"
#include "io/engine.h"
#include "io/scheduler.h"
#include "shard/memory_place.h"
#include "store/events.h"
#include "store/store.h"

namespace halfstep::shard {

// Whether gets' payload is sent without a copy by the kernel (net/zero_copy_transport.h).
enum class ZeroCopy : uint8_t {
  Off,
  Auto,    // to other machines, as long as the kernel need not copy all the same
  Always,  // asks for it over loopback, too: for tests
};

struct Config {
  std::string store_path;       // the store's file
  uint64_t store_bytes = 0;     // size when it has to be made; 0: it must exist
  uint64_t segment_bytes = 0;   // 0: chosen by size
  uint32_t shards = 0;          // of a store that has to be made; 0: as many as it has, 1 for a new one
  std::vector<uint32_t> cores;  // shard n runs on core n of the list, which is gone round; empty: where the kernel likes
  MemoryConfig memory;          // where each shard's memory is
  uint64_t arena_bytes = 256ULL << 20;  // of all shards together
  bool huge_pages = true;
  bool allow_buffered = true;
  io::EngineConfig engine;
  uint64_t latency_goal_us = io::kLatencyGoalUsDefault;  // of a get's read; 0: nothing gives way to them (io/scheduler.h)
  std::vector<std::string> listen;                       // net::Address texts: "127.0.0.1:7350", "unix:/run/…"
  bool insecure_listen = false;                          // allow an address beyond loopback though nobody is authenticated
  uint32_t connections_max = 4096;                       // of one shard
  uint32_t shm_ring_bytes = 1U << 20;                    // each way, of a client that asks for shared memory on a unix socket
  ZeroCopy zero_copy = ZeroCopy::Auto;
  uint64_t connection_credit_bytes = 16ULL << 20;  // put bytes granted to, and get bytes in memory for, one connection
  uint64_t get_credit_bytes_max = 64ULL << 20;     // the latter, as far as others leave it (Credit::Common)
  // Of one shard: bodies, plans and unsent answers of requests, without payload (request_memory.h).
  uint64_t request_bytes_max = 64ULL << 20;
  // A small store is recovered before anything is answered, a large one serves meanwhile.
  store::Options store{.recover_before_us = 200'000};
  // Making or recovering a large store takes time: called now and then with what is being done; false stops.
  std::function<bool(const char* step, uint64_t done, uint64_t total)> progress;
};

struct ShardFacts {
  std::vector<std::string> listening;  // with the real ports
  io::EngineFacts engine;
  store::RecoveryReport recovery;
  int core = -1;  // -1: any
  MemoryFacts memory;
};

// Of all shards together, unless it says otherwise.
struct Facts {
  std::vector<ShardFacts> shards;
  std::vector<std::string> listening;  // of the first shard
  io::BackingFacts backing;
  io::EngineFacts engine;  // of the first shard
  Arena::Facts arena;
  store::Geometry geometry;
  store::RecoveryReport recovery;
  store::Options store;
  std::string congestion_control;
  bool zero_copy = false;           // asked for, and this kernel has it
  bool zero_copy_possible = false;  // this kernel has it
  uint64_t index_bytes = 0;         // right after recovery
  uint64_t scrub_bytes_per_s = 0;
  uint64_t latency_goal_us = 0;
  std::array<std::byte, 16> store_uuid{};
  std::array<std::byte, 16> boot_id{};
  bool created = false;
};

// One number with its name and labels, Prometheus style: {"halfstep_requests_total", {{"command", "get"}}, 12}.
struct Sample {
  const char* name;
  std::vector<std::pair<const char*, std::string>> labels;
  double value;
};
// Latencies by command, microseconds; bounds are shared by all.
struct Histogram {
  std::string command;
  std::vector<uint64_t> counts;  // one more than bounds
  uint64_t sum_us = 0;
};
struct Metrics {
  std::vector<Sample> counters;
  std::vector<Sample> gauges;
  std::vector<uint64_t> latency_bounds_us;
  std::vector<Histogram> latencies;
};

// Events of the store, copied for another thread.
struct PolledEvent {
  store::Event event;
  std::string engine_key;  // empty: not remembered
  store::ScopeName scope;
};
struct PolledEvents {
  store::Events::Polled polled;
  std::vector<PolledEvent> events;
};

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
  // False when a shard stopped by itself (another daemon took the store, the engine died): `why` says it.
  virtual bool running(std::string* why) const = 0;
};

}  // namespace halfstep::shard
