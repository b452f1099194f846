// A daemon that forgets a layout, with its namespace perhaps, or refuses one for a while: it is registered anew, once a
// request.
#include <gtest/gtest.h>

#include <atomic>

#include "peer/fake_daemon.h"
#include "peer/point.h"
#include "peer/try_client.h"

namespace halfstep::peer {
namespace {

using Frame = FakeDaemon::Frame;
using wire::Answer;
using wire::Opcode;
using wire::Reason;

constexpr wire::AnswerReason kForgotten{Answer::Rejected, Reason::UnknownLayout};

// Forgets the layout when it is told to, and knows it again once it is registered.
struct Forgetful {
  Forgetful() {
    daemon.hook = [this](FakeDaemon::Connection& connection, const Frame& frame) {
      if (frame.opcode() == Opcode::RegisterLayout) {
        ++registered;
        forgotten = for_good.load();
        return false;
      }
      if (frame.opcode() != Opcode::Match && frame.opcode() != Opcode::Put) return false;
      ++asked;
      if (!forgotten) return false;
      connection.send(FakeDaemon::final(frame.header.request_id, kForgotten));
      return true;
    };
  }
  FakeDaemon daemon;
  std::atomic<bool> forgotten{false};
  std::atomic<bool> for_good{false};
  std::atomic<uint32_t> registered{0};
  std::atomic<uint32_t> asked{0};
};

TEST(Layouts, OneThatWasForgottenIsRegisteredAnewAndTheRequestAskedAgain) {
  Forgetful forgetful;
  TryClient client(forgetful.daemon.address());
  const int layout = client.layout(make_layout({kOpaque}));
  ASSERT_TRUE(client.ready());
  forgetful.forgotten = true;
  std::vector<Octets> blocks{random_octets(30'000, 1), random_octets(20, 2)};  // sent at once, within the early credit
  TrySection put(layout, names(2));
  EXPECT_EQ(client.put(put.into(blocks)).items_ok, 2U) << text_of(put.answers[0]);
  EXPECT_EQ(forgetful.registered.load(), 2U);
  EXPECT_EQ(forgetful.asked.load(), 2U);
  forgetful.forgotten = true;
  TrySection match(layout, names(2));
  client.match(match);
  EXPECT_TRUE(match.all("ok(present)")) << text_of(match.answers[0]);
  std::vector<Octets> back{Octets(30'000), Octets(20)};
  TrySection get(layout, names(2));
  EXPECT_EQ(client.get(get.into(back)).items_ok, 2U);
  EXPECT_EQ(back, blocks);
  EXPECT_EQ(client.facts().handshakes, 1U);
}

TEST(Layouts, OneThatIsForgottenAgainAndAgainIsAskedForOnceARequest) {
  Forgetful forgetful;
  TryClient client(forgetful.daemon.address());
  const int layout = client.layout(make_layout({kOpaque}));
  ASSERT_TRUE(client.ready());
  forgetful.for_good = forgetful.forgotten = true;
  TrySection match(layout, names(1));
  client.match(match);
  EXPECT_TRUE(match.all("rejected(unknown_layout)")) << text_of(match.answers[0]);
  EXPECT_EQ(forgetful.asked.load(), 2U);
  EXPECT_EQ(forgetful.registered.load(), 2U);
  EXPECT_EQ(client.facts().connected, 1U);
}

// All of them are on their way when the first is refused.
TEST(Layouts, OneThatManyRequestsMissIsRegisteredAnewOnce) {
  constexpr uint32_t kRequests = 20;
  FakeDaemon daemon;
  std::vector<uint64_t> held;
  std::atomic<uint32_t> registered{0};
  daemon.hook = [&](FakeDaemon::Connection& connection, const Frame& frame) {
    if (frame.opcode() == Opcode::RegisterLayout) ++registered;
    if (frame.opcode() != Opcode::Match || held.size() == kRequests) return false;
    held.push_back(frame.header.request_id);
    if (held.size() == kRequests) {
      for (const uint64_t id : held) connection.send(FakeDaemon::final(id, kForgotten));
    }
    return true;
  };
  TryClient client(daemon.address());
  const int layout = client.layout(make_layout({kOpaque}));
  ASSERT_TRUE(client.ready());
  std::vector<std::unique_ptr<TrySection>> matches;
  hs_batch batch = TryClient::batch(HS_OP_MATCH, 3'600'000'000U);
  for (uint32_t i = 0; i < kRequests; ++i) {
    matches.push_back(std::make_unique<TrySection>(layout, names(1)));
    ASSERT_NE(client.submit(batch, *matches.back()), 0U);
  }
  for (uint32_t i = 0; i < kRequests; ++i) client.wait();
  for (const auto& match : matches) EXPECT_TRUE(match->all("miss(absent)")) << text_of(match->answers[0]);
  EXPECT_EQ(registered.load(), 2U);
}

// While the namespace is gone calls are answered; once it is made again they are served.
TEST(Layouts, ANamespaceThatIsGoneAndComesBackIsServedAgain) {
  FakeDaemon daemon;
  std::atomic<bool> gone{false};
  daemon.hook = [&](FakeDaemon::Connection& connection, const Frame& frame) {
    if (!gone) return false;
    const bool names_it = frame.opcode() == Opcode::Hello || frame.opcode() == Opcode::RegisterLayout;
    if (!names_it && frame.opcode() != Opcode::Match) return false;
    connection.send(FakeDaemon::final(frame.header.request_id,
                                      names_it ? wire::AnswerReason{Answer::Rejected, Reason::UnknownNamespace} : kForgotten));
    if (frame.opcode() == Opcode::Hello) connection.end();
    return true;
  };
  TryClient client(daemon.address());
  const int layout = client.layout(make_layout({kOpaque}));
  ASSERT_TRUE(client.ready());
  gone = true;
  TrySection match(layout, names(1));
  hs_batch batch = TryClient::batch(HS_OP_MATCH, 3'600'000'000U);
  client.call(batch, match);
  EXPECT_TRUE(match.all("rejected(unknown_namespace)")) << text_of(match.answers[0]);
  ASSERT_TRUE(comes_true([&] { return client.facts().connected == 0; }));
  gone = false;
  ASSERT_TRUE(comes_true([&] { return client.facts().connected == 1; })) << client.facts().last_error;
  client.call(batch, match);
  EXPECT_TRUE(match.all("miss(absent)")) << text_of(match.answers[0]);
}

TEST(Layouts, OneThatWasRefusedIsAskedForAgainLater) {
  FakeDaemon daemon;
  std::atomic<bool> full{true};
  std::atomic<wire::AnswerReason> why{wire::AnswerReason{Answer::Rejected, Reason::Limit}};
  daemon.hook = [&](FakeDaemon::Connection& connection, const Frame& frame) {
    if (frame.opcode() != Opcode::RegisterLayout || !full) return false;
    connection.send(FakeDaemon::final(frame.header.request_id, why.load()));
    return true;
  };
  TryClient client(daemon.address());
  const int layout = client.layout(make_layout({kOpaque}));
  ASSERT_TRUE(client.ready());
  TrySection match(layout, names(1));
  client.match(match);
  EXPECT_TRUE(match.all("rejected(limit)")) << text_of(match.answers[0]);
  why = {Answer::Throttled, Reason::Budget};  // the daemon has no memory for the change just now
  EXPECT_TRUE(comes_true([&] {
    client.match(match);
    return match.all("throttled(budget)");
  })) << text_of(match.answers[0]);
  full = false;
  EXPECT_TRUE(comes_true([&] {
    client.match(match);
    return match.all("miss(absent)");
  })) << text_of(match.answers[0]);
  EXPECT_EQ(client.facts().handshakes, 1U);
}

}  // namespace
}  // namespace halfstep::peer
