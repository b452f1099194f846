// shard_fixture.h — a shard on its thread, over a fake store, behind a unix socket.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "io/memory_engine.h"
#include "net/socket.h"
#include "shard/fake_store.h"
#include "shard/metrics_fixture.h"
#include "shard/raw_client.h"
#include "shard/shard.h"

namespace halfstep::shard {

// The system's clock, which tests may put forward, and stop: then nothing is late on a machine that is busy.
class ForwardClock final : public Clock {
 public:
  uint64_t now_us() const noexcept override {
    const uint64_t stopped_us = stopped_us_;
    return (stopped_us != 0 ? stopped_us : system_.now_us()) + ahead_us;
  }
  void stop() noexcept { stopped_us_ = system_.now_us(); }
  uint64_t wall_s() const noexcept override { return system_.wall_s() + ahead_us / 1'000'000; }
  std::atomic<uint64_t> ahead_us = 0;

 private:
  SystemClock system_;
  std::atomic<uint64_t> stopped_us_ = 0;
};

class ShardFixture : public ::testing::Test {
 protected:
  void SetUp() override { start(); }
  void TearDown() override { stop(); }
  virtual std::unique_ptr<io::Engine> make_engine(io::MemoryDevice& device) {
    return std::make_unique<io::MemoryEngine>(io::MemoryConfig{}, std::vector<io::MemoryDevice*>{&device});
  }
  virtual uint64_t device_bytes() const { return 1 * MiB; }
  virtual uint64_t arena_bytes() const { return 64 * MiB; }
  // On the shard's thread, at each start.
  virtual Fault open_store(io::Engine&, SlotPool& slots, std::unique_ptr<store::Store>* out) {
    auto fake = std::make_unique<FakeStore>(slots);
    fake_ = fake.get();
    *out = std::move(fake);
    return Fault();
  }

  void configure(const std::function<void(Config&)>& change) {
    stop();
    change(config_);
    start();
  }
  // Another number of shards than this one.
  void claim_shards(uint32_t shards) {
    stop();
    shards_ = shards;
    start();
  }

