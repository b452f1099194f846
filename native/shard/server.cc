#include "shard/server.h"

#include <pthread.h>
#include <unistd.h>

#include <bit>
#include <chrono>
#include <csignal>
#include <future>
#include <mutex>
#include <thread>

#include "base/prng.h"
#include "net/shm_setup.h"
#include "net/socket.h"
#include "shard/event_poll.h"
#include "shard/shard.h"
#include "shard/store_file.h"
#include "wire/message.h"

namespace halfstep::shard {
namespace {

constexpr uint64_t kArenaBytesMin = 16 * MiB;
constexpr uint32_t kConnectionsMax = 65'536;
constexpr uint32_t kShmRingBytesMin = 64 * 1024;
constexpr auto kProgressEvery = std::chrono::milliseconds(100);

// Listening sockets until the shard takes them.
class Listening {
 public:
  Listening() = default;
  Listening(const Listening&) = delete;
  Listening& operator=(const Listening&) = delete;
  ~Listening() {
    for (const int descriptor : descriptors_) {
      net::SocketFile(descriptor).remove();
      ::close(descriptor);
    }
  }
  Fault open(const Config& config, Facts* facts) {
    for (const std::string& text : config.listen) {
      net::Address address;
      if (Fault fault = net::Address::parse(text, &address); !fault.ok()) return fault;
      if (!address.loopback() && !config.insecure_listen) {
        return {Code::Invalid, "listen=" + text +
                                   ": anybody who reaches it could read and delete blocks, since clients are not "
                                   "authenticated yet; listen on 127.0.0.1, or allow it with --insecure-listen"};
      }
      int descriptor = -1;
      net::Address bound;
      if (Fault fault = net::listen_on(address, &descriptor, &bound); !fault.ok()) return fault;
      descriptors_.push_back(descriptor);
      facts->listening.push_back(bound.text());
      if (!bound.is_unix) facts->congestion_control = net::congestion_control(descriptor);
    }
    return {};
  }
  std::vector<int> take() { return std::move(descriptors_); }

 private:
  std::vector<int> descriptors_;
};

Fault check(const Config& config) {
  if (config.listen.empty()) return {Code::Invalid, "listen: at least one address"};
  if (config.arena_bytes < kArenaBytesMin || config.arena_bytes > kArenaBytesMax) {
    return {Code::Invalid, "arena_bytes=" + std::to_string(config.arena_bytes) + ": must be " + std::to_string(kArenaBytesMin) +
                               " to " + std::to_string(kArenaBytesMax)};
  }
  if (config.connections_max == 0 || config.connections_max > kConnectionsMax) {
    return {Code::Invalid,
            "connections_max=" + std::to_string(config.connections_max) + ": must be 1 to " + std::to_string(kConnectionsMax)};
  }
  if (!std::has_single_bit(config.shm_ring_bytes) || config.shm_ring_bytes < kShmRingBytesMin ||
      config.shm_ring_bytes > net::kRingBytesMax) {
    return {Code::Invalid, "shm_ring_bytes=" + std::to_string(config.shm_ring_bytes) + ": must be a power of two from " +
                               std::to_string(kShmRingBytesMin) + " to " + std::to_string(net::kRingBytesMax)};
  }
  if (config.connection_credit_bytes < wire::kChunkBytesMax || config.connection_credit_bytes > config.arena_bytes) {
    return {Code::Invalid, "connection_credit_bytes=" + std::to_string(config.connection_credit_bytes) + ": must be " +
                               std::to_string(wire::kChunkBytesMax) + " to arena_bytes=" + std::to_string(config.arena_bytes)};
  }
  if (!(config.store.write_share >= 0.1 && config.store.write_share <= 0.9)) {
    return {Code::Invalid, "write_share=" + std::to_string(config.store.write_share) + ": must be 0.1 to 0.9"};
  }
  return {};
}

class RunningServer final : public Server {
 public:
  explicit RunningServer(const Config& config) : config_(config) {}
  ~RunningServer() override { (void)stop(0); }

  Fault open() {
    if (Fault fault = check(config_); !fault.ok()) return fault;
    if (Status status = system_random(facts_.boot_id); !status.ok()) {
      return {status, "getrandom: " + errno_name(status.detail())};
    }
    // What is quick to find wrong comes before a large file is allocated.
    if (Fault fault = listening_.open(config_, &facts_); !fault.ok()) return fault;
    if (Fault fault = Arena::create(config_.arena_bytes, config_.huge_pages, &arena_); !fault.ok()) return fault;
    if (Fault fault = file_.open(config_); !fault.ok()) return fault;
    return start_thread();
  }

  const Facts& facts() const noexcept override { return facts_; }

