// Sends without a copy over real sockets: over loopback the kernel takes them, too, reads the payload until the peer has
// acknowledged it, and says that it had to copy. Payload is scribbled over as soon as it is released, so that whatever is
// released too soon arrives wrong.
#include "net/zero_copy_transport.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sched.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <string>
#include <thread>
#include <utility>

#include "base/units.h"
#include "net/stream.h"
#include "net/stream_fixture.h"

namespace halfstep::net {
namespace {

constexpr size_t kPayloadBytes = 256 * KiB;

class ZeroCopy : public StreamFixture {
 protected:
  struct Payload {
    Octets bytes;
    int released = 0;
  };

  // Before the sink goes, and what it refers to: as a shard does.
  void TearDown() override {
    stream_.reset();
    linger_.close_all();
    StreamFixture::TearDown();
  }

  void connect_zero_copy(std::array<int, 2> pair) {
    far_ = pair[0];
    // What the peer does not read stays here: the kernel must not have all of it acknowledged.
    const int bytes = 32 * 1024;
    (void)::setsockopt(far_, SOL_SOCKET, SO_RCVBUF, &bytes, sizeof(bytes));
    stream_ = std::make_unique<FrameStream>(loop_, zero_copy_transport(pair[1], linger_), sink_);
    ASSERT_TRUE(stream_->start().ok());
  }

  void send_payload(size_t bytes = kPayloadBytes) {
    const uint64_t tag = payloads_.size();
    payloads_.push_back(std::make_unique<Payload>());
    payloads_.back()->bytes = random_octets(bytes, tag);
    const Octets head = frame(wire::Opcode::Chunk, tag + 1, object_bytes(tag), static_cast<uint32_t>(bytes));
    append(expected_, head);
    append(expected_, payloads_.back()->bytes);
    const ConstBytes one[] = {payloads_.back()->bytes};
    stream_->send_chunk(head, one, &released, this, tag);
  }
  static void released(void* self, uint64_t tag) {
    Payload& payload = *static_cast<ZeroCopy*>(self)->payloads_[tag];
    ++payload.released;
    std::fill(payload.bytes.begin(), payload.bytes.end(), std::byte{0xDD});
  }
  size_t released_count() const {
    return static_cast<size_t>(
        std::count_if(payloads_.begin(), payloads_.end(), [](const auto& payload) { return payload->released != 0; }));
  }
  void expect_each_released_once() {
    for (const auto& payload : payloads_) EXPECT_EQ(payload->released, 1);
  }
  // Reads until it has `bytes`, or the connection ends.
  Octets read_far_all(size_t bytes = SIZE_MAX) {
    Octets all = std::exchange(early_, {});
    std::array<std::byte, 65536> some;
    for (int i = 0; i < 20'000 && all.size() < bytes; ++i) {
      const ssize_t got = ::recv(far_, some.data(), some.size(), MSG_DONTWAIT);
      if (got == 0 || (got < 0 && errno != EAGAIN)) break;
      if (got > 0) append(all, ConstBytes(some).first(static_cast<size_t>(got)));
      loop_.turn(got > 0 ? 0 : 1000);
    }
    return all;
  }
  // Sends payload until the kernel takes no more, so that one has left in part. Where it is full between two, the peer reads a
  // little.
  void fill_up() {
    for (int i = 0; i < 100; ++i) {
      if (stream_->queued_bytes() == 0) send_payload();
      turns(1);
      if (stream_->queued_bytes() == 0) continue;
      turns();
      if (stream_->queued_bytes() == 0) continue;
      if (stream_->queued_bytes() < kPayloadBytes) return;
      Octets some(65536);
      const ssize_t got = ::recv(far_, some.data(), some.size(), MSG_DONTWAIT);
      if (got > 0) append(early_, ConstBytes(some).first(static_cast<size_t>(got)));
    }
    FAIL() << "the socket takes everything";
  }

