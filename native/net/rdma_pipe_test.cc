#include "net/rdma_pipe.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <poll.h>

#include <algorithm>
#include <cerrno>

#include "base/prng.h"
#include "net/rdma_fixture.h"
#include "net/stream_fixture.h"

namespace halfstep::net {
namespace {

constexpr uint32_t kRing = 64 * KiB;

// Every payload lies in one block of memory that is registered with the first device.
class Payload final : public RegisteredMemory {
 public:
  bool local_key(const rdma::Device&, ConstBytes bytes, uint32_t* key) noexcept override {
    if (!region.made()) return false;
    const auto at = reinterpret_cast<uint64_t>(bytes.data());
    *key = region.local_key();
    return at >= region.address() && at + bytes.size() <= region.address() + memory.size();
  }
  Octets memory = random_octets(2 * MiB, 77);
  rdma::MemoryRegion region;
};

class Pipes : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_TRUE(loop_.open().ok());
    sockets_ = tcp_pair();
    RdmaEnds ends = rdma_ends(rdma_.rings, sockets_);
    server_ = std::make_unique<RdmaPipe>(std::move(ends.server), payload_, counts_, false);
    client_ = std::make_unique<RdmaPipe>(std::move(ends.client), payload_, counts_, true);
  }
  void TearDown() override {
    server_ = nullptr;
    client_ = nullptr;
    payload_.region.reset();
    for (const int socket : sockets_) ::close(socket);
    EXPECT_EQ(rdma_.verbs.live(), 0U);
    EXPECT_TRUE(rdma_.verbs.faults().empty()) << rdma_.verbs.faults().front();
  }
  static ssize_t write(RdmaPipe& to, ConstBytes bytes, bool more = false) {
    const iovec vector{const_cast<std::byte*>(bytes.data()), bytes.size()};
    return to.write(&vector, 1, more);
  }
  static Octets read(RdmaPipe& from, size_t most = SIZE_MAX) {
    Octets all;
    std::array<std::byte, 4096> some;
    while (all.size() < most) {
      const iovec vector{some.data(), std::min(some.size(), most - all.size())};
      const ssize_t got = from.read(&vector, 1);
      if (got <= 0) break;
      append(all, ConstBytes(some).first(static_cast<size_t>(got)));
    }
    return all;
  }
  static int error_of_read(RdmaPipe& from) {
    std::byte one;
    const iovec vector{&one, 1};
    return static_cast<int>(from.read(&vector, 1));
  }

  ManualClock clock_;
  Loop loop_{clock_};
  FakeRdma rdma_{loop_, kRing};
  Payload payload_;
  RdmaCounts counts_;
  std::array<int, 2> sockets_{-1, -1};
  std::unique_ptr<RdmaPipe> server_;
  std::unique_ptr<RdmaPipe> client_;
};

TEST_F(Pipes, CarryAnyBytesBothWaysAroundTheirRings) {
  Prng prng(3);
  const Octets sent = random_octets(40 * kRing, 5);
  for (auto [from, to] : {std::pair(client_.get(), server_.get()), {server_.get(), client_.get()}}) {
    Octets got;
    for (size_t at = 0; got.size() < sent.size();) {
      const size_t step = std::min<size_t>(sent.size() - at, 1 + prng.below(prng.chance(0.3) ? 2 * kRing : 3000));
      const ssize_t taken = write(*from, ConstBytes(sent).subspan(at, step));
      ASSERT_TRUE(taken > 0 || taken == -EAGAIN || step == 0) << taken;
      at += taken > 0 ? static_cast<size_t>(taken) : 0;
      append(got, read(*to, prng.below(2 * kRing)));
    }
    EXPECT_TRUE(got == sent);
  }
}

TEST_F(Pipes, AFullRingIsToldAndHeardOfWhenItIsRead) {
  const Octets sent = random_octets(2 * kRing, 1);
  EXPECT_EQ(write(*client_, sent), kRing);
  EXPECT_EQ(write(*client_, sent), -EAGAIN);
  pollfd told{.fd = client_->descriptor(), .events = POLLIN, .revents = 0};
  EXPECT_EQ(::poll(&told, 1, 0), 0);
  EXPECT_EQ(read(*server_, kRing / 4).size(), kRing / 4);
  EXPECT_EQ(::poll(&told, 1, 0), 1) << "a quarter was taken";
  client_->heard();
  EXPECT_EQ(::poll(&told, 1, 0), 0);
  EXPECT_EQ(write(*client_, sent), kRing / 4);
}

