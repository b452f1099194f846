// A daemon that is reached over several network cards at once, by a client that lists their addresses: every connection has a
// path over the card of its own address, and comes back to it. What a dead card does: peer/connect_test.cc.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "placement_fixture.h"

namespace halfstep {
namespace several_cards_test {
namespace {

// Within a machine a client has its own end at 127.0.0.1, whatever address of the daemon it has called.
std::vector<rdma::FakeDevice> cards() {
  std::vector<rdma::FakeDevice> all(3);
  for (uint8_t card = 0; card < 3; ++card) {
    all[card].name = "card" + std::to_string(card);
    all[card].ports = {{.gids = {{rdma::ipv4_gid(127, 0, 0, card + 1), rdma::abi::kGidRoceV2}}}};
  }
  return all;
}

class SeveralCards : public PlacementFixture {
 protected:
  SeveralCards() : PlacementFixture(cards()) {}
  void configure() override {
    PlacementFixture::configure();
    config_.listen = {"0.0.0.0:0"};
    config_.insecure_listen = true;
  }
  std::string all_cards() const { return "127.0.0.1,127.0.0.2,127.0.0.3:" + address().substr(address().rfind(':') + 1); }
  std::vector<size_t> queue_pairs() {
    return {verbs_.queue_pairs_of("card0"), verbs_.queue_pairs_of("card1"), verbs_.queue_pairs_of("card2")};
  }
};

TEST_F(SeveralCards, EachHasConnectionsAndBlocksOfABatchTravelOverAllOfThem) {
  TryClient client(all_cards(), 3);
  const int handle = client.layout(make_layout({peer::kOpaque}));
  ASSERT_TRUE(client.ready()) << client.facts().last_error;
  ASSERT_TRUE(comes_true([&] { return client.facts().connected == 3; })) << client.facts().last_error;
  EXPECT_STREQ(client.facts().transport, "rdma") << client.facts().rdma;
  EXPECT_EQ(queue_pairs(), (std::vector<size_t>{3 + 1, 1, 1}));
  std::vector<Octets> blocks;
  for (size_t i = 0; i < 60; ++i) blocks.push_back(random_octets(50'000 + 997 * i, i));
  TrySection put(handle, names(60));
  EXPECT_EQ(client.put(put.into(blocks)).items_ok, 60U) << text_of(put.answers[0]);
  std::vector<Octets> back;
  for (const Octets& block : blocks) back.emplace_back(block.size());
  TrySection get(handle, names(60));
  EXPECT_EQ(client.get(get.into(back)).items_ok, 60U) << text_of(get.answers[0]);
  EXPECT_EQ(back, blocks);
}

// Each has the daemon's memory, whichever came first.
TEST_F(SeveralCards, EachWritesIntoAndReadsFromADirectRegion) {
  TryClient client(all_cards(), 3);
  const int handle = client.layout(make_layout({peer::kOpaque}));
  ASSERT_TRUE(client.ready()) << client.facts().last_error;
  ASSERT_TRUE(comes_true([&] { return client.facts().connected == 3; })) << client.facts().last_error;
  std::vector<Octets> blocks;
  for (size_t i = 0; i < 60; ++i) blocks.push_back(random_octets(50'000 + 997 * i, i));
  Ground ground(client, blocks);
  for (size_t i = 0; i < blocks.size(); ++i) {
    std::memcpy(ground.memory.data() + ground.at[i], blocks[i].data(), blocks[i].size());
  }
  TrySection put(handle, names(60));
  EXPECT_EQ(client.put(ground.into(put, blocks)).items_ok, 60U) << text_of(put.answers[0]);
  EXPECT_EQ(metric("halfstep_rdma_pulled_bytes_total"), static_cast<double>(bytes_of(blocks)));
  std::fill(ground.memory.begin(), ground.memory.end(), kGuard);
  TrySection get(handle, names(60));
  EXPECT_EQ(client.get(ground.into(get, blocks)).items_ok, 60U) << text_of(get.answers[0]);
  for (size_t i = 0; i < blocks.size(); ++i) EXPECT_TRUE(ground.has(i, blocks[i])) << i;
  EXPECT_EQ(client.facts().placed_bytes, bytes_of(blocks));
}

TEST_F(SeveralCards, AfterARestartEachConnectionIsAtItsOwnCardAgain) {
  TryClient client(all_cards(), 3);
  ASSERT_TRUE(client.ready()) << client.facts().last_error;
  ASSERT_TRUE(comes_true([&] { return client.facts().connected == 3; })) << client.facts().last_error;
  config_.listen = server_->facts().listening;  // the same port
  for (int round = 0; round < 3; ++round) {
    restart();
    ASSERT_TRUE(comes_true([&] { return client.facts().connected == 3; })) << client.facts().last_error;
    ASSERT_TRUE(comes_true([&] {
      return queue_pairs() == std::vector<size_t>{3 + 1, 1, 1};
    })) << round
        << ": " << queue_pairs()[0] << ", " << queue_pairs()[1] << ", " << queue_pairs()[2];
  }
}

TEST_F(SeveralCards, WithOneAddressOneCardIsUsed) {
  TryClient client(all_cards().substr(all_cards().rfind(',') + 1), 3);
  ASSERT_TRUE(client.ready()) << client.facts().last_error;
  ASSERT_TRUE(comes_true([&] { return client.facts().connected == 3; })) << client.facts().last_error;
  EXPECT_EQ(queue_pairs(), (std::vector<size_t>{3, 0, 3}));
}

}  // namespace
}  // namespace several_cards_test
}  // namespace halfstep
