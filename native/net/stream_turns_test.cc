// How much one stream sends at once, and what it tells its transport of what follows.
#include <memory>
#include <utility>

#include "base/units.h"
#include "net/stream_fixture.h"

namespace halfstep::net {
namespace stream_turns_test {

using wire::Opcode;

struct Sent {
  size_t bytes = 0;
  bool more = false;
};

// Takes everything, and writes down in which portions.
class Taker final : public Transport {
 public:
  explicit Taker(std::vector<Sent>& sent) : sent_(sent) {}
  Status start(Loop&, Watch*) override { return {}; }
  void stop() noexcept override {}
  Status want(bool, bool) override { return {}; }
  uint32_t heard(uint32_t epoll_events) noexcept override { return epoll_events; }
  ssize_t receive(const iovec*, size_t) noexcept override { return -EAGAIN; }
  ssize_t send(const iovec* vectors, size_t count, bool more) noexcept override {
    size_t bytes = 0;
    for (size_t i = 0; i < count; ++i) bytes += vectors[i].iov_len;
    sent_.push_back({bytes, more});
    return static_cast<ssize_t>(bytes);
  }
  void finish_sending() noexcept override {}
  bool told_by_level() const noexcept override { return true; }
  int descriptor() const noexcept override { return -1; }

 private:
  std::vector<Sent>& sent_;
};

// Brings what a peer lets drip into a ring while it is read: a byte each time it is asked.
class Dripper final : public Transport {
 public:
  Dripper(Octets bytes, size_t& reads) : bytes_(std::move(bytes)), reads_(reads) {}
  Status start(Loop&, Watch*) override { return {}; }
  void stop() noexcept override {}
  Status want(bool, bool) override { return {}; }
  uint32_t heard(uint32_t epoll_events) noexcept override { return epoll_events; }
  ssize_t receive(const iovec* vectors, size_t) noexcept override {
    if (reads_ == bytes_.size()) return -EAGAIN;
    *static_cast<std::byte*>(vectors[0].iov_base) = bytes_[reads_++];
    return 1;
  }
  ssize_t send(const iovec*, size_t, bool) noexcept override { return -EAGAIN; }
  void finish_sending() noexcept override {}
  bool told_by_level() const noexcept override { return false; }
  int descriptor() const noexcept override { return -1; }