  Metrics metrics() const override {
    std::promise<Metrics> promise;
    {
      const std::lock_guard lock(mutex_);
      const auto collect = [this, &promise] {
        Metrics metrics;
        shard_->collect(&metrics);
        promise.set_value(std::move(metrics));
      };
      if (shard_ == nullptr || !shard_->post(collect)) return last_metrics_;
    }
    return promise.get_future().get();
  }

  PolledEvents poll_events(uint64_t after, uint32_t limit) const override {
    std::promise<PolledEvents> promise;
    {
      const std::lock_guard lock(mutex_);
      const auto poll = [&] { promise.set_value(shard::poll_events(shard_->store(), after, limit)); };
      if (shard_ == nullptr || !shard_->post(poll)) return {.polled = {.last = after}, .events = {}};
    }
    return promise.get_future().get();
  }

  Status stop(uint32_t grace_ms) override {
    const std::lock_guard stopping(stop_mutex_);
    {
      const std::lock_guard lock(mutex_);
      asked_to_stop_ = true;
      if (shard_ != nullptr) (void)shard_->post([this, grace_ms] { shard_->stop(grace_ms); });
    }
    if (thread_.joinable()) thread_.join();
    // Another server may take the store, and the memory, though somebody still looks at this one's last numbers.
    file_.close();
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
    // Before the file is the thread's.
    const char* step = file_.to_format() != nullptr ? "formatting the store" : "recovering the store";
    // Signals are the main thread's.
    sigset_t all;
    sigset_t before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    thread_ = std::thread([this, &opened] { run(opened); });
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    pthread_setname_np(thread_.native_handle(), "halfstep-shard");
    bool wanted = true;
    while (result.wait_for(kProgressEvery) != std::future_status::ready) {
      if (wanted && config_.progress) wanted = config_.progress(step, 0, 0);
    }
    Fault fault = result.get();
    if (fault.ok() && !wanted) {
      (void)stop(0);
      return {Code::Cancelled, "the start was stopped"};
    }
    if (!fault.ok()) thread_.join();
    return fault;
  }

  // The shard's thread: everything that belongs to it lives and dies here.
  void run(std::promise<Fault>& opened) {
    Shard::Setup setup;
    setup.config = &config_;
    setup.clock = &clock_;
    setup.arena = arena_.get();
    setup.boot_id = facts_.boot_id;
    setup.open_engine = [this](std::unique_ptr<io::Engine>* out) {
      return io::open_engine(config_.engine, *arena_, {&file_.backing()}, out);
    };
    setup.open_store = [this](io::Engine& engine, SlotPool& slots, std::unique_ptr<store::Store>* out) {
      if (const store::Geometry* geometry = file_.to_format(); geometry != nullptr) {
        if (Fault fault = store::Store::format(engine, *arena_, clock_, *geometry); !fault.ok()) return fault;
      }
      return store::Store::open(engine, slots, clock_, config_.store, out);
    };
    facts_.created = file_.to_format() != nullptr;
    Shard shard(setup);
    Fault fault = shard.open();
    if (fault.ok()) fault = file_.publish();
    if (fault.ok()) fault = shard.listen(listening_.take());
    if (!fault.ok()) {
      opened.set_value(std::move(fault));
      return;
    }
    facts_.backing = file_.facts();
    facts_.engine = shard.engine().facts();
    facts_.arena = arena_->facts();
    facts_.geometry = shard.store().geometry();
    facts_.store = config_.store;
    facts_.recovery = shard.store().recovery();
    facts_.index_bytes = shard.store().gauges().index_bytes;
    facts_.scrub_bytes_per_s = shard.store().gauges().scrub_bytes_per_s;
    facts_.store_uuid = shard.store().uuid();
    {
      const std::lock_guard lock(mutex_);
      shard_ = &shard;
    }
    opened.set_value({});
    std::string why;
    Metrics last;
    shard.run(&why, &last);
    const std::lock_guard lock(mutex_);
    shard_ = nullptr;
    last_metrics_ = std::move(last);
    why_ended_ = std::move(why);
    ended_ = true;
  }

  const Config config_;
  SystemClock clock_;
  Facts facts_;  // written before start() returns
  std::unique_ptr<Arena> arena_;
  StoreFile file_;
  Listening listening_;
  std::thread thread_;

  std::mutex stop_mutex_;
  mutable std::mutex mutex_;
  Shard* shard_ = nullptr;  // these are guarded by mutex_
  Metrics last_metrics_;
  std::string why_ended_;
  bool asked_to_stop_ = false;
  bool ended_ = false;
};

}  // namespace

Fault Server::start(const Config& config, std::unique_ptr<Server>* out) {
  auto server = std::make_unique<RunningServer>(config);
  if (Fault fault = server->open(); !fault.ok()) return fault;
  *out = std::move(server);
  return {};
}

}  // namespace halfstep::shard
