// Finding a daemon: the first handshake, daemons that come late or are none, and those that come back as others.
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <thread>

#include "peer/fake_daemon.h"
#include "peer/try_client.h"

namespace halfstep::peer {
namespace {

using Frame = FakeDaemon::Frame;
using wire::Opcode;

// What a client says of a daemon that it will not have.
std::string why_not(FakeDaemon& daemon) {
  daemon.start();
  TryClient client(daemon.address());
  EXPECT_FALSE(client.ready(500));
  EXPECT_TRUE(comes_true([&] { return client.facts().last_error[0] != '\0'; }));
  return client.facts().last_error;
}

TEST(Connect, WhatWaitsForTheFirstHandshakeIsAskedInTheOrderOfSubmission) {
  FakeDaemon daemon;
  std::vector<uint32_t> asked;
  daemon.hook = [&](FakeDaemon::Connection&, const Frame& frame) {
    wire::RequestView view;
    if (frame.opcode() == Opcode::Match && wire::parse_request(Opcode::Match, frame.body, &view).ok()) {
      asked.push_back(view.sections[0].item_count());
    }
    return false;
  };
  TryClient client("127.0.0.1:" + std::to_string(daemon.port()));
  const int layout = client.layout(make_layout({kOpaque}));
  TrySection one(layout, {"a"});
  TrySection two(layout, {"a", "b"});
  TrySection three(layout, {"a", "b", "c"});
  hs_batch batch = TryClient::batch(HS_OP_MATCH);
  for (const TrySection* section : {&one, &two, &three}) ASSERT_NE(client.submit(batch, *section), 0U);
  daemon.start();
  for (int i = 0; i < 3; ++i) client.wait();
  EXPECT_TRUE(three.all("miss(absent)")) << text_of(three.answers[0]);
  daemon.stop();
  EXPECT_EQ(asked, (std::vector<uint32_t>{1, 2, 3}));
}

// A port at which nobody listens.
uint16_t closed_port() {
  const FakeDaemon gone;
  return gone.port();
}

TEST(Connect, CallsWaitForTheFirstHandshakeWithinTheirDeadline) {
  const FakeDaemon daemon;  // its socket listens, and nobody answers
  TryClient client("127.0.0.1:" + std::to_string(daemon.port()));
  const int layout = client.layout(make_layout({kOpaque}));
  TrySection match(layout, names(1));
  hs_batch batch = TryClient::batch(HS_OP_MATCH, 30'000);
  client.call(batch, match);
  EXPECT_TRUE(match.all("unavailable(no_connection)")) << text_of(match.answers[0]);
}

// Each deadline is an hour: a call that waited for it would not end.
TEST(Connect, WithoutADaemonCallsFailOnceItWasTriedInVain) {
  const uint16_t port = closed_port();
  TryClient client("127.0.0.1:" + std::to_string(port), 2);
  const int layout = client.layout(make_layout({kOpaque}));
  TrySection match(layout, names(3));
  hs_batch batch = TryClient::batch(HS_OP_MATCH, 3'600'000'000U);
  std::vector<Octets> blocks(3, random_octets(50, 1));
  TrySection put(layout, names(3));
  hs_batch puts = TryClient::batch(HS_OP_PUT, 3'600'000'000U);
  for (int call = 0; call < 2; ++call) {
    client.call(batch, match);
    EXPECT_TRUE(match.all("unavailable(no_connection)")) << text_of(match.answers[0]);
  }
  client.call(puts, put.into(blocks));
  EXPECT_TRUE(put.all("unavailable(no_connection)")) << text_of(put.answers[0]);
  EXPECT_NE(std::string(client.facts().last_error), "");

  FakeDaemon daemon(port, 2);
  daemon.start();
  ASSERT_TRUE(client.ready()) << client.facts().last_error;
  client.call(batch, match);
  EXPECT_TRUE(match.all("miss(absent)")) << text_of(match.answers[0]);
}

TEST(Connect, WithANameThatDoesNotResolveCallsFailOnceItWasAskedFor) {
  TryClient client("name.invalid:7350");
  const int layout = client.layout(make_layout({kOpaque}));
  TrySection match(layout, names(1));
  hs_batch batch = TryClient::batch(HS_OP_MATCH, 3'600'000'000U);
  client.call(batch, match);
  EXPECT_TRUE(match.all("unavailable(no_connection)")) << text_of(match.answers[0]);
  EXPECT_NE(std::string(client.facts().last_error).find("name.invalid"), std::string::npos) << client.facts().last_error;
}

TEST(Connect, ADaemonOfAnotherVersionIsNamed) {
  FakeDaemon daemon;
  daemon.hello.version = wire::kVersion + 1;
  const std::string why = why_not(daemon);
  EXPECT_NE(why.find("speaks protocol version 2, this client 1"), std::string::npos) << why;
}

TEST(Connect, WhatIsNoDaemonIsAskedAfter) {
  FakeDaemon daemon;
  daemon.hook = [](FakeDaemon::Connection& connection, const FakeDaemon::Frame& frame) {
    if (frame.opcode() != wire::Opcode::Hello) return false;
    connection.send(Octets(64));
    return true;
  };
  const std::string why = why_not(daemon);
  EXPECT_NE(why.find("is it halfstepd that listens there?"), std::string::npos) << why;
}

TEST(Connect, AHostMayBeAName) {
  FakeDaemon daemon;
  daemon.start();
  TryClient none("name.invalid:" + std::to_string(daemon.port()));
  EXPECT_FALSE(none.ready(20));
  TryClient client("localhost:" + std::to_string(daemon.port()));
  EXPECT_TRUE(client.ready()) << client.facts().last_error;
}

TEST(Connect, ARestartedDaemonIsFoundAgainAndCallsMeanwhileFailFast) {
  auto daemon = std::make_unique<FakeDaemon>();
  const uint16_t port = daemon->port();
  TryClient client(daemon->address(), 2);
  const int layout = client.layout(make_layout({kOpaque}));
  ASSERT_TRUE(client.ready());
  const hs_client_facts before = client.facts();
  daemon.reset();
  ASSERT_TRUE(comes_true([&] { return client.facts().connected == 0; })) << client.facts().last_error;
  TrySection match(layout, names(1));
  hs_batch batch = TryClient::batch(HS_OP_MATCH, 3'600'000'000U);
  client.call(batch, match);  // would wait for an hour otherwise
  EXPECT_TRUE(match.all("unavailable(no_connection)"));
  daemon = std::make_unique<FakeDaemon>(port);
  daemon->start();
  ASSERT_TRUE(client.ready());
  client.call(batch, match);
  EXPECT_TRUE(match.all("miss(absent)"));
  EXPECT_NE(std::memcmp(before.boot_id, client.facts().boot_id, sizeof(before.boot_id)), 0);
}

TEST(Connect, AnotherShardMapAfterARestartIsTaken) {
  auto daemon = std::make_unique<FakeDaemon>(0, 2);
  const uint16_t port = daemon->port();
  TryClient client(daemon->address());
  const int layout = client.layout(make_layout({kOpaque}));
  TrySection match(layout, names(20));
  EXPECT_EQ(client.match(match).items_ok, 0U);
  EXPECT_TRUE(match.all("miss(absent)"));
  daemon.reset();
  daemon = std::make_unique<FakeDaemon>(port, 3);
  daemon->start();
  ASSERT_TRUE(comes_true([&] { return client.facts().connected == 3; })) << client.facts().last_error;
  std::vector<Octets> blocks(20, random_octets(50, 1));
  TrySection put(layout, names(20));
  EXPECT_EQ(client.put(put.into(blocks)).items_ok, 20U) << text_of(put.answers[0]);
}

TEST(Connect, AMapThatContradictsItselfIsNotAskedForAgainAtOnce) {
  FakeDaemon daemon(0, 2);
  std::atomic<uint32_t> hellos{0};
  daemon.greets = [&](const FakeDaemon::Connection&, wire::HelloServer& say) {
    ++hellos;
    say.shard = 0;
  };
  const std::string address = daemon.address();
  hs_options options{};
  options.struct_bytes = sizeof(options);
  options.address = address.c_str();
  options.backoff_ms_min = options.backoff_ms_max = 600'000;
  hs_client* client = nullptr;
  char why[256] = "";
  ASSERT_EQ(hs_client_open(&options, &client, why, sizeof(why)), 0) << why;
  EXPECT_EQ(hs_client_wait_ready(client, 300, why, sizeof(why)), 0);
  EXPECT_LE(hellos, 2U);  // one of each shard
  hs_client_close(client);
}

wire::HelloServer of_store(wire::HelloServer hello, uint8_t number) {
  hello.store_uuid.fill(std::byte{number});
  return hello;
}

TEST(Connect, OfSeveralCardsOneThatIsDeadLeavesItsConnectionsToTheOthers) {
  FakeDaemon daemon;  // at 127.0.0.1 alone
  const std::string port = std::to_string(daemon.port());
  daemon.start();
  TryClient client("127.0.0.2,127.0.0.1,127.0.0.3:" + port, 3);
  ASSERT_TRUE(client.ready()) << client.facts().last_error;
  EXPECT_TRUE(comes_true([&] { return client.facts().connected == 3; })) << client.facts().last_error;
}

TEST(Connect, OfSeveralCardsTheOneThatFailedIsNamed) {
  TryClient client("127.0.0.2,127.0.0.3:1", 1);
  EXPECT_FALSE(client.ready(200));
  EXPECT_TRUE(comes_true([&] { return client.facts().last_error[0] != '\0'; }));
  const std::string said = client.facts().last_error;
  EXPECT_TRUE(said == "127.0.0.2:1: ECONNREFUSED (Connection refused)" ||
              said == "127.0.0.3:1: ECONNREFUSED (Connection refused)")
      << said;
}

TEST(Connect, SeveralHostsAreAddressesInNumbers) {
  hs_client* client = nullptr;
  char why[256] = "";
  hs_options options{};
  options.struct_bytes = sizeof(options);
  options.name_space = "default";
  options.address = "127.0.0.1,node-b:7350";
  EXPECT_EQ(hs_client_open(&options, &client, why, sizeof(why)), -1);
  EXPECT_STREQ(why, "127.0.0.1,node-b:7350: 'node-b', of several hosts, is no IPv4 address");
  options.address = "127.0.0.1,:7350";
  EXPECT_EQ(hs_client_open(&options, &client, why, sizeof(why)), -1);
  EXPECT_NE(std::string(why).find("''"), std::string::npos) << why;
  options.address = "127.0.0.1,127.0.0.2,127.0.0.3,127.0.0.4,127.0.0.5,127.0.0.6,127.0.0.7,127.0.0.8,127.0.0.9:7350";
  EXPECT_EQ(hs_client_open(&options, &client, why, sizeof(why)), -1);
  EXPECT_NE(std::string(why).find("names 9 hosts; at most 8"), std::string::npos) << why;
}

// A name of several addresses, or a balancer: every other connection is another daemon's.
TEST(Connect, ANameThatLeadsToTwoDaemonsIsOneStore) {
  FakeDaemon daemon;
  daemon.greets = [](const FakeDaemon::Connection& connection, wire::HelloServer& hello) {
    hello = of_store(hello, static_cast<uint8_t>(1 + connection.number % 2));
  };
  std::array<std::atomic<uint32_t>, 2> used{};
  daemon.hook = [&](FakeDaemon::Connection& connection, const Frame& frame) {
    if (frame.opcode() == Opcode::RegisterLayout || frame.opcode() == Opcode::Match) ++used[connection.number % 2];
    return false;
  };
  TryClient client(daemon.address(), 4);
  const int layout = client.layout(make_layout({kOpaque}));
  ASSERT_TRUE(comes_true([&] { return client.facts().connected == 4; })) << client.facts().last_error;
  EXPECT_GE(daemon.accepted.load(), 5U) << "nobody was sent to the other store";
  TrySection match(layout, names(1));
  client.match(match);
  EXPECT_TRUE(match.all("miss(absent)"));
  EXPECT_TRUE(used[0] == 0 || used[1] == 0) << "the other store was asked, too";
  const std::string said = client.facts().last_error;
  EXPECT_NE(said.find("answers there, the client's is 0"), std::string::npos) << said;
  EXPECT_EQ(client.facts().store_uuid[0], used[0] > 0 ? 1 : 2);
}

TEST(Connect, AnotherStoreIsTakenOnceNoConnectionToTheFirstIsLeft) {
  auto daemon = std::make_unique<FakeDaemon>();
  const uint16_t port = daemon->port();
  daemon->hello = of_store(daemon->hello, 1);
  TryClient client(daemon->address(), 2);
  const int layout = client.layout(make_layout({kOpaque}));
  ASSERT_TRUE(comes_true([&] { return client.facts().connected == 2; })) << client.facts().last_error;
  daemon.reset();
  daemon = std::make_unique<FakeDaemon>(port);
  daemon->hello = of_store(daemon->hello, 2);
  daemon->start();
  ASSERT_TRUE(comes_true([&] { return client.facts().connected == 2 && client.facts().store_uuid[0] == 2; }))
      << client.facts().last_error;
  TrySection match(layout, names(1));
  client.match(match);
  EXPECT_TRUE(match.all("miss(absent)")) << text_of(match.answers[0]);
}

TEST(Connect, ShardsThatAreReachedServeAndThePortOfOneThatIsNotIsNamed) {
  const uint16_t closed = closed_port();
  FakeDaemon daemon(0, 2);
  daemon.told_ports[1] = closed;
  TryClient client(daemon.address());
  const int layout = client.layout(make_layout({kOpaque}));
  std::vector<Octets> blocks(20, random_octets(50, 1));
  TrySection put(layout, names(20));
  hs_batch batch = TryClient::batch(HS_OP_PUT, 3'600'000'000U);
  client.call(batch, put.into(blocks));  // would wait for an hour otherwise
  uint32_t served = 0;
  for (size_t i = 0; i < put.keys.size(); ++i) {
    const bool reached = wire::route(as_bytes(put.keys[i]), 2) == 0;
    served += reached ? 1 : 0;
    EXPECT_EQ(text_of(put.answers[i]), reached ? "ok(stored)" : "unavailable(no_connection)") << put.keys[i];
  }
  EXPECT_GT(served, 0U);
  // Whether its port was refused before or after the other shard was reached.
  const std::string said = client.facts().last_error;
  EXPECT_NE(said.find("127.0.0.1:" + std::to_string(closed)), std::string::npos) << said;
  const std::string ports =
      std::to_string(std::min(daemon.port(), closed)) + ", " + std::to_string(std::max(daemon.port(), closed));
  EXPECT_NE(said.find("shard 1 of 2 is not reached while others are: open ports "), std::string::npos) << said;
  EXPECT_TRUE(said.ends_with(ports) || closed == daemon.port() + 1 || closed + 1 == daemon.port()) << said;
  EXPECT_EQ(client.facts().connected, 1U);
  EXPECT_EQ(client.facts().connections, 2U);
  EXPECT_FALSE(client.ready(0));
}

}  // namespace
}  // namespace halfstep::peer
