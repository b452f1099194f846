#include "shard/server.h"
#include "shard/config.h"
#include "shard/facts.h"
#include "shard/polled_events.h"
#include "shard/samples.h"

#include <pthread.h>
#include <sched.h>

#include <algorithm>
#include <bit>
#include <chrono>
#include <csignal>
#include <exception>
#include <filesystem>
#include <future>
#include <mutex>
#include <new>
#include <system_error>
#include <thread>

#include "base/prng.h"
#include "io/nvme_namespace.h"
#include "io/vhost_session.h"
#include "net/shm_setup.h"
#include "net/zero_copy_transport.h"
#include "shard/event_poll.h"
#include "shard/listening.h"
#include "shard/shard.h"
#include "shard/store_file.h"
#include "store/durable/header_keeper.h"
#include "store/format/format.h"
#include "wire/message.h"

namespace halfstep::shard {
namespace {

constexpr uint64_t kArenaBytesMin = 16 * MiB;
constexpr uint64_t kDecodeBytesMin = 8 * MiB;
constexpr uint32_t kConnectionsMax = 65'536;
constexpr uint32_t kShmRingBytesMin = 64 * 1024;
constexpr auto kProgressEvery = std::chrono::milliseconds(100);

Fault check(const Config& config) {
  if (config.listen.empty()) return {Code::Invalid, "listen: at least one address"};
  if (config.shards > store::format::kShardsMax) {
    return {Code::Invalid,
            "shards=" + std::to_string(config.shards) + ": must be 1 to " + std::to_string(store::format::kShardsMax)};
  }
  if (config.connections_max == 0 || config.connections_max > kConnectionsMax) {
    return {Code::Invalid,
            "connections=" + std::to_string(config.connections_max) + ": must be 1 to " + std::to_string(kConnectionsMax)};
  }
  if (!std::has_single_bit(config.shm_ring_bytes) || config.shm_ring_bytes < kShmRingBytesMin ||
      config.shm_ring_bytes > net::kRingBytesMax) {
    return {Code::Invalid, "shm_ring=" + std::to_string(config.shm_ring_bytes) + ": must be a power of two from " +
                               std::to_string(kShmRingBytesMin) + " to " + std::to_string(net::kRingBytesMax)};
  }
  if (config.latency_goal_us > io::kLatencyGoalUsMax) {
    return {Code::Invalid, "latency_goal=" + std::to_string(config.latency_goal_us) + ": must be 0 (nothing gives way) to " +
                               std::to_string(io::kLatencyGoalUsMax)};
  }
  if (!(config.store.write_share >= 0.1 && config.store.write_share <= 0.9)) {
    return {Code::Invalid, "write_share=" + std::to_string(config.store.write_share) + ": must be 0.1 to 0.9"};
  }
  return {};
}

// Of which each shard has its share.
Fault check_memory(const Config& config, uint32_t shards) {
  const uint64_t arena_bytes = config.arena_bytes / shards;
  if (arena_bytes < kArenaBytesMin || arena_bytes > kArenaBytesMax) {
    return {Code::Invalid, "arena=" + std::to_string(config.arena_bytes) + ": must be " +
                               std::to_string(kArenaBytesMin * shards) + " to " + std::to_string(kArenaBytesMax * shards) +
                               (shards == 1 ? "" : " for " + std::to_string(shards) + " shards")};
  }
  if (config.connection_credit_bytes < wire::kChunkBytesMax || config.connection_credit_bytes > arena_bytes) {
    return {Code::Invalid, "connection_credit_bytes=" + std::to_string(config.connection_credit_bytes) + ": must be " +
                               std::to_string(wire::kChunkBytesMax) + " to " + (shards == 1 ? "" : "a shard's share of ") +
                               "arena=" + std::to_string(arena_bytes)};
  }
  const uint64_t decode_bytes = config.decode_bytes / shards;
  if (config.decode_bytes != 0 && (decode_bytes < kDecodeBytesMin || decode_bytes > kArenaBytesMax)) {
    return {Code::Invalid, "decode=" + std::to_string(config.decode_bytes) + ": must be " +
                               std::to_string(kDecodeBytesMin * shards) + " to " + std::to_string(kArenaBytesMax * shards) +
                               (shards == 1 ? "" : " for " + std::to_string(shards) + " shards") + ", or 0 for none"};
  }
  const uint64_t rings_bytes = net::ring_memory_bytes(config.shm_ring_bytes, config.shm_ring_bytes);
  if (config.shm_memory_bytes != 0 && config.shm_memory_bytes / shards < rings_bytes) {
    return {Code::Invalid, "shm_memory=" + std::to_string(config.shm_memory_bytes) + ": must be at least " +
                               std::to_string(rings_bytes * shards) +
                               ", one client's rings of shm_ring=" + std::to_string(config.shm_ring_bytes) +
                               (shards == 1 ? "" : " for each of " + std::to_string(shards) + " shards") +
                               ", or 0 for none; raise --shm-memory or lower --shm-ring"};
  }
  return {};
}

Fault check_cores(const std::vector<uint32_t>& cores) {
  if (cores.empty()) return {};
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  if (::sched_getaffinity(0, sizeof(allowed), &allowed) != 0) {
    return {{Code::IoError, -errno}, "sched_getaffinity: " + errno_name(errno)};
  }
  for (const uint32_t core : cores) {
    if (core < CPU_SETSIZE && CPU_ISSET(core, &allowed)) continue;
    std::string list;
    for (int c = 0; c < CPU_SETSIZE; ++c) {
      if (CPU_ISSET(c, &allowed)) list.append(list.empty() ? "" : ", ").append(std::to_string(c));
    }
    return {Code::Invalid, "cores=" + std::to_string(core) + ": this process may run on " + list + "; name some of these"};
  }
  return {};
}

void add_recovery(const store::RecoveryReport& of, store::RecoveryReport* to) {
  to->blocks += of.blocks;
  to->bytes += of.bytes;
  to->micros = std::max(to->micros, of.micros);  // they recover side by side
  to->first_answer_micros = std::max(to->first_answer_micros, of.first_answer_micros);
  to->segments_left += of.segments_left;
  to->segments_by_footer += of.segments_by_footer;
  to->segments_by_frames += of.segments_by_frames;
  to->segments_empty += of.segments_empty;
  to->segments_bad += of.segments_bad;
  to->segments_read_again += of.segments_read_again;
  to->segments_unread += of.segments_unread;
  to->blocks_unread += of.blocks_unread;
  to->blocks_dropped_deleted += of.blocks_dropped_deleted;
  to->blocks_dropped_expired += of.blocks_dropped_expired;
  to->blocks_dropped_corrupt += of.blocks_dropped_corrupt;
  to->blocks_dropped_dead_scope += of.blocks_dropped_dead_scope;
  to->blocks_dropped_index_full += of.blocks_dropped_index_full;
  to->pages_bad += of.pages_bad;
  to->tombstones += of.tombstones;
  to->pins += of.pins;
}

class RunningServer final : public Server {
 public:
  explicit RunningServer(const Config& config) : config_(config) {}
  ~RunningServer() override { (void)stop(0); }

