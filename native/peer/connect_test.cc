// Finding a daemon: the first handshake, daemons that come late or are none, and those that come back as others.
#include <gtest/gtest.h>

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

TEST(Connect, WithoutADaemonCallsWaitForTheFirstHandshakeWithinTheirDeadline) {
  uint16_t port = 0;
  {
    const FakeDaemon gone;
    port = gone.port();
  }
  TryClient client("127.0.0.1:" + std::to_string(port));
  const int layout = client.layout(make_layout({kOpaque}));
  TrySection match(layout, names(1));
  hs_batch batch = TryClient::batch(HS_OP_MATCH, 30'000);
  client.call(batch, match);
  EXPECT_TRUE(match.all("unavailable(no_connection)")) << text_of(match.answers[0]);
  EXPECT_NE(std::string(client.facts().last_error), "");

  hs_batch patient = TryClient::batch(HS_OP_MATCH, 20'000'000);
  ASSERT_NE(client.submit(patient, match), 0U);
  FakeDaemon daemon(port);
  daemon.start();
  client.wait();
  EXPECT_TRUE(match.all("miss(absent)")) << text_of(match.answers[0]);
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

}  // namespace
}  // namespace halfstep::peer
