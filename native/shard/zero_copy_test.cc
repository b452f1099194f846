// Gets whose payload is sent without a copy, over loopback, where the kernel takes it until a notification says that it copies.
#include <gtest/gtest.h>

#include "shard/server_fixture.h"
#include "shard/shard_fixture.h"

namespace halfstep::shard {
namespace zero_copy_test {

constexpr uint64_t kGraceS = net::ZeroCopyLinger::kGraceUs / 1'000'000;

class ZeroCopyTest : public ShardFixture {
 protected:
  void SetUp() override {
    config_.zero_copy = ZeroCopy::Always;
    ShardFixture::SetUp();
  }
  // A client that has asked for these blocks and reads nothing: all of them are with the kernel, which keeps them.
  std::unique_ptr<RawClient> ask_and_wait(const SectionSpec& section) {
    auto client = open({opaque()}, connect_tcp());
    client->put(5, {section});
    client->remember(6, {section});
    client->send(request_frame(Opcode::Get, 6, {}, {section}));
    wait_until([&] { return shard_->counts().get_payload_bytes != 0 && shard_->counts().requests_open == 0; });
    while (metric("halfstep_zero_copy_held_bytes") == 0) std::this_thread::yield();
    return client;
  }
  const SectionSpec section_ = section_of(keys_of("k", 4), 256 * 1024);
};

TEST_F(ZeroCopyTest, BlocksArriveWholeAndAreHeldUntilTheyAreAcknowledged) {
  auto client = ask_and_wait(section_);
  EXPECT_EQ(metric("halfstep_connections_zero_copy"), 1);
  EXPECT_EQ(metric("halfstep_zero_copy_on"), 1);
  on_shard([&] {
    EXPECT_NE(fake_->pinned(), 0U);
    EXPECT_NE(shard_->counts().credit_held_bytes, 0U) << "what the kernel holds counts as the connection's";
  });
  const Said said = client->finish(6);
  for (uint32_t i = 0; i < 4; ++i) EXPECT_EQ(said.at(0, i), kOk);
  EXPECT_EQ(client->wrong_parts, 0U);
  EXPECT_EQ(client->parts_received.size(), 4U);
  expect_nothing_held();
  EXPECT_EQ(metric("halfstep_zero_copy_held_bytes"), 0);
  EXPECT_NE(metric("halfstep_zero_copy_bytes_total{outcome=\"copied\"}"), 0);
  EXPECT_NE(metric("halfstep_zero_copy_notifications_total{outcome=\"copied\"}"), 0);
  EXPECT_EQ(metric("halfstep_zero_copy_given_up_total"), 1);
  EXPECT_EQ(metric("halfstep_connections_zero_copy"), 0);
}

TEST_F(ZeroCopyTest, MoreThanTheCreditArrivesWhole) {
  configure([](Config& config) { config.connection_credit_bytes = config.get_credit_bytes_max = 1 * MiB; });
  auto client = open({opaque()}, connect_tcp());
  const SectionSpec section = section_of(keys_of("k", 12), 512 * 1024);
  client->put(5, {section});
  const Said said = client->ask(Opcode::Get, 6, {}, {section});
  for (uint32_t i = 0; i < 12; ++i) EXPECT_EQ(said.at(0, i), kOk);
  EXPECT_EQ(client->wrong_parts, 0U);
  expect_nothing_held();
}

TEST_F(ZeroCopyTest, AClientThatAcknowledgesNothingIsClosedAndHoldsNoMemory) {
  auto client = ask_and_wait(section_);
  pass_s(10);
  EXPECT_EQ(metric("halfstep_connections_stalled_total"), 0);
  pass_s(10);
  EXPECT_EQ(metric("halfstep_connections_stalled_total"), 1);
  on_shard([&] { EXPECT_NE(fake_->pinned(), 0U) << "the kernel still reads it"; });
  EXPECT_NE(metric("halfstep_zero_copy_held_bytes"), 0);
  pass_s(kGraceS);
  expect_nothing_held();
  EXPECT_EQ(metric("halfstep_zero_copy_held_bytes"), 0);
}

TEST_F(ZeroCopyTest, KeepsNothingForAClientThatLeft) {
  auto client = ask_and_wait(section_);
  client->close();
  expect_nothing_held();
  auto other = open({opaque()}, connect_tcp());
  other->send(request_frame(Opcode::Get, 6, {}, {section_of(keys_of("k", 4), 256 * 1024)}));
  other->close();
  expect_nothing_held();
}

// The kernel has references to the arena's pages: what it was given arrives, though the daemon and its arena are gone.
TEST_F(ZeroCopyTest, WhatWasSentArrivesAfterTheDaemonIsGone) {
  auto client = ask_and_wait(section_);
  configure([](Config& config) { config.zero_copy = ZeroCopy::Off; });
  const Said said = client->finish(6);
  for (uint32_t i = 0; i < 4; ++i) EXPECT_EQ(said.at(0, i), kOk);
  EXPECT_EQ(client->wrong_parts, 0U);
  EXPECT_EQ(client->parts_received.size(), 4U);
}

TEST_F(ZeroCopyTest, IsNotAskedForOverLoopbackNorWhenItIsOff) {
  for (const ZeroCopy choice : {ZeroCopy::Auto, ZeroCopy::Off}) {
    configure([&](Config& config) { config.zero_copy = choice; });
    auto client = open({opaque()}, connect_tcp());
    client->put(5, {section_});
    EXPECT_EQ(client->ask(Opcode::Get, 6, {}, {section_}).at(0, 3), kOk);
    EXPECT_EQ(client->wrong_parts, 0U);
    EXPECT_EQ(metric("halfstep_zero_copy_notifications_total{outcome=\"copied\"}"), 0);
    EXPECT_EQ(metric("halfstep_zero_copy_given_up_total"), 0);
    EXPECT_EQ(metric("halfstep_zero_copy_on"), choice == ZeroCopy::Auto ? 1 : 0);
  }
}

// The same with a real store, which writes its last pages while the kernel still reads blocks of its arena, and with an arena
// that is unmapped.
class ZeroCopyServer : public ServerFixture {};

TEST_F(ZeroCopyServer, StopsWithBlocksUnderWayWhichArrive) {
  config_.store_bytes = 320 * MiB;
  config_.segment_bytes = 4 * MiB;
  config_.arena_bytes = 64 * MiB;
  config_.listen = {"127.0.0.1:0"};
  config_.zero_copy = ZeroCopy::Always;
  start();
  const std::string& listening = server_->facts().listening.front();
  RawClient client(static_cast<uint16_t>(std::stoi(listening.substr(listening.rfind(':') + 1))));
  ASSERT_TRUE(client.connected());
  wire::Layout layout;
  ASSERT_TRUE(
      wire::Layout::make({{"model", "opaque"}}, {{.part_count = 0, .size_count = 1, .part_bytes = {256 * 1024}}}, &layout)
          .ok());
  EXPECT_EQ(client.hello().whole, kOk);
  ASSERT_TRUE(client.register_layout(layout).handle.has_value());
  SectionSpec section;
  for (int i = 0; i < 4; ++i) {
    section.keys.push_back("k" + std::to_string(i));
    section.offers.push_back(offer_of(256 * 1024));
  }
  EXPECT_EQ(client.put(5, {section}).at(0, 0).answer, Answer::Ok);
  client.remember(6, {section});
  client.send(request_frame(Opcode::Get, 6, {}, {section}));
  while (metric("halfstep_zero_copy_held_bytes") == 0 || metric("halfstep_requests_open") != 0) std::this_thread::yield();
  EXPECT_TRUE(server_->stop(0).ok());
  EXPECT_NE(metric("halfstep_zero_copy_held_bytes"), 0) << "the last numbers";
  server_ = nullptr;
  const Said said = client.finish(6);
  for (uint32_t i = 0; i < 4; ++i) EXPECT_EQ(said.at(0, i), kOk);
  EXPECT_EQ(client.wrong_parts, 0U);
  EXPECT_EQ(client.parts_received.size(), 4U);
}

}  // namespace zero_copy_test
}  // namespace halfstep::shard