  Fault open() {
    if (Fault fault = check(config_); !fault.ok()) return fault;
    if (Fault fault = check_cores(config_.cores); !fault.ok()) return fault;
    if (Fault fault = MemoryPlaces::make(config_.memory, &places_); !fault.ok()) return fault;
    if (Status status = system_random(facts_.boot_id); !status.ok()) {
      return {status, "getrandom: " + errno_name(status.detail())};
    }
    // What is quick to find wrong comes before a large file is allocated.
    if (Fault fault = listening_.open(config_.listen, config_.insecure_listen); !fault.ok()) return fault;
    std::error_code ignored;
    const bool there = shares_arenas() || std::filesystem::exists(config_.store_path, ignored);
    if (config_.shards != 0 || !there) {
      if (Fault fault = make_shards(std::max(config_.shards, 1U)); !fault.ok()) return fault;
    }
    if (Fault fault = file_.open(config_); !fault.ok()) return fault;
    if (Fault fault = look_at_store(); !fault.ok()) return fault;
    if (Fault fault = watch_drive(); !fault.ok()) return fault;
    if (shards_.empty()) {
      if (Fault fault = make_shards(keeper_->shards()); !fault.ok()) return fault;
    }
    return start_threads();
  }

  const Facts& facts() const noexcept override { return facts_; }

