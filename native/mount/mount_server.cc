#include "mount/mount_server.h"

#include <pthread.h>

#include <csignal>
#include <exception>
#include <future>
#include <mutex>
#include <new>
#include <system_error>
#include <thread>
#include <utility>

#include "base/prng.h"
#include "mount/mount_store.h"
#include "mount/upstream_engine.h"
#include "shard/listening.h"
#include "shard/shard.h"

namespace halfstep::mount {
namespace {

constexpr uint64_t kMemoryBytesMin = 32 * MiB;

class MountServer final : public shard::Server {
 public:
  MountServer(shard::Config config, Options options) : config_(std::move(config)), options_(std::move(options)) {}
  ~MountServer() override { (void)stop(0); }

  Fault open() {
    if (config_.listen.empty()) return {Code::Invalid, "listen: at least one address"};
    if (options_.namespaces.empty()) return {Code::Invalid, "namespace: at least one"};
    if (config_.arena_bytes < kMemoryBytesMin) {
      return {Code::Invalid, "memory=" + std::to_string(config_.arena_bytes) + ": must be at least " +
                                 std::to_string(kMemoryBytesMin) + "; a block takes half of it at most"};
    }
    config_.connection_credit_bytes = std::min(config_.connection_credit_bytes, config_.arena_bytes / 2);
    if (Fault fault = shard::MemoryPlaces::make(config_.memory, &places_); !fault.ok()) return fault;
    if (Status status = system_random(facts_.boot_id); !status.ok()) {
      return {status, "getrandom: " + errno_name(status.detail())};
    }
    if (Fault fault = listening_.open(config_.listen, config_.insecure_listen); !fault.ok()) return fault;
    place_ = places_.of(0, -1);
    if (Fault fault = Arena::create(config_.arena_bytes, config_.huge_pages, &arena_, place_.node); !fault.ok()) return fault;
    upstream_ = std::make_unique<Upstream>();
    return start_thread();
  }

  const shard::Facts& facts() const noexcept override { return facts_; }

  shard::Metrics metrics() const override {
    auto promise = std::make_shared<std::promise<shard::Metrics>>();
    std::future<shard::Metrics> answer = promise->get_future();
    {
      const std::lock_guard lock(mutex_);
      const auto collect = [shard = shard_, store = store_, promise] {
        shard::Metrics metrics;
        shard->collect(&metrics);
        store->collect(&metrics);
        promise->set_value(std::move(metrics));
      };
      if (shard_ == nullptr || !shard_->post(collect)) promise->set_value(last_metrics_);
    }
    return answer.get();
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
      if (shard_ != nullptr) (void)shard_->post([shard = shard_, grace_ms] { shard->stop(grace_ms); });
    }
    if (thread_.joinable()) thread_.join();
    arena_ = nullptr;
    const std::lock_guard lock(mutex_);
    return why_ended_.empty() ? Status() : Status(Code::IoError);
  }

  bool running(std::string* why) const override {
    const std::lock_guard lock(mutex_);
    if (why != nullptr) *why = ended_ && why_ended_.empty() ? "it was stopped" : why_ended_;
    return !ended_ && !asked_to_stop_;
  }

 private:
  Fault start_thread() {
    std::promise<Fault> opened;
    std::future<Fault> result = opened.get_future();
    // Signals are the main thread's; those of the client cores inherit this, too.
    sigset_t all;
    sigset_t before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    Fault fault;
    try {
      thread_ = std::thread([this, &opened] { run(opened); });
      pthread_setname_np(thread_.native_handle(), "halfstep-mount");
    } catch (const std::system_error& error) {
      fault = {
          {Code::IoError, -error.code().value()},
          "the mount's thread: " + errno_name(error.code().value()) + "; raise the limit of processes (ulimit -u, TasksMax=)"};
    }
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    if (!fault.ok()) return fault;
    fault = result.get();
    if (!fault.ok()) thread_.join();
    return fault;
  }

  // The shard's thread: everything that belongs to it lives and dies here.
  void run(std::promise<Fault>& opened) {
    shard::Shard::Setup setup;
    setup.config = &config_;
    setup.clock = &clock_;
    setup.arena = arena_.get();
    setup.rdma_budget = &rdma_budget_;
    setup.boot_id = facts_.boot_id;
    setup.open_engine = [this](std::unique_ptr<io::Engine>* out) {
      if (Fault fault = upstream_->open(options_); !fault.ok()) return fault;
      *out = std::make_unique<UpstreamEngine>(upstream_->descriptor());
      return Fault();
    };
    setup.open_store = [this](io::Engine&, SlotPool& slots, std::function<void()>, std::unique_ptr<store::Store>* out) {
      std::unique_ptr<MountStore> store;
      Fault fault = MountStore::open(slots, clock_, options_, config_.store.write_share, std::move(upstream_), &store);
      store_ = store.get();
      *out = std::move(store);
      return fault;
    };
    const Status node_asked = place_.node < 0 ? Status() : numa::prefer_for_thread(static_cast<uint32_t>(place_.node));
    std::unique_ptr<shard::Shard> shard;
    Fault fault;
    // What an exception needs of the thread is allocated at the first look at it.
    (void)std::uncaught_exceptions();
    try {
      shard = std::make_unique<shard::Shard>(setup);
      fault = shard->open();
      if (fault.ok()) fault = shard->listen(listening_.take(0));
    } catch (const std::bad_alloc&) {
      fault = {Code::TooLarge, "out of memory while the mount was opened; lower --memory, or raise the memory limit"};
    }
    if (fault.ok()) {
      tell_facts(*shard, node_asked);
      const std::lock_guard lock(mutex_);
      shard_ = shard.get();
    }
    const bool ok = fault.ok();
    opened.set_value(std::move(fault));  // `opened` is gone from here on
    if (!ok) return;
    std::string why;
    shard::Metrics last;
    shard->run(&why, &last);
    const std::lock_guard lock(mutex_);
    shard_ = nullptr;
    last_metrics_ = std::move(last);
    ended_ = true;
    why_ended_ = std::move(why);
  }

  void tell_facts(shard::Shard& shard, Status node_asked) {
    shard::ShardFacts& one = facts_.shards.emplace_back();
    one.listening = listening_.addresses(0);
    one.engine = shard.engine().facts();
    one.memory = shard::look_at_memory(place_, arena_->facts().node_asked, node_asked, arena_->bytes(), {});
    facts_.listening = one.listening;
    facts_.engine = one.engine;
    facts_.arena = arena_->facts();
    facts_.geometry = shard.store().geometry();
    facts_.store = config_.store;
    facts_.store_uuid = shard.store().uuid();
    facts_.congestion_control = listening_.congestion_control();
  }

  shard::Config config_;
  const Options options_;
  net::RdmaBudget rdma_budget_{0};
  SystemClock clock_;
  shard::Facts facts_;  // written before start() returns
  shard::Listening listening_;
  shard::MemoryPlaces places_;
  shard::MemoryPlace place_;
  std::unique_ptr<Arena> arena_;
  std::unique_ptr<Upstream> upstream_;  // until the store has it
  MountStore* store_ = nullptr;
  std::thread thread_;

  std::mutex stop_mutex_;
  mutable std::mutex mutex_;
  shard::Shard* shard_ = nullptr;  // these are guarded by mutex_
  shard::Metrics last_metrics_;
  std::string why_ended_;
  bool ended_ = false;
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
