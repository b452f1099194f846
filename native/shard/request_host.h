// request_host.h — what a request asks of the shard that serves it: its clock and timers, the store, counters, memory, and
// buffers that all requests share. Shard (shard.h) is one.
// Invariant: the store is there before the first request, and outlives the last. Thread: the shard's.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "base/clock.h"
#include "net/loop.h"
#include "shard/coding_tally.h"
#include "shard/decoder.h"
#include "shard/key_waiters.h"
#include "shard/load_meter.h"
#include "shard/memory_waiters.h"
#include "shard/metrics.h"
#include "shard/request_memory.h"
#include "shard/samples.h"
#include "store/store.h"
#include "wire/message.h"
#include "wire/records.h"

namespace halfstep::shard {

class Request;

class RequestHost {
 public:
  RequestHost(const RequestHost&) = delete;
  RequestHost& operator=(const RequestHost&) = delete;

  net::Loop& loop() noexcept { return loop_; }
  store::Store& store() noexcept { return *store_; }
  // What every client is told of this shard.
  const wire::HelloServer& hello() const noexcept { return hello_; }

  // Numbers ----------------------------------------------------------------------------------------------------------------
  Counts& counts() noexcept { return counts_; }
  CodingTally& coding_tally() noexcept { return coding_tally_; }
  // Payload has come or gone.
  void moved(uint64_t bytes) noexcept { meter_.add(bytes, loop_.now_us()); }
  wire::LoadRecord load() const noexcept;
  void request_admitted() {
    ++counts_.requests_open;
    watch_memory();
  }
  // How long it waited for others to store something says nothing of this shard.
  void request_finished(wire::Opcode opcode, uint64_t us, bool has_waited) noexcept {
    --counts_.requests_open;
    if (!has_waited) counts_.latency(opcode, us);
  }
  void request_dropped() noexcept { --counts_.requests_open; }
  // All but what namespaces have, and that.
  virtual void collect_own(Metrics* out) = 0;
  virtual std::vector<store::NamespaceInfo> namespaces() const = 0;

  // Memory -----------------------------------------------------------------------------------------------------------------
  RequestMemory& request_memory() noexcept { return request_memory_; }
  // Of it, what those may have who wait for blocks that are not there: as long as their deadlines are away.
  RequestMemory& wait_memory() noexcept { return wait_memory_; }
  KeyWaiters& key_waiters() noexcept { return key_waiters_; }
  // Null: this daemon decodes for nobody.
  Decoder* decoder() const noexcept { return decoder_.get(); }
  // Of parts that somebody can be given who decodes `own` alone.
  uint64_t readable_codecs(uint64_t own) const noexcept { return own | (decoder_ != nullptr ? Decoder::codecs() : 0); }
  // Some was taken that is to go back when it is not needed any more.
  virtual void watch_memory() = 0;
  // Reads and writes have memory of their own, so neither waits behind the other.
  MemoryWaiters& write_waiters() noexcept { return write_waiters_; }
  virtual void join_memory(Request& waiter) = 0;
  virtual void leave_memory(Request& waiter) noexcept = 0;

  // The end of the turn: flush() is called, unless it is forgotten before.
  virtual void add_dirty(Request& request) = 0;
  virtual void forget_dirty(Request& request) noexcept = 0;

  // Used within one call, by nobody across calls.
  std::vector<std::byte>& frame_buffer() noexcept { return frame_buffer_; }
  wire::RequestView& request_view() noexcept { return request_view_; }

 protected:
  RequestHost(const Clock& clock, uint64_t request_bytes_max)
      : loop_(clock), request_memory_(request_bytes_max), wait_memory_(request_bytes_max / 4) {}
  ~RequestHost() = default;

  net::Loop loop_;
  store::Store* store_ = nullptr;
  wire::HelloServer hello_;
  Counts counts_;
  CodingTally coding_tally_;
  RequestMemory request_memory_;
  RequestMemory wait_memory_;
  KeyWaiters key_waiters_;
  MemoryWaiters write_waiters_;
  std::unique_ptr<Decoder> decoder_;  // outlives the pools of those who use it
  std::vector<std::byte> frame_buffer_;

 private:
  LoadMeter meter_;
  wire::RequestView request_view_;
};

}  // namespace halfstep::shard