  Metrics metrics() const override {
    std::vector<std::future<Metrics>> asked;
    for (const auto& own : shards_) {
      // Shared: the shard may answer when nobody waits any more.
      auto promise = std::make_shared<std::promise<Metrics>>();
      asked.push_back(promise->get_future());
      const std::lock_guard lock(mutex_);
      Shard* shard = own->shard;
      const auto collect = [shard, promise] {
        Metrics metrics;
        shard->collect(&metrics);
        promise->set_value(std::move(metrics));
      };
      if (shard == nullptr || !shard->post(collect)) promise->set_value(own->last_metrics);
    }
    Metrics total;
    for (auto& answer : asked) add_shard(answer.get(), &total);
    return total;
  }

  PolledEvents poll_events(uint64_t after, uint32_t limit, uint32_t number) const override {
    PolledEvents none{.polled = {.last = after}, .events = {}};
    if (number >= shards_.size()) return none;
    std::promise<PolledEvents> promise;
    {
      const std::lock_guard lock(mutex_);
      Shard* shard = shards_[number]->shard;
      const auto poll = [&promise, shard, after, limit] {
        promise.set_value(shard::poll_events(shard->store(), after, limit));
      };
      if (shard == nullptr || !shard->post(poll)) return none;
    }
    return promise.get_future().get();
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
    drive_ = nullptr;
    // Another server may take the store, and the memory, though somebody still looks at this one's last numbers.
    file_.close();
    for (const auto& own : shards_) {
      own->arena = nullptr;
      own->decode_arena = nullptr;
    }
    const std::lock_guard lock(mutex_);
    return why_ended_.empty() ? Status() : Status(Code::IoError);
  }

  std::string why_device_refused() const override {
    return shares_arenas() ? file_.backing().session()->why_refused() : std::string();
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
    MemoryPlace place;
    std::unique_ptr<Arena> arena;
    std::unique_ptr<Arena> decode_arena;
    std::thread thread;
    std::promise<Fault> opened;
    ShardFacts facts;  // these are the thread's until it has opened
    store::Geometry geometry;
    std::array<std::byte, 16> uuid{};
    uint64_t index_bytes = 0;
    uint64_t scrub_bytes_per_s = 0;

    Shard* shard = nullptr;  // these are guarded by mutex_
    Metrics last_metrics;
    bool ended = false;
  };

  Fault watch_drive() {
    const io::NvmeNamespace* drive = file_.backing().nvme();
    if (drive == nullptr) return {};
    return io::DriveWatch::start([drive](io::NvmeWritten* out) { return drive->written(out); }, &drive_);
  }

  // A vhost-user target maps them.
  bool shares_arenas() const noexcept { return !io::vhost_socket_of(config_.store_path).empty(); }

