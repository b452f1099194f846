#include "net/rdma_rings.h"

#include <gtest/gtest.h>

#include <cerrno>

#include "net/stream_fixture.h"

namespace halfstep::net {
namespace {

using wire::Opcode;
using wire::RdmaRefusal;

class Rings : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_TRUE(loop_.open().ok());
    sockets_ = tcp_pair();
  }
  void TearDown() override {
    end_ = nullptr;
    for (const int socket : sockets_) ::close(socket);
    EXPECT_EQ(rdma_.verbs.live(), 0U);
    EXPECT_EQ(rdma_.budget.used_bytes(), 0U);
    EXPECT_TRUE(rdma_.verbs.faults().empty()) << rdma_.verbs.faults().front();
  }
  wire::RdmaPath offered() {
    wire::RdmaPath path;
    const Fault fault = rdma_.rings.offer(sockets_[0], &end_, &path);
    EXPECT_TRUE(fault.ok()) << fault.what;
    return path;
  }
  RdmaRefusal answer(const std::vector<wire::RdmaPath>& paths) {
    const ConstBytes bytes(reinterpret_cast<const std::byte*>(paths.data()), paths.size() * sizeof(wire::RdmaPath));
    const wire::RdmaOfferView offer{.head = {.path_count = static_cast<uint16_t>(paths.size())},
                                    .paths = wire::PackedArray<wire::RdmaPath>(bytes)};
    std::unique_ptr<RdmaEnd> end;
    const RdmaRefusal refusal = rdma_.rings.answer(sockets_[1], offer, 0, &end, &head_, &answered_, &why_);
    EXPECT_EQ(end == nullptr, refusal != RdmaRefusal::None);
    EXPECT_EQ(head_.version == 0, refusal != RdmaRefusal::None);
    EXPECT_EQ(why_.empty(), refusal == RdmaRefusal::None) << why_;
    return refusal;
  }

  ManualClock clock_;
  Loop loop_{clock_};
  FakeRdma rdma_{loop_};
  std::array<int, 2> sockets_{-1, -1};
  std::unique_ptr<RdmaEnd> end_;
  wire::RdmaAnswerHead head_;
  wire::RdmaPath answered_;
  std::string why_;
};

TEST_F(Rings, AnOfferNamesItsRingAndNothingElse) {
  const wire::RdmaPath path = offered();
  EXPECT_EQ(rdma::gid_text(path.gid), "::ffff:127.0.0.1");
  EXPECT_EQ(path.ring_bytes, 64U * KiB);
  EXPECT_EQ(path.ring_address, reinterpret_cast<uint64_t>(end_->ring().data()));
  EXPECT_EQ(path.mtu_bytes, 1024U);
  const std::vector<std::string> calls = rdma_.verbs.take_calls();
  EXPECT_EQ(std::count(calls.begin(), calls.end(), "reg_mr 65536 3"), 1) << "the ring alone is written by others";
  EXPECT_EQ(std::count(calls.begin(), calls.end(), "reg_mr 65536 0"), 1);
  EXPECT_EQ(rdma_.budget.used_bytes(), 128U * KiB);
}

TEST_F(Rings, AUnixSocketHasNoRoute) {
  const auto pair = unix_pair();
  wire::RdmaPath path;
  EXPECT_EQ(rdma_.rings.offer(pair[0], &end_, &path).status, Code::Unsupported);
  EXPECT_EQ(end_, nullptr);
  for (const int socket : pair) ::close(socket);
}

TEST_F(Rings, WithoutALibraryTheReasonIsTheOffersOwn) {
  RdmaRings none(loop_, {.verbs = [](std::string* why_not) -> rdma::Verbs* {
                           *why_not = "no such library";
                           return nullptr;
                         },
                         .budget = &rdma_.budget});
  wire::RdmaPath path;
  EXPECT_EQ(none.offer(sockets_[0], &end_, &path).what, "no such library");
}

TEST_F(Rings, AnAnswerTakesTheOfferedPathThatLeadsToThePeer) {
  wire::RdmaPath stranger = offered();
  const wire::RdmaPath own = stranger;
  stranger.gid = rdma::ipv4_gid(10, 1, 2, 3);
  EXPECT_EQ(answer({stranger, own}), RdmaRefusal::None);
  EXPECT_EQ(head_.path, 1);
  EXPECT_TRUE(RdmaRings::accept(*end_, sockets_[0], answered_).ok());
}

