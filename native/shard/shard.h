// shard.h — one thread with its loop, its engine, its store and its connections. It shares nothing with another.
// A turn: what is ready on sockets and timers; completions of the engine; the store's own work; then, outside all of their
// call-backs, requests that waited for memory or credit go on and answers that have gathered go out.
// Invariants: everything but post() happens on the thread that called open(); pools outlive the store and the engine, which
// hold pointers to what is in them.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "base/arena.h"
#include "base/clock.h"
#include "base/slots.h"
#include "io/engine.h"
#include "net/loop.h"
#include "net/shm_setup.h"
#include "net/socket.h"
#include "net/zero_copy_linger.h"
#include "shard/chunk_builder.h"
#include "shard/config.h"
#include "shard/listening.h"
#include "shard/load_meter.h"
#include "shard/memory_waiters.h"
#include "shard/metrics.h"
#include "shard/pool.h"
#include "shard/request_catalog.h"
#include "shard/request_get.h"
#include "shard/request_keys.h"
#include "shard/request_memory.h"
#include "shard/request_prefetch.h"
#include "shard/request_put.h"
#include "shard/samples.h"
#include "store/store.h"
#include "wire/records.h"

namespace halfstep::shard {

class Connection;
class Listener;

class Shard {
 public:
  // What the shard is given: all of it outlives the shard.
  struct Setup {
    const Config* config = nullptr;
    const Clock* clock = nullptr;
    Arena* arena = nullptr;
    uint32_t number = 0;
    uint32_t shards = 1;
    std::array<std::byte, 16> boot_id{};
    std::function<Fault(std::unique_ptr<io::Engine>*)> open_engine;
    // `wake` makes the shard turn, soon: any thread may call it while the store is there.
    std::function<Fault(io::Engine&, SlotPool&, std::function<void()> wake, std::unique_ptr<store::Store>*)> open_store;
  };

  explicit Shard(const Setup& setup);
  ~Shard();
  Shard(const Shard&) = delete;
  Shard& operator=(const Shard&) = delete;

  // Opens engine and store (and recovers). The calling thread becomes the shard's.
  Fault open();
  // Accepts on these (taken, listening) sockets from the next turn on.
  Fault listen(std::vector<ListeningSocket> sockets);
  // Turns until stop() and all that it asks for is done, or the shard cannot go on: `why` says it. `last`: the numbers then.
  void run(std::string* why, Metrics* last);
  // Runs `call` on the shard's thread, soon. False when the shard has ended, or will before it. Any thread.
  bool post(std::function<void()> call);
  // From post(): no new requests; what runs gets so long; then run() seals, flushes and returns.
  void stop(uint32_t grace_ms);
  void collect(Metrics* out);
  // All but what namespaces have, and that.
  void collect_own(Metrics* out);
  std::vector<store::NamespaceInfo> namespaces() const;

  // For connections and requests ------------------------------------------------------------------------------------------
  net::Loop& loop() noexcept { return loop_; }
  store::Store& store() noexcept { return *store_; }
  const io::Engine& engine() const noexcept { return *engine_; }
  const Config& config() const noexcept { return *setup_.config; }
  Counts& counts() noexcept { return counts_; }
  Credit::Common& get_credits() noexcept { return get_credits_; }
  Credit::Common& put_credits() noexcept { return put_credits_; }
  RequestMemory& request_memory() noexcept { return request_memory_; }
  // The buffers' share of the memory of requests is exceeded: ends the connection whose frame has been coming in part for
  // longest, or, where unread answers have more, the one that leaves most of them.
  void relieve();
  const wire::HelloServer& hello() const noexcept { return hello_; }
  bool stopping() const noexcept { return stopping_; }
  wire::LoadRecord load() const noexcept;
  void moved(uint64_t bytes) noexcept { meter_.add(bytes, loop_.now_us()); }

  // False: there were too many, and one had to go, which took a look at all of them. Others wait for the next turn.
  bool accepted(const net::Accepted& peer, const ShardMap& map);
  bool make_room(Connection& newcomer, bool is_unix);
  void closed(Connection& connection);
  void request_admitted() {
    ++counts_.requests_open;
    watch_memory();
  }
  // Some was taken that is to go back when it is not needed any more.
  void watch_memory() {
    if (!tidy_timer_.armed()) loop_.arm(tidy_timer_, loop_.now_us() + kTidyUs);
  }
  void request_finished(wire::Opcode opcode, uint64_t us) noexcept;
  void request_dropped() noexcept { --counts_.requests_open; }