  Fault make_shards(uint32_t shards) {
    if (Fault fault = check_memory(config_, shards); !fault.ok()) return fault;
    if (Fault fault = listening_.open_others(shards); !fault.ok()) return fault;
    for (uint32_t number = 0; number < shards; ++number) {
      auto own = std::make_unique<Own>();
      own->number = number;
      own->facts.listening = listening_.addresses(number);
      if (!config_.cores.empty()) own->facts.core = static_cast<int>(config_.cores[number % config_.cores.size()]);
      own->place = places_.of(number, own->facts.core);
      const uint64_t bytes = config_.arena_bytes / shards;
      Fault fault = shares_arenas() ? Arena::create_shared(bytes, config_.huge_pages, &own->arena, own->place.node)
                                    : Arena::create(bytes, config_.huge_pages, &own->arena, own->place.node);
      if (!fault.ok()) return fault;
      if (config_.decode_bytes != 0) {
        const uint64_t of_shard = config_.decode_bytes / shards;
        fault = Arena::create(of_shard, config_.huge_pages, &own->decode_arena, own->place.node);
        if (!fault.ok()) return fault;
      }
      shards_.push_back(std::move(own));
    }
    return {};
  }

  // Formats what has to be, and reads the header. Nothing here is worth more than a thread's reads and writes.
  Fault look_at_store() {
    std::unique_ptr<Arena> arena;
    if (Fault fault = Arena::create(2 * MiB, false, &arena); !fault.ok()) return fault;
    std::unique_ptr<io::Engine> engine;
    if (Fault fault = io::open_plain_engine(*arena, file_.backing(), &engine); !fault.ok()) return fault;
    facts_.created = file_.to_format() != nullptr;
    if (facts_.created) {
      if (Fault fault = store::Store::format(*engine, *arena, clock_, *file_.to_format()); !fault.ok()) return fault;
    }
    const auto looking = [this](uint64_t done, uint64_t total) {
      return !config_.progress || config_.progress("looking for the store header", done, total);
    };
    if (Fault fault = store::HeaderKeeper::load(*engine, &keeper_, {.go_on = looking, .pause = {}}); !fault.ok()) {
      return file_.explain(std::move(fault));
    }
    if (io::VhostSession* session = file_.backing().session(); session != nullptr) {
      session->judge_by([keeper = keeper_](const io::VhostSession::Read& read) { return keeper->recognise(read); });
    }
    const uint32_t shards = keeper_->shards();
    if (config_.shards == 0 || config_.shards == shards) return {};
    return {Code::Invalid, "shards=" + std::to_string(config_.shards) + ": " + config_.store_path + " was made with " +
                               std::to_string(shards) + ", for good; leave the number out, or make another store"};
  }

  Fault start_threads() {
    std::promise<bool> go;
    go_ = go.get_future().share();
    pressure_.shards = static_cast<uint32_t>(shards_.size());
    // Signals are the main thread's.
    sigset_t all;
    sigset_t before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    Fault no_thread;
    if (config_.decode_bytes != 0) {
      if (const Status status = decode_pool_.start(); !status.ok()) {
        no_thread = {status,
                     "a thread that decodes: " + errno_name(status.detail()) + "; raise the limit of processes (ulimit -u)"};
      }
    }
    for (const auto& own : shards_) {
      if (no_thread.ok()) no_thread = start_thread(*own);
      if (!no_thread.ok()) own->opened.set_value(no_thread);
    }
    pthread_sigmask(SIG_SETMASK, &before, nullptr);

    bool wanted = true;
    Fault fault;
    for (const auto& own : shards_) {
      std::future<Fault> result = own->opened.get_future();
      while (result.wait_for(kProgressEvery) != std::future_status::ready) {
        const char* step = facts_.created ? "formatting the store" : "recovering the store";
        if (wanted && config_.progress) wanted = config_.progress(step, 0, 0);
      }
      if (Fault opened = result.get(); fault.ok()) fault = std::move(opened);
    }
    if (fault.ok() && !wanted) fault = {Code::Cancelled, "the start was stopped"};
    if (fault.ok()) fault = file_.publish();
    // A shard that may not go on has served nobody, and leaves the store as after a kill.
    if (fault.ok()) tell_facts();
    go.set_value(fault.ok());
    if (!fault.ok()) join();
    return fault;
  }

