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
#include "io/drive_watch.h"
#include "io/engine.h"
#include "net/rdma_rings.h"
#include "net/shm_setup.h"
#include "net/socket.h"
#include "net/zero_copy_linger.h"
#include "shard/config.h"
#include "shard/connection_host.h"
#include "shard/listening.h"
#include "shard/memory_waiters.h"
#include "shard/metrics.h"
#include "shard/samples.h"
#include "store/store.h"

namespace halfstep::shard {

class Connection;
class Listener;

class Shard final : public ConnectionHost {
 public:
  // What the shard is given: all of it outlives the shard.
  struct Setup {
    const Config* config = nullptr;
    const Clock* clock = nullptr;
    Arena* arena = nullptr;
    // Memory for what is decoded, and who does it; null: nobody.
    Arena* decode_arena = nullptr;
    DecodePool* decode_pool = nullptr;
    net::RdmaBudget* rdma_budget = nullptr;  // of the process
    const io::DriveWatch* drive = nullptr;   // of the shard that tells for all of them; null: another one, or nothing to tell
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
  const io::Engine& engine() const noexcept { return *engine_; }

 private:
  class EngineWatch;

  void collect_own(Metrics* out) override;
  std::vector<store::NamespaceInfo> namespaces() const override;
  void watch_memory() override {
    if (!tidy_timer_.armed()) loop_.arm(tidy_timer_, loop_.now_us() + kTidyUs);
  }
  void join_memory(Request& waiter) override;
  void leave_memory(Request& waiter) noexcept override;
  void add_dirty(Request& request) override;
  void forget_dirty(Request& request) noexcept override;
  void add_dirty(Connection& connection) override { dirty_connections_.push_back(&connection); }
  void forget_dirty(Connection& connection) noexcept override;
  void relieve() override;
  void tell_of_rdma(const std::string& what) override;
  net::RdmaRings* rdma_rings() noexcept override { return config().rdma.on ? &rdma_rings_ : nullptr; }
  void closed(Connection& connection) override;

  MemoryWaiters& memory_waiters(const Request& waiter) noexcept;
  // False: there were too many, and one had to go, which took a look at all of them. Others wait for the next turn.
  bool accepted(const net::Accepted& peer, const ShardMap& map);
  bool make_room(Connection& newcomer, bool is_unix);
  Fault check_memory() const;
  void turn();
  void end_of_turn();
  void look_at_cleared() noexcept;
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

  net::RingGraveyard ring_graveyard_;
  net::ZeroCopyLinger zero_copy_linger_;
  net::RdmaRings rdma_rings_;
  uint64_t rdma_told_us_ = 0;  // when a refusal was told last; 0: never
  SlotPool slots_;
  std::unique_ptr<io::Engine> engine_;
  std::unique_ptr<store::Store> opened_store_;
  std::unique_ptr<EngineWatch> engine_watch_;
  std::vector<std::unique_ptr<Listener>> listeners_;
  std::vector<std::unique_ptr<Connection>> connections_;

  net::Timer tidy_timer_;
  uint64_t freed_bytes_ = 0;  // of buffers of connections that have ended, since the heap was last given back
  std::vector<Request*> dirty_;
  std::vector<Connection*> dirty_connections_;
  MemoryWaiters read_waiters_;
  net::Timer pace_timer_;  // runs while somebody waits to write
  uint64_t pace_due_us_ = 0;
  bool memory_freed_ = false;
  uint64_t cleared_seen_ = 0;   // of the store's scopes
  bool recovering_ = true;      // the store, when it was last asked
  bool tells_nodes_ = true;     // the kernel, of pages
  bool zero_copy_on_ = false;   // asked for, and the kernel has it
  uint32_t kept_for_unix_ = 0;  // connections
  uint64_t stop_by_us_ = 0;

  std::mutex posted_mutex_;
  std::vector<std::function<void()>> posted_;  // guarded by posted_mutex_
  bool ended_ = false;                         // guarded by posted_mutex_
};

}  // namespace halfstep::shard