  void add_dirty(Request& request) {
    request.dirty_at_ = dirty_.size();
    dirty_.push_back(&request);
  }
  void forget_dirty(Request& request) noexcept;
  void add_dirty(Connection& connection) { dirty_connections_.push_back(&connection); }
  void forget_dirty(Connection& connection) noexcept;
  void join_memory(Request& waiter);
  void leave_memory(Request& waiter) noexcept;
  MemoryWaiters& write_waiters() noexcept { return write_waiters_; }

  // Used within one call, by nobody across calls.
  std::vector<std::byte>& frame_buffer() noexcept { return frame_buffer_; }
  wire::RequestView& request_view() noexcept { return request_view_; }
  ChunkBuilder& chunk_builder() noexcept { return chunk_builder_; }
  std::vector<store::Read*>& read_window() noexcept { return read_window_; }

  Pool<GetRequest>& gets() noexcept { return gets_; }
  Pool<GetItem>& get_items() noexcept { return get_items_; }
  Pool<SentChunk>& sent_chunks() noexcept { return sent_chunks_; }
  Pool<PutRequest>& puts() noexcept { return puts_; }
  Pool<PutItem>& put_items() noexcept { return put_items_; }
  Pool<PrefetchRequest>& prefetches() noexcept { return prefetches_; }
  Pool<ChangeRequest>& changes() noexcept { return changes_; }
  Pool<StoreCall>& store_calls() noexcept { return store_calls_; }

 private:
  class EngineWatch;
  MemoryWaiters& memory_waiters(const Request& waiter) noexcept {
    return waiter.opcode() == wire::Opcode::Put ? write_waiters_ : read_waiters_;
  }
  Fault check_memory() const;
  void turn();
  void end_of_turn();
  uint64_t wait_us() const;
  void run_posted();
  void close_connections();
  // What a burst has left goes back, a while after it.
  static constexpr uint64_t kTidyUs = 1'000'000;
  static void on_tidy(void* self);
  void watch_pace();
  static void on_pace(void* self);
  void take_back_slowest();
  std::unique_ptr<net::Transport> transport_to(const net::Accepted& peer);

  const Setup setup_;

  // Destroyed last: what the store and the engine point into.
  Pool<GetRequest> gets_;
  Pool<GetItem> get_items_;
  Pool<SentChunk> sent_chunks_;
  Pool<PutRequest> puts_;
  Pool<PutItem> put_items_;
  Pool<PrefetchRequest> prefetches_;
  Pool<ChangeRequest> changes_;
  Pool<StoreCall> store_calls_;

  net::Loop loop_;
  net::RingGraveyard ring_graveyard_;
  net::ZeroCopyLinger zero_copy_linger_;
  SlotPool slots_;
  std::unique_ptr<io::Engine> engine_;
  std::unique_ptr<store::Store> store_;
  std::unique_ptr<EngineWatch> engine_watch_;
  std::vector<std::unique_ptr<Listener>> listeners_;
  std::vector<std::unique_ptr<Connection>> connections_;

  wire::HelloServer hello_;
  Counts counts_;
  Credit::Common get_credits_;
  Credit::Common put_credits_;
  RequestMemory request_memory_;
  net::Timer tidy_timer_;
  uint64_t freed_bytes_ = 0;  // of buffers of connections that have ended, since the heap was last given back
  LoadMeter meter_;
  std::vector<Request*> dirty_;
  std::vector<Connection*> dirty_connections_;
  // Reads and writes have memory of their own, so neither waits behind the other.
  MemoryWaiters read_waiters_;
  MemoryWaiters write_waiters_;
  net::Timer pace_timer_;  // runs while somebody waits to write
  uint64_t pace_due_us_ = 0;
  bool memory_freed_ = false;
  bool stopping_ = false;
  bool recovering_ = true;      // the store, when it was last asked
  bool tells_nodes_ = true;     // the kernel, of pages
  bool zero_copy_on_ = false;   // asked for, and the kernel has it
  uint32_t kept_for_unix_ = 0;  // connections
  uint64_t stop_by_us_ = 0;

  std::vector<std::byte> frame_buffer_;
  wire::RequestView request_view_;
  ChunkBuilder chunk_builder_;
  std::vector<store::Read*> read_window_;

  std::mutex posted_mutex_;
  std::vector<std::function<void()>> posted_;  // guarded by posted_mutex_
  bool ended_ = false;                         // guarded by posted_mutex_
};

}  // namespace halfstep::shard
