// A daemon that is there and says nothing: after a few answers that are overdue its calls cost nobody a deadline any more.
#include <gtest/gtest.h>

#include <atomic>
#include <functional>

#include "peer/fake_daemon.h"
#include "peer/point.h"
#include "peer/try_client.h"

namespace halfstep::peer {
namespace {

using Frame = FakeDaemon::Frame;
using wire::Answer;
using wire::Opcode;

constexpr uint32_t kConnectMs = 50;  // nothing heard for so long, beside answers that are overdue
constexpr uint32_t kShortUs = 20'000;
constexpr uint32_t kHourUs = 3'600'000'000U;

// Frozen from freeze() to thaw() on the connections that `which` names: whatever comes is read and left.
struct Freezer {
  explicit Freezer(uint32_t shards = 1) : daemon(0, shards) {
    daemon.hook = [this](FakeDaemon::Connection& connection, const Frame&) {
      if (frozen && (!which || which(connection))) thawed.wait();
      return false;
    };
  }
  ~Freezer() { thaw(); }
  void freeze() { frozen = true; }
  void thaw() {
    frozen = false;
    thawed.reach();
  }
  FakeDaemon daemon;
  std::function<bool(const FakeDaemon::Connection&)> which;
  std::atomic<bool> frozen{false};
  Point thawed;
};

bool ends_as(TryClient& client, TrySection& match, uint32_t deadline_us, const std::string& answer) {
  hs_batch batch = TryClient::batch(HS_OP_MATCH, deadline_us);
  client.call(batch, match);
  return match.all(answer);
}

TEST(Silence, AfterAFewOverdueAnswersCallsFailAtOnceUntilTheDaemonIsHeard) {
  Freezer freezer;
  TryClient client(freezer.daemon.address(), 1, 0, kConnectMs);
  const int layout = client.layout(make_layout({kOpaque}));
  ASSERT_TRUE(client.ready());
  freezer.freeze();
  TrySection match(layout, names(2));
  for (int overdue = 0; overdue < 3; ++overdue) {
    EXPECT_TRUE(ends_as(client, match, kShortUs, "late(deadline)")) << text_of(match.answers[0]);
  }
  ASSERT_TRUE(comes_true([&] { return ends_as(client, match, kShortUs, "unavailable(unresponsive)"); }));
  EXPECT_TRUE(ends_as(client, match, kHourUs, "unavailable(unresponsive)")) << text_of(match.answers[0]);
  EXPECT_EQ(client.facts().connected, 0U);
  EXPECT_STREQ(client.facts().transport, "");
  const std::string said = client.facts().last_error;
  EXPECT_NE(said.find(freezer.daemon.address()), std::string::npos) << said;
  EXPECT_NE(said.find("hangs, or is stopped"), std::string::npos) << said;

  freezer.thaw();
  ASSERT_TRUE(comes_true([&] { return client.facts().connected == 1; })) << client.facts().last_error;
  EXPECT_STREQ(client.facts().transport, "tcp");
  EXPECT_TRUE(ends_as(client, match, kHourUs, "miss(absent)")) << text_of(match.answers[0]);
}

// Its machine may be gone and back: the old connection would never be answered.
TEST(Silence, WhatStaysSilentIsProbedByHandshakes) {
  Freezer freezer;
  TryClient client(freezer.daemon.address(), 1, 0, kConnectMs);
  const int layout = client.layout(make_layout({kOpaque}));
  ASSERT_TRUE(client.ready());
  freezer.freeze();
  TrySection match(layout, names(2));
  ASSERT_TRUE(comes_true([&] { return ends_as(client, match, kShortUs, "unavailable(unresponsive)"); }));
  ASSERT_TRUE(comes_true([&] { return freezer.daemon.accepted.load() >= 4; })) << "nothing was tried beside the old connection";
  EXPECT_TRUE(ends_as(client, match, kHourUs, "unavailable(unresponsive)")) << text_of(match.answers[0]);
  freezer.thaw();
  ASSERT_TRUE(comes_true([&] { return client.facts().connected == 1; })) << client.facts().last_error;
  EXPECT_EQ(client.facts().handshakes, 2U);
  EXPECT_TRUE(ends_as(client, match, kHourUs, "miss(absent)")) << text_of(match.answers[0]);
}

// Somebody has time for it.
TEST(Silence, ARequestThatIsStillAwaitedIsNotEndedBySilence) {
  Freezer freezer;
  TryClient client(freezer.daemon.address(), 1, 0, kConnectMs);
  const int layout = client.layout(make_layout({kOpaque}));
  ASSERT_TRUE(client.ready());
  freezer.freeze();
  hs_queue* other = nullptr;
  ASSERT_EQ(hs_queue_open(client.client, &other), 0);
  TrySection patient(layout, names(1));
  hs_batch batch = TryClient::batch(HS_OP_MATCH, kHourUs);
  batch.sections = &patient.section;
  batch.section_count = 1;
  ASSERT_NE(hs_submit(other, &batch, nullptr, 0), 0U);
  TrySection match(layout, names(2));
  ASSERT_TRUE(comes_true([&] { return ends_as(client, match, kShortUs, "unavailable(unresponsive)"); }));
  // Several times as long as it takes to end a connection that nobody waits for; on a slow machine it shows less, never a
  // fault.
  std::this_thread::sleep_for(std::chrono::milliseconds(8 * kConnectMs));
  freezer.thaw();
  hs_event event{};
  ASSERT_EQ(hs_queue_wait(other, &event, 1, 30'000'000), 1U);
  EXPECT_TRUE(patient.all("miss(absent)")) << text_of(patient.answers[0]);
  EXPECT_EQ(client.facts().handshakes, 1U);
  hs_queue_close(other);
}

TEST(Silence, OtherShardsServeOn) {
  Freezer freezer(2);
  freezer.which = [](const FakeDaemon::Connection& connection) { return connection.shard == 1; };
  TryClient client(freezer.daemon.address(), 1, 0, kConnectMs);
  const int layout = client.layout(make_layout({kOpaque}));
  ASSERT_TRUE(client.ready());
  freezer.freeze();
  TrySection match(layout, names(20));
  const auto is_as = [&](size_t i, const std::string& frozen) {
    return text_of(match.answers[i]) == (wire::route(as_bytes(match.keys[i]), 2) == 0 ? "miss(absent)" : frozen);
  };
  const auto all_are = [&](uint32_t deadline_us) {
    hs_batch batch = TryClient::batch(HS_OP_MATCH, deadline_us);
    client.call(batch, match);
    bool all = true;
    for (size_t i = 0; i < match.keys.size(); ++i) all = all && is_as(i, "unavailable(unresponsive)");
    return all;
  };
  ASSERT_TRUE(comes_true([&] { return all_are(kShortUs); })) << text_of(match.answers[0]);
  EXPECT_TRUE(all_are(kHourUs));
  EXPECT_EQ(client.facts().connected, 1U);
}

// Each answer comes after its deadline, and comes.
TEST(Silence, DeadlinesThatAreMerelyShortBreakNothingOff) {
  FakeDaemon daemon;
  std::atomic<uint64_t> asked{0};
  daemon.hook = [&](FakeDaemon::Connection& connection, const Frame& frame) {
    if (frame.opcode() == Opcode::Match) {
      asked = frame.header.request_id;
      return true;
    }
    if (frame.opcode() != Opcode::Cancel) return false;
    connection.send(FakeDaemon::final(asked, {Answer::Cancelled}));
    connection.send(FakeDaemon::final(frame.header.request_id, {Answer::Ok}));
    return true;
  };
  TryClient client(daemon.address(), 1, 0, kConnectMs);
  const int layout = client.layout(make_layout({kOpaque}));
  ASSERT_TRUE(client.ready());
  TrySection match(layout, names(1));
  for (int call = 0; call < 12; ++call) {
    const uint64_t received = client.facts().bytes_received;
    ASSERT_TRUE(ends_as(client, match, kShortUs, "late(deadline)")) << call << ": " << text_of(match.answers[0]);
    ASSERT_TRUE(comes_true([&] { return client.facts().bytes_received > received; }));
  }
  EXPECT_EQ(client.facts().handshakes, 1U);
  EXPECT_EQ(client.facts().connected, 1U);
}

}  // namespace
}  // namespace halfstep::peer
