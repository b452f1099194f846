// Who turns the client's loop: its own thread or the callers, one at a time, and nobody waits for what nobody turns.
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <thread>
#include <utility>

#include "peer/fake_daemon.h"
#include "peer/point.h"
#include "peer/try_client.h"

namespace halfstep::peer {
namespace {

using Frame = FakeDaemon::Frame;
using wire::Opcode;

// Between its look at the queue and its turn of the loop a caller may be overtaken by the client's own thread, which ends the
// ticket; so a turn must not wait when there is an event. With room for none, the event is still there at every turn.
TEST(Turns, ACallerDoesNotWaitForWhatHasEnded) {
  using std::chrono::steady_clock;
  FakeDaemon daemon;
  TryClient client(daemon.address());
  const int layout = client.layout(make_layout({kOpaque}));
  ASSERT_TRUE(client.ready());
  const auto began = steady_clock::now();
  for (int call = 0; call < 20; ++call) {
    TrySection match(layout, names(1));
    hs_batch batch = TryClient::batch(HS_OP_MATCH, 60'000'000);
    ASSERT_NE(client.submit(batch, match), 0U) << client.why;
    // The client's own thread leaves the loop to callers for a millisecond after a call; later than that this shows nothing.
    const auto until = steady_clock::now() + std::chrono::milliseconds(3);
    do {
      EXPECT_EQ(hs_queue_wait(client.queue, nullptr, 0, 20'000'000), 0U);
    } while (steady_clock::now() < until);
    EXPECT_EQ(client.wait().kind, HS_EVENT_DONE);
    EXPECT_TRUE(match.all("miss(absent)")) << text_of(match.answers[0]);
  }
  EXPECT_LT(steady_clock::now() - began, std::chrono::seconds(15));
}

// Nothing that the loop hears of comes with a ticket which is refused at once.
TEST(Turns, ATicketRefusedAtOnceWakesWhoTurnsTheLoopForItsQueue) {
  FakeDaemon daemon;
  Point held;
  daemon.hook = [&](FakeDaemon::Connection&, const Frame& frame) {
    if (frame.opcode() != Opcode::Match) return false;
    held.reach();
    return true;  // and no answer
  };
  TryClient client(daemon.address(), 1, 1);
  const int layout = client.layout(make_layout({kOpaque}));
  ASSERT_TRUE(client.ready());
  hs_batch stat = TryClient::batch(HS_OP_STAT);
  client.call(stat);  // the loop is a caller's for a while
  TrySection match(layout, names(1));
  hs_batch batch = TryClient::batch(HS_OP_MATCH, 60'000'000);
  ASSERT_NE(client.submit(batch, match), 0U) << client.why;
  hs_event event{};
  size_t count = 0;
  std::thread waiter([&] { count = hs_queue_wait(client.queue, &event, 1, 20'000'000); });
  held.wait();
  std::this_thread::sleep_for(std::chrono::milliseconds(50));  // so that it sleeps in the loop; sooner, this shows nothing
  TrySection refused(layout, names(1));
  hs_batch second = TryClient::batch(HS_OP_MATCH);
  const auto began = std::chrono::steady_clock::now();
  const hs_ticket ticket = client.submit(second, refused);
  waiter.join();
  EXPECT_LT(std::chrono::steady_clock::now() - began, std::chrono::seconds(10));
  EXPECT_EQ(count, 1U);
  EXPECT_EQ(event.ticket, ticket);
  EXPECT_TRUE(refused.all("throttled(queue_full)")) << text_of(refused.answers[0]);
  hs_client_close(client.client);  // the first one's memory goes before it
  client.client = nullptr;
}

TEST(Turns, EightThreadsShareOneClient) {
  FakeDaemon daemon;
  TryClient client(daemon.address(), 2);
  const int layout = client.layout(make_layout({kOpaque}));
  std::vector<std::thread> threads;
  std::atomic<uint32_t> right{0};
  for (uint64_t t = 0; t < 8; ++t) {
    threads.emplace_back([&, t] {
      hs_queue* queue = nullptr;
      ASSERT_EQ(hs_queue_open(client.client, &queue), 0);
      const auto call = [&](uint32_t operation, const TrySection& section) {
        hs_batch batch = TryClient::batch(operation, 60'000'000);
        batch.sections = &section.section;
        batch.section_count = 1;
        ASSERT_NE(hs_submit(queue, &batch, nullptr, 0), 0U);
        hs_event event{};
        ASSERT_EQ(hs_queue_wait(queue, &event, 1, UINT64_MAX), 1U);
      };
      for (uint64_t round = 0; round < 20; ++round) {
        const std::string key = std::to_string(t) + "/" + std::to_string(round);
        std::vector<Octets> block{random_octets(1 + 7919 * round, t * 100 + round)};
        TrySection put(layout, {key});
        call(HS_OP_PUT, put.into(block));
        std::vector<Octets> back{Octets(block[0].size())};
        TrySection get(layout, {key});
        call(HS_OP_GET, get.into(back));
        if (text_of(get.answers[0]) == "ok(none)" && back == block) ++right;
        TrySection erase(layout, {key});
        call(HS_OP_DELETE, erase);
      }
      hs_queue_close(queue);
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(right.load(), 160U);
}

TEST(Turns, WhatACallerLeavesBehindEndsWithoutIt) {
  FakeDaemon daemon;
  TryClient client(daemon.address());
  const int layout = client.layout(make_layout({kOpaque}));
  std::vector<Octets> block{random_octets(1 << 20, 1)};
  TrySection put(layout, names(1));
  ASSERT_EQ(client.put(put.into(block)).items_ok, 1U);  // waited: from here on the loop is this caller's, for a while
  const uint64_t received = client.facts().bytes_received;
  std::vector<Octets> back{Octets(1 << 20)};
  TrySection get(layout, names(1));
  hs_batch batch = TryClient::batch(HS_OP_GET);
  get.into(back);
  ASSERT_NE(client.submit(batch, get), 0U);
  for (int i = 0; i < 10'000 && client.facts().bytes_received < received + (1 << 20); ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  EXPECT_GE(client.facts().bytes_received, received + (1 << 20));
  EXPECT_EQ(client.wait().kind, HS_EVENT_DONE);
  EXPECT_EQ(back, block);
}

// The status of the client's own thread, the one of that name.
std::filesystem::path client_thread_status() {
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
    std::string name;
    std::ifstream(task.path() / "comm") >> name;
    if (name == "halfstep") return task.path() / "status";
  }
  ADD_FAILURE() << "no thread of that name";
  return {};
}

// How often that thread has gone to sleep.
uint64_t sleeps_of(const std::filesystem::path& thread_status) {
  std::ifstream status(thread_status);
  for (std::string word; status >> word;) {
    uint64_t count = 0;
    if (word == "voluntary_ctxt_switches:" && status >> count) return count;
  }
  ADD_FAILURE() << thread_status << " says nothing of it";
  return 0;
}

// Each look whether the caller is still there would take a core away from what it receives.
TEST(Turns, TheClientsThreadSeldomWakesWhileACallerWaits) {
  using std::chrono::milliseconds;
  FakeDaemon daemon;
  TryClient client(daemon.address());
  const int layout = client.layout(make_layout({kOpaque}));
  ASSERT_TRUE(client.ready());
  const std::filesystem::path thread = client_thread_status();
  // The loop is left to who comes within a millisecond; where the machine was slower it is the thread that turns, and sleeps.
  bool looked = false;
  for (int round = 0; round < 20 && !looked; ++round) {
    TrySection match(layout, names(1));
    hs_batch batch = TryClient::batch(HS_OP_MATCH);
    ASSERT_NE(client.submit(batch, match), 0U);
    ASSERT_EQ(client.wait().kind, HS_EVENT_DONE);
    const uint64_t slept = sleeps_of(thread);
    const auto began = std::chrono::steady_clock::now();
    hs_event event{};
    EXPECT_EQ(hs_queue_wait(client.queue, &event, 1, 300'000), 0U);
    const auto sleeps = static_cast<int64_t>(sleeps_of(thread) - slept);
    const auto took = std::chrono::steady_clock::now() - began;
    EXPECT_LT(sleeps, took / milliseconds(3));
    looked = sleeps > took / milliseconds(30);
  }
  EXPECT_TRUE(looked) << "no caller turned";
}

TEST(Turns, ACallerWhoOnlyPollsIsServed) {
  FakeDaemon daemon;
  TryClient client(daemon.address());
  const int layout = client.layout(make_layout({kOpaque}));
  for (int round = 0; round < 20; ++round) {
    TrySection match(layout, names(3));
    hs_batch batch = TryClient::batch(HS_OP_MATCH);
    ASSERT_NE(client.submit(batch, match), 0U);
    hs_event event{};
    while (hs_queue_poll(client.queue, &event, 1) == 0) std::this_thread::yield();
    EXPECT_TRUE(match.all("miss(absent)"));
  }
}

// ---- Ends from the side --------------------------------------------------------------------------------------------------

// A hang is a failure, and the end: the thread that hangs cannot be joined.
void join_or_die(std::thread& thread, const std::atomic<bool>& over, const char* what) {
  if (!comes_true([&] { return over.load(); })) {
    std::fprintf(stderr, "%s does not return\n", what);
    std::abort();
  }
  thread.join();
}

// A caller that turns is held in a sink while the client's own thread is woken, so that one waits for the baton. Then the
// caller takes the wake-up that comes with the end, and nothing but a look says to the other that the client stops.
TEST(Turns, TheClientStopsThoughACallerTookTheWakeUp) {
  FakeDaemon daemon;
  TryClient client(daemon.address());
  client.layout(make_layout({kOpaque}));
  ASSERT_TRUE(client.ready());
  hs_queue* other = nullptr;
  ASSERT_EQ(hs_queue_open(client.client, &other), 0);
  const std::filesystem::path thread = client_thread_status();
  struct Sink {
    Point entered, go_on;
    bool used = false;
  } sink;
  std::atomic<bool> waited{false};
  std::thread caller([&] {
    hs_batch stat = TryClient::batch(HS_OP_STAT);
    client.call(stat);  // the loop is a caller's for a while
    stat.sink = [](void* context, const void*, size_t, const void*, size_t) {
      auto& held = *static_cast<Sink*>(context);
      if (std::exchange(held.used, true)) return;
      held.entered.reach();
      held.go_on.wait();
    };
    stat.sink_context = &sink;
    EXPECT_NE(hs_submit(other, &stat, nullptr, 0), 0U);
    hs_event event{};
    EXPECT_EQ(hs_queue_wait(client.queue, &event, 1, UINT64_MAX), 0U);
    waited = true;
  });
  sink.entered.wait();
  // The thread looks each millisecond or five until it is woken, and then sleeps until it has the baton.
  hs_cancel(client.queue, UINT64_MAX);  // of no ticket: it wakes the loop
  uint64_t slept = 0;
  for (int same = 0, look = 0; same < 3 && look < 1000; ++look) {
    const uint64_t before = std::exchange(slept, sleeps_of(thread));
    same = slept == before ? same + 1 : 0;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  sink.go_on.reach();
  hs_event event{};
  size_t taken = 0;
  EXPECT_TRUE(comes_true([&] { return (taken += hs_queue_poll(other, &event, 1)) == 1; }));
  std::this_thread::sleep_for(
      std::chrono::milliseconds(20));  // so that the caller sleeps in the loop; sooner, this shows nothing
  std::atomic<bool> closed{false};
  std::thread closer([&] {
    hs_client_end(client.client);
    closed = true;
  });
  join_or_die(closer, closed, "hs_client_end");
  join_or_die(caller, waited, "hs_queue_wait");
  hs_queue_close(other);
}

// Four threads that wait for nothing: one may turn the loop, the others sleep.
void end_beside_waiters(void (*end)(TryClient& client)) {
  FakeDaemon daemon;
  TryClient client(daemon.address());
  client.layout(make_layout({kOpaque}));
  ASSERT_TRUE(client.ready());
  std::array<std::atomic<bool>, 4> out{};
  std::vector<std::thread> waiters;
  for (std::atomic<bool>& left : out) {
    waiters.emplace_back([&] {
      hs_event event{};
      EXPECT_EQ(hs_queue_wait(client.queue, &event, 1, UINT64_MAX), 0U);
      left = true;
    });
  }
  std::atomic<bool> ended{false};
  std::thread ender([&] {
    end(client);
    ended = true;
  });
  join_or_die(ender, ended, "the end");
  for (size_t i = 0; i < out.size(); ++i) join_or_die(waiters[i], out[i], "hs_queue_wait");
  EXPECT_EQ(hs_queue_ended(client.queue), 1);
  // Whoever comes later has nothing to wait for, and may not submit.
  hs_event event{};
  EXPECT_EQ(hs_queue_wait(client.queue, &event, 1, UINT64_MAX), 0U);
  hs_batch stat = TryClient::batch(HS_OP_STAT);
  EXPECT_EQ(client.submit(stat), 0U);
  EXPECT_NE(client.why.find("closed"), std::string::npos);
}

TEST(Turns, TheClientsEndSendsWaitersOfItsQueuesAway) {
  end_beside_waiters([](TryClient& client) { hs_client_end(client.client); });
}

TEST(Turns, TheQueuesEndSendsItsWaitersAway) {
  end_beside_waiters([](TryClient& client) { hs_queue_end(client.queue); });
}

TEST(Turns, ANudgeBeforeTheWaitIsNotLost) {
  FakeDaemon daemon;
  TryClient client(daemon.address());
  hs_event event{};
  const uint64_t seen = hs_queue_nudges(client.queue);
  hs_queue_nudge(client.queue);
  EXPECT_EQ(hs_queue_wait_unless(client.queue, &event, 1, UINT64_MAX, seen), 0U);
  hs_queue* of_nobody = nullptr;
  ASSERT_EQ(hs_queue_open(nullptr, &of_nobody), 0);
  const uint64_t before = hs_queue_nudges(of_nobody);
  std::atomic<bool> left{false};
  std::thread waiter([&] {
    EXPECT_EQ(hs_queue_wait_unless(of_nobody, &event, 1, UINT64_MAX, before), 0U);
    left = true;
  });
  hs_queue_nudge(of_nobody);
  join_or_die(waiter, left, "hs_queue_wait_unless");
  hs_queue_close(of_nobody);
}

TEST(Turns, EveryThreadThatClosesReturnsWhenAllIsOver) {
  FakeDaemon daemon;
  Point held;
  daemon.hook = [&](FakeDaemon::Connection&, const Frame& frame) {
    if (frame.opcode() != Opcode::Match) return false;
    held.reach();
    return true;
  };
  TryClient client(daemon.address());
  const int layout = client.layout(make_layout({kOpaque}));
  ASSERT_TRUE(client.ready());
  TrySection match(layout, names(1));
  hs_batch batch = TryClient::batch(HS_OP_MATCH, 600'000'000);
  ASSERT_NE(client.submit(batch, match), 0U) << client.why;
  held.wait();
  std::array<std::atomic<bool>, 4> over{};
  std::vector<std::thread> closers;
  for (size_t i = 0; i < over.size(); ++i) {
    closers.emplace_back([&, i] {
      i % 2 == 0 ? hs_client_end(client.client) : hs_queue_end(client.queue);
      EXPECT_TRUE(match.all("cancelled(closed)")) << text_of(match.answers[0]);
      over[i] = true;
    });
  }
  for (size_t i = 0; i < over.size(); ++i) join_or_die(closers[i], over[i], "an end");
  EXPECT_EQ(client.wait().kind, HS_EVENT_DONE);
}

TEST(Turns, WhoWaitsForAClientThatIsClosedHearsOfIt) {
  TryClient client("127.0.0.1:1");
  std::atomic<bool> heard{false};
  std::thread waiter([&] {
    char why[256] = "";
    EXPECT_EQ(hs_client_wait_ready(client.client, 600'000, why, sizeof(why)), -1);
    EXPECT_STREQ(why, "closed: this client was closed");
    heard = true;
  });
  hs_client_end(client.client);
  join_or_die(waiter, heard, "hs_client_wait_ready");
}

}  // namespace
}  // namespace halfstep::peer
