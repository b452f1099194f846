// How a connection ends: malformed frames, aborts from every callback, peers that vanish, and what is given back.
#include <gtest/gtest.h>
#include <netinet/in.h>

#include "base/units.h"
#include "net/stream.h"
#include "net/stream_fixture.h"

namespace halfstep::net {
namespace {

using wire::Opcode;

class StreamEnd : public StreamFixture {
 protected:
  // What was written makes the stream close with `code`, after an Abort whose reason holds `text`.
  void expect_aborted(Code code, const std::string& text) {
    ASSERT_TRUE(turn_until([this] { return sink_.closed != 0; }));
    EXPECT_EQ(sink_.why.code(), code);
    EXPECT_NE(abort_reason(read_far()).find(text), std::string::npos);
    turns();
    EXPECT_EQ(sink_.closed, 1);
    EXPECT_EQ(stream_->descriptor(), -1);
  }
};

struct BadHeader {
  const char* name;
  void (*spoil)(wire::Header& header);
  bool sealed_after;
  Code code;
  const char* reason;
};

const BadHeader kBadHeaders[] = {
    {"magic", [](wire::Header& h) { h.magic ^= 1; }, true, Code::Invalid, "magic"},
    {"flags", [](wire::Header& h) { h.flags = 1; }, true, Code::Invalid, "flags"},
    {"reserved", [](wire::Header& h) { h.reserved = 1; }, true, Code::Invalid, "reserved"},
    {"checksum", [](wire::Header& h) { h.request_id ^= 1; }, false, Code::Invalid, "checksum"},
    {"payload on a request", [](wire::Header& h) { h.payload_bytes = 1; }, true, Code::TooLarge, "length"},
};

class BadFrame : public StreamEnd, public testing::WithParamInterface<BadHeader> {};

TEST_P(BadFrame, IsAnsweredWithAbort) {
  for (int way = 0; way < 4; ++way) {
    sink_ = Recorder();
    if (way == 0) connect(unix_pair());
    if (way == 1) connect(tcp_pair());
    if (way == 2) connect(Carrier::Rings);
    if (way == 3) connect(Carrier::Rdma);
    wire::Header header;
    header.opcode = static_cast<uint8_t>(Opcode::Match);
    wire::seal_header(header, {});
    GetParam().spoil(header);
    if (GetParam().sealed_after) wire::seal_header(header, {});
    Octets bytes;
    append(bytes, object_bytes(header));
    append(bytes, random_octets(5000, 1));  // unread bytes must not turn the Abort into a reset
    write_far(bytes);
    expect_aborted(GetParam().code, GetParam().reason);
    EXPECT_EQ(sink_.log, "");
    stream_.reset();
    close_far();
  }
}
INSTANTIATE_TEST_SUITE_P(Headers, BadFrame, testing::ValuesIn(kBadHeaders),
                         [](const auto& at) { return "Case" + std::to_string(at.index); });

class StreamEndOver : public StreamEnd, public testing::WithParamInterface<Carrier> {};
INSTANTIATE_TEST_SUITE_P(Over, StreamEndOver, kCarriers, carrier_name);

TEST_P(StreamEndOver, ABodyWithAWrongChecksumIsAnsweredWithAbort) {
  connect(GetParam());
  Octets bytes = frame(Opcode::Match, 1, random_octets(50, 1));
  bytes.back() ^= std::byte{1};
  write_far(bytes);
  expect_aborted(Code::Corrupt, "body");
}

TEST_P(StreamEndOver, ALandingThatDoesNotFitIsOurMistakeAndCloses) {
  connect(GetParam());
  class Short : public Recorder {
    Status on_frame(const wire::Header&, ConstBytes, Landing* to) override {
      to->to_scratch(99);
      return {};
    }
  } sink;
  stream_ = nullptr;
  close_far();
  const auto pair = unix_pair();
  far_ = pair[0];
  stream_ = std::make_unique<FrameStream>(loop_, pair[1], sink);
  ASSERT_TRUE(stream_->start().ok());
  write_far(chunk(1, random_octets(100, 1)));
  turns();
  EXPECT_EQ(sink.closed, 1);
  EXPECT_EQ(sink.why.code(), Code::Internal);
  stream_.reset();
}

TEST_P(StreamEndOver, AbortWorksFromEveryCallback) {
  for (int where = 0; where < 8; ++where) {
    sink_ = Recorder();
    connect(GetParam());
    int calls = 0;
    const auto end = [&] {
      ++calls;
      stream_->abort(Code::Cancelled, "enough");
      EXPECT_EQ(sink_.closed, 0) << "on_closed comes from the loop";
      EXPECT_EQ(stream_->descriptor(), -1);
    };
    const auto end_ok = [&]() -> Status {
      end();
      return {};
    };
    const auto refuse = []() -> Status { return Code::Cancelled; };
    std::string reason = "enough";
    switch (where) {
      case 0: sink_.at_frame = end_ok; break;
      case 1: sink_.at_landed = end; break;
      case 2: sink_.at_chunk_end = end_ok; break;
      case 3: sink_.at_sendable = end; break;
      case 4: sink_.at_frame = refuse; break;
      case 5: sink_.at_chunk_end = refuse; break;
      case 6:
        sink_.at_landed = [&] { stream_->close(Code::Cancelled); };
        reason.clear();
        break;
      default: end(); break;
    }
    if (where == 4 || where == 5) reason = std::string(code_name(Code::Cancelled));
    stream_->ask_for_more();
    if (stream_->descriptor() >= 0) {
      write_far(chunk(1, random_octets(2000, 1)));
      write_far(chunk(2, random_octets(2000, 1)));
    }
    ASSERT_TRUE(turn_until([this] { return sink_.closed != 0; })) << "callback " << where;
    turns();
    EXPECT_EQ(sink_.closed, 1);
    EXPECT_LE(calls, 1) << "no callback but on_closed follows an abort, " << where;
    EXPECT_EQ(sink_.why.code(), Code::Cancelled);
    EXPECT_EQ(abort_reason(read_far()), reason) << "callback " << where;
    stream_.reset();
    close_far();
  }
}

TEST_P(StreamEndOver, TheStreamMayBeDestroyedInOnClosed) {
  connect(GetParam());
  sink_.at_closed = [this] { stream_.reset(); };
  write_far(random_octets(100, 1));
  turns();
  EXPECT_EQ(sink_.closed, 1);
  EXPECT_EQ(stream_, nullptr);
}

TEST_P(StreamEndOver, EveryPayloadIsReleasedOnceBeforeOnClosed) {
  connect(GetParam());
  const Octets payload = random_octets(256 * KiB, 1);
  const ConstBytes piece = payload;
  std::vector<uint64_t> released;
  const auto note = [](void* owner, uint64_t tag) { static_cast<std::vector<uint64_t>*>(owner)->push_back(tag); };
  for (uint64_t i = 0; i < 40; ++i) {
    stream_->send_chunk(frame(Opcode::Chunk, i, {}, 256 * KiB), {&piece, 1}, note, &released, i);
  }
  turns();
  EXPECT_LT(released.size(), 40U) << "the socket is full";
  const size_t before = released.size();
  stream_->abort(Code::Cancelled, "");
  EXPECT_EQ(released.size(), before);
  stream_->send_chunk(frame(Opcode::Chunk, 40, {}, 256 * KiB), {&piece, 1}, note, &released, 40);
  size_t at_close = 0;
  sink_.at_closed = [&] { at_close = released.size(); };
  turns();
  EXPECT_EQ(at_close, 41U);
  stream_->send_chunk(frame(Opcode::Chunk, 41, {}, 256 * KiB), {&piece, 1}, note, &released, 41);
  stream_.reset();
  ASSERT_EQ(released.size(), 42U);
  for (uint64_t i = 0; i < 42; ++i) EXPECT_EQ(released[i], i);
}

TEST_P(StreamEndOver, DestroyingAStreamReleasesAndCallsNothingElse) {
  connect(GetParam());
  const Octets payload = random_octets(100, 1);
  const ConstBytes piece = payload;
  int released = 0;
  stream_->send_chunk(
      frame(Opcode::Chunk, 1, {}, 100), {&piece, 1}, [](void* owner, uint64_t) { ++*static_cast<int*>(owner); }, &released, 0);
  stream_.reset();
  EXPECT_EQ(released, 1);
  turns();
  EXPECT_EQ(sink_.closed, 0);
}

TEST_F(StreamEnd, APeerThatEndsItsHalfGetsWhatIsQueued) {
  connect(tcp_pair());
  sink_.at_frame = [this]() -> Status {
    stream_->send(frame(Opcode::Final, 1, {}));
    return {};
  };
  write_far(frame(Opcode::Match, 1, {}));
  ASSERT_EQ(::shutdown(far_, SHUT_WR), 0);
  ASSERT_TRUE(turn_until([this] { return sink_.closed != 0; }));
  EXPECT_EQ(sink_.why, Status(Code::Closed, 0));
  EXPECT_EQ(read_far(), frame(Opcode::Final, 1, {}));
}

TEST_P(StreamEndOver, AnEndInMidFrameIsTold) {
  const Octets whole = chunk(1, random_octets(100, 1));
  for (const size_t count : {size_t{5}, size_t{40}, whole.size() - 1}) {
    sink_ = Recorder();
    connect(GetParam());
    write_far(ConstBytes(whole).first(count));
    close_far();
    ASSERT_TRUE(turn_until([this] { return sink_.closed != 0; }));
    EXPECT_EQ(sink_.why, Status(Code::Closed, -EPIPE));
    EXPECT_EQ(sink_.chunks, 0);
    stream_.reset();
  }
}

TEST_F(StreamEnd, AResetClosesOnce) {
  connect(tcp_pair());
  const linger at_once{.l_onoff = 1, .l_linger = 0};
  ASSERT_EQ(::setsockopt(far_, SOL_SOCKET, SO_LINGER, &at_once, sizeof(at_once)), 0);
  close_far();
  ASSERT_TRUE(turn_until([this] { return sink_.closed != 0; }));
  EXPECT_EQ(sink_.why, Status(Code::Closed, -ECONNRESET));
  turns();
  EXPECT_EQ(sink_.closed, 1);
}

TEST_P(StreamEndOver, AWriteToADeadPeerStillReadsItsLastWords) {
  connect(GetParam());
  Octets last;
  {
    wire::FrameWriter writer(last);
    writer.begin(Opcode::Abort, 0);
    writer.finish();
  }
  write_far(last);
  close_far();
  stream_->send(frame(Opcode::Match, 1, {}));
  ASSERT_TRUE(turn_until([this] { return sink_.closed != 0; }));
  EXPECT_EQ(sink_.log, "36:0:0 ");
  EXPECT_EQ(sink_.why.code(), Code::Closed);
}

TEST_P(StreamEndOver, APeerThatDiesWhileWeDoNotReadClosesTheConnection) {
  connect(GetParam());
  stream_->pause_reading();
  write_far(frame(Opcode::Match, 1, {}));
  close_far();
  turns();
  EXPECT_EQ(sink_.closed, 1);
  EXPECT_EQ(sink_.why.code(), Code::Closed);
}

TEST_P(StreamEndOver, ABodyOverTheLimitEndsTheConnectionBeforeItIsReceived) {
  connect(GetParam());
  stream_->limit_bodies(16 * KiB, 10'000'000, "no more than 16 KiB yet");
  const Octets fits = frame(Opcode::Match, 1, random_octets(16 * KiB - 8, 1));
  write_far(fits);
  turns(8);
  EXPECT_EQ(sink_.log, "3:1:16384 ");
  const Octets large = frame(Opcode::Match, 2, random_octets(16 * KiB, 1));
  write_far(ConstBytes(large).first(wire::kHeaderBytes));
  turns();
  EXPECT_EQ(abort_reason(read_far()), "no more than 16 KiB yet");
  EXPECT_EQ(sink_.closed, 1);
  EXPECT_EQ(sink_.why.code(), Code::TooLarge);
}

TEST_P(StreamEndOver, WhatCameInPartIsGivenBackAtOnce) {
  connect(GetParam());
  const Octets bytes = frame(Opcode::Match, 1, random_octets(100'000, 1));
  size_t sent = 0;
  for (; sent < 80'000; sent += 10'000) {
    write_far(ConstBytes(bytes).subspan(sent, 10'000));
    turns();
  }
  ASSERT_GE(stream_->memory_bytes(), sent);
  stream_->abort(Code::TooLarge, "enough");
  EXPECT_LT(stream_->memory_bytes(), 4 * KiB) << "before the loop had a turn";
  EXPECT_EQ(sink_.closed, 0);
  turns();
  EXPECT_EQ(sink_.closed, 1);
}

TEST_P(StreamEndOver, ABodyThatDoesNotArriveInTimeEndsTheConnection) {
  connect(GetParam());
  stream_->limit_bodies(wire::kBodyBytesMax, 10'000'000, {});
  const Octets bytes = frame(Opcode::Match, 1, random_octets(1000, 1));
  for (int i = 0; i < 9; ++i) {  // now and then some of it
    write_far(ConstBytes(bytes).subspan(static_cast<size_t>(i) * 100, 100));
    turns();
    clock_.us += 1'100'000;
  }
  turns();
  EXPECT_EQ(sink_.closed, 0);
  clock_.us += 200'000;
  turns();
  EXPECT_EQ(abort_reason(read_far()), "frame: its body did not arrive within 10 s");
  EXPECT_EQ(sink_.closed, 1);
}

TEST_P(StreamEndOver, EachFrameThatComesInPartHasItsOwnTime) {
  connect(GetParam());
  stream_->limit_bodies(wire::kBodyBytesMax, 10'000'000, {});
  const Octets bytes = frame(Opcode::Match, 1, random_octets(1000, 1));
  for (int i = 0; i < 10; ++i) {
    write_far(ConstBytes(bytes).first(500));
    turns();
    clock_.us += 6'000'000;
    turns();
    write_far(ConstBytes(bytes).subspan(500));
    turns();
  }
  EXPECT_EQ(sink_.closed, 0);
  // While we do not read, it is not the peer that is late.
  write_far(ConstBytes(bytes).first(500));
  turns();
  stream_->pause_reading();
  clock_.us += 60'000'000;
  turns();
  stream_->resume_reading();
  write_far(ConstBytes(bytes).subspan(500));
  turns();
  EXPECT_EQ(sink_.closed, 0);
}

TEST_P(StreamEndOver, AnythingMayArriveInAnyFragments) {
  Octets good;
  append(good, frame(Opcode::Match, 1, random_octets(100, 2)));
  append(good, chunk(2, random_octets(3000, 1)));
  append(good, frame(Opcode::Final, 1, {}));
  for (uint64_t seed = 0; seed < 3000; ++seed) {
    Prng prng(seed);
    sink_ = Recorder();
    sink_.cut = {1000, -1000};
    connect(GetParam());
    Octets bytes = seed % 4 == 0 ? random_octets(1 + prng.below(3000), seed) : good;
    for (uint64_t flips = prng.below(4); flips > 0; --flips) {
      bytes[prng.below(bytes.size())] ^= static_cast<std::byte>(1 + prng.below(255));
    }
    if (prng.chance(0.3)) bytes.resize(1 + prng.below(bytes.size()));
    for (ConstBytes rest = bytes; !rest.empty();) {
      const size_t count = std::min<size_t>(rest.size(), 1 + prng.below(4000));
      if (sink_.closed != 0) break;
      write_far(rest.first(count));
      rest = rest.subspan(count);
      loop_.turn(0);
    }
    close_far();
    ASSERT_TRUE(turn_until([this] { return sink_.closed != 0; })) << "seed " << seed;
    EXPECT_EQ(sink_.closed, 1);
    stream_.reset();
  }
}

}  // namespace
}  // namespace halfstep::net