  Fault start_thread(Own& own) {
    try {
      own.thread = std::thread([this, &own] { run(own); });
    } catch (const std::system_error& error) {
      return {{Code::IoError, -error.code().value()},
              "the thread of shard " + std::to_string(own.number) + ": " + errno_name(error.code().value()) +
                  "; raise the limit of processes (ulimit -u, TasksMax=) or of memory"};
    }
    std::string name = "halfstep-shard";
    if (shards_.size() > 1) name = std::string("hs-shard-").append(std::to_string(own.number));  // 15 characters at most
    pthread_setname_np(own.thread.native_handle(), name.c_str());
    return {};
  }

  void join() {
    for (const auto& own : shards_) {
      if (own->thread.joinable()) own->thread.join();
    }
  }

  void tell_facts() {
    const Own& first = *shards_.front();
    facts_.listening = first.facts.listening;
    facts_.backing = file_.facts();
    facts_.engine = first.facts.engine;
    facts_.arena = first.arena->facts();
    facts_.arena.bytes = 0;
    facts_.arena.large_bytes = 0;
    facts_.arena.regions = 0;
    if (!facts_.engine.why_async.empty()) facts_.recovery.notes.push_back(facts_.engine.why_async);
    if (!facts_.arena.why_smaller.empty()) facts_.recovery.notes.push_back(facts_.arena.why_smaller);
    facts_.geometry = first.geometry;
    facts_.store = config_.store;
    facts_.latency_goal_us = config_.latency_goal_us;
    facts_.store_uuid = first.uuid;
    facts_.congestion_control = listening_.congestion_control();
    facts_.zero_copy_possible = net::zero_copy_possible();
    facts_.zero_copy = facts_.zero_copy_possible && config_.zero_copy != ZeroCopy::Off;
    for (const auto& own : shards_) {
      facts_.shards.push_back(own->facts);
      facts_.arena.bytes += own->arena->facts().bytes;
      facts_.arena.regions += own->arena->facts().regions;
      facts_.arena.large_bytes += own->arena->facts().large_bytes;
      facts_.arena.reserved = facts_.arena.reserved && own->arena->facts().reserved;
      facts_.index_bytes += own->index_bytes;
      facts_.scrub_bytes_per_s += own->scrub_bytes_per_s;
      add_recovery(own->facts.recovery, &facts_.recovery);
      for (const std::string& note : own->facts.recovery.notes) {
        facts_.recovery.notes.push_back(
            shards_.size() == 1 ? note : std::string("shard ").append(std::to_string(own->number)).append(": ").append(note));
      }
    }
  }

  // The shard's thread: everything that belongs to it lives and dies here.
  void run(Own& own) {
    Shard::Setup setup;
    setup.config = &config_;
    setup.clock = &clock_;
    setup.arena = own.arena.get();
    setup.decode_arena = own.decode_arena.get();
    setup.decode_pool = &decode_pool_;
    setup.rdma_budget = &rdma_budget_;
    setup.drive = own.number == 0 ? drive_.get() : nullptr;
    setup.number = own.number;
    setup.shards = static_cast<uint32_t>(shards_.size());
    setup.boot_id = facts_.boot_id;
    setup.open_engine = [this, &own](std::unique_ptr<io::Engine>* out) {
      std::unique_ptr<io::Engine> engine;
      io::EngineConfig config = config_.engine;
      config.engines = static_cast<uint32_t>(shards_.size());
      if (Fault fault = io::open_engine(config, *own.arena, {&file_.backing()}, &engine); !fault.ok()) return fault;
      *out = std::make_unique<io::Scheduler>(std::move(engine), config_.latency_goal_us, config_.engine.queue_depth, pressure_,
                                             clock_);
      return Fault();
    };
    setup.open_store = [this, &own](io::Engine& engine, SlotPool& slots, std::function<void()> wake,
                                    std::unique_ptr<store::Store>* out) {
      const store::ShardPlace place{keeper_, own.number, std::move(wake), {}};
      store::Options options = config_.store;
      options.large_pages = config_.huge_pages;
      return store::Store::open_shard(engine, slots, clock_, options, place, out);
    };
    // Before anything is allocated that is the shard's.
    const int node = own.place.node;
    const Status node_asked = node < 0 ? Status() : numa::prefer_for_thread(static_cast<uint32_t>(node));
    std::unique_ptr<Shard> shard;
    Fault fault;
    // What an exception needs of the thread is allocated at the first look at it, and glibc ends the process where that fails.
    (void)std::uncaught_exceptions();
    // Nobody above a thread could hear of it, and the process would end. Nothing has been served yet.
    try {
      shard = std::make_unique<Shard>(setup);
      fault = open_shard(own, *shard, node_asked);
    } catch (const std::bad_alloc&) {
      fault = {Code::TooLarge,
               "out of memory while shard " + std::to_string(own.number) +
                   " opened the store; lower --arena or --index, or raise the memory limit (ulimit -v, MemoryMax=)"};
    }
    const bool opened = fault.ok();
    own.opened.set_value(std::move(fault));
    if (!opened) return;
    if (!go_.get()) {
      const std::lock_guard lock(mutex_);
      own.shard = nullptr;
      return;
    }
    std::string why;
    Metrics last;
    shard->run(&why, &last);
    const std::lock_guard lock(mutex_);
    own.shard = nullptr;
    own.last_metrics = std::move(last);
    own.ended = true;
    if (why_ended_.empty()) why_ended_ = std::move(why);
  }