TEST_F(Pipes, AServerSaysNothingBeforeItsClientHas) {
  TearDown();
  sockets_ = tcp_pair();
  RdmaEnds ends = rdma_ends(rdma_.rings, sockets_);
  server_ = std::make_unique<RdmaPipe>(std::move(ends.server), payload_, counts_, false);
  EXPECT_EQ(write(*server_, random_octets(10, 1)), -EAGAIN);
  client_ = std::make_unique<RdmaPipe>(std::move(ends.client), payload_, counts_, true);
  EXPECT_EQ(write(*server_, random_octets(10, 1)), 10);
}

TEST_F(Pipes, WritesArePostedTogetherAndFewCompletionsAreAskedFor) {
  const uint64_t posts = rdma_.verbs.count("post_send");
  const uint64_t writes = rdma_.verbs.sends_posted();
  const uint64_t signals = rdma_.verbs.signals_asked();
  constexpr int kRounds = 64;
  for (int i = 0; i < kRounds; ++i) {
    EXPECT_EQ(write(*client_, random_octets(100, 1)), 100);
    EXPECT_EQ(read(*server_).size(), 100U);
  }
  EXPECT_EQ(rdma_.verbs.sends_posted() - writes, kRounds) << "a write each, and none about room";
  EXPECT_EQ(rdma_.verbs.count("post_send") - posts, kRounds);
  EXPECT_EQ(rdma_.verbs.signals_asked() - signals, kRounds / kRdmaSignalWrites);
}