  // Runs on the shard's thread, and waits for it.
  template <typename Call>
  auto on_shard(Call&& call) {
    using Result = decltype(call());
    std::promise<Result> done;
    EXPECT_TRUE(shard_->post([&] {
      if constexpr (std::is_void_v<Result>) {
        call();
        done.set_value();
      } else {
        done.set_value(call());
      }
    }));
    return done.get_future().get();
  }
  // Timers that are due by then have fired when this returns.
  void pass_s(uint64_t seconds) { pass_ms(seconds * 1'000); }
  void pass_ms(uint64_t milliseconds) {
    clock_.ahead_us += milliseconds * 1'000;
    on_shard([] {});
  }
  void stop_clock() noexcept { clock_.stop(); }
  // Something takes so long. On the shard's thread, from a command of the store.
  void take_us(uint64_t us) { clock_.ahead_us += us; }
  // Until `is_true` holds on the shard's thread. The test's own time limit bounds it.
  template <typename Call>
  void wait_until(Call&& is_true) {
    while (!on_shard(is_true)) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }

  std::unique_ptr<RawClient> connect() {
    auto client = over_rdma() ? std::make_unique<RawClient>(RdmaPlace{over_rdma()->address, rdma_port_, over_rdma()->verbs})
                              : std::make_unique<RawClient>(socket_);
    EXPECT_TRUE(client->connected());
    return client;
  }
  // Over TCP, whatever the tests run over.
  std::unique_ptr<RawClient> connect_tcp() {
    auto client = std::make_unique<RawClient>(port_);
    EXPECT_TRUE(client->connected());
    return client;
  }
  // With Hello said and these layouts registered, in this order.
  std::unique_ptr<RawClient> open(const std::vector<wire::Layout>& layouts) { return open(layouts, connect()); }
  static std::unique_ptr<RawClient> open(const std::vector<wire::Layout>& layouts, std::unique_ptr<RawClient> client) {
    const Said said = client->hello();
    EXPECT_EQ(said.whole, (AnswerReason{Answer::Ok, Reason::None}));
    for (size_t i = 0; i < layouts.size(); ++i) {
      const Said registered = client->register_layout(layouts[i], 100 + i);
      EXPECT_TRUE(registered.handle && registered.handle->handle == i);
    }
    return client;
  }

  static wire::Layout layout_of(const std::string& model, std::vector<wire::GroupShape> groups) {
    wire::Layout layout;
    EXPECT_TRUE(wire::Layout::make({{"model", model}}, std::move(groups), &layout).ok());
    return layout;
  }
  static wire::Layout opaque() { return layout_of("opaque", {{.part_count = 0, .size_count = 1, .part_bytes = {256 * 1024}}}); }
  // `parts` parts of `bytes` bytes.
  static wire::Layout parted(uint16_t parts, uint32_t bytes) {
    return layout_of("parted", {{.part_count = parts, .size_count = 1, .part_bytes = {bytes}}});
  }
  static SectionSpec section_of(std::vector<std::string> keys, uint32_t bytes, uint16_t layout = 0) {
    SectionSpec section;
    section.layout = layout;
    section.offers.assign(keys.size(), offer_of(bytes));
    section.keys = std::move(keys);
    return section;
  }
  static std::vector<std::string> keys_of(const std::string& prefix, size_t count) {
    std::vector<std::string> keys;
    for (size_t i = 0; i < count; ++i) keys.push_back(prefix + std::to_string(i));
    return keys;
  }

  // Metrics as one reads them.
  double metric(const std::string& name) {
    Metrics metrics;
    on_shard([&] { shard_->collect(&metrics); });
    return value_of(metrics, name);
  }
  // Nothing of any request is left: no slot, no pin, no credit.
  void expect_nothing_held() {
    wait_until([&] {
      return shard_->counts().requests_open == 0 && shard_->counts().credit_held_bytes == 0 && fake_->open_writes() == 0 &&
             fake_->pinned() == 0 && shard_->pools().idle();
    });
  }

  const Clock& clock() const noexcept { return clock_; }
  Arena& arena() noexcept { return *arena_; }

  Config config_;
  Shard* shard_ = nullptr;
  FakeStore* fake_ = nullptr;
  std::string ends_because_;  // part of what the shard says at its end; empty: it says nothing
  std::string socket_;
  uint16_t port_ = 0;

 private:
  void start() {
    char directory[] = "/tmp/halfstep-shard-XXXXXX";
    ASSERT_NE(mkdtemp(directory), nullptr);
    directory_ = directory;
    socket_ = directory_ + "/s";
    ASSERT_TRUE(Arena::create(arena_bytes(), false, &arena_).ok());
    decode_arena_ = nullptr;
    if (config_.decode_bytes != 0) {
      ASSERT_TRUE(Arena::create(config_.decode_bytes, false, &decode_arena_).ok());
      if (decode_pool_.threads() == 0) {
        ASSERT_TRUE(decode_pool_.start().ok());
      }
    }
    if (!device_) device_ = std::make_unique<io::MemoryDevice>(device_bytes());
    let_go_ = {};
    std::promise<void> ready;
    thread_ = std::thread([this, &ready] { serve(ready); });
    ready.get_future().get();
    ASSERT_NE(shard_, nullptr);
  }

  void serve(std::promise<void>& ready) {
    if (over_rdma())
      config_.rdma = {.on = true, .ring_bytes = 256 * 1024, .pinned_bytes_max = 256 * MiB, .verbs = over_rdma()->verbs};
    config_.insecure_listen = over_rdma() != nullptr;  // a device's address is not loopback
    Shard::Setup setup;
    setup.config = &config_;
    setup.rdma_budget = &rdma_budget_;
    setup.clock = &clock_;
    setup.arena = arena_.get();
    setup.decode_arena = decode_arena_.get();
    setup.decode_pool = &decode_pool_;
    setup.shards = shards_;
    setup.boot_id = {std::byte{1}};
    setup.open_engine = [this](std::unique_ptr<io::Engine>* out) {
      *out = make_engine(*device_);
      return Fault();
    };
    setup.open_store = [this](io::Engine& engine, SlotPool& slots, const std::function<void()>&,
                              std::unique_ptr<store::Store>* out) { return open_store(engine, slots, out); };
    Shard shard(setup);
    net::Address address;
    net::Address bound;
    int descriptor = -1;
    int over_tcp = -1;
    std::vector<ListeningSocket> sockets;
    const auto map = std::make_shared<const std::vector<wire::ShardAddress>>(shards_);
    const bool opened = shard.open().ok() && net::Address::parse("unix:" + socket_, &address).ok() &&
                        net::listen_on(address, &descriptor, &bound).ok() &&
                        net::Address::parse("127.0.0.1:0", &address).ok() && net::listen_on(address, &over_tcp, &bound).ok() &&
                        listen_for_rdma(map, &sockets) && (sockets.push_back({descriptor, map}), true) &&
                        (sockets.push_back({over_tcp, map}), true) && shard.listen(std::move(sockets)).ok();
    port_ = bound.port;
    shard_ = opened ? &shard : nullptr;
    ready.set_value();
    if (!opened) return;
    std::string why;
    Metrics last;
    shard.run(&why, &last);
    EXPECT_NE(why.find(ends_because_), std::string::npos) << why;
    EXPECT_EQ(why.empty(), ends_because_.empty()) << why;
    let_go_.get_future().wait();  // a test may have stopped it: whoever still posts must find it
  }

  bool listen_for_rdma(const ShardMap& map, std::vector<ListeningSocket>* out) {
    net::Address address;
    net::Address bound;
    int descriptor = -1;
    if (over_rdma() == nullptr) return true;
    if (!net::Address::parse(over_rdma()->address + ":0", &address).ok()) return false;
    if (!net::listen_on(address, &descriptor, &bound).ok()) return false;
    rdma_port_ = bound.port;
    out->push_back({descriptor, map});
    return true;
  }

  void stop() {
    if (shard_ != nullptr) (void)shard_->post([this] { shard_->stop(0); });  // it may have been stopped by the test
    let_go_.set_value();
    if (thread_.joinable()) thread_.join();
    shard_ = nullptr;
    if (!directory_.empty()) std::filesystem::remove_all(directory_);
    directory_.clear();
  }

  ForwardClock clock_;
  net::RdmaBudget rdma_budget_{256 * MiB};
  uint16_t rdma_port_ = 0;
  std::unique_ptr<Arena> arena_;
  std::unique_ptr<Arena> decode_arena_;
  DecodePool decode_pool_;
  std::unique_ptr<io::MemoryDevice> device_;
  std::thread thread_;
  std::promise<void> let_go_;
  std::string directory_;
  uint32_t shards_ = 1;
};

}  // namespace halfstep::shard