  // On the shard's thread.
  Fault open_shard(Own& own, Shard& shard, Status node_asked) {
    Fault fault = pin(own);
    if (fault.ok()) fault = shard.open();
    if (fault.ok()) fault = shard.listen(listening_of(own.number));
    if (!fault.ok()) return fault;
    own.facts.engine = shard.engine().facts();
    own.facts.recovery = shard.store().recovery();
    own.geometry = shard.store().geometry();
    own.uuid = shard.store().uuid();
    own.index_bytes = shard.store().gauges().index_bytes;
    own.scrub_bytes_per_s = shard.store().gauges().scrub_bytes_per_s;
    own.facts.memory =
        look_at_memory(own.place, own.arena->facts().node_asked, node_asked, own.arena->bytes(), shard.store().index_memory());
    const std::lock_guard lock(mutex_);
    own.shard = &shard;
    return fault;
  }

  static Fault pin(const Own& own) {
    if (own.facts.core < 0) return {};
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(static_cast<size_t>(own.facts.core), &one);
    const int error = pthread_setaffinity_np(pthread_self(), sizeof(one), &one);
    if (error == 0) return {};
    return {{Code::IoError, -error}, "cores=" + std::to_string(own.facts.core) + ": " + errno_name(error)};
  }

  std::vector<ListeningSocket> listening_of(uint32_t number) {
    const std::lock_guard lock(mutex_);
    return listening_.take(number);
  }

  const Config config_;
  net::RdmaBudget rdma_budget_{config_.rdma.pinned_bytes_max};
  SystemClock clock_;
  Facts facts_;  // written before start() returns
  StoreFile file_;
  std::unique_ptr<io::DriveWatch> drive_;  // null: no NVMe namespace
  io::DevicePressure pressure_;
  Listening listening_;
  MemoryPlaces places_;
  std::shared_ptr<store::HeaderKeeper> keeper_;
  DecodePool decode_pool_;  // of the shards, which have ended before it does
  std::vector<std::unique_ptr<Own>> shards_;
  std::shared_future<bool> go_;  // whether all shards could be opened

  std::mutex stop_mutex_;
  mutable std::mutex mutex_;
  std::string why_ended_;  // these are guarded by mutex_
  bool asked_to_stop_ = false;
};

}  // namespace

Fault Server::start(const Config& config, std::unique_ptr<Server>* out) {
  auto server = std::make_unique<RunningServer>(config);
  if (Fault fault = server->open(); !fault.ok()) return fault;
  *out = std::move(server);
  return {};
}

}  // namespace halfstep::shard
