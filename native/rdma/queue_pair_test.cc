#include "rdma/queue_pair.h"

#include <gtest/gtest.h>
#include <poll.h>

#include "rdma/fake_verbs.h"
#include "rdma/memory_region.h"

namespace halfstep::rdma {
namespace queue_pair_test {

const Gid kHere = ipv4_gid(127, 0, 0, 1);

bool readable(int descriptor) {
  pollfd asked{.fd = descriptor, .events = POLLIN, .revents = 0};
  return ::poll(&asked, 1, 0) == 1;
}

class QueuePairs : public testing::Test {
 protected:
  void SetUp() override {
    Devices devices(verbs_);
    ASSERT_TRUE(devices.find(kHere, &path_).ok());
  }
  void TearDown() override {
    path_ = {};
    EXPECT_EQ(verbs_.live(), 0U);
    EXPECT_TRUE(verbs_.faults().empty()) << verbs_.faults().front();
  }
  std::unique_ptr<QueuePair> make(uint32_t psn) {
    std::unique_ptr<QueuePair> made;
    const Fault fault = QueuePair::make(path_, {}, psn, &made);
    EXPECT_TRUE(fault.ok()) << fault.what;
    return made;
  }
  static RemoteQueuePair seen(const QueuePair& of) {
    return {.gid = of.path().gid, .number = of.number(), .psn = of.psn(), .mtu_bytes = of.path().mtu_bytes};
  }

