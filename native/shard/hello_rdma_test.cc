// What a server says to an offer of rings over RDMA. What travels through them is tested by all the other tests, a third time.
#include <gtest/gtest.h>

#include <algorithm>

#include "shard/shard_fixture.h"

namespace halfstep::shard {
namespace {

class HelloRdma : public ShardFixture {
 protected:
  void SetUp() override {
    config_.rdma.on = true;
    config_.rdma.verbs = [this](std::string*) { return &verbs_; };
    ShardFixture::SetUp();
  }
  static wire::RdmaPath path() {
    return {.gid = rdma::ipv4_gid(127, 0, 0, 1), .queue_pair = 99, .psn = 7, .ring_bytes = 1 << 20, .mtu_bytes = 1024};
  }
  // A Hello whose offers have these bytes, with a RdmaReads for each of these numbers.
  static Said say(RawClient& client, const std::vector<std::vector<std::byte>>& offers,
                  const std::vector<uint32_t>& reads = {}) {
    std::vector<std::byte> out;
    wire::FrameWriter frame(out);
    frame.begin(Opcode::Hello, 1);
    frame.tlv(Tlv::HelloClient, wire::HelloClient{.client_id = 42});
    for (const auto& offer : offers) frame.tlv_bytes(Tlv::RdmaOffer, offer);
    for (const uint32_t number : reads) frame.tlv(Tlv::RdmaReads, wire::RdmaReadsRecord{.reads = number});
    frame.finish();
    client.send(out);
    return client.finish(1);
  }
  static std::vector<std::byte> offer(const wire::RdmaOfferHead& head, const std::vector<wire::RdmaPath>& paths) {
    std::vector<std::byte> out;
    Writer writer(out);
    writer.put(head);
    for (const wire::RdmaPath& one : paths) writer.put(one);
    return out;
  }
  static void expect_refused(const Said& said, wire::RdmaRefusal refusal) {
    EXPECT_EQ(said.whole, (AnswerReason{Answer::Ok, Reason::None})) << "the connection is as good without";
    ASSERT_TRUE(said.rdma);
    EXPECT_EQ(said.rdma->head.version, 0);
    EXPECT_EQ(said.rdma->head.refusal, refusal);
    EXPECT_FALSE(said.malformed);
  }

