// A server whose store has several shards, by real sockets and threads: who serves what, and what all of them know.
#include <gtest/gtest.h>
#include <pthread.h>
#include <sys/resource.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <thread>

#include "base/numa_fixture.h"
#include "net/socket.h"
#include "shard/raw_client.h"
#include "shard/server_fixture.h"

namespace halfstep::shard {
namespace shards_test {

constexpr uint32_t kShards = 3;
constexpr uint32_t kBlockBytes = 4096;

class ShardsTest : public ServerFixture {
 protected:
  void SetUp() override {
    ServerFixture::SetUp();
    config_.store_bytes = 420 * MiB;
    config_.shards = kShards;
    config_.arena_bytes = kShards * 16 * MiB;
    config_.store.recover_before_us = UINT64_MAX;
    config_.listen.push_back("127.0.0.1:0");
  }
  std::string socket(uint32_t shard) const {
    return directory_ + "/s" + (shard == 0 ? std::string() : std::string(1, '.').append(std::to_string(shard)));
  }
  std::unique_ptr<RawClient> open(uint32_t shard) {
    auto client = std::make_unique<RawClient>(socket(shard), 60);
    EXPECT_TRUE(client->connected());
    const Said said = client->hello();
    EXPECT_EQ(said.whole, kOk);
    EXPECT_EQ(said.hello->shard, shard);
    EXPECT_EQ(said.hello->shards, kShards);
    EXPECT_TRUE(client->register_layout(layout()).handle);
    return client;
  }
  static wire::Layout layout() {
    wire::Layout layout;
    EXPECT_TRUE(
        wire::Layout::make({{"model", "test"}}, {{.part_count = 1, .size_count = 1, .part_bytes = {kBlockBytes}}}, &layout)
            .ok());
    return layout;
  }
  // So many keys of one shard.
  static SectionSpec keys_of(uint32_t shard, size_t count) {
    SectionSpec section;
    for (uint32_t i = 0; section.keys.size() < count; ++i) {
      const std::string key = "key " + std::to_string(i);
      if (wire::route(as_bytes(key), kShards) == shard) section.keys.push_back(key);
    }
    section.offers.assign(count, offer_of(kBlockBytes));
    return section;
  }
  // Pending: the server is gone.
  static AnswerReason change_namespace(RawClient& client, uint64_t id, wire::NamespaceVerb verb, const std::string& name) {
    std::vector<std::byte> out;
    wire::FrameWriter frame(out);
    frame.begin(Opcode::Namespace, id);
    frame.tlv_bytes(Tlv::NamespaceName, as_bytes(name));
    frame.tlv(Tlv::NamespaceAction, wire::NamespaceRecord{.verb = verb});
    frame.finish();
    if (!client.send(out)) return {};
    return client.finish(id).whole.value_or(AnswerReason());
  }
};

TEST_F(ShardsTest, EachServesItsOwnKeysAndSendsOthersAway) {
  start();
  for (uint32_t shard = 0; shard < kShards; ++shard) {
    auto client = open(shard);
    for (uint32_t owner = 0; owner < kShards; ++owner) {
      const SectionSpec section = keys_of(owner, 4);
      const Said put = client->put(10 + owner, {section}, {.durability = wire::Durability::Persist});
      if (owner == shard) {
        EXPECT_EQ(put.at(0, 3), (AnswerReason{Answer::Ok, Reason::Stored}));
        EXPECT_EQ(client->ask(Opcode::Get, 20, {}, {section}).at(0, 3), kOk);
      } else {
        EXPECT_EQ(put.whole, (AnswerReason{Answer::Rejected, Reason::WrongShard}));
        EXPECT_EQ(put.ports, std::vector<uint16_t>(kShards, 0)) << "by a unix socket its path says where the others are";
      }
    }
    EXPECT_EQ(client->wrong_parts, 0U);
    const Said stat = client->simple(Opcode::Stat, 30, Tlv::Reason, {});
    EXPECT_EQ(stat.counters.at("halfstep_shard"), shard);
    EXPECT_EQ(stat.counters.at("halfstep_store_blocks"), 4U);
  }
  EXPECT_EQ(metric("halfstep_store_blocks"), 4 * kShards);
  EXPECT_EQ(metric("halfstep_answers_total{command=\"put\",answer=\"rejected\",reason=\"wrong_shard\"}"),
            kShards * (kShards - 1));
  EXPECT_TRUE(server_->stop(1000).ok());
  EXPECT_EQ(metric("halfstep_store_blocks"), 4 * kShards) << "the last numbers stay";
  start();
  EXPECT_EQ(server_->facts().recovery.blocks, uint64_t{4 * kShards});
  ASSERT_EQ(server_->facts().shards.size(), kShards);
  for (const ShardFacts& facts : server_->facts().shards) EXPECT_EQ(facts.recovery.blocks, 4U);
}

TEST_F(ShardsTest, AFamilyOfPortsKnowsItsOwn) {
  start();
  net::Address address;
  ASSERT_TRUE(net::Address::parse(server_->facts().shards[1].listening[1], &address).ok());
  EXPECT_NE(address.port, 0);
  EXPECT_EQ(server_->facts().shards[2].listening[0], "unix:" + socket(2));
  EXPECT_EQ(server_->facts().listening, server_->facts().shards[0].listening);
  EXPECT_TRUE(server_->stop(0).ok());
  for (uint32_t shard = 0; shard < kShards; ++shard) EXPECT_FALSE(std::filesystem::exists(socket(shard)));
}

// Every shard is asked for new names at the same time; who was answered finds the name on every other.
TEST_F(ShardsTest, ANameIsKnownToAllWhenItIsAnswered) {
  start();
  constexpr int kNames = 8;
  std::atomic<int> missing = 0;
  std::atomic<int> refused = 0;
  std::vector<std::thread> threads;
  for (uint32_t shard = 0; shard < kShards; ++shard) {
    threads.emplace_back([&, shard] {
      auto client = open(shard);
      for (int i = 0; i < kNames; ++i) {
        const std::string name = "tenant " + std::to_string(shard) + " " + std::to_string(i);
        if (change_namespace(*client, 10 + i, wire::NamespaceVerb::Create, name) != kOk) ++refused;
        for (uint32_t other = 0; other < kShards; ++other) {
          if (RawClient(socket(other), 60).hello(name).whole != kOk) ++missing;
        }
        if (i % 2 != 0) continue;
        if (change_namespace(*client, 100 + i, wire::NamespaceVerb::Delete, name) != kOk) ++refused;
        for (uint32_t other = 0; other < kShards; ++other) {
          if (RawClient(socket(other), 60).hello(name).whole == kOk) ++missing;
        }
      }
    });
  }
  for (int i = 0; i < 20; ++i) (void)server_->metrics();
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(refused, 0);
  EXPECT_EQ(missing, 0);
  start();
  EXPECT_EQ(RawClient(socket(1)).hello("tenant 2 7").whole, kOk);
  EXPECT_NE(RawClient(socket(1)).hello("tenant 2 6").whole, kOk);
}

TEST_F(ShardsTest, ChangesOfNamesDoNotKeepAStopBack) {
  start();
  std::vector<std::thread> threads;
  std::atomic<uint32_t> connected = 0;
  for (uint32_t shard = 0; shard < kShards; ++shard) {
    threads.emplace_back([&, shard] {
      auto client = open(shard);
      ++connected;
      for (uint64_t i = 0; i < 10'000; ++i) {
        const auto said = change_namespace(*client, 10 + i, wire::NamespaceVerb::Create, std::to_string(shard * 10'000 + i));
        if (said != kOk) return;
      }
    });
  }
  while (connected != kShards) std::this_thread::yield();
  EXPECT_TRUE(server_->stop(0).ok());
  for (std::thread& thread : threads) thread.join();
  start();
  EXPECT_TRUE(server_->facts().recovery.notes.empty());
}

TEST_F(ShardsTest, AStartThatFailsForOneLeavesNothing) {
  net::Address taken;
  net::Address bound;
  int descriptor = -1;
  ASSERT_TRUE(net::Address::parse("unix:" + socket(2), &taken).ok());
  ASSERT_TRUE(net::listen_on(taken, &descriptor, &bound).ok());
  EXPECT_NE(refusal().find("s.2"), std::string::npos);
  EXPECT_FALSE(std::filesystem::exists(config_.store_path));
  EXPECT_FALSE(std::filesystem::exists(socket(1)));
  ::close(descriptor);
  // In every shard's thread.
  config_.store.policy = "none";
  EXPECT_NE(refusal().find("policy=none"), std::string::npos);
  EXPECT_FALSE(std::filesystem::exists(config_.store_path));
  EXPECT_FALSE(std::filesystem::exists(config_.store_path + ".new"));
  config_.store.policy = "seg-adapt10";
  start();
}

TEST_F(ShardsTest, AThreadThatCannotBeHadIsAFaultAndLeavesNothing) {
  // Room in this process for one stack of this size.
  constexpr uint64_t kStackBytes = 4096 * MiB;
  uint64_t mapped_pages = 0;
  std::ifstream("/proc/self/statm") >> mapped_pages;
  rlimit memory_before{};
  ASSERT_EQ(::getrlimit(RLIMIT_AS, &memory_before), 0);
  pthread_attr_t before;
  pthread_attr_t large;
  ASSERT_EQ(::pthread_getattr_default_np(&before), 0);
  ASSERT_EQ(::pthread_attr_init(&large), 0);
  ASSERT_EQ(::pthread_attr_setstacksize(&large, kStackBytes), 0);
  ASSERT_EQ(::pthread_setattr_default_np(&large), 0);
  rlimit memory = memory_before;
  memory.rlim_cur = mapped_pages * static_cast<uint64_t>(::sysconf(_SC_PAGESIZE)) + kStackBytes * 3 / 2;
  EXPECT_EQ(::setrlimit(RLIMIT_AS, &memory), 0);
  const std::string why = refusal();
  EXPECT_EQ(::setrlimit(RLIMIT_AS, &memory_before), 0);
  EXPECT_EQ(::pthread_setattr_default_np(&before), 0);
  // Where io_uring is refused an engine has threads as well, and which one is not to be had is chance.
  EXPECT_TRUE(why.find("thread of shard 1") != std::string::npos || why.find("pread_threads=") != std::string::npos) << why;
  sigset_t blocked;
  ASSERT_EQ(::pthread_sigmask(SIG_SETMASK, nullptr, &blocked), 0);
  EXPECT_EQ(::sigismember(&blocked, SIGINT), 0);
  EXPECT_FALSE(std::filesystem::exists(config_.store_path + ".new"));
  start();
}

TEST_F(ShardsTest, MemoryIsOnTheNodesThatAreNamed) {
  int node = -1;
  const std::vector<numa::Node> nodes = numa::read_nodes();
  if (!numa::preferred(nullptr, &node).ok() || nodes.empty()) GTEST_SKIP() << "the calls about memory nodes are refused here";
  config_.memory.automatic = false;
  config_.memory.nodes = {nodes.front().number};
  start();
  for (const ShardFacts& shard : server_->facts().shards) {
    EXPECT_EQ(shard.memory.node, static_cast<int>(nodes.front().number));
    EXPECT_EQ(shard.memory.why_no_node, "");
    EXPECT_EQ(shard.memory.why_no_pages, "");
    EXPECT_EQ(shard.memory.arena.absent, 0U) << "it is there from the start";
    EXPECT_FALSE(shard.memory.arena.by_node.empty());
    EXPECT_EQ(shard.memory.index.absent, 0U);
    EXPECT_FALSE(shard.memory.index.by_node.empty());
  }
  double sampled = 0;
  for (const Sample& sample : server_->metrics().gauges) {
    if (std::string_view(sample.name) != "halfstep_memory_sampled_pages") continue;
    ASSERT_EQ(sample.labels.size(), 2U);
    EXPECT_STREQ(sample.labels[1].first, "node");
    sampled += sample.value;
  }
  EXPECT_EQ(sampled, 2.0 * kPagesSampled * kShards);
  server_.reset();
  config_.memory.nodes = {};
  start();
  EXPECT_EQ(server_->facts().shards[0].memory.node, -1);
  EXPECT_EQ(server_->facts().shards[0].memory.why_no_node, "off");
  server_.reset();
  EXPECT_TRUE(numa::preferred(nullptr, &node).ok());
  EXPECT_EQ(node, -1) << "of the thread that started it";
}

TEST_F(ShardsTest, ANodeThatIsNotThereIsNamedBeforeAnythingIsMade) {
  config_.memory.automatic = false;
  config_.memory.nodes = {1023};
  EXPECT_NE(refusal().find("numa=1023: "), std::string::npos);
  EXPECT_FALSE(std::filesystem::exists(config_.store_path));
}

TEST_F(ShardsTest, WhatTheKernelRefusesOfMemoryNodesIsSaidAndItServes) {
  config_.memory.automatic = false;
  config_.memory.nodes = {0};
  config_.memory.node_directory = directory_ + "/nodes";
  numa::write_node(config_.memory.node_directory, 0, "0");
  EXPECT_EXIT(
      {
        if (!numa::refuse_node_calls()) ::_exit(2);
        std::unique_ptr<Server> server;
        const Fault fault = Server::start(config_, &server);
        if (!fault.ok()) ::_exit(3);
        const MemoryFacts& memory = server->facts().shards[0].memory;
        const bool right = memory.node == -1 && memory.why_no_node.starts_with("node 0: mbind: EPERM") &&
                           memory.why_no_pages.starts_with("move_pages: EPERM") && server->running(nullptr);
        const Metrics metrics = server->metrics();
        const bool silent = std::none_of(metrics.gauges.begin(), metrics.gauges.end(), [](const Sample& sample) {
          return std::string_view(sample.name) == "halfstep_memory_sampled_pages";
        });
        ::_exit(right && silent && server->stop(1000).ok() ? 0 : 1);
      },
      testing::ExitedWithCode(0), "");
}

TEST_F(ShardsTest, NamesWhatItRefuses) {
  config_.shards = 17;
  EXPECT_NE(refusal().find("shards=17"), std::string::npos);
  config_.shards = kShards;
  config_.arena_bytes = 32 * MiB;
  EXPECT_NE(refusal().find("for 3 shards"), std::string::npos);
  config_.arena_bytes = kShards * 16 * MiB;
  config_.cores = {0, 4000};
  EXPECT_NE(refusal().find("cores=4000"), std::string::npos);
  config_.cores = {};
  config_.listen = {"127.0.0.1:65534"};
  EXPECT_NE(refusal().find("65535"), std::string::npos);
  config_.listen = {"unix:" + directory_ + "/s"};
  start();
  server_.reset();
  config_.shards = 2;
  EXPECT_NE(refusal().find("was made with 3"), std::string::npos);
  config_.shards = 0;
  start();
  EXPECT_EQ(server_->facts().shards.size(), kShards);
}

TEST(AddShard, SumsWhatIsMuchAndTakesTheWorstOfWhatIsLong) {
  Metrics one;
  one.latency_bounds_us = {10, 20};
  one.counters = {{"a_total", {{"of", "x"}}, 1}, {"a_total", {{"of", "y"}}, 2}};
  one.gauges = {{"halfstep_recovery_us", {}, 50}, {"halfstep_store_blocks", {}, 5}};
  one.latencies = {{"get", {1, 0, 2}, 30}};
  Metrics two = one;
  two.counters = {{"a_total", {{"of", "y"}}, 10}, {"a_total", {{"of", "z"}}, 3}};
  two.gauges[0].value = 40;
  two.latencies = {{"put", {0, 1, 0}, 15}, {"get", {0, 0, 1}, 25}};
  Metrics total;
  add_shard(one, &total);
  add_shard(two, &total);
  const auto value = [&total](const std::string& name) { return value_of(total, name); };
  EXPECT_EQ(value("a_total{of=\"x\"}"), 1);
  EXPECT_EQ(value("a_total{of=\"y\"}"), 12);
  EXPECT_EQ(value("a_total{of=\"z\"}"), 3);
  EXPECT_EQ(value("halfstep_recovery_us"), 50);
  EXPECT_EQ(value("halfstep_store_blocks"), 10);
  ASSERT_EQ(total.latencies.size(), 2U);
  EXPECT_EQ(total.latencies[0].counts, (std::vector<uint64_t>{1, 0, 3}));
  EXPECT_EQ(total.latencies[0].sum_us, 55U);
}

}  // namespace shards_test
}  // namespace halfstep::shard