  FakeVerbs verbs_;
  Path path_;
};

TEST_F(QueuePairs, AreMadeAndReleasedInOrder) {
  (void)verbs_.take_calls();
  auto made = make(5);
  EXPECT_EQ(verbs_.take_calls(),
            (std::vector<std::string>{
                "create_comp_channel", "create_cq 192", "create_qp 64 128",
                "modify_qp 1 " + std::to_string(abi::kQpState | abi::kQpPkeyIndex | abi::kQpPort | abi::kQpAccessFlags)}));
  made = nullptr;
  EXPECT_EQ(verbs_.take_calls(), (std::vector<std::string>{"destroy_qp", "destroy_cq", "destroy_comp_channel"}));
}

TEST_F(QueuePairs, EachFailureIsNamedAndReleasesWhatWasMade) {
  for (const char* function : {"create_comp_channel", "create_cq", "create_qp", "modify_qp"}) {
    verbs_.fail_next(function, ENOMEM);
    std::unique_ptr<QueuePair> made;
    const Fault fault = QueuePair::make(path_, {}, 0, &made);
    EXPECT_EQ(fault.status, Status(Code::IoError, -ENOMEM)) << function;
    EXPECT_NE(fault.what.find("fake0: "), std::string::npos) << fault.what;
    EXPECT_EQ(made, nullptr);
    EXPECT_EQ(verbs_.live(), 2U) << function << ": context and protection domain are the path's";
  }
}

TEST_F(QueuePairs, WhatADeviceCannotHaveIsRefusedBeforeItIsAsked) {
  std::unique_ptr<QueuePair> made;
  const Fault fault = QueuePair::make(path_, {.sends = 4096, .receives = 1, .send_pieces = 1}, 0, &made);
  EXPECT_EQ(fault.status, Code::Unsupported);
  EXPECT_NE(fault.what.find("4096"), std::string::npos) << fault.what;
}

TEST_F(QueuePairs, ConnectGoesToReadyToSendOrSaysWhatFailed) {
  auto a = make(1);
  auto b = make(2);
  for (int after : {0, 1}) {
    verbs_.fail_next("modify_qp", ENETUNREACH, after);
    const Fault fault = a->connect(seen(*b));
    EXPECT_EQ(fault.status, Status(Code::IoError, -ENETUNREACH));
    EXPECT_FALSE(fault.what.empty());
  }
  (void)verbs_.take_calls();
  EXPECT_TRUE(a->connect(seen(*b)).ok());
  const std::vector<std::string> calls = verbs_.take_calls();
  ASSERT_EQ(calls.size(), 2U);
  EXPECT_TRUE(calls[0].starts_with("modify_qp 2 ")) << calls[0];
  EXPECT_TRUE(calls[1].starts_with("modify_qp 3 ")) << calls[1];
}

TEST_F(QueuePairs, AWriteArrivesWithItsImmediateAndTellsWhoeverArmed) {
  auto a = make(1);
  auto b = make(2);
  ASSERT_EQ(b->post_receives(40), 0);
  ASSERT_TRUE(a->connect(seen(*b)).ok() && b->connect(seen(*a)).ok());
  std::array<std::byte, 64> from{};
  std::array<std::byte, 64> to{};
  from.fill(std::byte{7});
  MemoryRegion source;
  MemoryRegion target;
  ASSERT_TRUE(MemoryRegion::make(path_.device, from, MemoryRegion::Access::Local, &source).ok());
  ASSERT_TRUE(MemoryRegion::make(path_.device, to, MemoryRegion::Access::RemoteWrite, &target).ok());
  ASSERT_EQ(b->arm(), 0);
  EXPECT_FALSE(readable(b->descriptor()));
  EXPECT_FALSE(b->take_event()) << "nothing blocks";

  abi::Piece piece{.addr = source.address(), .length = 64, .lkey = source.local_key()};
  abi::SendRequest request{};
  request.wr_id = 9;
  request.sg_list = &piece;
  request.num_sge = 1;
  request.opcode = abi::kWriteImmediate;
  request.send_flags = abi::kSignaled;
  request.imm_data = htonl(77);
  request.remote_addr = target.address();
  request.rkey = target.remote_key();
  ASSERT_EQ(a->post_sends(&request), 0);

  EXPECT_TRUE(readable(b->descriptor()));
  EXPECT_TRUE(b->take_event());
  std::array<abi::Completion, 4> got{};
  ASSERT_EQ(b->poll(got), 1);
  EXPECT_EQ(got[0].opcode, abi::kReceivedWithImmediate);
  EXPECT_EQ(ntohl(got[0].imm_data), 77U);
  EXPECT_EQ(to, from);
  ASSERT_EQ(a->poll(got), 1);
  EXPECT_EQ(got[0].wr_id, 9U);

  // Another key covers nothing of it.
  request.rkey ^= 1;
  ASSERT_EQ(a->post_sends(&request), 0);
  ASSERT_EQ(a->poll(got), 1);
  EXPECT_EQ(got[0].status, abi::kStatusRemoteAccess);
  EXPECT_EQ(completion_errno(got[0].status), EACCES);
  EXPECT_STREQ(completion_status_name(got[0].status), "remote access error");
}

TEST_F(QueuePairs, OneThatFailsFlushesWhatWasPosted) {
  auto a = make(1);
  ASSERT_EQ(a->post_receives(3), 0);
  a->fail();
  std::array<abi::Completion, 4> got{};
  ASSERT_EQ(a->poll(got), 3);
  EXPECT_EQ(got[0].status, abi::kStatusFlushed);
}

TEST_F(QueuePairs, MemoryThatCannotBePinnedNamesTheLimit) {
  std::array<std::byte, 64> memory{};
  MemoryRegion region;
  verbs_.fail_next("reg_mr", ENOMEM);
  const Fault fault = MemoryRegion::make(path_.device, memory, MemoryRegion::Access::Local, &region);
  EXPECT_EQ(fault.status, Status(Code::NoSpace, -ENOMEM));
  EXPECT_NE(fault.what.find("LimitMEMLOCK"), std::string::npos) << fault.what;
  EXPECT_FALSE(region.made());
  (void)verbs_.take_calls();
  ASSERT_TRUE(MemoryRegion::make(path_.device, memory, MemoryRegion::Access::Local, &region).ok());
  ASSERT_TRUE(MemoryRegion::make(path_.device, memory, MemoryRegion::Access::RemoteWrite, &region).ok());
  EXPECT_EQ(verbs_.take_calls(), (std::vector<std::string>{"reg_mr 64 0", "reg_mr 64 3", "dereg_mr"}));
}

}  // namespace queue_pair_test
}  // namespace halfstep::rdma