TEST_F(Rings, APathToAThirdPartyIsRefusedAtBothEnds) {
  wire::RdmaPath stranger = offered();
  stranger.gid = rdma::ipv4_gid(10, 1, 2, 3);
  EXPECT_EQ(answer({stranger}), RdmaRefusal::Path);
  const Fault fault = RdmaRings::accept(*end_, sockets_[0], stranger);
  EXPECT_EQ(fault.status, Code::Invalid);
  EXPECT_NE(fault.what.find("10.1.2.3"), std::string::npos) << fault.what;
}

TEST_F(Rings, EachRefusalHasItsReason) {
  const wire::RdmaPath own = offered();
  EXPECT_EQ(answer({}), RdmaRefusal::Version);
  for (const auto& [function, refusal] : {std::pair("reg_mr", RdmaRefusal::Memory),
                                          {"create_qp", RdmaRefusal::Device},
                                          {"post_recv", RdmaRefusal::Device},
                                          {"get_device_list", RdmaRefusal::NotHere}}) {
    rdma_.verbs.fail_next(function, ENOMEM);
    EXPECT_EQ(answer({own}), refusal) << function << ": " << why_;
    clock_.us += 5'000'000;  // that there is no device is remembered
  }
  rdma_.verbs.fail_next("modify_qp", ENETUNREACH, 1);
  EXPECT_EQ(answer({own}), RdmaRefusal::Path) << why_;
  EXPECT_EQ(answer({own}), RdmaRefusal::None);
}

TEST_F(Rings, WhatIsBeyondTheBudgetIsRefusedAndTakesNothingOfIt) {
  RdmaBudget small(200 * KiB);
  RdmaRings rings(loop_, {.verbs = [this](std::string*) { return &rdma_.verbs; }, .budget = &small, .ring_bytes = 64 * KiB});
  wire::RdmaPath path;
  EXPECT_TRUE(rings.offer(sockets_[0], &end_, &path).ok());
  std::unique_ptr<RdmaEnd> second;
  const Fault fault = rings.offer(sockets_[0], &second, &path);
  EXPECT_EQ(fault.status, Code::NoSpace);
  EXPECT_NE(fault.what.find("131072 of 204800"), std::string::npos) << fault.what;
  EXPECT_EQ(small.used_bytes(), 128U * KiB);
  EXPECT_EQ(rdma_.verbs.count("get_device_list"), 1U) << "and no device is looked for";
  end_ = nullptr;
  EXPECT_TRUE(rings.offer(sockets_[0], &second, &path).ok()) << "and is there again afterwards";
}

TEST_F(Rings, LoopbackIsNotLookedFor) {
  rdma_.verbs.keep_off_loopback();
  wire::RdmaPath path;
  const Fault fault = rdma_.rings.offer(sockets_[0], &end_, &path);
  EXPECT_EQ(fault.status, Code::Unsupported);
  EXPECT_NE(fault.what.find("127.0.0.1 is loopback"), std::string::npos) << fault.what;
  EXPECT_EQ(rdma_.verbs.count("get_device_list"), 0U);
}

TEST_F(Rings, AnAddressThatNoDeviceHasIsLookedForOnceInSeconds) {
  rdma::FakeVerbs elsewhere({{.name = "far", .ports = {{.gids = {{rdma::ipv4_gid(10, 1, 2, 3), rdma::abi::kGidRoceV2}}}}}});
  RdmaRings rings(loop_, {.verbs = [&](std::string*) { return &elsewhere; }, .budget = &rdma_.budget});
  wire::RdmaPath path;
  std::string first;
  for (int i = 0; i < 10; ++i) {
    const Fault fault = rings.offer(sockets_[0], &end_, &path);
    EXPECT_EQ(fault.status, Code::Unsupported);
    if (i == 0) first = fault.what;
    EXPECT_EQ(fault.what, first);
  }
  EXPECT_EQ(elsewhere.count("open_device"), 1U);
  clock_.us += 5'000'000;
  EXPECT_EQ(rings.offer(sockets_[0], &end_, &path).status, Code::Unsupported);
  EXPECT_EQ(elsewhere.count("open_device"), 2U) << "devices that come are seen";
}

