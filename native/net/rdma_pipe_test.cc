#include "net/rdma_pipe.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <poll.h>

#include <algorithm>
#include <cerrno>

#include "base/prng.h"
#include "net/rdma_pipe_fixture.h"

namespace halfstep::net {
namespace {

TEST_F(Pipes, CarryAnyBytesBothWaysAroundTheirRings) {
  Prng prng(3);
  const Octets sent = random_octets(40 * kPipeRingBytes, 5);
  for (auto [from, to] : {std::pair(client_.get(), server_.get()), {server_.get(), client_.get()}}) {
    Octets got;
    for (size_t at = 0; got.size() < sent.size();) {
      const size_t step = std::min<size_t>(sent.size() - at, 1 + prng.below(prng.chance(0.3) ? 2 * kPipeRingBytes : 3000));
      const ssize_t taken = write(*from, ConstBytes(sent).subspan(at, step));
      ASSERT_TRUE(taken > 0 || taken == -EAGAIN || step == 0) << taken;
      at += taken > 0 ? static_cast<size_t>(taken) : 0;
      append(got, read(*to, prng.below(2 * kPipeRingBytes)));
    }
    EXPECT_TRUE(got == sent);
  }
}

TEST_F(Pipes, AFullRingIsToldAndHeardOfWhenItIsRead) {
  const Octets sent = random_octets(2 * kPipeRingBytes, 1);
  EXPECT_EQ(write(*client_, sent), kPipeRingBytes);
  EXPECT_EQ(write(*client_, sent), -EAGAIN);
  pollfd told{.fd = client_->descriptor(), .events = POLLIN, .revents = 0};
  EXPECT_EQ(::poll(&told, 1, 0), 0);
  EXPECT_EQ(read(*server_, kPipeRingBytes / 4).size(), kPipeRingBytes / 4);
  EXPECT_EQ(::poll(&told, 1, 0), 1) << "a quarter was taken";
  client_->heard();
  EXPECT_EQ(::poll(&told, 1, 0), 0);
  EXPECT_EQ(write(*client_, sent), kPipeRingBytes / 4);
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
  const Octets first = random_octets(kPipeRingBytes, 1);
  EXPECT_EQ(write(*client_, first), kPipeRingBytes);
  EXPECT_EQ(write(*client_, random_octets(kPipeRingBytes, 2)), -EAGAIN);
  rdma_.verbs.carry_out();
  EXPECT_TRUE(read(*server_) == first);
  rdma_.verbs.carry_out();
  EXPECT_EQ(write(*client_, random_octets(kPipeRingBytes, 2)), kPipeRingBytes);
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
  tell(kPipeRingBytes + 1);
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
  const Octets block = random_octets(kPipeRingBytes, 9);
  uint64_t moved = 0;
  for (; moved < (uint64_t{1} << 31) + 10 * kPipeRingBytes; moved += kPipeRingBytes) {
    ASSERT_EQ(write(*client_, block), kPipeRingBytes);
    std::array<iovec, 1> into{{{payload_.memory.data(), kPipeRingBytes}}};
    ASSERT_EQ(server_->read(into.data(), 1), kPipeRingBytes);
  }
  EXPECT_TRUE(std::equal(block.begin(), block.end(), payload_.memory.begin()));
}

// ---- Pulls ---------------------------------------------------------------------------------------------------------------

// Both ends as transports, the server's with memory that its device reads into.
class Pulls : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_TRUE(loop_.open().ok());
    const std::array<int, 2> sockets = tcp_pair();
    RdmaEnds ends = rdma_ends(rdma_.rings, sockets);
    const std::shared_ptr<rdma::Device> device = ends.client->device();
    ASSERT_TRUE(rdma_.rings.transport(std::move(ends.server), sockets[1], 0, false, &pair_.server).ok());
    ASSERT_TRUE(rdma_.rings.transport(std::move(ends.client), sockets[0], 0, true, &pair_.client).ok());
    for (const int socket : sockets) ::close(socket);
    ASSERT_TRUE(pair_.server->start(loop_, &unheard_).ok());
    ASSERT_TRUE(pair_.client->start(loop_, &unheard_).ok());
    pair_.server->heard(EPOLLIN);
    ASSERT_TRUE(rdma::MemoryRegion::make(device, memory_, rdma::MemoryRegion::Access::Remote, &source_).ok());
    ASSERT_TRUE(rdma::MemoryRegion::make(device, memory_, rdma::MemoryRegion::Access::RemoteWrite, &deaf_).ok());
  }
  void TearDown() override {
    pair_ = {};
    source_.reset();
    deaf_.reset();
    rdma_.rings.drop_all();
    EXPECT_TRUE(rdma_.verbs.faults().empty()) << rdma_.verbs.faults().front();
  }
  RemoteRun from(size_t at, uint32_t bytes) const {
    return {.address = source_.address() + at, .key = source_.remote_key(), .bytes = bytes};
  }
  Bytes into(size_t at, size_t bytes) { return Bytes(payload_).subspan(at, bytes); }
  bool pull(const std::vector<Bytes>& into, const std::vector<RemoteRun>& from) { return pair_.server->pull(into, from); }
  size_t taken() {
    pair_.server->heard(EPOLLIN);
    size_t count = 0;
    while (pair_.server->take_pulled()) ++count;
    return count;
  }

  struct Unheard : Watch {
    void on_ready(uint32_t) override {}
  };
  ManualClock clock_;
  Loop loop_{clock_};
  Octets payload_ = Octets(256 * KiB);
  Octets memory_ = random_octets(256 * KiB, 9);
  FakeRdma rdma_{loop_, kPipeRingBytes, payload_};
  Unheard unheard_;
  rdma::MemoryRegion source_;
  rdma::MemoryRegion deaf_;
  RingPair pair_;
};