 private:
  const Octets bytes_;
  size_t& reads_;
};

// A stream whose sink has `left` Chunks of 256 KiB to send.
struct Sender {
  explicit Sender(Loop& loop, uint64_t chunks) : left(chunks), stream(loop, std::make_unique<Taker>(sent), sink) {
    EXPECT_TRUE(stream.start().ok());
    sink.at_sendable = [this] {
      for (; left != 0 && stream.queued_bytes() < stream.send_low_bytes(); --left) {
        const ConstBytes piece = payload;
        stream.send_chunk(head, {&piece, 1}, nullptr, nullptr, 0);
      }
    };
    stream.ask_for_more();
  }
  uint64_t bytes() const {
    uint64_t sum = 0;
    for (const Sent& one : sent) sum += one.bytes;
    return sum;
  }
  const Octets payload = random_octets(256 * KiB, 1);
  const Octets head = frame(Opcode::Chunk, 1, {}, 256 * KiB);
  std::vector<Sent> sent;
  Recorder sink;
  uint64_t left;
  FrameStream stream;
};

class StreamTurns : public testing::Test {
 protected:
  void SetUp() override { ASSERT_TRUE(loop_.open().ok()); }
  ManualClock clock_;
  Loop loop_{clock_};
};

TEST_F(StreamTurns, OnlyTheEndOfAnAnswerIsSaidToBeOne) {
  Sender sender(loop_, 16);
  for (int i = 0; i < 20; ++i) loop_.turn(0);
  EXPECT_EQ(sender.bytes(), 16 * (sender.head.size() + 256 * KiB));
  ASSERT_EQ(sender.sent.size(), 4U);
  for (size_t i = 0; i < sender.sent.size(); ++i) {
    EXPECT_EQ(sender.sent[i].more, i + 1 < sender.sent.size()) << i;
    EXPECT_LE(sender.sent[i].bytes, 1088 * KiB) << i;
  }
}

TEST_F(StreamTurns, ASmallRestGoesAlong) {
  Sender sender(loop_, 4);  // four Chunks and their heads: a little more than what a send takes
  loop_.turn(0);
  loop_.turn(0);
  ASSERT_EQ(sender.sent.size(), 1U);
  EXPECT_EQ(sender.sent[0].bytes, 4 * (sender.head.size() + 256 * KiB));
  EXPECT_FALSE(sender.sent[0].more);
}

TEST_F(StreamTurns, WhoIsAloneSendsEightTimesAsMuchInATurn) {
  Sender sender(loop_, 1000);
  loop_.turn(0);
  for (int turn = 0; turn < 5; ++turn) {
    const uint64_t before = sender.bytes();
    loop_.turn(0);
    EXPECT_EQ(sender.bytes() - before, 4 * MiB);
  }
}

TEST_F(StreamTurns, APeerThatDripsHoldsATurnNoLongerThanItsReadsAreWorth) {
  Octets bytes = frame(Opcode::Chunk, 1, {}, 64 * KiB);
  const Octets payload = random_octets(64 * KiB, 1);
  bytes.insert(bytes.end(), payload.begin(), payload.end());
  size_t reads = 0;
  Recorder sink;
  FrameStream stream(loop_, std::make_unique<Dripper>(bytes, reads), sink);
  ASSERT_TRUE(stream.start().ok());
  size_t turns = 0;
  for (; reads < bytes.size() && turns < 100; ++turns) {
    const size_t before = reads;
    loop_.turn(0);
    EXPECT_LE(reads - before, 4 * MiB / 512);
  }
  EXPECT_EQ(reads, bytes.size());
  EXPECT_GE(turns, bytes.size() / (4 * MiB / 512));
}

TEST_F(StreamTurns, TwoTakeTurns) {
  Sender one(loop_, 1000);
  Sender other(loop_, 1000);
  loop_.turn(0);
  for (int turn = 0; turn < 5; ++turn) {
    const uint64_t before[] = {one.bytes(), other.bytes()};
    loop_.turn(0);
    EXPECT_EQ(one.bytes() - before[0], 512 * KiB);
    EXPECT_EQ(other.bytes() - before[1], 512 * KiB);
  }
  // The other one has nothing more to say: two turns later nobody gives way any longer.
  other.left = 0;
  for (int turn = 0; turn < 4; ++turn) loop_.turn(0);
  const uint64_t before = one.bytes();
  loop_.turn(0);
  EXPECT_EQ(one.bytes() - before, 4 * MiB);
}

// A client whose every frame takes `us`, and who always has more.
struct Asker {
  Asker(Loop& loop, ManualClock& clock, uint64_t us) : stream(loop, pair[1], sink) {
    EXPECT_TRUE(stream.start().ok());
    sink.at_frame = [this, &clock, us] {
      ++served;
      clock.us += us;
      return Status();
    };
  }
  ~Asker() { ::close(pair[0]); }
  void ask(int count) {
    Octets bytes;
    for (int i = 0; i < count; ++i) append(bytes, frame(Opcode::Match, 1, {}));
    ASSERT_EQ(::send(pair[0], bytes.data(), bytes.size(), MSG_NOSIGNAL), static_cast<ssize_t>(bytes.size()));
  }
  std::array<int, 2> pair = unix_pair();
  Recorder sink;
  uint64_t served = 0;
  FrameStream stream;
};

TEST_F(StreamTurns, OneThatAsksForLittleIsServedInTheNextTurnBesideManyThatAskForMuch) {
  std::vector<std::unique_ptr<Asker>> many;
  for (int i = 0; i < 64; ++i) many.push_back(std::make_unique<Asker>(loop_, clock_, 2'500));
  for (const auto& asker : many) asker->ask(128);
  Asker little(loop_, clock_, 20);
  little.ask(1);
  for (int i = 0; i < 200; ++i) loop_.turn(0);
  ASSERT_EQ(little.served, 1U);
  for (uint64_t asked = 2; asked <= 100; ++asked) {
    little.ask(1);
    const uint64_t before_us = clock_.us;
    loop_.turn(0);
    ASSERT_EQ(little.served, asked);
    ASSERT_LE(clock_.us - before_us, 2 * 2'500U);
    clock_.us += 5'000;
    loop_.turn(0);
  }
}

TEST_F(StreamTurns, ASinkWhoseChunksTakeLongToGatherIsAskedInTurns) {
  Recorder sink;
  std::vector<Sent> sent;
  FrameStream stream(loop_, std::make_unique<Taker>(sent), sink);
  ASSERT_TRUE(stream.start().ok());
  const Octets small = frame(Opcode::Chunk, 1, {}, 0);
  int left = 100;
  sink.at_sendable = [&] {
    while (left != 0) {
      stream.send_chunk(small, {}, nullptr, nullptr, 0);
      --left;
      clock_.us += kTurnUsAlone / 2;
      if (!stream.turn_is_over()) continue;
      stream.ask_for_more();
      return;
    }
  };
  stream.ask_for_more();
  int turns = 0;
  for (; left != 0 && turns < 1'000; ++turns) {
    const int before = left;
    loop_.turn(0);
    ASSERT_GT(before, left);
    ASSERT_LE(before - left, 2);
  }
  EXPECT_EQ(turns, 50);
}

TEST_F(StreamTurns, ConnectionsHaveTheSameTimeWhateverTheyAskFor) {
  Asker long_ones(loop_, clock_, 4'000);
  Asker short_ones(loop_, clock_, 50);
  long_ones.ask(100);
  short_ones.ask(4'000);
  while (long_ones.served < 40) loop_.turn(0);
  EXPECT_NEAR(static_cast<double>(short_ones.served) * 50, 40 * 4'000.0, 8'000.0);
}

}  // namespace stream_turns_test
}  // namespace halfstep::net