TEST_F(Rings, PayloadIsRegisteredOnceAndGivenBackFirst) {
  const Octets payload = random_octets(100'000, 1);
  {
    RdmaRings rings(loop_, {.verbs = [this](std::string*) { return &rdma_.verbs; },
                            .budget = &rdma_.budget,
                            .ring_bytes = 64 * KiB,
                            .payload = payload});
    for (int i = 0; i < 3; ++i) {
      wire::RdmaPath path;
      ASSERT_TRUE(rings.offer(sockets_[0], &end_, &path).ok());
    }
    EXPECT_TRUE(rings.payload_registered(*end_->device()));
    const std::vector<std::string> calls = rdma_.verbs.take_calls();
    EXPECT_EQ(std::count(calls.begin(), calls.end(), "reg_mr 100000 1"), 1);
    end_ = nullptr;
  }
  EXPECT_EQ(rdma_.verbs.live(), 0U);
}

TEST_F(Rings, AReloadedDeviceIsUsedAgainAndHasThePayload) {
  const Octets payload = random_octets(100'000, 1);
  RdmaRings rings(loop_, {.verbs = [this](std::string*) { return &rdma_.verbs; },
                          .budget = &rdma_.budget,
                          .ring_bytes = 64 * KiB,
                          .payload = payload});
  wire::RdmaPath path;
  ASSERT_TRUE(rings.offer(sockets_[0], &end_, &path).ok());
  rdma_.verbs.reload();
  std::unique_ptr<RdmaEnd> after;
  ASSERT_TRUE(rings.offer(sockets_[0], &after, &path).ok());
  EXPECT_TRUE(rings.payload_registered(*after->device()));
  const std::vector<std::string> calls = rdma_.verbs.take_calls();
  EXPECT_EQ(std::count(calls.begin(), calls.end(), "reg_mr 100000 1"), 2);
  EXPECT_EQ(rdma_.verbs.count("close_device"), 0U) << "the old one has a user";
  end_ = nullptr;
  EXPECT_EQ(rdma_.verbs.count("close_device"), 1U);
  after = nullptr;
}

TEST_F(Rings, PayloadThatCannotBePinnedIsCopied) {
  const Octets payload = random_octets(100'000, 1);
  RdmaRings rings(loop_, {.verbs = [this](std::string*) { return &rdma_.verbs; },
                          .budget = &rdma_.budget,
                          .ring_bytes = 64 * KiB,
                          .payload = payload});
  rdma_.verbs.fail_next("reg_mr", ENOMEM, 2);
  wire::RdmaPath path;
  ASSERT_TRUE(rings.offer(sockets_[0], &end_, &path).ok());
  EXPECT_FALSE(rings.payload_registered(*end_->device()));
  EXPECT_NE(rings.why_payload_is_copied(*end_->device()).find("LimitMEMLOCK"), std::string::npos)
      << rings.why_payload_is_copied(*end_->device());
}

// ---- From a socket to rings ----------------------------------------------------------------------------------------------

// A stream of a server that has said its Final, and changes: the client's end is held by hand.
class Border : public StreamFixture {
 protected:
  void SetUp() override {
    StreamFixture::SetUp();
    const auto sockets = tcp_pair();
    far_ = sockets[0];
    stream_ = std::make_unique<FrameStream>(loop_, sockets[1], sink_);
    ASSERT_TRUE(stream_->start().ok());
    sink_.at_frame = [this]() -> Status {
      if (stream_->rdma()) return {};
      stream_->send(final_);
      RdmaEnds ends = rdma_ends(rdma_.rings, {far_, stream_->descriptor()});
      std::unique_ptr<Transport> carrier;
      Status status =
          rdma_.rings.transport(std::move(ends.server), stream_->descriptor(), stream_->queued_bytes(), false, &carrier);
      if (status.ok()) status = stream_->change_carrier(std::move(carrier));
      EXPECT_TRUE(status.ok());
      EXPECT_TRUE(rdma_.rings.transport(std::move(ends.client), far_, 0, true, &far_rings_).ok());
      return status;
    };
  }
  Octets read_socket() {
    std::array<std::byte, 65536> some;
    const ssize_t got = ::recv(far_, some.data(), some.size(), MSG_DONTWAIT);
    return {some.begin(), some.begin() + std::max<ssize_t>(got, 0)};
  }

  const Octets final_ = frame(Opcode::Final, 1, random_octets(300, 1));
};

// Whoever takes a device away waits until nobody has it open, idle connections among them.
TEST_F(Border, ADeviceThatIsTakenAwayIsLetGoOf) {
  const Octets hello = frame(Opcode::Hello, 1, {});
  ASSERT_EQ(::send(far_, hello.data(), hello.size(), 0), static_cast<ssize_t>(hello.size()));
  turns();
  ASSERT_TRUE(stream_->rdma());
  clock_.us += 10'000'000;
  turns();
  EXPECT_EQ(rdma_.verbs.count("close_device"), 0U) << "it is listed";
  rdma_.verbs.unlist(true);
  clock_.us += 10'000'000;
  turns();
  EXPECT_EQ(sink_.closed, 1) << sink_.log;
  EXPECT_EQ(sink_.why.detail(), -ENODEV);
  stream_ = nullptr;
  far_rings_ = nullptr;
  for (int i = 0; i < 3; ++i) {
    clock_.us += 10'000'000;
    turns();
  }
  EXPECT_EQ(rdma_.verbs.count("close_device"), 1U);
  EXPECT_EQ(rdma_.verbs.live(), 0U);
  EXPECT_EQ(rdma_.rings.device_name(), "");
}

TEST_F(Border, TheFinalLeavesByTheSocketAndAllElseByTheRings) {
  const Octets hello = frame(Opcode::Hello, 1, {});
  ASSERT_EQ(::send(far_, hello.data(), hello.size(), 0), static_cast<ssize_t>(hello.size()));
  turns();
  EXPECT_TRUE(read_socket() == final_);
  EXPECT_TRUE(stream_->rdma());
  EXPECT_FALSE(stream_->shared_memory());
  write_far(frame(Opcode::Match, 2, random_octets(5000, 2)));
  turns();
  EXPECT_NE(sink_.log.find("3:2:"), std::string::npos) << sink_.log;
  const Octets more = frame(Opcode::Final, 2, random_octets(5000, 3));
  stream_->send(more);
  turns();
  EXPECT_TRUE(read_far() == more);
  EXPECT_TRUE(read_socket().empty()) << "the socket is silent";
  EXPECT_EQ(stream_->sent_bytes(), final_.size() + more.size());
}

TEST_F(Border, TheLastWordArrivesBeforeTheSocketEnds) {
  const Octets hello = frame(Opcode::Hello, 1, {});
  ASSERT_EQ(::send(far_, hello.data(), hello.size(), 0), static_cast<ssize_t>(hello.size()));
  turns();
  (void)read_socket();
  rdma_.verbs.delay(true);
  stream_->abort(Code::Closed, "the daemon is stopping");
  EXPECT_EQ(rdma_.rings.lingering(), 1U);
  turns(5);
  EXPECT_EQ(sink_.closed, 1);
  EXPECT_EQ(::recv(far_, final_.empty() ? nullptr : const_cast<std::byte*>(final_.data()), 1, MSG_DONTWAIT | MSG_PEEK), -1)
      << "open, as long as a write is under way";
  rdma_.verbs.delay(false);
  rdma_.verbs.carry_out();
  clock_.us += 2'000;
  turns(5);
  EXPECT_EQ(rdma_.rings.lingering(), 0U);
  EXPECT_EQ(abort_reason(read_far()), "the daemon is stopping");
  std::byte one;
  EXPECT_EQ(::recv(far_, &one, 1, MSG_DONTWAIT), 0);
}

TEST_F(Border, APeerThatNeverTakesItsLastWordIsNotWaitedForLonger) {
  const Octets hello = frame(Opcode::Hello, 1, {});
  ASSERT_EQ(::send(far_, hello.data(), hello.size(), 0), static_cast<ssize_t>(hello.size()));
  turns();
  (void)read_socket();
  rdma_.verbs.delay(true);
  stream_->abort(Code::Closed, "enough");
  turns();
  EXPECT_EQ(rdma_.rings.lingering(), 1U);
  clock_.us += 1'100'000;
  turns();
  EXPECT_EQ(rdma_.rings.lingering(), 0U);
}

TEST_F(Border, APathThatDiesEndsTheConnectionWithItsError) {
  const Octets hello = frame(Opcode::Hello, 1, {});
  ASSERT_EQ(::send(far_, hello.data(), hello.size(), 0), static_cast<ssize_t>(hello.size()));
  turns();
  rdma_.verbs.break_all(rdma::abi::kStatusRetryExceeded);
  turns(5);
  EXPECT_EQ(sink_.closed, 1);
  EXPECT_EQ(sink_.why.code(), Code::Closed);
  EXPECT_NE(sink_.why.detail(), 0);
}

}  // namespace
}  // namespace halfstep::net
