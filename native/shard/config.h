// config.h — what a daemon is told: one frozen struct, validated once by Server::start().
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "io/engine.h"
#include "io/scheduler.h"
#include "rdma/verbs.h"
#include "shard/memory_place.h"
#include "store/format/options.h"

namespace halfstep::shard {

// Whether gets' payload is sent without a copy by the kernel (net/zero_copy_transport.h).
enum class ZeroCopy : uint8_t {
  Off,
  Auto,    // to other machines, as long as the kernel need not copy all the same
  Always,  // asks for it over loopback, too: for tests
};

// Rings over RDMA, for clients that offer them (net/rdma_rings.h).
struct RdmaConfig {
  bool on = false;                           // until it has been tried with a network card
  uint32_t ring_bytes = 1U << 20;            // each way, of one connection
  uint64_t pinned_bytes_max = 256ULL << 20;  // for rings of all connections: each has two of them here
  std::function<rdma::Verbs*(std::string*)> verbs = &rdma::system_verbs;  // for tests: another table
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
  uint64_t shm_memory_bytes = 1ULL << 30;  // of the rings of all of them, of all shards; beyond it a client gets none
  uint64_t decode_bytes = 0;  // of all shards, beside the arena: blocks decoded for clients that cannot; 0: none are
  ZeroCopy zero_copy = ZeroCopy::Off;
  RdmaConfig rdma;
  uint64_t connection_credit_bytes = 16ULL << 20;  // put bytes granted to, and get bytes in memory for, one connection
  uint64_t get_credit_bytes_max = 64ULL << 20;     // the latter, as far as others leave it (Credit::Common)
  // Of one shard: bodies, plans and unsent answers of requests, without payload (request_memory.h).
  uint64_t request_bytes_max = 64ULL << 20;
  // A small store is recovered before anything is answered, a large one serves meanwhile.
  store::Options store{.recover_before_us = 200'000};
  // Making or recovering a large store takes time: called now and then with what is being done; false stops.
  std::function<bool(const char* step, uint64_t done, uint64_t total)> progress;
};

}  // namespace halfstep::shard
