#include "mount/mount_server.h"

#include <pthread.h>

#include <algorithm>
#include <csignal>
#include <exception>
#include <future>
#include <mutex>
#include <new>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "base/prng.h"
#include "mount/mount_store.h"
#include "mount/siblings.h"
#include "mount/upstream_engine.h"
#include "shard/listening.h"
#include "shard/shard.h"

namespace halfstep::mount {
namespace {

constexpr uint64_t kMemoryBytesMin = 32 * MiB;  // of a shard

class MountServer final : public shard::Server {
 public:
  MountServer(shard::Config config, Options options) : config_(std::move(config)), options_(std::move(options)) {}
  ~MountServer() override { (void)stop(0); }

  Fault open() {
    if (config_.listen.empty()) return {Code::Invalid, "listen: at least one address"};
    if (options_.namespaces.empty()) return {Code::Invalid, "namespace: at least one"};
    const uint32_t shards = std::max(config_.shards, 1U);
    const uint64_t share = config_.arena_bytes / shards;
    if (share < kMemoryBytesMin) {
      return {Code::Invalid, "memory=" + std::to_string(config_.arena_bytes) + ": must be at least " +
                                 std::to_string(kMemoryBytesMin * shards) +
                                 (shards == 1 ? "" : " for " + std::to_string(shards) + " shards") +
                                 "; a block takes a quarter of a shard's at most"};
    }
    config_.connection_credit_bytes = std::min(config_.connection_credit_bytes, share / 2);
    if (Fault fault = shard::MemoryPlaces::make(config_.memory, &places_); !fault.ok()) return fault;
    if (Status status = system_random(facts_.boot_id); !status.ok()) {
      return {status, "getrandom: " + errno_name(status.detail())};
    }
    if (Fault fault = listening_.open(config_.listen, config_.insecure_listen); !fault.ok()) return fault;
    if (Fault fault = listening_.open_others(shards); !fault.ok()) return fault;
    siblings_ = shards > 1 ? std::make_shared<Siblings>(shards) : nullptr;
    for (uint32_t number = 0; number < shards; ++number) {
      auto own = std::make_unique<Own>();
      own->number = number;
      own->facts.listening = listening_.addresses(number);
      own->place = places_.of(number, -1);
      if (Fault fault = Arena::create(share, config_.huge_pages, &own->arena, own->place.node); !fault.ok()) return fault;
      own->upstream = std::make_unique<Upstream>();
      shards_.push_back(std::move(own));
    }
    return start_threads();
  }

  const shard::Facts& facts() const noexcept override { return facts_; }

  shard::Metrics metrics() const override {
    std::vector<std::future<shard::Metrics>> asked;
    for (const auto& own : shards_) {
      // Shared: the shard may answer when nobody waits any more.
      auto promise = std::make_shared<std::promise<shard::Metrics>>();
      asked.push_back(promise->get_future());
      const std::lock_guard lock(mutex_);
      const auto collect = [shard = own->shard, store = own->store, promise] {
        shard::Metrics metrics;
        shard->collect(&metrics);
        store->collect(&metrics);
        promise->set_value(std::move(metrics));
      };
      if (own->shard == nullptr || !own->shard->post(collect)) promise->set_value(own->last_metrics);
    }
    shard::Metrics total;
    for (auto& answer : asked) add_shard(answer.get(), &total);
    return total;
  }

  // The upstream tells what came and went.
  shard::PolledEvents poll_events(uint64_t after, uint32_t, uint32_t) const override {
    return {.polled = {.last = after}, .events = {}};
  }

  Status stop(uint32_t grace_ms) override {
    const std::lock_guard stopping(stop_mutex_);
    {
      const std::lock_guard lock(mutex_);
      asked_to_stop_ = true;
      for (const auto& own : shards_) {
        if (own->shard != nullptr) (void)own->shard->post([shard = own->shard, grace_ms] { shard->stop(grace_ms); });
      }
    }
    join();
    for (const auto& own : shards_) own->arena = nullptr;
    const std::lock_guard lock(mutex_);
    return why_ended_.empty() ? Status() : Status(Code::IoError);
  }

  bool running(std::string* why) const override {
    const std::lock_guard lock(mutex_);
    const bool ended = std::any_of(shards_.begin(), shards_.end(), [](const auto& own) { return own->ended; });
    if (why != nullptr) *why = ended && why_ended_.empty() ? "it was stopped" : why_ended_;
    return !ended && !asked_to_stop_;
  }

 private:
  // One shard and what is its alone.
  struct Own {
    uint32_t number = 0;
    shard::MemoryPlace place;
    std::unique_ptr<Arena> arena;
    std::unique_ptr<Upstream> upstream;  // until the store has it
    std::thread thread;
    std::promise<Fault> opened;
    shard::ShardFacts facts;  // these are the thread's until it has opened
    store::Geometry geometry;
    std::array<std::byte, 16> uuid{};

    shard::Shard* shard = nullptr;  // these are guarded by mutex_
    MountStore* store = nullptr;
    shard::Metrics last_metrics;
    bool ended = false;
  };

  Fault start_threads() {
    std::promise<bool> go;
    go_ = go.get_future().share();
    // Signals are the main thread's; those of the client cores inherit this, too.
    sigset_t all;
    sigset_t before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    Fault no_thread;
    for (const auto& own : shards_) {
      if (no_thread.ok()) no_thread = start_thread(*own);
      if (!no_thread.ok()) own->opened.set_value(no_thread);
    }
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    Fault fault;
    for (const auto& own : shards_) {
      if (Fault opened = own->opened.get_future().get(); fault.ok()) fault = std::move(opened);
    }
    if (fault.ok()) tell_facts();
    go.set_value(fault.ok());
    if (!fault.ok()) join();
    return fault;
  }

