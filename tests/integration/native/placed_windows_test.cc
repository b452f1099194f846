// Memory windows: keys that a request brings and that go with it. What a daemon writes or reads by them is what
// placed_gets_test.cc and placed_puts_test.cc look at; here it is when they are good and when not.
#include <gtest/gtest.h>

#include <cerrno>
#include <string>
#include <utility>
#include <vector>

#include "placement_fixture.h"

namespace halfstep {
namespace placed_windows_test {
namespace {

constexpr int kForWindows = rdma::abi::kAccessLocalWrite | rdma::abi::kAccessWindowBind;

class PlacedWindows : public PlacementFixture {
 protected:
  PlacedWindows() : PlacementFixture(with(Keys::OfWindows)) {}
  void SetUp() override {
    PlacementFixture::SetUp();
    client_ = std::make_unique<TryClient>(address());
    handle_ = client_->layout(make_layout({peer::kOpaque}));
    ASSERT_TRUE(client_->ready()) << client_->facts().last_error;
    put(*client_, handle_, blocks_);
    ground_ = std::make_unique<Ground>(*client_, blocks_);
  }
  void TearDown() override {
    verbs_.delay_newest(false);
    ground_ = nullptr;
    client_ = nullptr;
    PlacementFixture::TearDown();
  }
  uint64_t get_all() {
    TrySection get(handle_, names(blocks_.size()));
    return client_->get(ground_->into(get, blocks_)).items_ok;
  }

  std::unique_ptr<TryClient> client_;
  int handle_ = -1;
  std::vector<Octets> blocks_ = sizes(20, 300'000, 3);
  std::unique_ptr<Ground> ground_;
};

TEST_F(PlacedWindows, EveryRequestBringsItsOwnKeyWhichIsGoneWhenItIsOver) {
  (void)verbs_.take_calls();
  for (uint64_t round = 1; round <= 300; ++round) {
    ASSERT_EQ(get_all(), 20U);
    ASSERT_EQ(verbs_.count("bind"), round);
    ASSERT_EQ(verbs_.count("invalidate"), round);
    ASSERT_EQ(verbs_.bound(), 0U) << "before the event";
  }
  EXPECT_EQ(verbs_.count("alloc_mw"), 1U) << "used again and again, with another key each time";
  const std::vector<std::string> calls = verbs_.take_calls();
  const std::string registered = "reg_mr " + std::to_string(ground_->memory.size()) + " ";
  EXPECT_EQ(std::count_if(calls.begin(), calls.end(), [&](const auto& call) { return call.starts_with(registered); }), 1);
  EXPECT_NE(std::find(calls.begin(), calls.end(), registered + std::to_string(kForWindows)), calls.end())
      << "nobody reaches it by the region's own key";
  EXPECT_EQ(client_->facts().placed_bytes, 300 * bytes_of(blocks_));
  EXPECT_EQ(client_->facts().placing_keys, 300U);
}

// A daemon that goes on writing whatever it is told: its device is held back, and what it has posted meets a queue pair that is
// gone.
TEST_F(PlacedWindows, ADaemonThatDoesNotAnswerACancelLosesItsKeyWithTheConnection) {
  ASSERT_EQ(get_all(), 20U);  // the region is registered
  std::fill(ground_->memory.begin(), ground_->memory.end(), kGuard);
  verbs_.delay_newest(true);
  TrySection get(handle_, names(20));
  const uint64_t before = verbs_.count("placed");
  hs_batch batch = TryClient::batch(HS_OP_GET);
  const hs_ticket ticket = client_->submit(batch, ground_->into(get, blocks_));
  ASSERT_TRUE(comes_true([&] { return verbs_.count("placed") != before; }));
  EXPECT_EQ(verbs_.bound(), 1U);
  hs_cancel(client_->queue, ticket);
  const hs_event event = client_->wait();
  EXPECT_EQ(event.ticket, ticket);
  EXPECT_EQ(event.items_ok, 0U);
  EXPECT_EQ(verbs_.bound(), 0U);
  const Octets then = ground_->memory;
  verbs_.delay_newest(false);
  verbs_.carry_out();
  EXPECT_TRUE(ground_->memory == then);
  ASSERT_TRUE(comes_true([&] { return client_->facts().handshakes >= 2; })) << client_->facts().last_error;
  EXPECT_EQ(get_all(), 20U);
  for (size_t i = 0; i < blocks_.size(); ++i) EXPECT_TRUE(ground_->has(i, blocks_[i])) << i;
}

TEST_F(PlacedWindows, AQueuePairThatDiesTakesItsWindowsAlong) {
  ASSERT_EQ(get_all(), 20U);
  verbs_.delay_newest(true);
  TrySection get(handle_, names(20));
  const uint64_t before = verbs_.count("placed");
  hs_batch batch = TryClient::batch(HS_OP_GET);
  const hs_ticket ticket = client_->submit(batch, ground_->into(get, blocks_));
  ASSERT_TRUE(comes_true([&] { return verbs_.count("placed") != before; }));
  verbs_.break_all(rdma::abi::kStatusRetryExceeded);
  const hs_event event = client_->wait();
  EXPECT_EQ(event.ticket, ticket);
  EXPECT_EQ(verbs_.bound(), 0U);
}

TEST_F(PlacedWindows, ADeviceThatGivesNoneLeavesTheRingsAndSaysWhy) {
  verbs_.fail_next("alloc_mw", ENOMEM);
  EXPECT_EQ(get_all(), 20U);
  EXPECT_EQ(client_->facts().placed_bytes, 0U);
  EXPECT_NE(std::string(client_->facts().placement).find("a memory window: ENOMEM"), std::string::npos)
      << client_->facts().placement;
  EXPECT_EQ(get_all(), 20U);
  EXPECT_EQ(client_->facts().placed_bytes, bytes_of(blocks_)) << "asked again with the next one";
}

}  // namespace
}  // namespace placed_windows_test
}  // namespace halfstep
