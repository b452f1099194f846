// Daemons that die, deadlines, cancels, forks, exits: exactly one terminal event, and nothing after it.
#include <gtest/gtest.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <thread>

#include "peer/fake_daemon.h"
#include "peer/point.h"
#include "peer/try_client.h"

// ThreadSanitizer cannot follow threads that a child of a process with threads starts.
#if defined(__SANITIZE_THREAD__)
#define HALFSTEP_TSAN 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define HALFSTEP_TSAN 1
#endif
#endif

namespace halfstep::peer {
namespace {

using Frame = FakeDaemon::Frame;
using wire::Opcode;

// A daemon with one block of `bytes` that sends the first `first` bytes of the answer to a get, says so, and the rest when
// told to.
struct Staller {
  Staller(size_t bytes, size_t first) : layout(make_layout({kOpaque})), first_bytes(first) {
    block = random_octets(bytes, 5);
    daemon.store[{layout.id(), 0, "key-0"}] = block;
    daemon.hook = [this](FakeDaemon::Connection& connection, const Frame& frame) {
      if (frame.opcode() != Opcode::Get || !stalls.exchange(false)) return false;
      std::vector<wire::Run> runs;
      const uint32_t number = FakeDaemon::name_number_of({layout.id(), 0, "key-0"});
      const auto step = static_cast<uint32_t>(std::min<size_t>(block.size(), wire::kChunkBytesMax));
      wire::Run run;
      run.bytes = step;
      run.block_bytes = static_cast<uint32_t>(block.size());
      run.check_count = 1;
      const uint32_t check = wire::wire_check(crc32c(ConstBytes(block).first(step)), number, 0);
      const Octets chunk = FakeDaemon::chunk(frame.header.request_id, {run}, {check}, ConstBytes(block).first(step));
      connection.send(ConstBytes(chunk).first(chunk.size() - step + first_bytes));
      stalled.reach();
      go_on.wait();
      connection.send(ConstBytes(chunk).subspan(chunk.size() - step + first_bytes));
      connection.send(FakeDaemon::final(frame.header.request_id, {wire::Answer::Cancelled}));
      return true;
    };
  }
  FakeDaemon daemon;
  wire::Layout layout;
  size_t first_bytes;
  Octets block;
  std::atomic<bool> stalls{true};
  Point stalled;
  Point go_on;
};

// The bytes that came after the terminal event are on their way into a buffer that has been given another content: none of
// them may arrive there, and the connection must serve the next call.
void expect_no_late_byte(const char* ends, const std::function<void(TryClient&, hs_ticket)>& end) {
  Staller stalling(200'000, 70'000);
  TryClient client(stalling.daemon.address());
  const int layout = client.layout(stalling.layout);
  ASSERT_TRUE(client.ready());
  std::vector<Octets> back{Octets(200'000)};
  TrySection get(layout, {"key-0"});
  hs_batch batch = TryClient::batch(HS_OP_GET, std::string(ends) == "late(deadline)" ? 2'000'000 : 20'000'000);
  const hs_ticket ticket = client.submit(batch, get.into(back));
  stalling.stalled.wait();
  end(client, ticket);
  const hs_event event = client.wait();
  EXPECT_EQ(event.kind, static_cast<uint32_t>(HS_EVENT_DONE));
  EXPECT_EQ(event.items_ok, 0U);
  EXPECT_EQ(text_of(get.answers[0]), ends);
  const Octets pattern(200'000, std::byte{0x3C});
  back[0] = pattern;
  get.answers[0] = {};
  stalling.go_on.reach();
  std::vector<Octets> second{Octets(200'000)};
  TrySection again(layout, {"key-0"});
  EXPECT_EQ(client.get(again.into(second)).items_ok, 1U);  // behind the late bytes on the same connection
  EXPECT_EQ(second[0], stalling.block);
  EXPECT_EQ(back[0], pattern);
  EXPECT_EQ(get.answers[0].answer, HS_PENDING);
  EXPECT_EQ(stalling.daemon.accepted.load(), 1U);
  hs_event none{};
  EXPECT_EQ(hs_queue_poll(client.queue, &none, 1), 0U);
}

TEST(Life, ADeadlineInTheMiddleOfAChunkEndsTheGetAndNoByteLandsAfterwards) {
  expect_no_late_byte("late(deadline)", [](TryClient&, hs_ticket) {});
}

TEST(Life, ACancelInTheMiddleOfAChunkEndsTheGetAndNoByteLandsAfterwards) {
  expect_no_late_byte("cancelled(none)", [](TryClient& client, hs_ticket ticket) { hs_cancel(client.queue, ticket); });
}

TEST(Life, WhatWasCompleteBeforeTheDeadlineStaysOk) {
  FakeDaemon daemon;
  const wire::Layout layout = make_layout({kOpaque});
  const Octets block = random_octets(100, 3);
  Point over;
  daemon.hook = [&](FakeDaemon::Connection& connection, const Frame& frame) {
    if (frame.opcode() != Opcode::Get) return false;
    wire::Run run;
    run.bytes = run.block_bytes = 100;
    run.check_count = 1;
    const uint32_t number = FakeDaemon::name_number_of({layout.id(), 0, "key-0"});
    connection.send(FakeDaemon::chunk(frame.header.request_id, {run}, {wire::wire_check(crc32c(block), number, 0)}, block));
    Octets out;
    wire::FrameWriter writer(out);
    writer.begin(Opcode::Answers, frame.header.request_id);
    FakeDaemon::add_status(writer, 0, 0, 1, {wire::Answer::Ok});
    writer.finish();
    connection.send(out);
    return true;
  };
  TryClient client(daemon.address());
  const int handle = client.layout(layout);
  ASSERT_TRUE(client.ready());
  std::vector<Octets> back(2, Octets(100));
  TrySection get(handle, {"key-0", "key-1"});
  hs_batch batch = TryClient::batch(HS_OP_GET, 2'000'000);
  EXPECT_EQ(client.call(batch, get.into(back)).items_ok, 1U);
  EXPECT_EQ(text_of(get.answers[0]), "ok(none)");
  EXPECT_EQ(text_of(get.answers[1]), "late(deadline)");
  EXPECT_EQ(back[0], block);
}

// A daemon that takes no more bytes: what the socket still refers to is let go before the terminal event, by ending the
// connection.
TEST(Life, APutWhoseBytesAreStuckInTheSocketEndsWithinItsDeadlineAndIsReadNoMore) {
  FakeDaemon daemon;
  Point over;
  daemon.hook = [&](FakeDaemon::Connection& connection, const Frame& frame) {
    if (frame.opcode() == Opcode::Chunk) {
      over.wait();  // reads nothing meanwhile
      return true;
    }
    if (frame.opcode() != Opcode::Put) return false;
    daemon.answer(connection, frame);
    return true;
  };
  TryClient client(daemon.address());
  const int layout = client.layout(make_layout({kOpaque}));
  ASSERT_TRUE(client.ready());
  constexpr size_t kBytes = 48 << 20;
  void* memory = ::mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(memory, MAP_FAILED);
  const hs_iovec target{memory, kBytes};
  const uint32_t bytes = kBytes;
  TrySection put(layout, {"key-0"});
  put.section.target_kind = HS_TARGET_IOVEC;
  put.section.iovecs = &target;
  put.section.block_bytes = &bytes;
  // Long enough for the slowest build to fill the socket: bytes that the socket does not refer to need no fence.
  hs_batch batch = TryClient::batch(HS_OP_PUT, 3'000'000);
  EXPECT_EQ(client.call(batch, put).items_ok, 0U);
  EXPECT_TRUE(put.all("late(deadline)")) << text_of(put.answers[0]);
  ASSERT_EQ(::munmap(memory, kBytes), 0);  // a read of it would end this process
  over.reach();
  TrySection match(layout, {"key-0"});
  ASSERT_TRUE(comes_true([&] { return client.facts().handshakes == 2; })) << "the connection was not ended";
  client.match(match);
  EXPECT_TRUE(match.all("miss(absent)")) << text_of(match.answers[0]);
}

// The daemon counts the bytes of a put that was cancelled until it has answered it.
TEST(Life, TheEarlyCreditOfAnAbandonedPutComesBackWithItsFinal) {
  FakeDaemon daemon;
  constexpr size_t kBytes = 60'000;
  std::vector<uint64_t> puts;
  std::atomic<uint64_t> payload_bytes{0};
  Point first_sent;
  Point second_asked;
  Point second_cancelled;
  daemon.hook = [&](FakeDaemon::Connection& connection, const Frame& frame) {
    switch (frame.opcode()) {
      case Opcode::Put:
        puts.push_back(frame.header.request_id);  // and no Want
        if (puts.size() == 2) second_asked.reach();
        return true;
      case Opcode::Chunk:
        payload_bytes += frame.payload.size();
        if (payload_bytes == kBytes) first_sent.reach();
        if (payload_bytes == 2 * kBytes) {
          connection.send(FakeDaemon::final(puts.back(), {wire::Answer::Throttled, wire::Reason::Budget}));
        }
        return true;
      case Opcode::Cancel:
        connection.send(FakeDaemon::final(frame.header.request_id, {wire::Answer::Ok}));
        if (puts.size() < 2) return true;
        for (const uint64_t put : puts) connection.send(FakeDaemon::final(put, {wire::Answer::Cancelled}));
        second_cancelled.reach();
        return true;
      default: return false;
    }
  };
  TryClient client(daemon.address());
  const int layout = client.layout(make_layout({kOpaque}));
  ASSERT_TRUE(client.ready());
  std::vector<Octets> blocks{random_octets(kBytes, 1)};
  hs_batch batch = TryClient::batch(HS_OP_PUT);
  TrySection first(layout, {"key-0"});
  hs_ticket ticket = client.submit(batch, first.into(blocks));
  first_sent.wait();
  hs_cancel(client.queue, ticket);
  client.wait();
  TrySection second(layout, {"key-1"});
  ticket = client.submit(batch, second.into(blocks));
  second_asked.wait();
  hs_cancel(client.queue, ticket);
  client.wait();
  second_cancelled.wait();
  EXPECT_EQ(payload_bytes.load(), kBytes);
  TrySection behind(layout, {"key-0"});
  client.match(behind);  // both Finals came before its answer
  TrySection third(layout, {"key-2"});
  client.put(third.into(blocks));
  EXPECT_EQ(text_of(third.answers[0]), "throttled(budget)");
}

// Of two connections that carry a put, one is stuck; the other was ended and has come back by the time of the cancel.
TEST(Life, TheFenceOfAPutLeavesAConnectionAloneThatHasComeBack) {
  FakeDaemon daemon;
  Point over;
  std::atomic<uint32_t> stuck{0};
  std::atomic<int> unread{-1};  // the socket of the one that is stuck
  daemon.hook = [&](FakeDaemon::Connection& connection, const Frame& frame) {
    if (frame.opcode() != Opcode::Chunk) return false;
    if (stuck++ == 0) {
      unread = connection.descriptor;
      over.wait();  // reads nothing meanwhile
    } else {
      connection.send(FakeDaemon::final(frame.header.request_id, {wire::Answer::Throttled, wire::Reason::Budget}));
      connection.end();
    }
    return true;
  };
  TryClient client(daemon.address(), 2);
  const int layout = client.layout(make_layout({kOpaque}));
  ASSERT_TRUE(client.ready());
  ASSERT_TRUE(comes_true([&] { return client.facts().connected == 2; }));
  std::vector<Octets> blocks(2, random_octets(24 << 20, 1));
  TrySection put(layout, {"key-0", "key-1"});
  hs_batch batch = TryClient::batch(HS_OP_PUT, 60'000'000);
  const hs_ticket ticket = client.submit(batch, put.into(blocks));
  EXPECT_TRUE(comes_true([&] { return client.facts().handshakes == 3 && client.facts().connected == 2; }));
  // And until the stuck one's sockets are full: bytes that no socket refers to need no fence.
  int queued = 0;
  EXPECT_TRUE(comes_true([&] {
    const int before = queued;
    std::this_thread::sleep_for(std::chrono::milliseconds(300));
    return unread >= 0 && ::ioctl(unread, FIONREAD, &queued) == 0 && queued > 0 && queued == before;
  }));
  hs_cancel(client.queue, ticket);
  EXPECT_EQ(client.wait().items_ok, 0U);
  EXPECT_EQ(daemon.accepted.load(), 3U);
  over.reach();
  // The stuck one is ended by the fence, and comes back, too.
  EXPECT_TRUE(comes_true([&] { return client.facts().handshakes == 4 && client.facts().connected == 2; }));
  EXPECT_EQ(daemon.accepted.load(), 4U);
}

// Which says so and then hangs: its socket stays open.
TEST(Life, AnAbortEndsTheConnectionAtOnceThoughItsSocketStaysOpen) {
  FakeDaemon daemon;
  Point over;
  std::atomic<bool> aborts{true};
  daemon.hook = [&](FakeDaemon::Connection& connection, const Frame& frame) {
    if (frame.opcode() != Opcode::Match || !aborts.exchange(false)) return false;
    Octets out;
    wire::FrameWriter writer(out);
    writer.begin(Opcode::Abort, 0);
    writer.tlv_bytes(wire::Tlv::Reason, as_bytes("its device is gone"));
    writer.finish();
    connection.send(out);
    over.wait();
    return true;
  };
  TryClient client(daemon.address());
  const int layout = client.layout(make_layout({kOpaque}));
  ASSERT_TRUE(client.ready());
  TrySection match(layout, names(1));
  hs_batch batch = TryClient::batch(HS_OP_MATCH, 3'600'000'000U);
  client.call(batch, match);  // would wait for an hour otherwise
  EXPECT_TRUE(match.all("unavailable(no_connection)")) << text_of(match.answers[0]);
  EXPECT_NE(std::string(client.facts().last_error).find("the daemon ends the connection: its device is gone"),
            std::string::npos)
      << client.facts().last_error;
  ASSERT_TRUE(comes_true([&] { return client.facts().connected == 1; }));
  client.call(batch, match);
  EXPECT_TRUE(match.all("miss(absent)")) << text_of(match.answers[0]);
  EXPECT_EQ(client.facts().handshakes, 2U);
  over.reach();
}

struct Death {
  Opcode at;
  uint32_t operation;
  const char* answer;
};

TEST(Life, ADaemonThatDiesInAnyPhaseIsAMissWithAReason) {
  const Death kDeaths[] = {
      {Opcode::Match, HS_OP_MATCH, "unavailable(no_connection)"},
      {Opcode::Get, HS_OP_GET, "unavailable(no_connection)"},
      {Opcode::Put, HS_OP_PUT, "unavailable(outcome_unknown)"},
      {Opcode::Chunk, HS_OP_PUT, "unavailable(outcome_unknown)"},
      {Opcode::Delete, HS_OP_DELETE, "unavailable(outcome_unknown)"},
  };
  for (const Death& death : kDeaths) {
    SCOPED_TRACE(static_cast<int>(death.at));
    FakeDaemon daemon;
    std::atomic<bool> dies{true};
    daemon.hook = [&](FakeDaemon::Connection& connection, const Frame& frame) {
      if (frame.opcode() != death.at || !dies.exchange(false)) return false;
      connection.end();
      return true;
    };
    TryClient client(daemon.address());
    const int layout = client.layout(make_layout({kOpaque}));
    ASSERT_TRUE(client.ready());
    std::vector<Octets> blocks{random_octets(1'000'000, 1), random_octets(10, 2)};
    TrySection section(layout, names(2));
    hs_batch batch = TryClient::batch(death.operation);
    EXPECT_EQ(client.call(batch, section.into(blocks)).items_ok, 0U);
    EXPECT_TRUE(section.all(death.answer)) << text_of(section.answers[0]);
    // It comes back by itself, with its layouts.
    ASSERT_TRUE(client.ready());
    TrySection put(layout, names(2));
    EXPECT_EQ(client.put(put.into(blocks)).items_ok, 2U) << text_of(put.answers[0]);
    EXPECT_EQ(client.facts().handshakes, 2U);
  }
}

TEST(Life, AChangeThatIsLateOrCancelledHasAnUnknownOutcome) {
  FakeDaemon daemon;
  std::atomic<bool> says_late{false};
  daemon.hook = [&](FakeDaemon::Connection& connection, const Frame& frame) {
    if (frame.opcode() != Opcode::Delete && frame.opcode() != Opcode::Namespace && frame.opcode() != Opcode::Match)
      return false;
    if (says_late) connection.send(FakeDaemon::final(frame.header.request_id, {wire::Answer::Late}));
    return true;
  };
  TryClient client(daemon.address());
  const int layout = client.layout(make_layout({kOpaque}));
  ASSERT_TRUE(client.ready());
  TrySection cancelled(layout, names(2));
  hs_batch erase = TryClient::batch(HS_OP_DELETE);
  hs_cancel(client.queue, client.submit(erase, cancelled));
  client.wait();
  // Cancelled before it was sent, perhaps: then nothing was asked for.
  EXPECT_TRUE(cancelled.all("cancelled(outcome_unknown)") || cancelled.all("cancelled(none)")) << text_of(cancelled.answers[0]);
  TrySection late(layout, names(2));
  hs_batch short_one = TryClient::batch(HS_OP_DELETE, 20'000);
  client.call(short_one, late);
  EXPECT_TRUE(late.all("late(outcome_unknown)")) << text_of(late.answers[0]);
  says_late = true;
  TrySection told(layout, names(2));
  client.call(erase, told);
  EXPECT_TRUE(told.all("late(outcome_unknown)")) << text_of(told.answers[0]);
  hs_answer outcome{};
  hs_batch create = TryClient::batch(HS_OP_NAMESPACE_CREATE);
  create.text = "other";
  create.outcome = &outcome;
  client.call(create);
  EXPECT_EQ(text_of(outcome), "late(outcome_unknown)");
  TrySection match(layout, names(2));
  client.match(match);
  EXPECT_TRUE(match.all("late(none)")) << text_of(match.answers[0]) << ": it changes nothing";
}

TEST(Life, AnErrorOnALaterPageEndsAStat) {
  FakeDaemon daemon;
  std::atomic<uint32_t> pages{0};
  daemon.hook = [&](FakeDaemon::Connection& connection, const Frame& frame) {
    if (frame.opcode() != Opcode::Stat) return false;
    if (++pages > 1) {
      // The third would be the second once more.
      if (pages == 2)
        connection.send(FakeDaemon::final(frame.header.request_id, {wire::Answer::Unavailable, wire::Reason::Stopping}));
      return true;
    }
    Octets out;
    wire::FrameWriter writer(out);
    writer.begin(Opcode::Final, frame.header.request_id);
    FakeDaemon::add_status(writer, wire::kWholeRequest, 0, 1, {wire::Answer::Ok});
    writer.tlv(wire::Tlv::Cursor, wire::CursorRecord{.position = 10});
    writer.finish();
    connection.send(out);
    return true;
  };
  TryClient client(daemon.address());
  ASSERT_TRUE(client.ready());
  hs_answer outcome{};
  hs_batch stat = TryClient::batch(HS_OP_STAT);
  stat.outcome = &outcome;
  client.call(stat);
  EXPECT_EQ(text_of(outcome), "unavailable(stopping)");
  EXPECT_EQ(pages, 2U);
}

TEST(Life, StatFollowsItsPagesToTheEnd) {
  FakeDaemon daemon;
  std::vector<uint64_t> asked;
  daemon.hook = [&](FakeDaemon::Connection& connection, const Frame& frame) {
    if (frame.opcode() != Opcode::Stat) return false;
    wire::TlvReader reader(frame.body);
    wire::TlvView tlv;
    wire::CursorRecord cursor;
    while (reader.next(&tlv)) {
      if (tlv.kind != static_cast<uint16_t>(wire::Tlv::Cursor)) continue;
      EXPECT_TRUE(wire::parse_cursor(tlv.value, &cursor).ok());
    }
    asked.push_back(cursor.position);
    Octets out;
    wire::FrameWriter writer(out);
    writer.begin(Opcode::Final, frame.header.request_id);
    FakeDaemon::add_status(writer, wire::kWholeRequest, 0, 1, {wire::Answer::Ok});
    writer.open_tlv(wire::Tlv::Counters);
    writer.value().put(std::array<uint16_t, 4>{8, 0, 0, 0});
    writer.value().put(uint64_t{1});
    writer.value().put_bytes(as_bytes("counter" + std::to_string(asked.size())));
    writer.close_tlv();
    writer.tlv(wire::Tlv::Cursor, wire::CursorRecord{.position = asked.size() < 3 ? asked.size() * 10 : 0});
    writer.finish();
    connection.send(out);
    return true;
  };
  TryClient client(daemon.address());
  ASSERT_TRUE(client.ready());
  std::vector<std::string> told;
  hs_answer outcome{};
  hs_batch stat = TryClient::batch(HS_OP_STAT);
  stat.outcome = &outcome;
  stat.sink_context = &told;
  stat.sink = [](void* to, const void*, size_t, const void* name, size_t name_bytes) {
    static_cast<std::vector<std::string>*>(to)->emplace_back(static_cast<const char*>(name), name_bytes);
  };
  client.call(stat);
  EXPECT_EQ(text_of(outcome), "ok(none)");
  EXPECT_EQ(told, (std::vector<std::string>{"counter1", "counter2", "counter3"}));
  EXPECT_EQ(asked, (std::vector<uint64_t>{0, 10, 20}));
}

TEST(Life, ClosingEndsWhatIsInFlightFirst) {
  FakeDaemon daemon;
  daemon.hook = [](FakeDaemon::Connection&, const Frame& frame) { return frame.opcode() == Opcode::Get; };
  TryClient client(daemon.address());
  const int layout = client.layout(make_layout({kOpaque}));
  ASSERT_TRUE(client.ready());
  std::vector<Octets> back{Octets(100)};
  TrySection get(layout, names(1));
  hs_batch batch = TryClient::batch(HS_OP_GET);
  const hs_ticket ticket = client.submit(batch, get.into(back));

  hs_queue* other = nullptr;
  ASSERT_EQ(hs_queue_open(client.client, &other), 0);
  TrySection also(layout, names(1));
  batch.sections = &also.into(back).section;
  ASSERT_NE(hs_submit(other, &batch, nullptr, 0), 0U);
  hs_queue_close(other);
  EXPECT_TRUE(also.all("cancelled(closed)"));
  EXPECT_EQ(get.answers[0].answer, HS_PENDING);

  hs_client_close(client.client);
  client.client = nullptr;
  EXPECT_TRUE(get.all("cancelled(closed)"));
  EXPECT_EQ(client.wait().ticket, ticket);
  EXPECT_EQ(client.submit(batch), 0U);
  EXPECT_NE(client.why.find("closed"), std::string::npos);
}

TEST(Life, AQueueMadeWhereAnotherWasClosedKeepsItsTickets) {
  FakeDaemon daemon;
  TryClient client(daemon.address());
  const int layout = client.layout(make_layout({kOpaque}));
  ASSERT_TRUE(client.ready());
  int reused = 0;
  for (int round = 0; round < 500; ++round) {
    hs_queue* first = nullptr;
    ASSERT_EQ(hs_queue_open(client.client, &first), 0);
    hs_queue_close(first);
    hs_queue* second = nullptr;
    ASSERT_EQ(hs_queue_open(client.client, &second), 0);
    reused += first == second ? 1 : 0;
    TrySection match(layout, names(1));
    hs_batch batch = TryClient::batch(HS_OP_MATCH);
    batch.sections = &match.section;
    batch.section_count = 1;
    ASSERT_NE(hs_submit(second, &batch, nullptr, 0), 0U);
    hs_event event{};
    ASSERT_EQ(hs_queue_wait(second, &event, 1, 30'000'000), 1U);
    EXPECT_TRUE(match.all("miss(absent)")) << text_of(match.answers[0]);
    hs_queue_close(second);
  }
  // Where an allocator never gives the same address twice in a row (a sanitizer's), this test shows nothing.
  RecordProperty("addresses_reused", reused);
}

// ---- Processes -----------------------------------------------------------------------------------------------------------

int status_of(pid_t child) {
  int status = 0;
  EXPECT_EQ(::waitpid(child, &status, 0), child);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
}

TEST(Life, AForkedChildSeesAClosedClientAndOpensItsOwn) {
  Staller stalling(200'000, 70'000);
  TryClient client(stalling.daemon.address());
  const int layout = client.layout(stalling.layout);
  ASSERT_TRUE(client.ready());
  std::vector<Octets> back{Octets(200'000)};
  TrySection get(layout, {"key-0"});
  hs_batch batch = TryClient::batch(HS_OP_GET, 20'000'000);
  const hs_ticket ticket = client.submit(batch, get.into(back));
  stalling.stalled.wait();

  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    int wrong = 0;
    char why[256] = "";
    hs_event event{};
    hs_client_facts facts;
    wrong += hs_client_forked(client.client) == 1 ? 0 : 1;
    wrong += hs_submit(client.queue, &batch, why, sizeof(why)) == 0 && std::strstr(why, "forked") != nullptr ? 0 : 1;
    wrong += hs_queue_wait(client.queue, &event, 1, UINT64_MAX) == 0 ? 0 : 1;
    wrong += hs_queue_descriptor(client.queue) == -1 ? 0 : 1;
    wrong +=
        hs_layout_register(client.client, stalling.layout.canonical().data(), stalling.layout.canonical().size()) == -1 ? 0 : 1;
    hs_client_get_facts(client.client, &facts);
    hs_cancel(client.queue, ticket);
    hs_queue_close(client.queue);
    hs_client_close(client.client);
#ifndef HALFSTEP_TSAN
    {
      TryClient own(stalling.daemon.address());
      std::vector<Octets> mine{Octets(200'000)};
      TrySection ask(own.layout(stalling.layout), {"key-0"});
      wrong += own.get(ask.into(mine)).items_ok == 1 && mine[0] == stalling.block ? 0 : 1;
    }
#endif
    ::_exit(wrong);
  }
  EXPECT_EQ(status_of(child), 0);
  EXPECT_EQ(hs_client_forked(client.client), 0);
  // The parent goes on as if nothing had been.
  hs_cancel(client.queue, ticket);
  EXPECT_EQ(client.wait().ticket, ticket);
  stalling.go_on.reach();
  TrySection again(layout, {"key-0"});
  EXPECT_EQ(client.get(again.into(back)).items_ok, 1U);
}

struct StaticTarget {
  ~StaticTarget() { std::fill(memory.begin(), memory.end(), std::byte{0}); }
  Octets memory = Octets(64 << 20);
};

// A client in use, a target in static memory, exit() in the middle of a get, nothing closed. The process is made before this
// one has threads.
TEST(LifeDeathTest, AProcessMayExitWithoutClosingAnything) {
  int pipe[2];
  ASSERT_EQ(::pipe(pipe), 0);
  const wire::Layout layout = make_layout({kOpaque});
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    std::array<char, 64> address{};
    if (::read(pipe[0], address.data(), address.size() - 1) <= 0) std::exit(2);
    static StaticTarget target;  // destroyed by exit()
    auto* client = new TryClient(address.data());
    auto* get = new TrySection(client->layout(layout), {"key-0"});
    static hs_iovec iovec{target.memory.data(), target.memory.size()};
    get->section.target_kind = HS_TARGET_IOVEC;
    get->section.iovecs = &iovec;
    hs_batch batch = TryClient::batch(HS_OP_GET);
    const bool submitted = client->ready() && client->submit(batch, *get) != 0;
    std::exit(submitted ? 0 : 1);
  }
  FakeDaemon daemon;
  daemon.store[{layout.id(), 0, "key-0"}] = random_octets(64 << 20, 1);
  const std::string address = daemon.address();
  ASSERT_EQ(::write(pipe[1], address.data(), address.size()), static_cast<ssize_t>(address.size()));
  EXPECT_EQ(status_of(child), 0);
  ::close(pipe[0]);
  ::close(pipe[1]);
}

}  // namespace
}  // namespace halfstep::peer