  Fault start_thread(Own& own) {
    try {
      own.thread = std::thread([this, &own] { run(own); });
    } catch (const std::system_error& error) {
      return {
          {Code::IoError, -error.code().value()},
          "the mount's thread: " + errno_name(error.code().value()) + "; raise the limit of processes (ulimit -u, TasksMax=)"};
    }
    std::string name = "halfstep-mount";
    if (shards_.size() > 1) name = std::string("hs-mount-").append(std::to_string(own.number));  // 15 characters at most
    pthread_setname_np(own.thread.native_handle(), name.c_str());
    return {};
  }

  void join() {
    for (const auto& own : shards_) {
      if (own->thread.joinable()) own->thread.join();
    }
  }

  // The shard's thread: everything that belongs to it lives and dies here.
  void run(Own& own) {
    shard::Shard::Setup setup;
    setup.config = &config_;
    setup.clock = &clock_;
    setup.arena = own.arena.get();
    setup.rdma_budget = &rdma_budget_;
    setup.number = own.number;
    setup.shards = static_cast<uint32_t>(shards_.size());
    setup.boot_id = facts_.boot_id;
    setup.open_engine = [this, &own](std::unique_ptr<io::Engine>* out) {
      if (Fault fault = own.upstream->open(options_); !fault.ok()) return fault;
      *out = std::make_unique<UpstreamEngine>(own.upstream->descriptor());
      return Fault();
    };
    setup.open_store = [this, &own](io::Engine&, SlotPool& slots, std::function<void()> wake,
                                    std::unique_ptr<store::Store>* out) {
      std::unique_ptr<MountStore> store;
      MountStore::Place place{own.number, siblings_, std::move(wake), start_number_};
      Fault fault = MountStore::open(slots, clock_, options_, std::move(place), config_.store.write_share,
                                     std::move(own.upstream), &store);
      own.store = store.get();
      *out = std::move(store);
      return fault;
    };
    const int node = own.place.node;
    const Status node_asked = node < 0 ? Status() : numa::prefer_for_thread(static_cast<uint32_t>(node));
    std::unique_ptr<shard::Shard> shard;
    Fault fault;
    // What an exception needs of the thread is allocated at the first look at it.
    (void)std::uncaught_exceptions();
    try {
      shard = std::make_unique<shard::Shard>(setup);
      fault = open_shard(own, *shard, node_asked);
    } catch (const std::bad_alloc&) {
      fault = {Code::TooLarge, "out of memory while the mount was opened; lower --memory, or raise the memory limit"};
    }
    const bool ok = fault.ok();
    own.opened.set_value(std::move(fault));
    if (!ok) return;
    if (!go_.get()) {
      const std::lock_guard lock(mutex_);
      own.shard = nullptr;
      return;
    }
    std::string why;
    shard::Metrics last;
    shard->run(&why, &last);
    const std::lock_guard lock(mutex_);
    own.shard = nullptr;
    own.last_metrics = std::move(last);
    own.ended = true;
    if (why_ended_.empty()) why_ended_ = std::move(why);
  }

  // On the shard's thread.
  Fault open_shard(Own& own, shard::Shard& shard, Status node_asked) {
    Fault fault = shard.open();
    if (fault.ok()) fault = shard.listen(listening_of(own.number));
    if (!fault.ok()) return fault;
    own.facts.engine = shard.engine().facts();
    own.facts.memory = shard::look_at_memory(own.place, own.arena->facts().node_asked, node_asked, own.arena->bytes(), {});
    own.geometry = shard.store().geometry();
    own.uuid = shard.store().uuid();
    const std::lock_guard lock(mutex_);
    own.shard = &shard;
    return {};
  }

  std::vector<shard::ListeningSocket> listening_of(uint32_t number) {
    const std::lock_guard lock(mutex_);
    return listening_.take(number);
  }

  void tell_facts() {
    const Own& first = *shards_.front();
    facts_.listening = first.facts.listening;
    facts_.engine = first.facts.engine;
    facts_.arena = first.arena->facts();
    facts_.geometry = first.geometry;
    facts_.store = config_.store;
    facts_.store_uuid = first.uuid;
    facts_.congestion_control = listening_.congestion_control();
    for (const auto& own : shards_) {
      facts_.shards.push_back(own->facts);
      if (own == shards_.front()) continue;
      facts_.arena.bytes += own->arena->facts().bytes;
      facts_.arena.regions += own->arena->facts().regions;
      facts_.arena.large_bytes += own->arena->facts().large_bytes;
      facts_.arena.reserved = facts_.arena.reserved && own->arena->facts().reserved;
    }
  }

  shard::Config config_;
  const Options options_;
  net::RdmaBudget rdma_budget_{0};
  SystemClock clock_;
  const uint64_t start_number_ = clock_.wall_s();
  shard::Facts facts_;  // written before start() returns
  shard::Listening listening_;
  shard::MemoryPlaces places_;
  std::shared_ptr<Siblings> siblings_;
  std::vector<std::unique_ptr<Own>> shards_;
  std::shared_future<bool> go_;  // whether all shards could be opened

  std::mutex stop_mutex_;
  mutable std::mutex mutex_;
  std::string why_ended_;  // these are guarded by mutex_
  bool asked_to_stop_ = false;
};

}  // namespace

Fault start(const shard::Config& config, const Options& options, std::unique_ptr<shard::Server>* out) {
  auto server = std::make_unique<MountServer>(config, options);
  if (Fault fault = server->open(); !fault.ok()) return fault;
  *out = std::move(server);
  return {};
}

}  // namespace halfstep::mount