  ZeroCopyLinger linger_{loop_, 4};
  std::vector<std::unique_ptr<Payload>> payloads_;
  Octets expected_;
  Octets early_;  // of them, what fill_up() has read
};

TEST_F(ZeroCopy, PayloadIsReleasedWhenTheKernelSaysSoAndNotBefore) {
  connect_zero_copy(tcp_pair());
  for (int i = 0; i < 4; ++i) send_payload();
  turns(10);
  EXPECT_TRUE(stream_->zero_copy());
  EXPECT_LT(released_count(), 4U);
  EXPECT_GT(stream_->held_bytes(), 0U);
  EXPECT_EQ(stream_->let_go_bytes(), stream_->sent_bytes() - stream_->held_bytes());
  EXPECT_EQ(read_far_all(expected_.size()), expected_);
  ASSERT_TRUE(turn_until([this] { return released_count() == 4; }));
  expect_each_released_once();
  EXPECT_EQ(stream_->held_bytes(), 0U);
  EXPECT_GT(linger_.counts().bytes + linger_.counts().copied_bytes, 0U);
  EXPECT_LE(linger_.counts().bytes + linger_.counts().copied_bytes, 4 * kPayloadBytes);
  EXPECT_EQ(sink_.closed, 0) << "EPOLLERR was no error";
}

TEST_F(ZeroCopy, AConnectionWhoseBytesAreCopiedAllTheSameAsksNoMore) {
  connect_zero_copy(tcp_pair());
  send_payload();
  EXPECT_EQ(read_far_all(expected_.size()), expected_);
  ASSERT_TRUE(turn_until([this] { return !stream_->zero_copy() && stream_->held_bytes() == 0; }));
  const uint64_t copied = linger_.counts().copied_bytes;
  EXPECT_GT(copied, 0U);
  EXPECT_EQ(linger_.counts().bytes, 0U);
  EXPECT_EQ(linger_.counts().given_up, 1U);
  expected_.clear();
  send_payload(kZeroCopyRunBytesMin);
  ASSERT_TRUE(turn_until([this] { return stream_->queued_bytes() == 0; }));
  EXPECT_EQ(released_count(), 2U) << "a copy is the kernel's own";
  EXPECT_EQ(read_far_all(expected_.size()), expected_);
  EXPECT_EQ(linger_.counts().copied_bytes, copied);
  EXPECT_EQ(linger_.counts().given_up, 1U);
}

TEST_F(ZeroCopy, SmallPayloadIsCopied) {
  connect_zero_copy(tcp_pair());
  for (int i = 0; i < 8; ++i) send_payload(kZeroCopyRunBytesMin - 1);
  EXPECT_EQ(read_far_all(expected_.size()), expected_);
  EXPECT_EQ(released_count(), 8U);
  EXPECT_EQ(linger_.counts().given_up, 0U) << "it has not even looked";
  EXPECT_EQ(linger_.counts().bytes + linger_.counts().copied_bytes, 0U);
}

TEST_F(ZeroCopy, ASocketThatIsNotTcpIsSentCopies) {
  connect_zero_copy(unix_pair());
  send_payload();
  EXPECT_EQ(read_far_all(expected_.size()), expected_);
  expect_each_released_once();
  EXPECT_FALSE(stream_->zero_copy());
  EXPECT_EQ(linger_.counts().given_up, 1U);
}

TEST_F(ZeroCopy, ASocketWithAnUpperLayerIsSentCopies) {
  const std::array<int, 2> pair = tcp_pair();
  if (::setsockopt(pair[1], IPPROTO_TCP, TCP_ULP, "tls", sizeof("tls")) != 0) {
    const std::string why = std::strerror(errno);
    ::close(pair[0]);
    ::close(pair[1]);
    GTEST_SKIP() << "no TLS in this kernel (TCP_ULP: " << why << "): modprobe tls";
  }
  connect_zero_copy(pair);
  send_payload();
  EXPECT_EQ(read_far_all(expected_.size()), expected_);
  EXPECT_EQ(released_count(), 1U);
  EXPECT_EQ(linger_.counts().bytes + linger_.counts().copied_bytes, 0U);
  EXPECT_EQ(linger_.counts().given_up, 1U);
}

TEST_F(ZeroCopy, NotificationsDoNotEndAConnectionThatIsNotRead) {
  connect_zero_copy(tcp_pair());
  stream_->pause_reading();
  send_payload();
  EXPECT_EQ(read_far_all(expected_.size()), expected_);
  ASSERT_TRUE(turn_until([this] { return released_count() == 1; }));
  turns();
  EXPECT_EQ(sink_.closed, 0);
  const linger reset{.l_onoff = 1, .l_linger = 0};
  ASSERT_EQ(::setsockopt(far_, SOL_SOCKET, SO_LINGER, &reset, sizeof(reset)), 0);
  close_far();
  EXPECT_TRUE(turn_until([this] { return sink_.closed == 1; })) << "an error that is one does";
}

// RLIMIT_MEMLOCK counts the pages under way, unless the process may lock what it likes: so it is another process, without
// rights.
TEST_F(ZeroCopy, WhatTheKernelHasNoMemoryForIsCopied) {
  const auto in_child = [this] {
    const rlimit none{.rlim_cur = 4096, .rlim_max = 4096};
    if (::setrlimit(RLIMIT_MEMLOCK, &none) != 0) std::_Exit(3);
    if (::geteuid() == 0 && ::setresuid(65534, 65534, 65534) != 0) std::_Exit(4);
    connect_zero_copy(tcp_pair());
    for (int i = 0; i < 2; ++i) send_payload();
    if (read_far_all(expected_.size()) != expected_ || released_count() != 2) std::_Exit(5);
    if (linger_.counts().refused != 1) std::_Exit(6);  // the second did not even ask
    if (linger_.counts().bytes + linger_.counts().copied_bytes != 0 || !stream_->zero_copy()) std::_Exit(7);
    clock_.us += 1'000'000;
    expected_.clear();
    send_payload();
    if (read_far_all(expected_.size()) != expected_) std::_Exit(8);
    std::_Exit(linger_.counts().refused == 2 ? 0 : 9);
  };
  EXPECT_EXIT(in_child(), testing::ExitedWithCode(0), "");
}

// ---- The end -------------------------------------------------------------------------------------------------------------

TEST_F(ZeroCopy, AClosedConnectionStillSendsWhatItWasGiven) {
  connect_zero_copy(tcp_pair());
  fill_up();
  const size_t queued = stream_->queued_bytes();
  ASSERT_LT(queued, kPayloadBytes) << "the last one has left in part";
  const size_t taken = expected_.size() - queued;
  stream_->close(Code::Closed);
  ASSERT_TRUE(turn_until([this] { return sink_.closed == 1; }));
  EXPECT_EQ(linger_.sockets(), 1U);
  EXPECT_GT(linger_.bytes(), 0U);
  const size_t last = payloads_.size() - 1;
  EXPECT_EQ(payloads_[last]->released, 0) << "some of it is still being read";
  stream_.reset();
  EXPECT_EQ(payloads_[last]->released, 0);
  Octets wanted = expected_;
  wanted.resize(taken);
  EXPECT_EQ(read_far_all(), wanted) << "and then the end of it";
  ASSERT_TRUE(turn_until([this] { return linger_.sockets() == 0; }));
  expect_each_released_once();
}

TEST_F(ZeroCopy, AnAbortReachesAPeerThatReads) {
  connect_zero_copy(tcp_pair());
  send_payload();
  ASSERT_TRUE(turn_until([this] { return stream_->queued_bytes() == 0; }));
  ASSERT_GT(stream_->held_bytes(), 0U);
  stream_->abort(Code::Closed, "the daemon is stopping");
  ASSERT_TRUE(turn_until([this] { return sink_.closed == 1; }));
  const Octets all = read_far_all();
  ASSERT_GT(all.size(), expected_.size());
  EXPECT_TRUE(std::equal(expected_.begin(), expected_.end(), all.begin()));
  EXPECT_EQ(abort_reason(all), "the daemon is stopping");
  ASSERT_TRUE(turn_until([this] { return linger_.sockets() == 0; }));
  expect_each_released_once();
}

TEST_F(ZeroCopy, APeerThatReadsNothingIsDisconnectedWhenItsTimeIsOver) {
  connect_zero_copy(tcp_pair());
  fill_up();
  stream_->close(Code::Closed);
  ASSERT_TRUE(turn_until([this] { return sink_.closed == 1; }));
  clock_.us += ZeroCopyLinger::kGraceUs - 1;
  turns();
  EXPECT_EQ(linger_.grace_sockets(), 1U);
  EXPECT_LT(released_count(), payloads_.size());
  clock_.us += 1'000'000;
  ASSERT_TRUE(turn_until([this] {
    clock_.us += 1000;
    return linger_.sockets() == 0;
  }));
  expect_each_released_once();
  const Octets got = read_far_all();
  ASSERT_LT(got.size(), expected_.size());
  EXPECT_TRUE(std::equal(got.begin(), got.end(), expected_.begin()));
}

TEST_F(ZeroCopy, APeerThatVanishesGivesEverythingBack) {
  connect_zero_copy(tcp_pair());
  fill_up();
  const linger reset{.l_onoff = 1, .l_linger = 0};
  ASSERT_EQ(::setsockopt(far_, SOL_SOCKET, SO_LINGER, &reset, sizeof(reset)), 0);
  close_far();
  ASSERT_TRUE(turn_until([this] { return sink_.closed == 1 && linger_.sockets() == 0; }));
  expect_each_released_once();
}

TEST_F(ZeroCopy, MoreThanMayLingerAreDisconnectedTheOldestFirst) {
  std::vector<int> peers;
  constexpr size_t kMax = 4;  // of linger_
  for (size_t i = 0; i <= kMax; ++i) {
    connect_zero_copy(tcp_pair());
    peers.push_back(far_);
    fill_up();
    stream_->close(Code::Closed);
    ASSERT_EQ(linger_.sockets(), i + 1) << "nothing is released from within close()";
    const int closed = sink_.closed;
    EXPECT_EQ(linger_.grace_sockets(), std::min(i + 1, kMax));
    if (i == kMax) break;
    ASSERT_TRUE(turn_until([&] { return sink_.closed == closed + 1; }));
  }
  ASSERT_TRUE(turn_until([this] { return linger_.sockets() == kMax; }));
  far_ = peers[0];
  while (::recv(far_, expected_.data(), expected_.size(), MSG_DONTWAIT) > 0) {
  }
  EXPECT_EQ(errno, ECONNRESET);
  linger_.close_all();
  stream_.reset();
  expect_each_released_once();
  for (const int peer : peers) ::close(peer);
  far_ = -1;
}

TEST_F(ZeroCopy, WithoutWritersEverythingIsReleasedAndTheKernelGoesOn) {
  connect_zero_copy(tcp_pair());
  linger_.be_patient();
  fill_up();
  Octets wanted = expected_;
  wanted.resize(expected_.size() - stream_->queued_bytes());
  stream_->close(Code::Closed);
  ASSERT_TRUE(turn_until([this] { return sink_.closed == 1; }));
  clock_.us += 10 * ZeroCopyLinger::kGraceUs;
  turns();
  EXPECT_EQ(linger_.grace_sockets(), 1U);
  ASSERT_LT(released_count(), payloads_.size());
  std::vector<Octets> copies;
  for (const auto& payload : payloads_) copies.push_back(payload->bytes);
  linger_.close_all();
  EXPECT_EQ(linger_.sockets(), 0U);
  expect_each_released_once();
  // The release of this test scribbles; what it promised not to do is undone before the peer reads.
  for (size_t i = 0; i < copies.size(); ++i) std::copy(copies[i].begin(), copies[i].end(), payloads_[i]->bytes.begin());
  EXPECT_EQ(read_far_all(), wanted);
}

// ---- A device between two network namespaces --------------------------------------------------------------------------------

// Runs as root of a network of its own, on a thread that keeps it to itself. False: why not.
bool veth_pair(std::array<int, 2>* pair, std::string* why) {
  const auto run = [why](const std::string& command) {
    if (std::system((command + " 2>/dev/null").c_str()) == 0) return true;
    *why = command;
    return false;
  };
  const auto own = [] { return ::open("/proc/thread-self/ns/net", O_RDONLY | O_CLOEXEC); };
  *why = "unshare(CLONE_NEWNET)";
  if (::unshare(CLONE_NEWNET) != 0) return false;
  const int near = own();
  if (::unshare(CLONE_NEWNET) != 0) return false;
  const int far = own();
  const std::string near_path = "/proc/" + std::to_string(::getpid()) + "/fd/" + std::to_string(near);
  bool ready = run("ip link add hs-far type veth peer name hs-near") && run("ip link set hs-near netns " + near_path) &&
               run("ip addr add 10.99.0.1/24 dev hs-far") && run("ip link set hs-far up");
  ready =
      ready && ::setns(near, CLONE_NEWNET) == 0 && run("ip addr add 10.99.0.2/24 dev hs-near") && run("ip link set hs-near up");
  if (ready) {
    Address any;
    EXPECT_TRUE(Address::parse("10.99.0.2:0", &any).ok());
    int listener = -1;
    Address bound;
    EXPECT_TRUE(listen_on(any, &listener, &bound).ok());
    EXPECT_EQ(::setns(far, CLONE_NEWNET), 0);
    EXPECT_TRUE(start_connect(bound, &(*pair)[0]).ok());
    Accepted accepted;
    while (accept_on(listener, &accepted) == Code::Throttled) {
    }
    EXPECT_FALSE(accepted.peer_loopback);
    (*pair)[1] = accepted.descriptor;
    ::close(listener);
  }
  ::close(near);
  ::close(far);
  return ready;
}

TEST_F(ZeroCopy, OverAVirtualDeviceTheKernelSaysThatItCopies) {
  std::array<int, 2> pair{-1, -1};
  std::string why;
  bool ready = false;
  std::thread([&] { ready = veth_pair(&pair, &why); }).join();
  if (!ready) GTEST_SKIP() << "no network namespaces with a veth pair here: " << why << " failed (as root, with iproute2)";
  connect_zero_copy(pair);
  send_payload();
  EXPECT_EQ(read_far_all(expected_.size()), expected_);
  ASSERT_TRUE(turn_until([this] { return released_count() == 1 && !stream_->zero_copy(); }));
  EXPECT_GT(linger_.counts().copied_bytes, 0U);
  EXPECT_EQ(linger_.counts().given_up, 1U);
}

}  // namespace
}  // namespace halfstep::net
