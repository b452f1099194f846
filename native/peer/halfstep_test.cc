// Every operation of the C interface, against a daemon that behaves.
#include "peer/halfstep.h"

#include <gtest/gtest.h>
#include <poll.h>

#include <thread>

#include "peer/fake_daemon.h"
#include "peer/try_client.h"

namespace halfstep::peer {
namespace {

std::vector<std::string> names(size_t count, const std::string& prefix = "key-") {
  std::vector<std::string> out;
  for (size_t i = 0; i < count; ++i) out.push_back(prefix + std::to_string(i));
  return out;
}

std::vector<Octets> blocks_of(const std::vector<size_t>& sizes, uint64_t seed = 1) {
  std::vector<Octets> out;
  for (const size_t size : sizes) out.push_back(random_octets(size, seed++));
  return out;
}

TEST(Halfstep, WhatIsPutIsMatchedAndComesBack) {
  FakeDaemon daemon;
  TryClient client(daemon.address());
  const int layout = client.layout(make_layout({kOpaque}));
  std::vector<Octets> blocks = blocks_of({1, 300'000, 262'144, 1 << 20});
  TrySection put(layout, names(4));
  EXPECT_EQ(client.put(put.into(blocks)).items_ok, 4U);
  EXPECT_TRUE(put.all("ok(stored)"));

  TrySection match(layout, names(5));
  EXPECT_EQ(client.match(match).items_ok, 4U);
  EXPECT_EQ(text_of(match.answers[3]), "ok(present)");
  EXPECT_EQ(text_of(match.answers[4]), "miss(absent)");
  EXPECT_EQ(match.lengths, (std::vector<uint32_t>{1, 300'000, 262'144, 1 << 20, 0}));

  std::vector<Octets> back(5, Octets(1 << 20));
  TrySection get(layout, names(5));
  const hs_event event = client.get(get.into(back));
  EXPECT_EQ(event.items_ok, 4U);
  EXPECT_EQ(event.steps_done, 5U);
  EXPECT_EQ(text_of(get.answers[4]), "miss(absent)");
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(text_of(get.answers[i]), "ok(none)");
    EXPECT_EQ(get.lengths[i], blocks[i].size());
    back[i].resize(blocks[i].size());
    EXPECT_EQ(back[i], blocks[i]);
  }
  EXPECT_EQ(client.facts().checksum_failures, 0U);
}

TEST(Halfstep, SeveralConnectionsCarryOneBatch) {
  FakeDaemon daemon;
  TryClient client(daemon.address(), 4);
  const int layout = client.layout(make_layout({kOpaque}));
  ASSERT_TRUE(client.ready());
  while (client.facts().connected < 4) std::this_thread::yield();
  std::vector<Octets> blocks = blocks_of(std::vector<size_t>(16, 1 << 20));
  TrySection put(layout, names(16));
  EXPECT_EQ(client.put(put.into(blocks)).items_ok, 16U);
  std::vector<Octets> back(16, Octets(1 << 20));
  TrySection get(layout, names(16));
  EXPECT_EQ(client.get(get.into(back)).items_ok, 16U);
  EXPECT_EQ(back, blocks);
}

}  // namespace
}  // namespace halfstep::peer
