// A daemon that lies, about lengths, names, parts and sums: nothing lands outside the target, nothing wrong is called ok.
#include <gtest/gtest.h>

#include "peer/fake_daemon.h"
#include "peer/try_client.h"
#include "wire/utf8.h"

namespace halfstep::peer {
namespace hostile_test {

using Runs = std::vector<wire::Run>;
using Checks = std::vector<uint32_t>;

constexpr std::byte kGuard{0xA5};
constexpr size_t kGuardBytes = 4096;

// A target with guards on both sides.
struct Guarded {
  explicit Guarded(size_t bytes) : memory(bytes + 2 * kGuardBytes, kGuard), inside(bytes) {}
  hs_iovec target() { return {memory.data() + kGuardBytes, inside}; }
  bool intact() const {
    const auto is_guard = [](std::byte byte) { return byte == kGuard; };
    return std::all_of(memory.begin(), memory.begin() + kGuardBytes, is_guard) &&
           std::all_of(memory.end() - kGuardBytes, memory.end(), is_guard);
  }
  bool untouched() const {
    return std::all_of(memory.begin(), memory.end(), [](std::byte byte) { return byte == kGuard; });
  }
  Octets bytes() const { return {memory.begin() + kGuardBytes, memory.end() - kGuardBytes}; }
  Octets memory;
  size_t inside;
};

struct Lie {
  const char* what;
  void (*spoil)(Runs& runs, Checks& checks, Octets& payload);
  const char* answer;  // of key-0
};

void pad(Octets& payload, size_t bytes) { payload.resize(payload.size() + bytes, std::byte{0x77}); }

const Lie kLies[] = {
    {"another section", [](Runs& r, Checks&, Octets&) { r[0].section = 1; }, "unavailable(protocol_error)"},
    {"an item that was not asked for", [](Runs& r, Checks&, Octets&) { r[0].item = 2; }, "unavailable(protocol_error)"},
    {"a part beyond the block", [](Runs& r, Checks&, Octets&) { r[0].part = 4; }, "unavailable(protocol_error)"},
    {"a length that the group cannot have", [](Runs& r, Checks&, Octets&) { r[0].block_bytes = 4097; },
     "unavailable(protocol_error)"},
    {"a length beyond what it announced itself", [](Runs& r, Checks&, Octets&) { r[0].block_bytes = 200U << 20; },
     "unavailable(protocol_error)"},
    {"another length in the second run", [](Runs& r, Checks&, Octets&) { r[1].block_bytes = 8192; },
     "unavailable(protocol_error)"},
    {"a part twice", [](Runs& r, Checks&, Octets&) { r[1].part = 0; }, "unavailable(protocol_error)"},
    {"more bytes than the part has",
     [](Runs& r, Checks&, Octets& p) {
       r[3].bytes += 100;
       pad(p, 100);
     },
     "unavailable(protocol_error)"},
    {"more bytes than the chunk has", [](Runs& r, Checks&, Octets&) { r[3].bytes += 100; }, "unavailable(protocol_error)"},
    {"a piece that starts late",
     [](Runs& r, Checks& c, Octets& p) {
       r.resize(1);
       c.clear();
       p.resize(1000);
       r[0].offset = 96;
       r[0].bytes = 1000;
       r[0].check_count = 0;
     },
     "unavailable(protocol_error)"},
    {"a piece with a check before the part's end",
     [](Runs& r, Checks& c, Octets& p) {
       r.resize(1);
       c.resize(1);
       p.resize(1000);
       r[0].bytes = 1000;
     },
     "unavailable(protocol_error)"},
    {"a coded run, though only raw was accepted", [](Runs& r, Checks&, Octets&) { r[0].flags = wire::kRunCoded; },
     "unavailable(protocol_error)"},
    {"no runs", [](Runs& r, Checks& c, Octets& p) { r.clear(), c.clear(), p.clear(); }, "unavailable(protocol_error)"},
    {"ok without the bytes of the last part",
     [](Runs& r, Checks& c, Octets& p) {
       p.resize(p.size() - r.back().bytes);
       r.pop_back();
       c.pop_back();
     },
     "unavailable(protocol_error)"},
    {"ok for a part that it aborted", [](Runs& r, Checks&, Octets&) { r[1].flags = wire::kRunAborted; },
     "unavailable(protocol_error)"},
    {"a wrong sum", [](Runs&, Checks& c, Octets&) { c[2] ^= 1; }, "miss(corrupt)"},
    {"a flipped bit", [](Runs&, Checks&, Octets& p) { p[5000] ^= std::byte{16}; }, "miss(corrupt)"},
    {"the right bytes under the wrong part",
     [](Runs&, Checks& c, Octets& p) {
       std::swap_ranges(p.begin(), p.begin() + 4096, p.begin() + 4096);
       std::swap(c[0], c[1]);
     },
     "miss(corrupt)"},
};

TEST(Hostile, NoLieLandsOutsideTheTargetOrBecomesOk) {
  const wire::GroupShape shape{.part_count = 4, .size_count = 1, .part_bytes = {4096}};
  const wire::Layout layout = make_layout({shape});
  for (const Lie& lie : kLies) {
    SCOPED_TRACE(lie.what);
    FakeDaemon daemon;
    std::atomic<bool> lying{true};
    daemon.hook = [&](FakeDaemon::Connection& connection, const FakeDaemon::Frame& frame) {
      if (frame.opcode() != wire::Opcode::Get || !lying) return false;
      daemon.on_get(connection, frame.header.request_id, frame.body, lie.spoil);
      return true;
    };
    daemon.store[{layout.id(), 0, "key-0"}] = random_octets(16'384, 1);
    TryClient client(daemon.address());
    const int handle = client.layout(layout);
    Guarded target(16'384);
    TrySection get(handle, {"key-0", "key-1"});
    const hs_iovec targets[2] = {target.target(), target.target()};
    get.section.target_kind = HS_TARGET_IOVEC;
    get.section.iovecs = targets;
    EXPECT_EQ(client.get(get).items_ok, 0U);
    EXPECT_EQ(text_of(get.answers[0]), lie.answer);
    EXPECT_TRUE(target.intact());
    // The client is as good as before.
    lying = false;
    ASSERT_TRUE(client.ready());
    TrySection again(handle, {"key-0", "key-1"});
    again.section.target_kind = HS_TARGET_IOVEC;
    again.section.iovecs = targets;
    EXPECT_EQ(client.get(again).items_ok, 1U);
    EXPECT_EQ(target.bytes(), random_octets(16'384, 1));
    EXPECT_TRUE(target.intact());
  }
}

TEST(Hostile, ABlockLongerThanItsTargetIsAMissAndNothingOfItLands) {
  FakeDaemon daemon;
  const wire::Layout layout = make_layout({kOpaque});
  daemon.store[{layout.id(), 0, "key-0"}] = random_octets(600'000, 1);
  daemon.store[{layout.id(), 0, "key-1"}] = random_octets(100, 2);
  TryClient client(daemon.address());
  const int handle = client.layout(layout);
  Guarded target(599'999);
  Guarded other(100);
  TrySection get(handle, {"key-0", "key-1"});
  const hs_iovec targets[2] = {target.target(), other.target()};
  get.section.target_kind = HS_TARGET_IOVEC;
  get.section.iovecs = targets;
  EXPECT_EQ(client.get(get).items_ok, 1U);
  EXPECT_EQ(text_of(get.answers[0]), "miss(length)");
  EXPECT_EQ(get.lengths[0], 600'000U);
  EXPECT_TRUE(target.untouched());
  EXPECT_EQ(other.bytes(), random_octets(100, 2));
}

TEST(Hostile, WithRangesOneCorruptPartLeavesTheOthersOk) {
  FakeDaemon daemon;
  const wire::GroupShape shape{.part_count = 4, .size_count = 1, .part_bytes = {4096}};
  const wire::Layout layout = make_layout({shape});
  daemon.store[{layout.id(), 0, "key-0"}] = random_octets(16'384, 1);
  daemon.hook = [&](FakeDaemon::Connection& connection, const FakeDaemon::Frame& frame) {
    if (frame.opcode() != wire::Opcode::Get) return false;
    daemon.on_get(connection, frame.header.request_id, frame.body, [](Runs&, Checks& c, Octets&) { c[1] ^= 4; });
    return true;
  };
  TryClient client(daemon.address());
  std::vector<Octets> back(1, Octets(3 * 4096));
  TrySection get(client.layout(layout), {"key-0"});
  get.select({{0, 3, 1}}).into(back);
  EXPECT_EQ(client.get(get).items_ok, 0U);
  EXPECT_EQ(text_of(get.answers[0]), "ok(none)");
  EXPECT_EQ(text_of(get.answers[1]), "miss(corrupt)");
  EXPECT_EQ(text_of(get.answers[2]), "ok(none)");
  EXPECT_EQ(client.facts().checksum_failures, 1U);
}

TEST(Hostile, AnswersThatContradictThemselvesEndTheConnection) {
  using Build = void (*)(wire::FrameWriter&);
  const Build kAnswers[] = {
      [](wire::FrameWriter&) {},  // a Final that says nothing
      [](wire::FrameWriter& f) {
        FakeDaemon::add_status(f, 0, 0, 1, {wire::Answer::Miss, wire::Reason::Absent});
      },
      [](wire::FrameWriter& f) {
        FakeDaemon::add_status(f, 0, 0, 3, {wire::Answer::Miss, wire::Reason::Absent});
      },
      [](wire::FrameWriter& f) {
        FakeDaemon::add_status(f, 1, 0, 2, {wire::Answer::Miss, wire::Reason::Absent});
      },
      [](wire::FrameWriter& f) { FakeDaemon::add_status(f, 0, 0, 2, {wire::Answer::Ok}); },
      [](wire::FrameWriter& f) {
        FakeDaemon::add_status(f, 0, 0, 2, {wire::Answer::Miss, wire::Reason::Absent});
        FakeDaemon::add_status(f, 0, 1, 1, {wire::Answer::Late});
      },
      [](wire::FrameWriter& f) {
        FakeDaemon::add_status(f, 0, 0, 2, {wire::Answer::Miss, wire::Reason::Absent}, wire::kStatusPerPart);
      },
      [](wire::FrameWriter& f) { f.tlv(static_cast<wire::Tlv>(0x8001), uint64_t{0}); },
  };
  const wire::Layout layout = make_layout({kOpaque});
  for (const Build build : kAnswers) {
    FakeDaemon daemon;
    daemon.hook = [&](FakeDaemon::Connection& connection, const FakeDaemon::Frame& frame) {
      if (frame.opcode() != wire::Opcode::Get) return false;
      Octets out;
      wire::FrameWriter writer(out);
      writer.begin(wire::Opcode::Final, frame.header.request_id);
      build(writer);
      writer.finish();
      connection.send(out);
      return true;
    };
    TryClient client(daemon.address(), 1, 0, 0, 60'000);  // and is not there again before it is looked at
    std::vector<Octets> back(2, Octets(64));
    TrySection get(client.layout(layout), {"key-0", "key-1"});
    ASSERT_TRUE(client.ready());
    EXPECT_EQ(client.get(get.into(back)).items_ok, 0U);
    // What was answered before the contradiction stays; the rest has no answer of the daemon's.
    EXPECT_EQ(client.facts().connected, 0U);
    EXPECT_NE(std::string(client.facts().last_error).find("protocol error"), std::string::npos) << client.facts().last_error;
  }
}

TEST(Hostile, FramesForRequestsThatNeverWereEndTheConnection) {
  for (const wire::Opcode opcode : {wire::Opcode::Chunk, wire::Opcode::Want, wire::Opcode::Answers, wire::Opcode::Final}) {
    FakeDaemon daemon;
    daemon.hook = [&](FakeDaemon::Connection& connection, const FakeDaemon::Frame& frame) {
      if (frame.opcode() != wire::Opcode::Match) return false;
      Octets out;
      wire::FrameWriter writer(out);
      writer.begin(opcode, frame.header.request_id + 256);
      writer.finish();
      connection.send(out);
      return true;
    };
    TryClient client(daemon.address());
    TrySection match(client.layout(make_layout({kOpaque})), {"key-0"});
    client.match(match);
    EXPECT_TRUE(match.all("unavailable(protocol_error)")) << text_of(match.answers[0]);
  }
}

TEST(Hostile, AGrantOfWhatWasNotOfferedEndsTheConnection) {
  FakeDaemon daemon;
  daemon.hook = [](FakeDaemon::Connection& connection, const FakeDaemon::Frame& frame) {
    if (frame.opcode() != wire::Opcode::Put) return false;
    Octets out;
    wire::FrameWriter writer(out);
    writer.begin(wire::Opcode::Want, frame.header.request_id);
    writer.open_tlv(wire::Tlv::Grant);
    writer.value().put(wire::GrantHead{.credit_bytes = 1, .range_count = 1});
    writer.value().put(wire::ItemRange{.section = 0, .first = 1, .count = 1});
    writer.close_tlv();
    writer.finish();
    connection.send(out);
    return true;
  };
  TryClient client(daemon.address());
  std::vector<Octets> blocks{random_octets(100, 1)};
  TrySection put(client.layout(make_layout({kOpaque})), {"key-0"});
  client.put(put.into(blocks));
  EXPECT_TRUE(put.all("unavailable(outcome_unknown)")) << text_of(put.answers[0]);
}

TEST(Hostile, WhatADaemonSaysIsTextWhateverItSends) {
  std::string letters = "x";
  while (letters.size() < 600) letters += "\u00e9";
  for (const std::string& reason : {letters, letters + "\xff", std::string("\xc3")}) {
    FakeDaemon daemon;
    daemon.hook = [&](FakeDaemon::Connection& connection, const FakeDaemon::Frame& frame) {
      if (frame.opcode() != wire::Opcode::Hello) return false;
      Octets out;
      wire::FrameWriter writer(out);
      writer.begin(wire::Opcode::Final, frame.header.request_id);
      FakeDaemon::add_status(writer, wire::kWholeRequest, 0, 1, {wire::Answer::Rejected, wire::Reason::UnknownNamespace});
      writer.tlv_bytes(wire::Tlv::Reason, as_bytes(reason));
      writer.finish();
      connection.send(out);
      connection.end();
      return true;
    };
    TryClient client(daemon.address());
    for (size_t room = 40; room < 80; ++room) {  // a cut in the midst of the letters
      std::string why(room, '\x01');
      EXPECT_EQ(hs_client_wait_ready(client.client, 10'000, why.data(), room), -1);
      why.resize(why.find('\0'));
      EXPECT_TRUE(wire::valid_utf8(as_bytes(why))) << why;
    }
    const std::string said = client.facts().last_error;
    EXPECT_TRUE(wire::valid_utf8(as_bytes(said))) << said;
    EXPECT_NE(said.find("unknown_namespace, " + (reason == letters ? letters.substr(0, 151) : "(no UTF-8)")), std::string::npos)
        << said;
  }
}

TEST(Hostile, ARefusedHelloIsSaidAtOnceAndNotForEver) {
  FakeDaemon daemon;
  std::atomic<bool> refusing{true};
  daemon.hook = [&](FakeDaemon::Connection& connection, const FakeDaemon::Frame& frame) {
    if (frame.opcode() != wire::Opcode::Hello || !refusing) return false;
    connection.send(FakeDaemon::final(frame.header.request_id, {wire::Answer::Rejected, wire::Reason::UnknownNamespace}));
    connection.end();
    return true;
  };
  TryClient client(daemon.address());
  char why[256] = "";
  EXPECT_EQ(hs_client_wait_ready(client.client, 10'000, why, sizeof(why)), -1);
  EXPECT_NE(std::string(why).find("unknown_namespace"), std::string::npos) << why;
  TrySection match(client.layout(make_layout({kOpaque})), {"key-0"});
  client.match(match);
  EXPECT_TRUE(match.all("rejected(unknown_namespace)")) << text_of(match.answers[0]);
  refusing = false;
  while (!client.ready(10)) continue;
  client.match(match);
  EXPECT_TRUE(match.all("miss(absent)"));
}

}  // namespace hostile_test
}  // namespace halfstep::peer
