// What a stream receives and sends while the connection lives. How it ends: stream_end_test.cc.
#include "net/stream.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <utility>

#include "base/units.h"
#include "net/stream_fixture.h"

namespace halfstep::net {
namespace {

using wire::Opcode;

class Stream : public StreamFixture, public testing::WithParamInterface<Carrier> {
 protected:
  void connect() { StreamFixture::connect(GetParam()); }
};
INSTANTIATE_TEST_SUITE_P(Over, Stream, kCarriers, carrier_name);

class StreamOverTcp : public StreamFixture {};

Octets unknown_frame(uint8_t opcode, ConstBytes body) {
  Octets out(wire::kHeaderBytes);
  wire::Header header;
  header.opcode = opcode;
  header.request_id = 77;
  wire::seal_header(header, body);
  std::memcpy(out.data(), &header, sizeof(header));
  append(out, body);
  return out;
}

// A little of everything: requests, Chunks that land in pieces and in scratch, an empty Chunk, unknown frames, empty bodies.
struct Recording {
  Octets bytes;
  std::string log;
  Octets payload = random_octets(3000, 1);

  Recording() {
    append(bytes, frame(Opcode::Match, 1, random_octets(100, 2)));
    append(bytes, chunk(2, payload));
    append(bytes, unknown_frame(99, random_octets(60, 3)));
    append(bytes, frame(Opcode::Final, 1, {}));
    append(bytes, chunk(3, {}));
    append(bytes, unknown_frame(100, {}));
    append(bytes, chunk(2, payload));
    append(bytes, frame(Opcode::Final, 2, random_octets(9, 4)));
    log = "3:1:112 32:2:16 end:2 35:1:0 32:3:16 end:3 32:2:16 end:2 35:2:24 ";
  }
  void expect(const Recorder& sink, const FrameStream& stream) const {
    EXPECT_EQ(sink.log, log);
    EXPECT_EQ(sink.closed, 0);
    EXPECT_EQ(stream.skipped_frames(), 2U);
    EXPECT_EQ(stream.received_bytes(), bytes.size());
    const Octets& landed = sink.landed.at(2);
    ASSERT_EQ(landed.size(), 2 * payload.size());
    for (size_t i = 0; i < landed.size(); ++i) {
      const size_t at = i % payload.size();
      const bool scratch = at >= 1000 && at < 1500;
      ASSERT_EQ(landed[i], scratch ? std::byte{0xEE} : payload[at]) << "byte " << i;
    }
  }
};

const std::vector<int64_t> kCut = {700, 300, -500, 1};

TEST_P(Stream, ReadsTheSameAtEverySplit) {
  const Recording recording;
  for (size_t split = 0; split <= recording.bytes.size(); ++split) {
    sink_ = Recorder();
    sink_.cut = kCut;
    connect();
    write_far(ConstBytes(recording.bytes).first(split));
    turns();
    write_far(ConstBytes(recording.bytes).subspan(split));
    turns();
    recording.expect(sink_, *stream_);
    if (HasFailure()) FAIL() << "split at " << split;
    stream_.reset();
    close_far();
  }
}

TEST_P(Stream, ReadsTheSameOneByteAtATime) {
  const Recording recording;
  sink_.cut = kCut;
  connect();
  for (const std::byte& byte : recording.bytes) {
    write_far({&byte, 1});
    loop_.turn(0);
  }
  recording.expect(sink_, *stream_);
}

TEST_P(Stream, ReadsTheSameInRandomFragments) {
  const Recording recording;
  for (uint64_t seed = 0; seed < 300; ++seed) {
    Prng prng(seed);
    sink_ = Recorder();
    sink_.cut = kCut;
    if (seed % 2 == 0) {
      connect();
    } else {
      StreamFixture::connect(tcp_pair());
    }
    for (ConstBytes rest = recording.bytes; !rest.empty();) {
      const size_t count = std::min<size_t>(rest.size(), 1 + prng.below(prng.chance(0.5) ? 40 : 2000));
      write_far(rest.first(count));
      rest = rest.subspan(count);
      if (prng.chance(0.7)) loop_.turn(0);
    }
    ASSERT_TRUE(turn_until([&] { return stream_->received_bytes() == recording.bytes.size(); }));
    recording.expect(sink_, *stream_);
    if (HasFailure()) FAIL() << "seed " << seed;
    stream_.reset();
    close_far();
  }
}

TEST_P(Stream, KeepsInterleavedChunksApart) {
  connect();
  Octets first;
  Octets second;
  for (uint64_t i = 0; i < 20; ++i) {
    const Octets a = random_octets(1 + i * 50, i);
    const Octets b = random_octets(1 + i * 70, 100 + i);
    write_far(chunk(1, a));
    write_far(chunk(2, b));
    append(first, a);
    append(second, b);
    turns(1);
  }
  EXPECT_TRUE(turn_until([&] { return sink_.chunks == 40; }));
  EXPECT_EQ(sink_.landed[1], first);
  EXPECT_EQ(sink_.landed[2], second);
}

TEST_F(StreamOverTcp, TakesABodyOfTheLargestSize) {
  connect(tcp_pair());
  const Octets value = random_octets(wire::kBodyBytesMax - 8, 5);
  const Octets large = frame(Opcode::Put, 1, value);
  for (ConstBytes rest = large; !rest.empty();) {
    const ssize_t sent = ::send(far_, rest.data(), rest.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
    if (sent > 0) rest = rest.subspan(static_cast<size_t>(sent));
    loop_.turn(0);
  }
  EXPECT_TRUE(turn_until([&] { return !sink_.log.empty(); }));
  EXPECT_EQ(ConstBytes(sink_.last_body).size(), wire::kBodyBytesMax);
  EXPECT_TRUE(std::equal(value.begin(), value.end(), sink_.last_body.begin() + 8));
}

TEST_P(Stream, DivertsTheRestOfAChunkAndTouchesItsMemoryNoMore) {
  connect();
  const Octets payload = random_octets(6000, 6);
  const Octets whole = chunk(1, payload);
  const size_t head = whole.size() - payload.size();
  write_far(ConstBytes(whole).first(head + 2000));
  turns();
  EXPECT_EQ(sink_.shown, 2000U);
  stream_->divert_landing();
  const Octets before = sink_.memory;
  write_far(ConstBytes(whole).subspan(head + 2000));
  write_far(chunk(2, payload));
  turns();
  EXPECT_EQ(sink_.landed[1], before);
  EXPECT_EQ(sink_.landed[2], payload) << "the next Chunk lands again";
}

TEST_P(Stream, DivertsFromWithinTheCallback) {
  sink_.cut = {1000, 1000};
  connect();
  sink_.at_landed = [this] {
    if (sink_.shown >= 1000) stream_->divert_landing();
  };
  const Octets payload = random_octets(5000, 7);
  write_far(chunk(1, payload));
  write_far(frame(Opcode::Final, 1, {}));
  turns();
  EXPECT_EQ(sink_.shown, 1000U);
  EXPECT_EQ(sink_.skipped, 4000U);
  EXPECT_EQ(sink_.log, "32:1:16 end:1 35:1:0 ");
}

TEST_P(Stream, SendsBytesAndPayloadsInOrderAndReleasesEachOnce) {
  connect();
  const Octets payload = random_octets(10'000, 8);
  const std::array<ConstBytes, 2> pieces = {ConstBytes(payload).first(1), ConstBytes(payload).subspan(1)};
  std::vector<uint64_t> released;
  const auto note = [](void* owner, uint64_t tag) { static_cast<std::vector<uint64_t>*>(owner)->push_back(tag); };
  Octets expected;
  for (uint64_t i = 0; i < 5; ++i) {
    stream_->send(frame(Opcode::Answers, i, {}));
    append(expected, frame(Opcode::Answers, i, {}));
    stream_->send_chunk(frame(Opcode::Chunk, i, {}, 10'000), pieces, note, &released, i);
    append(expected, frame(Opcode::Chunk, i, {}, 10'000));
    append(expected, payload);
  }
  stream_->send_chunk(frame(Opcode::Chunk, 9, {}, 0), {}, note, &released, 9);
  append(expected, frame(Opcode::Chunk, 9, {}, 0));
  EXPECT_TRUE(released.empty()) << "nothing is called back from send";
  turns();
  EXPECT_EQ(read_far(), expected);
  EXPECT_EQ(released, (std::vector<uint64_t>{0, 1, 2, 3, 4, 9}));
  EXPECT_EQ(stream_->queued_bytes(), 0U);
  EXPECT_EQ(stream_->sent_bytes(), expected.size());
}

TEST_P(Stream, AsksForMoreOnlyWhileLittleIsQueuedAndOnlyAfterProgress) {
  connect();
  turns();
  EXPECT_EQ(sink_.asked, 0) << "nothing was sent and nobody asked";
  stream_->ask_for_more();
  turns();
  EXPECT_EQ(sink_.asked, 1);
  turns();
  EXPECT_EQ(sink_.asked, 1);

  // The far end does not read: the queue fills up to its low mark, one or the other, and is then left as it is.
  const Octets payload = random_octets(256 * KiB, 9);
  const ConstBytes piece = payload;
  const Octets head = frame(Opcode::Chunk, 1, {}, 256 * KiB);
  sink_.at_sendable = [&] {
    for (int i = 0; i < 2; ++i) stream_->send_chunk(head, {&piece, 1}, nullptr, nullptr, 0);
  };
  stream_->ask_for_more();
  turns(50);
  const int asked = sink_.asked;
  EXPECT_GE(stream_->queued_bytes(), kSendLowBytes);
  EXPECT_LT(stream_->queued_bytes(), kSendLowBytesAlone + 2 * (256 * KiB + head.size()));
  turns(50);
  EXPECT_EQ(sink_.asked, asked);

  // It reads again: everything flows.
  uint64_t read = 0;
  EXPECT_TRUE(turn_until([&] {
    read += read_far().size();
    if (read > 8 * MiB) sink_.at_sendable = nullptr;
    return stream_->queued_bytes() == 0 && read > 8 * MiB;
  }));
  EXPECT_GT(sink_.asked, asked);
}

TEST_P(Stream, ASinkThatAlwaysAsksDoesNotKeepATurnFromEnding) {
  connect();
  sink_.at_sendable = [this] { stream_->ask_for_more(); };
  stream_->ask_for_more();
  turns(10);
  EXPECT_GE(sink_.asked, 9);
  EXPECT_LE(sink_.asked, 11);
}

TEST_P(Stream, StopsReadingWhilePausedAndLosesNothing) {
  connect();
  stream_->pause_reading();
  write_far(frame(Opcode::Match, 1, {}));
  turns();
  EXPECT_EQ(sink_.log, "");
  stream_->resume_reading();
  turns();
  EXPECT_EQ(sink_.log, "3:1:0 ");
  sink_.at_frame = [this]() -> Status {
    stream_->pause_reading();
    return {};
  };
  write_far(frame(Opcode::Match, 2, {}));
  turns();
  write_far(frame(Opcode::Match, 3, {}));
  turns();
  EXPECT_EQ(sink_.log, "3:1:0 3:2:0 ");
  stream_->resume_reading();
  turns();
  EXPECT_EQ(sink_.log, "3:1:0 3:2:0 3:3:0 ");
}

// A stream that has read all there was, and was told so: the bell for what comes while it does not read is heard by nobody.
TEST_P(Stream, WhatCameWhilePausedIsReadAfterwards) {
  connect();
  turns();
  for (uint64_t id = 1; id <= 3; ++id) {
    stream_->pause_reading();
    write_far(frame(Opcode::Match, id, {}));
    turns();
    EXPECT_EQ(sink_.log, "");
    stream_->resume_reading();
    turns();
    EXPECT_EQ(std::exchange(sink_.log, ""), "3:" + std::to_string(id) + ":0 ");
  }
}

TEST_P(Stream, KeepsFramesOfTheSameReadWhilePaused) {
  connect();
  sink_.at_frame = [this]() -> Status {
    stream_->pause_reading();
    return {};
  };
  Octets bytes = frame(Opcode::Match, 1, {});
  append(bytes, frame(Opcode::Match, 2, {}));
  append(bytes, chunk(3, random_octets(100, 1)));
  append(bytes, frame(Opcode::Match, 4, {}));
  const size_t last = bytes.size() - 7;
  write_far(ConstBytes(bytes).first(last));
  turns();
  EXPECT_EQ(sink_.log, "3:1:0 ");
  stream_->resume_reading();
  turns();
  EXPECT_EQ(sink_.log, "3:1:0 3:2:0 ");
  sink_.at_frame = nullptr;
  stream_->resume_reading();
  turns();
  write_far(ConstBytes(bytes).subspan(last));
  turns();
  EXPECT_EQ(sink_.log, "3:1:0 3:2:0 32:3:16 end:3 3:4:0 ");
}

TEST_P(Stream, FramesThatAskForMuchTakeTurns) {
  connect();
  constexpr uint64_t kFrames = 40;
  Octets bytes;
  for (uint64_t id = 1; id <= kFrames; ++id) append(bytes, frame(Opcode::Match, id, {}));
  sink_.at_frame = [this] {
    clock_.us += kTurnUsAlone / 4;
    return Status();
  };
  write_far(bytes);
  const auto shown = [this] { return static_cast<uint64_t>(std::count(sink_.log.begin(), sink_.log.end(), ' ')); };
  while (shown() < kFrames) {
    const uint64_t before = shown();
    loop_.turn(0);
    ASSERT_GT(shown(), before);
    ASSERT_LE(shown() - before, 4U);
  }
}

TEST_P(Stream, WorkThatWasLeftIsDoneInTurnsAndBeforeTheNextFrame) {
  connect();
  Octets bytes = frame(Opcode::Delete, 1, {});
  append(bytes, frame(Opcode::Match, 2, {}));
  int left = 10;
  int other_turns = 0;
  sink_.at_frame = [this] {
    if (sink_.log == "7:1:0 ") stream_->leave_work();
    return Status();
  };
  sink_.at_work = [&] {
    clock_.us += kTurnUsAlone / 2;
    return --left > 0;
  };
  write_far(bytes);
  for (; left > 0 && other_turns < 100; ++other_turns) {
    EXPECT_EQ(sink_.log, other_turns == 0 ? "" : "7:1:0 ");
    loop_.turn(0);
  }
  EXPECT_EQ(other_turns, 5) << "two steps each";
  turns();
  EXPECT_EQ(sink_.log, "7:1:0 3:2:0 ");
}

TEST_P(Stream, WorkThatWasLeftGoesOnWhileNothingIsRead) {
  connect();
  int left = 10;
  sink_.at_frame = [this] {
    stream_->leave_work();
    stream_->pause_reading();
    return Status();
  };
  sink_.at_work = [&] {
    clock_.us += kTurnUsAlone;
    return --left > 0;
  };
  write_far(frame(Opcode::Delete, 1, {}));
  turns(12);
  EXPECT_EQ(left, 0);
}

TEST_F(StreamOverTcp, ConnectionsTakeTurns) {
  connect(tcp_pair());
  const auto pair = unix_pair();
  Recorder other_sink;
  FrameStream other(loop_, pair[1], other_sink);
  ASSERT_TRUE(other.start().ok());

  // Far more than a turn's share waits on one connection, in both directions; the other has one small frame.
  const Octets flood = chunk(1, random_octets(256 * KiB, 10));
  size_t offset = 0;
  for (;;) {
    const ssize_t sent = ::send(far_, flood.data() + offset, flood.size() - offset, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (sent <= 0) break;
    offset = (offset + static_cast<size_t>(sent)) % flood.size();
  }
  const ConstBytes piece = flood;
  for (int i = 0; i < 16; ++i) stream_->send_chunk({}, {&piece, 1}, nullptr, nullptr, 0);
  const Octets small = frame(Opcode::Match, 1, {});
  ASSERT_EQ(::send(pair[0], small.data(), small.size(), 0), static_cast<ssize_t>(small.size()));

  loop_.turn(0);
  EXPECT_EQ(other_sink.log, "3:1:0 ");
  EXPECT_GT(stream_->received_bytes(), 0U);
  EXPECT_LE(stream_->received_bytes(), 1 * MiB);
  EXPECT_LE(stream_->sent_bytes(), 1 * MiB + 256 * KiB);
  ::close(pair[0]);
}

TEST_P(Stream, TwoStreamsExchangeLargeAndSmallChunksBothWays) {
  Recorder sinks[2];
  RingPair pair;
  if (GetParam() != Carrier::Socket) {
    pair = pair_of(GetParam());
  } else {
    const auto sockets = tcp_pair();
    pair = {socket_transport(sockets[0]), socket_transport(sockets[1])};
  }
  FrameStream a(loop_, std::move(pair.server), sinks[0]);
  FrameStream b(loop_, std::move(pair.client), sinks[1]);
  ASSERT_TRUE(a.start().ok());
  ASSERT_TRUE(b.start().ok());
  Prng prng(11);
  std::vector<Octets> kept;
  Octets expected[2];
  for (int i = 0; i < 120; ++i) {
    kept.push_back(random_octets(1 + prng.below(prng.chance(0.5) ? 256 * KiB : 5000), prng.next()));
    const ConstBytes piece = kept.back();
    const bool to_b = i % 2 == 0;
    (to_b ? a : b)
        .send_chunk(frame(Opcode::Chunk, 1, random_octets(40, 1), static_cast<uint32_t>(piece.size())), {&piece, 1}, nullptr,
                    nullptr, 0);
    append(expected[to_b ? 1 : 0], piece);
  }
  EXPECT_TRUE(turn_until([&] { return sinks[0].chunks == 60 && sinks[1].chunks == 60; }));
  EXPECT_TRUE(sinks[0].landed[1] == expected[0]);
  EXPECT_TRUE(sinks[1].landed[1] == expected[1]);
}

}  // namespace
}  // namespace halfstep::net