TEST_F(Pipes, PayloadThatIsRegisteredIsSentFromWhereItLies) {
  ASSERT_TRUE(
      rdma::MemoryRegion::make(client_->device(), payload_.memory, rdma::MemoryRegion::Access::Local, &payload_.region).ok());
  const uint64_t registered = rdma_.verbs.count("reg_mr");
  std::array<iovec, 3> pieces{{{payload_.memory.data() + 5, 5000}, {payload_.memory.data() + 100'000, 9000}, {nullptr, 0}}};
  EXPECT_EQ(client_->write_held(pieces.data(), pieces.size(), true), 14'000);
  EXPECT_EQ(counts_.held_bytes, 14'000U);
  EXPECT_EQ(counts_.copied_bytes, 0U);
  EXPECT_EQ(client_->held_bytes(), 14'000U);
  client_->push();  // nothing follows in this turn
  const Octets got = read(*server_);
  ASSERT_EQ(got.size(), 14'000U);
  EXPECT_TRUE(std::equal(got.begin(), got.begin() + 5000, payload_.memory.begin() + 5));
  EXPECT_TRUE(std::equal(got.begin() + 5000, got.end(), payload_.memory.begin() + 100'000));

  int released = 0;
  const Release release{[](void* count, uint64_t) { ++*static_cast<int*>(count); }, &released, 0};
  ASSERT_TRUE(client_->hold(release));
  Release free;
  client_->poll();
  EXPECT_FALSE(client_->take_free(&free)) << "no completion was asked for yet";
  EXPECT_EQ(write(*client_, random_octets(10, 1)), 10) << "the last of what follows";
  client_->poll();
  ASSERT_TRUE(client_->take_free(&free));
  free();
  EXPECT_EQ(released, 1);
  EXPECT_FALSE(client_->take_free(&free));
  EXPECT_EQ(client_->held_bytes(), 0U);
  EXPECT_FALSE(client_->hold(release)) << "nobody reads it";

  const Octets elsewhere = random_octets(100, 4);
  const iovec other{const_cast<std::byte*>(elsewhere.data()), elsewhere.size()};
  EXPECT_EQ(client_->write_held(&other, 1, false), 100) << "and is copied";
  EXPECT_EQ(counts_.held_bytes, 14'000U);
  EXPECT_EQ(rdma_.verbs.count("reg_mr"), registered);
}

TEST_F(Pipes, PayloadIsHeldAsLongAsADeviceReadsIt) {
  ASSERT_TRUE(
      rdma::MemoryRegion::make(client_->device(), payload_.memory, rdma::MemoryRegion::Access::Local, &payload_.region).ok());
  rdma_.verbs.delay(true);
  const iovec piece{payload_.memory.data(), 30'000};
  EXPECT_EQ(client_->write_held(&piece, 1, false), 30'000);
  const Release release{[](void*, uint64_t) {}, nullptr, 7};
  ASSERT_TRUE(client_->hold(release));
  Release free;
  client_->poll();
  EXPECT_FALSE(client_->take_free(&free));
  EXPECT_FALSE(client_->settled());
  rdma_.verbs.carry_out();
  client_->poll();
  EXPECT_TRUE(client_->take_free(&free));
  EXPECT_EQ(free.tag, 7U);
}

// Memory of the client's that the server may write into.
class Places : public Pipes {
 protected:
  void SetUp() override {
    Pipes::SetUp();
    ASSERT_TRUE(
        rdma::MemoryRegion::make(server_->device(), payload_.memory, rdma::MemoryRegion::Access::Local, &payload_.region).ok());
    ASSERT_TRUE(
        rdma::MemoryRegion::make(client_->device(), target_, rdma::MemoryRegion::Access::RemoteWrite, &target_region_).ok());
    ASSERT_TRUE(server_->place_room()) << "it has heard of its client";
  }
  void TearDown() override {
    server_ = nullptr;
    client_ = nullptr;
    target_region_.reset();
    Pipes::TearDown();
  }
  RemoteRun to(size_t at, uint32_t bytes) const {
    return {.address = target_region_.address() + at, .key = target_region_.remote_key(), .bytes = bytes};
  }
  ConstBytes from(size_t at, size_t bytes) const { return ConstBytes(payload_.memory).subspan(at, bytes); }
  bool place(const std::vector<ConstBytes>& payload, const std::vector<RemoteRun>& runs) {
    return server_->place(payload, runs);
  }
  bool has(size_t at, ConstBytes bytes) const {
    return std::equal(bytes.begin(), bytes.end(), target_.begin() + static_cast<ptrdiff_t>(at));
  }

  Octets target_ = Octets(256 * KiB, std::byte{0xA5});
  rdma::MemoryRegion target_region_;
};

TEST_F(Places, LieInTheOthersMemoryBeforeWhatTellsOfThemIsRead) {
  rdma_.verbs.delay(true);
  ASSERT_TRUE(server_->place_room());
  ASSERT_TRUE(place({from(5, 5000), from(100'000, 9000)}, {to(100, 6000), to(20'000, 8000)}));
  EXPECT_EQ(counts_.placed_bytes, 14'000U);
  EXPECT_EQ(counts_.copied_bytes, 0U);
  EXPECT_EQ(rdma_.verbs.count("placed"), 0U) << "posted with what follows";
  EXPECT_EQ(write(*server_, random_octets(10, 1)), 10);
  EXPECT_EQ(rdma_.verbs.count("placed"), 2U) << "each run is one write, whatever lies where";
  const Release release{[](void*, uint64_t) {}, nullptr, 7};
  ASSERT_TRUE(server_->hold(release));
  Release free;
  server_->poll();
  EXPECT_FALSE(server_->take_free(&free));
  EXPECT_TRUE(read(*client_).empty());
  rdma_.verbs.carry_out();
  EXPECT_EQ(read(*client_).size(), 10U);
  EXPECT_TRUE(has(100, from(5, 5000)));
  EXPECT_TRUE(has(5100, from(100'000, 1000)));
  EXPECT_TRUE(has(20'000, from(101'000, 8000)));
  EXPECT_TRUE(has(6100, Octets(13'900, std::byte{0xA5})));
  server_->poll();
  EXPECT_TRUE(server_->take_free(&free));
  EXPECT_EQ(server_->held_bytes(), 0U);
}

TEST_F(Places, ThatCannotBeTakenInWholeWriteNothing) {
  EXPECT_FALSE(place({}, {}));
  EXPECT_FALSE(place({from(0, 1000)}, {to(0, 999)})) << "fewer bytes than payload";
  EXPECT_FALSE(place({from(0, 1000)}, {to(0, 1000), to(5000, 1)})) << "more";
  const Octets elsewhere = random_octets(100, 4);
  EXPECT_FALSE(place({from(0, 100), elsewhere}, {to(0, 200)})) << "no device reads it";
  std::vector<RemoteRun> fine;
  for (size_t i = 0; i <= kPlaceWritesMax; ++i) fine.push_back(to(i * 1000, 10));
  EXPECT_FALSE(place({from(0, 10 * fine.size())}, fine));
  // One run of so many pieces that it takes too many writes.
  std::vector<ConstBytes> pieces;
  for (size_t i = 0; i <= size_t{kPlaceWritesMax} * RdmaEnd::kPieces; ++i) pieces.push_back(from(2 * i, 1));
  EXPECT_FALSE(place(pieces, {to(0, static_cast<uint32_t>(pieces.size()))}));
  server_->push();
  EXPECT_EQ(rdma_.verbs.count("placed"), 0U);
  EXPECT_EQ(server_->held_bytes(), 0U);
  EXPECT_TRUE(has(0, Octets(target_.size(), std::byte{0xA5})));
  fine.pop_back();
  EXPECT_TRUE(place({from(0, 10 * fine.size())}, fine)) << "as many as there may be";
}

TEST_F(Places, AreTakenWhileTheQueueHasRoomForAsManyWritesAsOneMayNeed) {
  rdma_.verbs.delay(true);
  std::vector<RemoteRun> fine;
  for (size_t i = 0; i < kPlaceWritesMax; ++i) fine.push_back(to(i * 1000, 10));
  uint32_t taken = 0;
  for (; server_->place_room(); ++taken) ASSERT_TRUE(place({from(0, 10 * fine.size())}, fine));
  EXPECT_EQ(taken, 3U);
  EXPECT_FALSE(place({from(0, 10 * fine.size())}, fine));
  pollfd told{.fd = server_->descriptor(), .events = POLLIN, .revents = 0};
  EXPECT_EQ(::poll(&told, 1, 0), 0);
  rdma_.verbs.carry_out();
  EXPECT_EQ(::poll(&told, 1, 0), 1) << "whoever waits hears of it";
  server_->heard();
  EXPECT_TRUE(server_->place_room());
}

// What the other end has not registered, or not for that: its device refuses, and the pipe is over.
TEST_F(Places, ThatTheOtherDeviceRefusesEndThePipe) {
  RemoteRun beyond = to(target_.size() - 10, 100);
  ASSERT_TRUE(place({from(0, 100)}, {beyond}));
  EXPECT_EQ(write(*server_, random_octets(10, 1)), 10);
  server_->poll();
  EXPECT_NE(server_->error(), 0);
  EXPECT_FALSE(server_->place_room());
  EXPECT_FALSE(place({from(0, 100)}, {to(0, 100)}));
  EXPECT_TRUE(has(0, Octets(target_.size(), std::byte{0xA5})));
}

// The outbox of what is under way is not written to again: a device that is slow sends what was written, not what came after.
TEST_F(Pipes, TheOutboxIsUsedAgainOnlyBehindACompletion) {
  rdma_.verbs.delay(true);
  const Octets first = random_octets(kRing, 1);
  EXPECT_EQ(write(*client_, first), kRing);
  EXPECT_EQ(write(*client_, random_octets(kRing, 2)), -EAGAIN);
  rdma_.verbs.carry_out();
  EXPECT_TRUE(read(*server_) == first);
  rdma_.verbs.carry_out();
  EXPECT_EQ(write(*client_, random_octets(kRing, 2)), kRing);
}

// More messages than there are receives, while the other end is busy elsewhere.
TEST_F(Pipes, AnEndThatDoesNotLookIsWaitedFor) {
  Octets sent;
  for (int i = 0; i < 2000; ++i) {
    const Octets some = random_octets(8, static_cast<uint64_t>(i));
    if (write(*client_, some) != 8) break;
    append(sent, some);
  }
  EXPECT_GT(sent.size(), 8U * RdmaEnd::kReceives);
  EXPECT_LT(sent.size(), 8U * (RdmaEnd::kReceives + RdmaEnd::kSends));
  Octets got;
  for (int i = 0; i < 100 && got.size() < sent.size(); ++i) append(got, read(*server_));
  EXPECT_TRUE(got == sent);
  EXPECT_EQ(client_->error(), 0);
}

// What the other end may tell: positions that it cannot have.
class Liar : public Pipes {
 protected:
  // Posts a write of nothing by the client's own queue pair, behind the pipe's back.
  void tell(uint32_t immediate) { tell_of(*client_, immediate); }
  void tell_of(RdmaPipe& from, uint32_t immediate) {
    rdma::abi::SendRequest request{};
    request.opcode = rdma::abi::kWriteImmediate;
    request.imm_data = htonl(immediate);
    ASSERT_EQ(from.queue_pair_for_tests().post_sends(&request), 0);
  }
};

TEST_F(Liar, ATailBeyondTheRingBreaksThePipe) {
  tell(kRing + 1);
  EXPECT_EQ(error_of_read(*server_), -EPROTO);
  EXPECT_EQ(write(*server_, random_octets(1, 1)), -EPROTO) << "and says nothing else from then on";
}

TEST_F(Liar, ATailThatGoesBackBreaksThePipe) {
  EXPECT_EQ(write(*client_, random_octets(1000, 1)), 1000);
  tell(999);
  EXPECT_EQ(read(*server_).size(), 1000U) << "what came before is whole";
  EXPECT_EQ(error_of_read(*server_), -EPROTO);
}

TEST_F(Liar, RoomThatNobodyFilledBreaksThePipe) {
  tell(kRdmaImmediateRoom | 1);
  EXPECT_EQ(error_of_read(*server_), -EPROTO);
}

TEST_F(Liar, RoomThatIsTakenBackBreaksThePipe) {
  EXPECT_EQ(write(*server_, random_octets(1000, 1)), 1000);
  EXPECT_EQ(read(*client_).size(), 1000U);
  tell(kRdmaImmediateRoom | 600);
  tell(kRdmaImmediateRoom | 599);
  EXPECT_EQ(error_of_read(*server_), -EPROTO);
}

TEST_F(Liar, ATailWithoutBytesSaysNothing) {
  tell(0);
  EXPECT_EQ(error_of_read(*server_), -EAGAIN);
  EXPECT_EQ(write(*client_, random_octets(10, 1)), 10);
  EXPECT_EQ(read(*server_).size(), 10U);
}

TEST_F(Pipes, APathThatDiesIsAnErrorBehindWhatHadArrived) {
  EXPECT_EQ(write(*client_, random_octets(100, 1)), 100);
  rdma_.verbs.break_all(rdma::abi::kStatusRetryExceeded);
  EXPECT_EQ(read(*server_).size(), 100U);
  EXPECT_LT(error_of_read(*server_), 0);
  EXPECT_EQ(write(*client_, random_octets(1, 1)), 1) << "it has not looked";
  EXPECT_EQ(error_of_read(*client_), -ECONNABORTED);
  EXPECT_EQ(write(*client_, random_octets(1, 1)), -ECONNABORTED);
  EXPECT_TRUE(client_->settled()) << "nothing more will complete";
}

TEST_F(Pipes, ADeviceThatTakesNoWritesEndsIt) {
  rdma_.verbs.fail_next("post_send", EIO);
  EXPECT_EQ(write(*client_, random_octets(1, 1)), -EIO);
  EXPECT_EQ(error_of_read(*client_), -EIO);
}

TEST_F(Pipes, ADeviceThatCannotTellEndsIt) {
  rdma_.verbs.fail_next("req_notify_cq", ENODEV);
  EXPECT_EQ(error_of_read(*client_), -ENODEV);
}

TEST_F(Pipes, AFlushCompletesEverythingThatWasWritten) {
  EXPECT_EQ(write(*client_, random_octets(3, 1)), 3);
  client_->poll();
  EXPECT_FALSE(client_->settled()) << "nobody asked for it";
  client_->flush();
  client_->poll();
  EXPECT_TRUE(client_->settled());
  EXPECT_EQ(read(*server_).size(), 3U);
}

TEST_F(Pipes, PositionsPassTheEndOfTheirBits) {
  // 31 bits hold 2 GiB: a ring goes round them unharmed. Here by small steps of what both ends know.
  const Octets block = random_octets(kRing, 9);
  uint64_t moved = 0;
  for (; moved < (uint64_t{1} << 31) + 10 * kRing; moved += kRing) {
    ASSERT_EQ(write(*client_, block), kRing);
    std::array<iovec, 1> into{{{payload_.memory.data(), kRing}}};
    ASSERT_EQ(server_->read(into.data(), 1), kRing);
  }
  EXPECT_TRUE(std::equal(block.begin(), block.end(), payload_.memory.begin()));
}

}  // namespace
}  // namespace halfstep::net