  rdma::FakeVerbs verbs_;
};

TEST_F(HelloRdma, AnOfferIsAnsweredWithAPathAndNothingMoreComesByTheSocket) {
  auto client = connect_tcp();
  const Said said = say(*client, {offer({.path_count = 1}, {path()})});
  EXPECT_EQ(said.whole, (AnswerReason{Answer::Ok, Reason::None}));
  ASSERT_TRUE(said.rdma);
  EXPECT_EQ(said.rdma->head.version, wire::kRdmaVersion);
  EXPECT_EQ(said.rdma->path.gid, rdma::ipv4_gid(127, 0, 0, 1));
  EXPECT_EQ(metric("halfstep_connections_rdma"), 1);
  client->close();
  wait_until([&] { return verbs_.count("destroy_qp") == 1; });
}

// As many as both ends can, and none to a client that answers none.
TEST_F(HelloRdma, ReadsOfTheServersAreAgreedOn) {
  const std::vector<std::byte> good = offer({.path_count = 1}, {path()});
  for (const auto& [asked, given] : {std::pair(3U, 3U), {200U, rdma::kReadsMax}}) {
    auto client = connect_tcp();
    EXPECT_EQ(say(*client, {good}, {asked}).rdma_reads.reads, given);
    client->close();
  }
  auto silent = connect_tcp();
  EXPECT_EQ(say(*silent, {good}).rdma_reads.reads, 0U);
  silent->close();
  auto without = connect_tcp();
  const Said said = say(*without, {}, {3});
  EXPECT_EQ(said.whole, (AnswerReason{Answer::Ok, Reason::None}));
  EXPECT_EQ(said.rdma_reads.reads, 0U) << "there are no rings";
  for (const std::vector<uint32_t>& wrong : {std::vector<uint32_t>{0}, {256}, {3, 3}}) {
    auto client = connect_tcp();
    EXPECT_EQ(say(*client, {good}, wrong).whole, (AnswerReason{Answer::Rejected, Reason::Malformed}));
  }
}

TEST_F(HelloRdma, WithoutAnOfferNothingIsAnswered) {
  auto client = connect_tcp();
  const Said said = say(*client, {});
  EXPECT_EQ(said.whole, (AnswerReason{Answer::Ok, Reason::None}));
  EXPECT_FALSE(said.rdma);
  EXPECT_EQ(verbs_.count("create_qp"), 0U);
}

TEST_F(HelloRdma, WhatIsNoOfferMakesTheHelloMalformed) {
  wire::RdmaPath beyond = path();
  beyond.ring_bytes = 3;
  const std::vector<std::byte> good = offer({.path_count = 1}, {path()});
  const std::vector<std::vector<std::vector<std::byte>>> all = {
      {offer({.path_count = 1}, {})}, {offer({.path_count = 1}, {beyond})}, {good, good}};
  for (const auto& offers : all) {
    auto client = connect_tcp();
    EXPECT_EQ(say(*client, offers).whole, (AnswerReason{Answer::Rejected, Reason::Malformed}));
  }
  EXPECT_EQ(verbs_.count("create_qp"), 0U);
}

TEST_F(HelloRdma, AnAnswerHasNoPlaceInAHelloNorAnOfferInARequest) {
  auto client = connect_tcp();
  std::vector<std::byte> out;
  wire::FrameWriter frame(out);
  frame.begin(Opcode::Hello, 1);
  frame.tlv(Tlv::HelloClient, wire::HelloClient{.client_id = 42});
  frame.tlv(Tlv::RdmaAnswer, wire::RdmaAnswerHead{.version = 0, .refusal = wire::RdmaRefusal::Off});
  frame.finish();
  client->send(out);
  EXPECT_EQ(client->finish(1).whole, (AnswerReason{Answer::Rejected, Reason::Malformed}));
  auto other = connect_tcp();
  (void)other->hello();
  EXPECT_EQ(other->simple(Opcode::Stat, 5, Tlv::RdmaOffer, offer({.path_count = 1}, {path()})).whole,
            (AnswerReason{Answer::Rejected, Reason::Malformed}));
}

TEST_F(HelloRdma, EachRefusalLeavesTheConnectionOnItsSocket) {
  wire::RdmaPath stranger = path();
  stranger.gid = rdma::ipv4_gid(10, 0, 0, 1);
  auto first = connect_tcp();
  expect_refused(say(*first, {offer({.path_count = 1}, {stranger})}), wire::RdmaRefusal::Path);
  EXPECT_EQ(first->simple(Opcode::Stat, 5, Tlv::Reason, {}).whole, (AnswerReason{Answer::Ok, Reason::None}));

  auto second = connect_tcp();
  expect_refused(say(*second, {offer({.version_min = 7, .version_max = 8}, {})}), wire::RdmaRefusal::Version);

  verbs_.fail_next("create_qp", ENOMEM);
  auto third = connect_tcp();
  expect_refused(say(*third, {offer({.path_count = 1}, {path()})}), wire::RdmaRefusal::Device);

  verbs_.fail_next("reg_mr", ENOMEM);
  auto fourth = connect_tcp();
  expect_refused(say(*fourth, {offer({.path_count = 1}, {path()})}), wire::RdmaRefusal::Memory);
  EXPECT_EQ(metric("halfstep_rdma_refused_total"), 4);
  EXPECT_EQ(metric("halfstep_connections_rdma"), 0);

  configure([](Config& config) { config.rdma.on = false; });
  auto fifth = connect_tcp();
  expect_refused(say(*fifth, {offer({.path_count = 1}, {path()})}), wire::RdmaRefusal::Off);
}

// What fails after the path was found, too, is known before the client is told that it has one; and the operator learns why.
TEST_F(HelloRdma, RingsThatCannotBeWatchedLeaveTheConnectionOnItsSocket) {
  verbs_.unwatchable_next();
  testing::internal::CaptureStderr();
  auto client = connect_tcp();
  expect_refused(say(*client, {offer({.path_count = 1}, {path()})}), wire::RdmaRefusal::Device);
  EXPECT_EQ(client->simple(Opcode::Stat, 5, Tlv::Reason, {}).whole, (AnswerReason{Answer::Ok, Reason::None}));
  auto second = connect_tcp();
  verbs_.fail_next("create_qp", ENOMEM);
  expect_refused(say(*second, {offer({.path_count = 1}, {path()})}), wire::RdmaRefusal::Device);
  const std::string told = testing::internal::GetCapturedStderr();
  EXPECT_NE(told.find("rings over RDMA refused, the connection stays on TCP: changing to rings: EPERM"), std::string::npos)
      << told;
  EXPECT_EQ(std::count(told.begin(), told.end(), '\n'), 1) << told;
  EXPECT_EQ(metric("halfstep_rdma_refused_total"), 2);
}

TEST_F(HelloRdma, MemoryThatTheDeviceDoesNotTakeIsToldToTheOperator) {
  testing::internal::CaptureStderr();
  verbs_.fail_next("reg_mr", ENOMEM, 2);  // after the ring and the outbox
  auto client = connect_tcp();
  (void)say(*client, {offer({.path_count = 1}, {path()})});
  const std::string told = testing::internal::GetCapturedStderr();
  EXPECT_NE(told.find("by a copy, and into no direct region"), std::string::npos) << told;
  EXPECT_NE(told.find("LimitMEMLOCK"), std::string::npos) << told;
  client->close();
  wait_until([&] { return verbs_.count("destroy_qp") == 1; });
}

// One that takes its path and is never heard over it: nothing is sent to it, and its socket's end ends it.
TEST_F(HelloRdma, AClientThatNeverComesOverItsPathIsLetGoOfWithItsSocket) {
  auto client = connect_tcp();
  (void)say(*client, {offer({.path_count = 1}, {path()})});
  EXPECT_EQ(verbs_.sends_posted(), 0U);
  client->close();
  wait_until([&] { return verbs_.count("destroy_qp") == 1; });
  EXPECT_EQ(verbs_.sends_posted(), 0U);
}

}  // namespace
}  // namespace halfstep::shard