TEST_F(Pulls, BringBytesFromAnywhereToAnywhereInTheOrderOfTheCalls) {
  rdma_.verbs.delay(true);
  ASSERT_TRUE(pull({into(0, 1000), into(5000, 9000)}, {from(100, 4000), from(50'000, 6000)}));
  ASSERT_TRUE(pull({into(20'000, 10)}, {from(7, 10)}));
  EXPECT_EQ(taken(), 0U);
  rdma_.verbs.carry_out(2);
  EXPECT_EQ(taken(), 1U) << "of the second nothing has come";
  rdma_.verbs.carry_out();
  EXPECT_EQ(taken(), 1U);
  const auto same = [&](size_t at, size_t source, size_t bytes) {
    return std::equal(memory_.begin() + static_cast<ptrdiff_t>(source),
                      memory_.begin() + static_cast<ptrdiff_t>(source + bytes), payload_.begin() + static_cast<ptrdiff_t>(at));
  };
  EXPECT_TRUE(same(0, 100, 1000));
  EXPECT_TRUE(same(5000, 1100, 3000));
  EXPECT_TRUE(same(8000, 50'000, 6000));
  EXPECT_TRUE(same(20'000, 7, 10));
  EXPECT_EQ(payload_[1000], std::byte{0});
  EXPECT_EQ(rdma_.rings.counts().pulled_bytes, 10'010U);
}

TEST_F(Pulls, OfManyHalfTheQueueIsLeftToWhatIsWritten) {
  rdma_.verbs.delay(true);
  for (size_t i = 0; i < 200; ++i) ASSERT_TRUE(pull({into(i * 100, 100)}, {from(i * 1000, 100)}));
  EXPECT_LE(rdma_.verbs.count("read"), RdmaEnd::kSends / 2);
  const Octets said = random_octets(100, 1);
  const iovec vector{const_cast<std::byte*>(said.data()), said.size()};
  EXPECT_EQ(pair_.server->send(&vector, 1, false), 100);
  size_t done = 0;
  for (int i = 0; i < 1000 && done < 200; ++i) {
    rdma_.verbs.carry_out(3);
    done += taken();
  }
  EXPECT_EQ(done, 200U);
  for (size_t i = 0; i < 200; ++i) EXPECT_EQ(payload_[i * 100 + 99], memory_[i * 1000 + 99]) << i;
}

// A client whose gets fill the queue as fast as it empties has its puts read all the same.
TEST_F(Pulls, WhoWritesWithoutEndKeepsNoReadsFromTheQueue) {
  rdma_.verbs.delay(true);
  const Octets said = random_octets(100, 1);
  const iovec vector{const_cast<std::byte*>(said.data()), said.size()};
  for (size_t i = 0; i < RdmaEnd::kSends * 3 / 4; ++i) ASSERT_EQ(pair_.server->send(&vector, 1, false), 100);
  ASSERT_TRUE(pull({into(0, 100)}, {from(0, 100)}));
  EXPECT_EQ(rdma_.verbs.count("read"), 1U);
}

// Some always wait: what was posted is forgotten all the same.
TEST_F(Pulls, ThatNeverEndComeInTheirOrder) {
  rdma_.verbs.delay(true);
  size_t begun = 0;
  size_t done = 0;
  const auto at = [](size_t number) { return number % 2000 * 100; };
  while (done < 3000) {
    for (; begun < done + 300; ++begun) ASSERT_TRUE(pull({into(at(begun), 100)}, {from(at(begun) + begun % 7, 100)}));
    rdma_.verbs.carry_out(8);
    const size_t before = done;
    done += taken();
    for (size_t i = before; i < done; ++i) {
      const auto source = memory_.begin() + static_cast<ptrdiff_t>(at(i) + i % 7);
      ASSERT_TRUE(std::equal(source, source + 100, payload_.begin() + static_cast<ptrdiff_t>(at(i)))) << i;
    }
  }
}

TEST_F(Pulls, WhatIsNotRegisteredOrDoesNotAddUpIsNotRead) {
  Octets elsewhere(100);
  EXPECT_FALSE(pull({Bytes(elsewhere)}, {from(0, 100)}));
  EXPECT_FALSE(pull({into(0, 100)}, {from(0, 99)}));
  EXPECT_FALSE(pull({into(0, 99)}, {from(0, 100)}));
  EXPECT_FALSE(pull({}, {}));
  EXPECT_EQ(rdma_.verbs.count("read"), 0U);
  EXPECT_EQ(rdma_.rings.counts().pulled_bytes, 0U);
  EXPECT_FALSE(pair_.client->pull({}, {})) << "it has said nothing of reads";
}

TEST_F(Pulls, AKeyThatAllowsNoReadsBreaksThePath) {
  ASSERT_TRUE(pull({into(0, 100)}, {{.address = deaf_.address(), .key = deaf_.remote_key(), .bytes = 100}}));
  EXPECT_EQ(taken(), 0U);
  std::byte one{};
  const iovec vector{&one, 1};
  EXPECT_EQ(pair_.server->receive(&vector, 1), -EACCES);
}

TEST_F(Pulls, NothingIsReadOnceTheTransportIsGone) {
  rdma_.verbs.delay(true);
  ASSERT_TRUE(pull({into(0, 1000)}, {from(100, 1000)}));
  pair_.server = nullptr;
  rdma_.verbs.delay(false);
  rdma_.verbs.carry_out();
  EXPECT_EQ(payload_[0], std::byte{0}) << "a linger would have let it come into memory that is another's by then";
}

}  // namespace
}  // namespace halfstep::net
