// The start of a connection, and what ends one.
#include <gtest/gtest.h>

#include "shard/shard_fixture.h"

namespace halfstep::shard {
namespace {

constexpr const char* kPlaces = "counts places of clients on the unix socket, which those over RDMA do not come by";

class HelloTest : public ShardFixture {
 protected:
  // A client that has had an answer: until it has idled for a while nobody takes its place.
  std::unique_ptr<RawClient> open_and_ask(std::unique_ptr<RawClient> connected) {
    auto client = open({}, std::move(connected));
    EXPECT_EQ(client->simple(Opcode::Stat, 2, Tlv::Reason, {}).whole, (AnswerReason{Answer::Ok, Reason::None}));
    return client;
  }
};

TEST_F(HelloTest, AnswersWithItsLimitsAndItsShard) {
  auto client = connect();
  const Said said = client->hello();
  ASSERT_FALSE(said.malformed);
  ASSERT_TRUE(said.hello);
  EXPECT_EQ(said.hello->version, wire::kVersion);
  EXPECT_EQ(said.hello->shards, 1);
  EXPECT_EQ(said.hello->block_bytes_max, 4 * MiB);
  EXPECT_EQ(said.hello->lease_ms_max, 60'000U);
  EXPECT_EQ(said.hello->boot_id[0], std::byte{1});
  EXPECT_TRUE(said.load);
}

TEST_F(HelloTest, RefusesAnUnknownNamespaceWithItsNameAndCloses) {
  auto client = connect();
  const Said said = client->hello("nowhere");
  EXPECT_EQ(said.whole, (AnswerReason{Answer::Rejected, Reason::UnknownNamespace}));
  EXPECT_NE(said.reason.find("nowhere"), std::string::npos);
  EXPECT_TRUE(client->closed());
}

TEST_F(HelloTest, RefusesAVersionThatItDoesNotSpeak) {
  auto client = connect();
  const wire::HelloClient hello{.version_min = 2, .version_max = 9};
  const Said said = client->simple(Opcode::Hello, 1, Tlv::HelloClient, object_bytes(hello));
  EXPECT_EQ(said.whole, (AnswerReason{Answer::Rejected, Reason::Version}));
}

// A client may send on without waiting for the answer.
TEST_F(HelloTest, PayloadBehindAHelloThatIsRefusedIsDropped) {
  auto client = connect();
  std::vector<std::byte> out;
  wire::FrameWriter frame(out);
  frame.begin(Opcode::Hello, 1);
  frame.tlv(Tlv::HelloClient, wire::HelloClient{.version_min = 2, .version_max = 9});
  frame.finish();
  const std::vector<std::byte> chunk =
      chunk_frame(7, {RunSpec{.run = {.bytes = 10}, .checks = {}, .bytes = std::vector<std::byte>(10)}});
  out.insert(out.end(), chunk.begin(), chunk.end());
  client->send(out);
  EXPECT_EQ(client->finish(1).whole, (AnswerReason{Answer::Rejected, Reason::Version}));
  wait_until([&] { return shard_->counts().put_scratch_bytes == 10; });
  EXPECT_TRUE(connect()->hello().hello);
}

TEST_F(HelloTest, ClosesWhenSomethingElseComesFirst) {
  auto client = connect();
  client->send(request_frame(Opcode::Match, 7, {}, {section_of({"k"}, 1)}));
  Frame frame;
  ASSERT_TRUE(client->receive(&frame));
  EXPECT_EQ(frame.opcode(), Opcode::Abort);
  EXPECT_TRUE(client->closed());
  EXPECT_EQ(metric("halfstep_protocol_errors_total{kind=\"no_hello\"}"), 1);
}

TEST_F(HelloTest, ClosesOnBytesThatAreNoFrame) {
  auto client = open({});
  client->send(as_bytes("GET / HTTP/1.1\r\nHost: example\r\n\r\n"));
  Frame frame;
  ASSERT_TRUE(client->receive(&frame));
  EXPECT_EQ(frame.opcode(), Opcode::Abort);
  EXPECT_TRUE(client->closed());
  EXPECT_EQ(metric("halfstep_protocol_errors_total{kind=\"frame\"}"), 1);
}

TEST_F(HelloTest, ClosesOnASecondHelloAndOnServersOpcodes) {
  auto twice = open({});
  const wire::HelloClient hello;
  const Said said = twice->simple(Opcode::Hello, 9, Tlv::HelloClient, object_bytes(hello));
  EXPECT_TRUE(said.malformed);
  auto server_like = open({});
  std::vector<std::byte> bytes;
  wire::FrameWriter frame(bytes);
  frame.begin(Opcode::Final, 3);
  frame.finish();
  server_like->send(bytes);
  Frame answer;
  ASSERT_TRUE(server_like->receive(&answer));
  EXPECT_EQ(answer.opcode(), Opcode::Abort);
  EXPECT_EQ(metric("halfstep_protocol_errors_total{kind=\"hello\"}"), 1);
  EXPECT_EQ(metric("halfstep_protocol_errors_total{kind=\"opcode\"}"), 1);
}

TEST_F(HelloTest, RefusesWhatDoesNotParseWithAReasonAndCloses) {
  const wire::HelloClient hello;
  const auto refused = [&](const std::function<void(wire::FrameWriter&)>& body) {
    auto client = connect();
    std::vector<std::byte> out;
    wire::FrameWriter frame(out);
    frame.begin(Opcode::Hello, 1);
    body(frame);
    frame.finish();
    client->send(out);
    const Said said = client->finish(1);
    EXPECT_FALSE(said.reason.empty());
    EXPECT_TRUE(client->closed());
    return said.whole.value_or(AnswerReason());
  };
  const AnswerReason malformed{Answer::Rejected, Reason::Malformed};
  const AnswerReason unsupported{Answer::Rejected, Reason::Unsupported};
  const auto client_tlv = [&](wire::FrameWriter& frame) { frame.tlv(Tlv::HelloClient, hello); };
  EXPECT_EQ(refused([](wire::FrameWriter&) {}), malformed) << "no HelloClient";
  EXPECT_EQ(refused([](wire::FrameWriter& frame) { frame.tlv(Tlv::HelloClient, uint64_t{1}); }), malformed);
  EXPECT_EQ(refused([&](wire::FrameWriter& frame) { client_tlv(frame), client_tlv(frame); }), malformed);
  for (const std::string_view name : {std::string_view(""), std::string_view("a\nb"), std::string_view("\xFF")}) {
    EXPECT_EQ(
        refused([&](wire::FrameWriter& frame) { client_tlv(frame), frame.tlv_bytes(Tlv::NamespaceName, as_bytes(name)); }),
        malformed);
  }
  EXPECT_EQ(refused([&](wire::FrameWriter& frame) { client_tlv(frame), frame.tlv(Tlv::Batch, wire::Batch{}); }), malformed);
  EXPECT_EQ(refused([&](wire::FrameWriter& frame) { client_tlv(frame), frame.tlv(static_cast<Tlv>(0x8063), uint64_t{0}); }),
            unsupported);
  EXPECT_EQ(refused([&](wire::FrameWriter& frame) { client_tlv(frame), frame.value().put(uint64_t{UINT64_MAX}); }), malformed);
  EXPECT_EQ(metric("halfstep_protocol_errors_total{kind=\"hello\"}"), 9);
}

TEST_F(HelloTest, SaysByWhichMethodItKnowsAClientThatSaysWhoItIs) {
  const auto greet = [&](bool authenticates) {
    auto client = connect();
    std::vector<std::byte> out;
    wire::FrameWriter frame(out);
    frame.begin(Opcode::Hello, 1);
    frame.tlv(Tlv::HelloClient, wire::HelloClient{});
    if (authenticates) frame.tlv_bytes(Tlv::Authentication, as_bytes("a token of some kind"));
    frame.tlv(static_cast<Tlv>(64), uint64_t{0});  // kept free, and skipped
    frame.finish();
    client->send(out);
    return client->finish(1);
  };
  const Said known = greet(true);
  EXPECT_EQ(known.whole, (AnswerReason{Answer::Ok, Reason::None}));
  ASSERT_TRUE(known.authentication);
  EXPECT_EQ(known.authentication->method, 0) << "nobody looked at it";
  const Said other = greet(false);
  EXPECT_FALSE(other.authentication);
  EXPECT_EQ(other.ports, (std::vector<uint16_t>{0}));
  EXPECT_EQ(other.map_epoch, 1U);
}

TEST_F(HelloTest, EveryRequestIsAnsweredAndOtherUnknownFramesAreSkipped) {
  auto client = open({});
  uint64_t id = 1000;
  for (uint32_t opcode = 0; opcode < 256; ++opcode) {
    const auto code = static_cast<uint8_t>(opcode);
    if (opcode <= static_cast<uint8_t>(Opcode::Namespace) && opcode != 0) continue;
    if (wire::is_request(code) && code != static_cast<uint8_t>(Opcode::LayoutOf)) {
      const Said said = client->simple(static_cast<Opcode>(code), ++id, static_cast<Tlv>(0x8001), as_bytes("not looked at"));
      ASSERT_EQ(said.whole, (AnswerReason{Answer::Rejected, Reason::Unsupported})) << opcode;
    } else if (wire::is_skipped(code)) {
      std::vector<std::byte> out;
      wire::FrameWriter frame(out);
      frame.begin(static_cast<Opcode>(code), ++id);
      frame.finish();
      client->send(out);
    }
  }
  EXPECT_EQ(client->simple(Opcode::Stat, ++id, Tlv::Reason, {}).whole, (AnswerReason{Answer::Ok, Reason::None}));
  EXPECT_TRUE(client->kept().empty()) << "nothing came for what was skipped";
}

TEST_F(HelloTest, AChunkOfRequestZeroIsRefusedByName) {
  auto client = open({});
  std::vector<std::byte> bytes = chunk_frame(0, {});
  client->send(bytes);
  Frame frame;
  ASSERT_TRUE(client->receive(&frame));
  EXPECT_EQ(frame.opcode(), Opcode::Abort);
  Said said;
  take_apart(frame.body, &said);
  EXPECT_NE(said.reason.find("request_id=0"), std::string::npos) << said.reason;
  EXPECT_EQ(metric("halfstep_protocol_errors_total{kind=\"request_id\"}"), 1);
}

TEST_F(HelloTest, ConnectionsThatHaveAskedForNothingGiveWayAtOnce) {
  configure([](Config& config) { config.connections_max = 4; });
  auto client = open_and_ask(connect_tcp());
  std::vector<std::unique_ptr<RawClient>> opened;
  for (int i = 0; i < 4; ++i) opened.push_back(i % 2 == 0 ? connect_tcp() : open({}, connect_tcp()));
  auto newcomer = open_and_ask(connect_tcp());
  for (auto* one : {client.get(), newcomer.get()}) {
    EXPECT_EQ(one->simple(Opcode::Stat, 6, Tlv::Reason, {}).whole, (AnswerReason{Answer::Ok, Reason::None}));
  }
  EXPECT_EQ(metric("halfstep_connections_gave_way_total"), 3);
  EXPECT_EQ(metric("halfstep_connections_total{outcome=\"refused\"}"), 0);
}

TEST_F(HelloTest, RefusesConnectionsBeyondItsLimitAndServesTheOthers) {
  if (over_rdma()) GTEST_SKIP() << kPlaces;
  if (over_rings()) GTEST_SKIP() << "who is refused at once has no rings to read the Abort from";
  configure([](Config& config) { config.connections_max = 2; });
  auto first = open_and_ask(connect());
  auto second = open_and_ask(connect());
  auto third = connect();
  Frame frame;
  ASSERT_TRUE(third->receive(&frame));
  EXPECT_EQ(frame.opcode(), Opcode::Abort);
  third->close();
  EXPECT_EQ(first->simple(Opcode::Stat, 5, Tlv::Reason, {}).whole, (AnswerReason{Answer::Ok, Reason::None}));
  second->close();
  wait_until([&] {
    Metrics metrics;
    shard_->collect(&metrics);
    return std::any_of(metrics.gauges.begin(), metrics.gauges.end(), [](const Sample& sample) {
      return std::string_view(sample.name) == "halfstep_connections_open" && sample.value == 1;
    });
  });
  open({});
}

TEST_F(HelloTest, TheConnectionThatIdledLongestGivesWayToANewcomer) {
  if (over_rdma()) GTEST_SKIP() << kPlaces;
  configure([](Config& config) { config.connections_max = 3; });
  auto busy = open({parted(1, 1000)});
  busy->send(request_frame(Opcode::Put, 5, {}, {section_of({"a"}, 1000)}));
  wait_until([&] { return fake_->open_writes() == 1; });
  auto first = open({});
  pass_ms(1'500);
  auto second = open({});
  auto third = open({});
  EXPECT_TRUE(first->ended()) << "whoever has something under way does not idle";
  for (auto* client : {second.get(), third.get()}) {
    EXPECT_EQ(client->simple(Opcode::Stat, 6, Tlv::Reason, {}).whole, (AnswerReason{Answer::Ok, Reason::None}));
  }
  busy->send_item(5, section_of({"a"}, 1000), 0, 0);
  EXPECT_EQ(busy->finish(5).at(0, 0), (AnswerReason{Answer::Ok, Reason::Stored}));
  EXPECT_EQ(metric("halfstep_connections_gave_way_total"), 1);
}

TEST_F(HelloTest, ThePeerWithMostConnectionsGivesWayFirst) {
  if (over_rdma()) GTEST_SKIP() << kPlaces;
  configure([](Config& config) { config.connections_max = 4; });
  auto local = open({}, connect());
  auto tcp = open({}, connect_tcp());
  auto another = open({}, connect_tcp());
  pass_ms(1'500);
  auto newcomer = open({}, connect_tcp());
  EXPECT_EQ(local->simple(Opcode::Stat, 6, Tlv::Reason, {}).whole, (AnswerReason{Answer::Ok, Reason::None}))
      << "though it has idled for longer";
  EXPECT_TRUE(tcp->ended());
  EXPECT_EQ(metric("halfstep_connections_gave_way_total"), 1);
}

TEST_F(HelloTest, SomeConnectionsAreKeptForTheUnixSocket) {
  if (over_rdma()) GTEST_SKIP() << kPlaces;
  configure([](Config& config) { config.connections_max = 4; });
  std::vector<std::unique_ptr<RawClient>> clients;
  for (int i = 0; i < 3; ++i) clients.push_back(open_and_ask(connect_tcp()));
  auto refused = connect_tcp();
  Frame frame;
  ASSERT_TRUE(refused->receive(&frame));
  EXPECT_EQ(frame.opcode(), Opcode::Abort);
  open({}, connect());
}

// A frame of this length, of which not all is sent.
std::vector<std::byte> large_frame(uint64_t id, size_t bytes) {
  std::vector<std::byte> out;
  wire::FrameWriter frame(out);
  frame.begin(Opcode::Match, id);
  frame.tlv_bytes(Tlv::Reason, std::vector<std::byte>(bytes));
  frame.finish();
  return out;
}

TEST_F(HelloTest, TakesSixteenKibibytesAtTheMostBeforeItKnowsWhoAsks) {
  auto stranger = connect();
  stranger->send(ConstBytes(large_frame(9, 1 * MiB)).first(1000));
  Frame frame;
  ASSERT_TRUE(stranger->receive(&frame));
  EXPECT_EQ(frame.opcode(), Opcode::Abort);
  auto known = open({});
  known->send(large_frame(9, 1 * MiB));
  EXPECT_EQ(known->finish(9).whole, (AnswerReason{Answer::Rejected, Reason::Malformed}));
}

TEST_F(HelloTest, FramesThatComeInPartHaveNoMoreThanTheirShareOfMemory) {
  configure([](Config& config) { config.request_bytes_max = 4 * MiB; });
  std::vector<std::unique_ptr<RawClient>> clients;
  for (int i = 0; i < 8; ++i) {
    clients.push_back(open({}));
    clients.back()->send(ConstBytes(large_frame(9, 1 * MiB)).first(1 * MiB));
    pass_ms(10);
    EXPECT_LE(metric("halfstep_request_memory_bytes"), 4 * MiB);
  }
  wait_until([&] { return shard_->request_memory().bytes() <= 2 * MiB; });
  EXPECT_GE(metric("halfstep_connections_relieved_total"), 2);
  EXPECT_TRUE(clients.front()->ended()) << "it has been at it for longest";
  auto whole = open({parted(1, 1)});
  whole->send(request_frame(Opcode::Match, 3, {}, {section_of({"key"}, 1)}));
  EXPECT_EQ(whole->finish(3).whole, std::nullopt) << "a request that came whole found no memory";
  whole.reset();
  clients.clear();
  wait_until([&] { return shard_->request_memory().bytes() == 0; });
}

TEST_F(HelloTest, ManySmallPartsDoNotShieldLargeOnes) {
  configure([](Config& config) { config.request_bytes_max = 4 * MiB; });
  const std::vector<std::byte> frame = large_frame(9, 1 * MiB);
  std::vector<std::unique_ptr<RawClient>> small;
  for (int i = 0; i < 40; ++i) {
    small.push_back(open({}));
    small.back()->send(ConstBytes(frame).first(1000));
  }
  wait_until([&] { return shard_->request_memory().bytes() >= 40'000; });
  std::vector<std::unique_ptr<RawClient>> large;
  for (int i = 0; i < 8; ++i) {
    pass_ms(10);
    large.push_back(open({}));
    large.back()->send(ConstBytes(frame).first(1 * MiB));
    EXPECT_LE(metric("halfstep_request_memory_bytes"), 4 * MiB);
  }
  wait_until([&] { return shard_->request_memory().bytes() <= 2 * MiB; });
  EXPECT_TRUE(large.front()->ended()) << "of the large ones it has been at it for longest";
  for (const auto& client : small) EXPECT_FALSE(client->ended()) << "to end it frees nothing";
}

TEST_F(HelloTest, AFrameInPartIsNoIdleness) {
  if (over_rdma()) GTEST_SKIP() << kPlaces;
  configure([](Config& config) { config.connections_max = 2; });
  auto busy = open({});
  busy->send(ConstBytes(large_frame(9, 1 * MiB)).first(1000));
  wait_until([&] { return shard_->request_memory().bytes() >= 1000; });
  pass_ms(1'500);
  auto idle = open({});
  pass_ms(1'500);
  auto newcomer = open({});
  EXPECT_TRUE(idle->ended()) << "though the other was last heard of before it";
  EXPECT_FALSE(busy->ended());
}

TEST_F(HelloTest, RefusesASecondAuthentication) {
  auto client = connect();
  std::vector<std::byte> out;
  wire::FrameWriter frame(out);
  frame.begin(Opcode::Hello, 1);
  frame.tlv(Tlv::HelloClient, wire::HelloClient{});
  for (int i = 0; i < 2; ++i) frame.tlv(Tlv::Authentication, wire::AuthenticationHead{});
  frame.finish();
  client->send(out);
  EXPECT_EQ(client->finish(1).whole, (AnswerReason{Answer::Rejected, Reason::Malformed}));
}

TEST_F(HelloTest, UnreadAnswersEndWhoeverLeavesThemNotAFrameInPart) {
  configure([](Config& config) { config.request_bytes_max = 1 * MiB; });
  auto slow = open({});
  slow->send(ConstBytes(large_frame(9, 1 * MiB)).first(1000));
  wait_until([&] { return shard_->request_memory().bytes() >= 1000; });
  const auto relieved = [&] { return on_shard([&] { return shard_->counts().connections_relieved; }); };
  // However far a queue's memory is ahead of its bytes: so much at once that nothing more is read of it may leave less than
  // half of it used.
  for (const int at_once : {1, 4, 16}) {
    const uint64_t before = relieved();
    auto deaf = open({});
    uint64_t id = 100;
    double heard = metric("halfstep_requests_total{command=\"stat\"}");
    while (id < 100'000 && relieved() == before) {
      std::vector<std::byte> asked;
      for (int i = 0; i < at_once; ++i) {
        std::vector<std::byte> one;
        wire::FrameWriter frame(one);
        frame.begin(Opcode::Stat, id++);
        frame.finish();
        asked.insert(asked.end(), one.begin(), one.end());
      }
      deaf->send(asked);
      heard += at_once;
      while (relieved() == before && metric("halfstep_requests_total{command=\"stat\"}") < heard) pass_ms(1);
    }
    EXPECT_EQ(relieved(), before + 1) << at_once;
    EXPECT_FALSE(slow->ended()) << "it has a thousand bytes";
    while (!deaf->ended()) pass_ms(10);
  }
}

TEST_F(HelloTest, BuffersThatWereGivenBackAreNotCounted) {
  auto client = open({});
  const std::vector<std::byte> frame = large_frame(9, 1 * MiB);
  client->send(ConstBytes(frame).first(1000));
  wait_until([&] { return shard_->request_memory().bytes() >= 1000; });
  client->send(ConstBytes(frame).subspan(1000));
  EXPECT_EQ(client->finish(9).whole, (AnswerReason{Answer::Rejected, Reason::Malformed}));
  EXPECT_GE(on_shard([&] { return shard_->request_memory().bytes(); }), 1 * MiB);
  pass_ms(300);
  wait_until([&] { return shard_->request_memory().bytes() < 64 * KiB; });
  EXPECT_FALSE(client->ended());
}

TEST_F(HelloTest, BuffersOfABusyConnectionAreGivenBackWhenTheyAreEmpty) {
  auto client = open({});
  client->send(large_frame(9, 1 * MiB));
  EXPECT_EQ(client->finish(9).whole, (AnswerReason{Answer::Rejected, Reason::Malformed}));
  for (uint64_t id = 10; id < 14; ++id) {
    pass_ms(60);  // less than a connection idles before its buffers are given back
    EXPECT_EQ(client->simple(Opcode::Stat, id, Tlv::Reason, {}).whole, (AnswerReason{Answer::Ok, Reason::None}));
  }
  EXPECT_LT(on_shard([&] { return shard_->request_memory().bytes(); }), 512 * KiB);
}

TEST_F(HelloTest, Serves256ConnectionsAtOnce) {
  std::vector<std::unique_ptr<RawClient>> clients;
  for (int i = 0; i < 256; ++i) clients.push_back(open({parted(2, 512)}));
  for (size_t i = 0; i < clients.size(); ++i) {
    clients[i]->send(request_frame(Opcode::Put, 3, {}, {section_of({"key-" + std::to_string(i)}, 1024)}));
  }
  for (size_t i = 0; i < clients.size(); ++i) {
    clients[i]->send_item(3, section_of({"key-" + std::to_string(i)}, 1024), 0, 0);
  }
  for (auto& client : clients) EXPECT_EQ(client->finish(3).at(0, 0), (AnswerReason{Answer::Ok, Reason::Stored}));
  for (size_t i = 0; i < clients.size(); ++i) {
    const Said said = clients[i]->ask(Opcode::Get, 4, {}, {section_of({"key-" + std::to_string(255 - i)}, 1024)});
    EXPECT_EQ(said.at(0, 0).answer, Answer::Ok);
    EXPECT_EQ(clients[i]->wrong_parts, 0U);
    EXPECT_EQ(clients[i]->parts_received.size(), 2U);
  }
}

TEST_F(HelloTest, SaysThatItIsStopping) {
  auto client = open({});
  on_shard([&] { shard_->stop(60'000); });
  // Stopping waits for requests that are open; none is, so what comes back is a refusal or the end of the connection.
  const Said said = client->simple(Opcode::Stat, 5, Tlv::Reason, {});
  EXPECT_TRUE(said.malformed || said.whole == (AnswerReason{Answer::Unavailable, Reason::Stopping}));
}

}  // namespace
}  // namespace halfstep::shard
