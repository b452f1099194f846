// A client and a daemon in one process through rings over RDMA, on a table of verbs that moves bytes between them; and what
// they do where there is no path, where it dies, and where it comes back.
#include <gtest/gtest.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "daemon_fixture.h"
#include "peer/try_client.h"
#include "rdma/fake_verbs.h"
#include "shard/metrics_fixture.h"

namespace halfstep {
namespace {

using peer::make_layout;
using peer::names;
using peer::Octets;
using peer::random_octets;
using peer::text_of;
using peer::TryClient;
using peer::TrySection;

class OverRdma : public DaemonFixture {
 protected:
  void SetUp() override {
    rdma::replace_system_verbs(&verbs_);
    DaemonFixture::SetUp();
    ASSERT_NE(server_, nullptr);
    config_.listen = server_->facts().listening;  // the same port at the next start
  }
  void configure() override {
    config_.listen = {"127.0.0.1:0"};
    config_.rdma.on = true;
  }
  void TearDown() override {
    DaemonFixture::TearDown();
    rdma::replace_system_verbs(nullptr);
    EXPECT_EQ(verbs_.live(), 0U);
    EXPECT_TRUE(verbs_.faults().empty()) << verbs_.faults().front();
  }
  double metric(const std::string& name) const { return shard::value_of(server_->metrics(), name); }
  static std::string transport_of(const TryClient& client) { return client.facts().transport; }
  static std::string reason_of(const TryClient& client) { return client.facts().rdma; }
  template <typename Call>
  static bool comes_true(Call&& call) {
    for (int i = 0; i < 10'000; ++i) {
      if (call()) return true;
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return false;
  }

  // A hundred blocks of 4 KiB to 1 MiB, in the daemon and back.
  static std::vector<Octets> blocks() {
    std::vector<Octets> all;
    for (uint64_t i = 0; i < 100; ++i) {
      all.push_back(random_octets(static_cast<size_t>(4096.0 * std::pow(256.0, static_cast<double>(i) / 99)), i));
    }
    return all;
  }
  static void put_and_compare(TryClient& client, int handle, const char* stored) {
    std::vector<Octets> sent = blocks();
    TrySection put(handle, names(100));
    EXPECT_EQ(client.put(put.into(sent)).items_ok, 100U) << text_of(put.answers[0]);
    EXPECT_TRUE(put.all(stored)) << text_of(put.answers[0]);
    std::vector<Octets> back(100, Octets(1 << 20));
    TrySection get(handle, names(100));
    EXPECT_EQ(client.get(get.into(back)).items_ok, 100U) << text_of(get.answers[0]);
    for (size_t i = 0; i < 100; ++i) {
      back[i].resize(sent[i].size());
      EXPECT_TRUE(back[i] == sent[i]) << i;
    }
  }

  rdma::FakeVerbs verbs_;
};

TEST_F(OverRdma, BlocksOfAllSizesComeBackThroughRings) {
  TryClient client(address(), 2);
  const int handle = client.layout(make_layout({peer::kOpaque}));
  ASSERT_TRUE(client.ready()) << client.facts().last_error;
  ASSERT_TRUE(comes_true([&] { return client.facts().connected == 2; })) << client.facts().last_error;
  put_and_compare(client, handle, "ok(stored)");
  EXPECT_EQ(transport_of(client), "rdma");
  EXPECT_EQ(reason_of(client), "");
  EXPECT_EQ(metric("halfstep_connections_rdma"), 2);
  EXPECT_GT(metric("halfstep_rdma_bytes_total{outcome=\"sent\"}"), 10e6) << "payload leaves from where it lies";
  EXPECT_LT(metric("halfstep_rdma_bytes_total{outcome=\"copied\"}"), 1e6) << "and heads of frames by a copy";
  EXPECT_EQ(metric("halfstep_rdma_pinned_bytes"), 2 * 2 * 1024 * 1024);
  EXPECT_EQ(client.facts().checksum_failures, 0U);
}

TEST_F(OverRdma, ADaemonThatEndsIsComeBackToOverRings) {
  TryClient client(address());
  const int handle = client.layout(make_layout({peer::kOpaque}));
  ASSERT_TRUE(client.ready());
  put_and_compare(client, handle, "ok(stored)");
  server_.reset();
  start();
  ASSERT_TRUE(comes_true([&] { return transport_of(client) == "rdma" && client.ready(0); })) << client.facts().last_error;
  put_and_compare(client, handle, "ok(present)");
  EXPECT_EQ(client.facts().rdma_failures, 0U) << "its end is no fault of the path";
}

TEST_F(OverRdma, WhoAsksForTcpOffersNothing) {
  TryClient client(address(), 1, 0, 0, 5, 0, "tcp");
  const int handle = client.layout(make_layout({peer::kOpaque}));
  ASSERT_TRUE(client.ready());
  put_and_compare(client, handle, "ok(stored)");
  EXPECT_EQ(transport_of(client), "tcp");
  EXPECT_EQ(reason_of(client), "");
  EXPECT_EQ(verbs_.count("create_qp"), 0U);
}

TEST_F(OverRdma, BeyondTheBudgetAConnectionStaysOnTcpAndSaysWhy) {
  server_.reset();
  config_.rdma.pinned_bytes_max = 2ULL << 20;
  start();
  TryClient client(address(), 2);
  const int handle = client.layout(make_layout({peer::kOpaque}));
  ASSERT_TRUE(client.ready());
  ASSERT_TRUE(comes_true([&] { return client.facts().connected == 2; }));
  put_and_compare(client, handle, "ok(stored)");
  EXPECT_EQ(metric("halfstep_connections_rdma"), 1);
  EXPECT_EQ(metric("halfstep_rdma_refused_total"), 1);
  EXPECT_EQ(transport_of(client), "tcp") << "one is";
  EXPECT_NE(reason_of(client).find("pins no more memory"), std::string::npos) << reason_of(client);

  TryClient insists(address(), 1, 0, 0, 5, 0, "rdma");
  EXPECT_FALSE(insists.ready(500));
  EXPECT_NE(std::string(insists.facts().last_error).find("transport=rdma: the daemon pins no more memory"), std::string::npos)
      << insists.facts().last_error;
}

TEST_F(OverRdma, ADaemonThatHasItOffSaysSo) {
  server_.reset();
  config_.rdma = {};  // as a daemon is that was told nothing
  start();
  TryClient client(address());
  const int handle = client.layout(make_layout({peer::kOpaque}));
  ASSERT_TRUE(client.ready());
  EXPECT_EQ(transport_of(client), "tcp");
  EXPECT_NE(reason_of(client).find("--rdma off"), std::string::npos) << reason_of(client);
  put_and_compare(client, handle, "ok(stored)");
}

TEST_F(OverRdma, ADeviceThatFailsLeavesTcpWithItsReason) {
  verbs_.fail_next("create_qp", ENOMEM);
  TryClient client(address());
  const int handle = client.layout(make_layout({peer::kOpaque}));
  ASSERT_TRUE(client.ready());
  put_and_compare(client, handle, "ok(stored)");
  EXPECT_NE(reason_of(client) + transport_of(client), "tcp") << "a reason where it is not RDMA";
}

// Nothing wrong arrives, what was under way is a miss, the next connection is TCP; and when that ends, later, RDMA is tried
// again.
TEST_F(OverRdma, APathThatDiesIsCountedAndTheNextConnectionIsTcp) {
  TryClient client(address());
  const int handle = client.layout(make_layout({peer::kOpaque}));
  ASSERT_TRUE(client.ready());
  put_and_compare(client, handle, "ok(stored)");
  verbs_.break_all(rdma::abi::kStatusRetryExceeded);
  ASSERT_TRUE(comes_true([&] { return client.facts().rdma_failures == 1; }));
  ASSERT_TRUE(comes_true([&] { return client.ready(0) && transport_of(client) == "tcp"; })) << client.facts().last_error;
  EXPECT_NE(reason_of(client), "");
  put_and_compare(client, handle, "ok(present)");
}

// When there is a path again the client comes back to it by itself, and what is under way over TCP goes on.
TEST_F(OverRdma, APathThatIsThereAgainIsComeBackToBesideWhatIsUnderWay) {
  TryClient client(address(), 2);
  const int handle = client.layout(make_layout({peer::kOpaque}));
  ASSERT_TRUE(client.ready());
  put_and_compare(client, handle, "ok(stored)");
  ASSERT_TRUE(comes_true([&] { return metric("halfstep_connections_rdma") == 2; }));
  verbs_.break_all(rdma::abi::kStatusRetryExceeded);
  ASSERT_TRUE(comes_true([&] { return client.facts().connected == 2 && transport_of(client) == "tcp"; }));
  uint64_t gets = 0;
  ASSERT_TRUE(comes_true([&] {
    std::vector<Octets> back(100, Octets(1 << 20));
    TrySection get(handle, names(100));
    EXPECT_EQ(client.get(get.into(back)).items_ok, 100U) << text_of(get.answers[0]) << " after " << gets;
    ++gets;
    return metric("halfstep_connections_rdma") == 2;
  })) << reason_of(client);
  EXPECT_TRUE(comes_true([&] { return transport_of(client) == "rdma"; }));
  EXPECT_EQ(reason_of(client), "");
  EXPECT_EQ(client.facts().connected, 2U);
  EXPECT_TRUE(comes_true([&] { return metric("halfstep_connections_open") == 2; })) << "those over TCP are gone";
  put_and_compare(client, handle, "ok(present)");
}

// Its device has gone, and comes back: until then it is looked for, and the daemon is asked for nothing.
TEST_F(OverRdma, AClientWhoseDeviceIsGoneComesBackWithIt) {
  TryClient client(address());
  const int handle = client.layout(make_layout({peer::kOpaque}));
  ASSERT_TRUE(client.ready());
  ASSERT_EQ(transport_of(client), "rdma");
  verbs_.fail_next("get_device_list", ENODEV);
  verbs_.break_all(rdma::abi::kStatusRetryExceeded);
  ASSERT_TRUE(comes_true([&] { return client.ready(0) && transport_of(client) == "tcp"; })) << client.facts().last_error;
  put_and_compare(client, handle, "ok(stored)");
  ASSERT_TRUE(comes_true([&] { return transport_of(client) == "rdma"; })) << reason_of(client);
  put_and_compare(client, handle, "ok(present)");
}

// An operator takes the device away, which waits until nobody has it open: neither does, though nothing is under way and a
// direct region is registered with it. Afterwards it is there again.
TEST_F(OverRdma, ADeviceThatIsTakenAwayIsLetGoOfByBothEnds) {
  TryClient client(address());
  const int handle = client.layout(make_layout({peer::kOpaque}));
  ASSERT_TRUE(client.ready());
  put_and_compare(client, handle, "ok(stored)");
  Octets memory(1 << 20);
  hs_region* region = nullptr;
  ASSERT_EQ(hs_region_open(client.client, memory.data(), memory.size(), 0, &region, nullptr, 0), 0);
  TrySection get(handle, names(1));
  get.iovecs.push_back({memory.data(), memory.size()});
  get.by_iovecs();
  EXPECT_EQ(client.get(get).items_ok, 1U);
  EXPECT_GT(client.facts().placed_bytes, 0U);
  verbs_.unlist(true);
  EXPECT_TRUE(comes_true([&] { return verbs_.live() == 0; })) << verbs_.live() << " are not given back";
  EXPECT_EQ(verbs_.count("close_device"), 2U);
  ASSERT_TRUE(comes_true([&] { return client.ready(0) && transport_of(client) == "tcp"; })) << client.facts().last_error;
  put_and_compare(client, handle, "ok(present)");
  verbs_.unlist(false);
  EXPECT_TRUE(comes_true([&] { return transport_of(client) == "rdma"; })) << reason_of(client);
  put_and_compare(client, handle, "ok(present)");
  hs_region_close(region);
}

TEST_F(OverRdma, AClientThatNeverHadAPathTriesNone) {
  verbs_.keep_off_loopback();
  TryClient client(address());
  ASSERT_TRUE(client.ready());
  ASSERT_EQ(transport_of(client), "tcp");
  std::this_thread::sleep_for(std::chrono::milliseconds(1500));
  EXPECT_EQ(metric("halfstep_connections_total{outcome=\"accepted\"}"), 1);
}

// One pulled cable is one failure, however many connections it ends.
TEST_F(OverRdma, ACableIsCountedOnceForAllConnections) {
  TryClient client(address(), 4);
  ASSERT_TRUE(client.ready());
  ASSERT_TRUE(comes_true([&] { return metric("halfstep_connections_rdma") == 4; }));
  verbs_.break_all(rdma::abi::kStatusRetryExceeded);
  ASSERT_TRUE(comes_true([&] { return client.facts().connected == 4 && transport_of(client) == "tcp"; }));
  EXPECT_EQ(client.facts().rdma_failures, 1U);
}

// Where the daemon's writes alone fail, the client sees nothing but the end of its socket: without an Abort, a failed path.
TEST_F(OverRdma, APathThatDiesAtTheDaemonIsCounted) {
  TryClient client(address());
  const int handle = client.layout(make_layout({peer::kOpaque}));
  ASSERT_TRUE(client.ready());
  ASSERT_EQ(transport_of(client), "rdma");
  verbs_.break_newest(rdma::abi::kStatusRetryExceeded);
  ASSERT_TRUE(comes_true([&] { return client.facts().rdma_failures == 1; })) << client.facts().last_error;
  ASSERT_TRUE(comes_true([&] { return client.ready(0) && transport_of(client) == "tcp"; })) << client.facts().last_error;
  put_and_compare(client, handle, "ok(stored)");
}

// The time that a slow device takes is not the handshake's, which would never end in time.
TEST_F(OverRdma, ASlowDeviceDelaysAConnectionAndIsLetBe) {
  verbs_.slow_next("create_qp", 3'000'000);
  TryClient client(address(), 1, 0, /*connect_timeout_ms=*/2'000);
  ASSERT_TRUE(client.ready());
  EXPECT_EQ(transport_of(client), "rdma");
  EXPECT_EQ(client.facts().rdma_failures, 1U) << "it is not asked again at once";
  EXPECT_EQ(metric("halfstep_connections_total{outcome=\"accepted\"}"), 1) << "the first attempt succeeds";
}

}  // namespace
}  // namespace halfstep
