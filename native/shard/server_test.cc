// A whole server on a store in a file: start, refusals to start, restart, stop.
#include "shard/server.h"
#include "shard/config.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <fstream>
#include <thread>

#include "shard/raw_client.h"
#include "shard/server_fixture.h"

namespace halfstep::shard {
namespace server_test {

class ServerTest : public ServerFixture {
 protected:
  void SetUp() override {
    ServerFixture::SetUp();
    config_.store_bytes = 320 * MiB;
    config_.segment_bytes = 4 * MiB;  // blocks of 768 KiB
    config_.arena_bytes = 32 * MiB;
    config_.store.recover_before_us = UINT64_MAX;
  }
  std::unique_ptr<RawClient> open() {
    auto client = std::make_unique<RawClient>(directory_ + "/s");
    EXPECT_TRUE(client->connected());
    EXPECT_EQ(client->hello().whole, kOk);
    EXPECT_TRUE(client->register_layout(layout()).handle);
    return client;
  }
  static wire::Layout layout() {
    wire::Layout layout;
    EXPECT_TRUE(wire::Layout::make({{"model", "test"}},
                                   {{.part_count = 4, .size_count = 1, .part_bytes = {16384}},
                                    {.part_count = 0, .size_count = 1, .part_bytes = {256 * 1024}},
                                    {.part_count = 3, .size_count = 1, .part_bytes = {999}}},
                                   &layout)
                    .ok());
    return layout;
  }
  // Blocks of all three groups: plain, opaque, and of a length that is no whole number of pages.
  static std::vector<SectionSpec> sections(const std::string& prefix, uint32_t keys) {
    std::vector<SectionSpec> out;
    for (const auto& [group, bytes] : {std::pair(0U, 65536U), std::pair(1U, 700'000U), std::pair(2U, 2997U)}) {
      SectionSpec section;
      section.first_component = wire::Component::of(group, 0, 3).value;
      for (uint32_t k = 0; k < keys; ++k) section.keys.push_back(prefix + std::to_string(k));
      section.offers.assign(keys, offer_of(bytes));
      out.push_back(section);
    }
    return out;
  }
  static void expect_all(const Said& said, const std::vector<SectionSpec>& sections, AnswerReason expected) {
    EXPECT_FALSE(said.malformed);
    for (uint16_t s = 0; s < sections.size(); ++s) {
      for (uint32_t i = 0; i < sections[s].keys.size(); ++i) EXPECT_EQ(said.at(s, i), expected) << s << " " << i;
    }
  }
};

TEST_F(ServerTest, MakesAStoreAndKeepsBlocksOverARestart) {
  start();
  EXPECT_TRUE(server_->facts().created);
  EXPECT_EQ(server_->facts().backing.path, config_.store_path);
  EXPECT_GE(server_->facts().geometry.segments, 64U);
  const auto uuid = server_->facts().store_uuid;
  const auto blocks = sections("k", 6);
  auto client = open();
  expect_all(client->put(5, blocks, {.durability = wire::Durability::Persist}), blocks, {Answer::Ok, Reason::Stored});
  expect_all(client->ask(Opcode::Get, 6, {}, blocks), blocks, kOk);
  EXPECT_EQ(client->wrong_parts, 0U);
  EXPECT_EQ(client->ask(Opcode::Delete, 7, {}, {sections("k", 1)[0]}).at(0, 0), kOk);
  EXPECT_TRUE(server_->stop(1000).ok());
  Frame last;
  while (client->receive(&last)) {
  }
  EXPECT_EQ(last.opcode(), Opcode::Abort) << "the last word on a connection says why";

  start();
  EXPECT_FALSE(server_->facts().created);
  EXPECT_EQ(server_->facts().store_uuid, uuid);
  EXPECT_EQ(server_->facts().recovery.blocks, 17U);
  client = open();
  const Said said = client->ask(Opcode::Get, 6, {.order = wire::Order::LayerMajor}, blocks);
  EXPECT_EQ(said.at(0, 0), (AnswerReason{Answer::Miss, Reason::Absent})) << "deleted blocks stay gone";
  EXPECT_EQ(said.at(0, 1), kOk);
  EXPECT_EQ(said.at(1, 0), kOk);
  EXPECT_EQ(said.at(2, 5), kOk);
  EXPECT_EQ(client->wrong_parts, 0U);
  EXPECT_EQ(client->parts_received.size(), 5U * 4 + 6 * 3 + 6 * 3);
  EXPECT_EQ(metric("halfstep_memory_bytes{of=\"pinned\"}"), 0);
  EXPECT_EQ(metric("halfstep_recovery_blocks"), 17);
}

// A put's credit is what its slots take, their part tables too.
TEST_F(ServerTest, APutIsCountedWithAllTheMemoryThatItTakes) {
  start();
  auto client = open();
  SectionSpec section;
  section.first_component = wire::Component::of(1, 0, 3).value;
  for (uint32_t k = 0; k < 8; ++k) {
    section.keys.push_back("tight " + std::to_string(k));
    section.offers.push_back(offer_of(65'530));  // the table does not fit behind it into its last page
  }
  client->send(request_frame(Opcode::Put, 5, {}, {section}));
  Frame frame;
  ASSERT_TRUE(client->next(5, &frame));
  EXPECT_GT(metric("halfstep_credit_held_bytes"), 8 * 64 * 1024);
  EXPECT_EQ(metric("halfstep_credit_held_bytes"), metric("halfstep_memory_bytes{of=\"pinned\"}"));
}

TEST_F(ServerTest, ABlockTakesNoMoreMemoryForItsPartsThanForItsBytes) {
  start();
  auto client = open();
  wire::Layout crumbs;
  ASSERT_TRUE(wire::Layout::make({{"model", "crumbs"}}, {{.part_count = 0, .size_count = 1, .part_bytes = {2}}}, &crumbs).ok());
  ASSERT_TRUE(client->register_layout(crumbs, 3).handle);
  auto put = [&, id = uint64_t{10}](uint32_t parts) mutable {
    SectionSpec section;
    section.layout = 1;
    section.keys = {"of " + std::to_string(parts)};
    section.offers = {offer_of(2 * parts)};
    return client->put(++id, {section}).at(0, 0);
  };
  constexpr AnswerReason kStored{Answer::Ok, Reason::Stored};
  EXPECT_EQ(put(170), kStored);
  EXPECT_EQ(put(171), (AnswerReason{Answer::Rejected, Reason::TooLarge}));
  EXPECT_EQ(put(2048), (AnswerReason{Answer::Rejected, Reason::TooLarge}));
}

TEST_F(ServerTest, ServesTheSameOnTheThreadPool) {
  config_.engine.choice = io::EngineChoice::Pread;
  start();
  EXPECT_EQ(server_->facts().engine.name, "pread");
  const auto blocks = sections("k", 4);
  auto client = open();
  expect_all(client->put(5, blocks, {.durability = wire::Durability::Persist}), blocks, {Answer::Ok, Reason::Stored});
  expect_all(client->ask(Opcode::Get, 6, {}, blocks), blocks, kOk);
  EXPECT_EQ(client->wrong_parts, 0U);
}

TEST_F(ServerTest, WritesMoreThanItsMemoryAndReadsItBack) {
  start();
  auto client = open();
  uint64_t request = 10;
  for (uint32_t round = 0; round < 20; ++round) {
    const auto blocks = sections("r" + std::to_string(round) + "-", 4);
    // A store that writes more slowly than this client puts throttles it, and is asked again.
    for (bool stored = false; !stored;) {
      const Said said = client->put(request++, blocks);
      stored = true;
      for (uint16_t s = 0; s < 3; ++s) {
        for (uint32_t i = 0; i < 4; ++i) {
          const Answer answer = said.at(s, i).answer;
          ASSERT_TRUE(answer == Answer::Ok || answer == Answer::Throttled) << static_cast<int>(answer);
          stored = stored && answer == Answer::Ok;
        }
      }
    }
  }
  for (uint32_t round = 0; round < 20; ++round) {
    const auto blocks = sections("r" + std::to_string(round) + "-", 4);
    expect_all(client->ask(Opcode::Get, request++, {}, blocks), blocks, kOk);
  }
  EXPECT_EQ(client->wrong_parts, 0U);
  EXPECT_GT(metric("halfstep_store_hits_total{from=\"flash\"}"), 0);
}

TEST_F(ServerTest, ADisconnectInAPutGivesItsMemoryBack) {
  start();
  const auto pinned = [&] { return metric("halfstep_memory_bytes{of=\"pinned\"}") + metric("halfstep_credit_held_bytes"); };
  EXPECT_EQ(pinned(), 0);
  auto client = open();
  const auto blocks = sections("k", 2);
  client->send(request_frame(Opcode::Put, 5, {}, blocks));
  Frame frame;
  ASSERT_TRUE(client->next(5, &frame));
  ASSERT_EQ(frame.opcode(), Opcode::Want);
  client->send(chunk_frame(5, {client->run_of(blocks[0], 0, 0, 0, 2)}));
  EXPECT_GT(pinned(), 0);
  client->close();
  while (pinned() != 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  EXPECT_EQ(metric("halfstep_store_blocks"), 0);
}

TEST_F(ServerTest, ManyClientsOverTcpAndUnix) {
  config_.listen.push_back("127.0.0.1:0");
  start();
  ASSERT_EQ(server_->facts().listening.size(), 2U);
  EXPECT_EQ(server_->facts().listening[1].find("127.0.0.1:"), 0U);
  EXPECT_FALSE(server_->facts().congestion_control.empty());
  std::atomic<uint64_t> wrong = 0;
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      auto client = open();
      for (uint64_t round = 0; round < 10; ++round) {
        const auto blocks = sections("t" + std::to_string(t) + "-" + std::to_string(round), 2);
        const Said put = client->put(10 + round, blocks);
        const Said got = client->ask(Opcode::Get, 100 + round, {}, blocks);
        for (uint16_t s = 0; s < 3; ++s) wrong += put.at(s, 0).answer != Answer::Ok || got.at(s, 1) != kOk ? 1 : 0;
      }
      wrong += client->wrong_parts;
    });
  }
  for (int i = 0; i < 20; ++i) (void)server_->metrics();
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0U);
}

TEST_F(ServerTest, StopIsBoundedAndHappensOnce) {
  start();
  auto client = open();
  client->send(request_frame(Opcode::Put, 5, {}, sections("k", 1)));
  Frame frame;
  ASSERT_TRUE(client->next(5, &frame));
  EXPECT_TRUE(server_->running(nullptr));
  EXPECT_TRUE(server_->stop(50).ok()) << "a put that never gets its bytes does not keep it";
  EXPECT_TRUE(server_->stop(50).ok());
  std::string why;
  EXPECT_FALSE(server_->running(&why));
  EXPECT_FALSE(server_->metrics().counters.empty()) << "the last numbers stay";
}

TEST_F(ServerTest, TakesItsSocketAwayWhenItStopsAndNobodyElses) {
  start();
  EXPECT_TRUE(std::filesystem::is_socket(directory_ + "/s"));
  EXPECT_TRUE(server_->stop(0).ok());
  EXPECT_FALSE(std::filesystem::exists(directory_ + "/s"));
  start();
  std::filesystem::remove(directory_ + "/s");
  std::ofstream(directory_ + "/s") << "somebody else's";
  EXPECT_TRUE(server_->stop(0).ok());
  EXPECT_TRUE(std::filesystem::exists(directory_ + "/s"));
}

TEST_F(ServerTest, NamesWhatItRefuses) {
  config_.listen = {};
  EXPECT_NE(refusal().find("listen"), std::string::npos);
  config_.listen = {"0.0.0.0:0"};
  EXPECT_NE(refusal().find("--insecure-listen"), std::string::npos);
  config_.listen = {"unix:" + directory_ + "/s"};
  config_.arena_bytes = 1 * MiB;
  EXPECT_NE(refusal().find("arena=1048576"), std::string::npos);
  config_.arena_bytes = 32 * MiB;
  config_.connections_max = 0;
  EXPECT_NE(refusal().find("connections=0"), std::string::npos);
  config_.connections_max = 16;
  for (const uint32_t bytes : {0U, 32U << 10, 100'000U, 128U << 20}) {
    config_.shm_ring_bytes = bytes;
    EXPECT_NE(refusal().find("shm_ring=" + std::to_string(bytes)), std::string::npos);
  }
  config_.shm_ring_bytes = 64U << 20;
  config_.shards = 8;
  config_.arena_bytes = 256 * MiB;
  EXPECT_NE(refusal().find("shm_memory=1073741824: must be at least 1073774592, one client's rings of shm_ring=67108864 for "
                           "each of 8 shards"),
            std::string::npos)
      << refusal();
  config_.shm_memory_bytes = 0;  // for none
  EXPECT_EQ(refusal().find("shm_memory"), std::string::npos);
  config_.shm_memory_bytes = 1 * GiB;
  config_.shards = 0;
  config_.arena_bytes = 32 * MiB;
  config_.shm_ring_bytes = 64U << 10;
  config_.store_bytes = 0;
  EXPECT_NE(refusal().find(config_.store_path), std::string::npos);
  config_.store_bytes = 1 * MiB;
  EXPECT_FALSE(refusal().empty());
  config_.store_bytes = uint64_t{32} << 40;
  EXPECT_NE(refusal().find("free"), std::string::npos);
  config_.store_bytes = 320 * MiB;
  config_.segment_bytes = 4 * MiB;  // blocks of 768 KiB
  config_.segment_bytes = 12345;
  EXPECT_FALSE(refusal().empty());
  EXPECT_FALSE(std::filesystem::exists(config_.store_path));
  EXPECT_FALSE(std::filesystem::exists(config_.store_path + ".new"));
}

TEST_F(ServerTest, RefusesABusyAddressAndALockedStore) {
  start();
  std::unique_ptr<Server> second;
  Fault fault = Server::start(config_, &second);
  EXPECT_FALSE(fault.ok());
  EXPECT_NE(fault.what.find("/s"), std::string::npos) << fault.what;
  Config elsewhere = config_;
  elsewhere.listen = {"unix:" + directory_ + "/other"};
  fault = Server::start(elsewhere, &second);
  EXPECT_FALSE(fault.ok());
  EXPECT_NE(fault.what.find("lock"), std::string::npos) << fault.what;
  EXPECT_EQ(open()->simple(Opcode::Stat, 9, Tlv::Reason, {}).whole, kOk) << "the first one goes on";
}

TEST_F(ServerTest, RefusesAFileThatIsNoStoreAndLeavesItAlone) {
  std::ofstream(config_.store_path) << std::string(8 * MiB, 'x');
  EXPECT_NE(refusal().find("store"), std::string::npos);
  EXPECT_EQ(std::filesystem::file_size(config_.store_path), 8 * MiB);
}

TEST_F(ServerTest, AnInterruptedStartLeavesNothing) {
  config_.progress = [](const char*, uint64_t, uint64_t) { return false; };
  EXPECT_NE(refusal().find("stopped"), std::string::npos);
  EXPECT_FALSE(std::filesystem::exists(config_.store_path));
  EXPECT_FALSE(std::filesystem::exists(config_.store_path + ".new"));
  config_.progress = nullptr;
  // As one that was killed on the way leaves it.
  std::ofstream(config_.store_path + ".new") << "half";
  start();
  EXPECT_FALSE(std::filesystem::exists(config_.store_path + ".new"));
}

}  // namespace server_test
}  // namespace halfstep::shard
