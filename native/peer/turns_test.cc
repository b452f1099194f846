// Who turns the client's loop: its own thread or the callers, one at a time, and nobody waits for what nobody turns.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <thread>

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

}  // namespace
}  // namespace halfstep::peer
