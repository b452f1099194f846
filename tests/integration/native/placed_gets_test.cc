// Gets whose bytes a daemon writes into the client's own memory, on a table of verbs that moves bytes within the process: every
// byte in its place, none beside it, none after the terminal event, and what happens where it cannot be.
#include <gtest/gtest.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "placement_fixture.h"
#include "wire/places.h"

namespace halfstep {
namespace placed_gets_test {
namespace {

class PlacedGets : public PlacementFixture, public testing::WithParamInterface<Keys> {
 protected:
  explicit PlacedGets(const rdma::FakeDevice& device = {}) : PlacementFixture(with(GetParam(), device)) {}
  // Asks for all, and waits until the daemon has posted writes that are not carried out.
  hs_ticket begin_get(TryClient& client, TrySection& section) {
    const uint64_t before = verbs_.count("placed");
    verbs_.delay(true);
    hs_batch batch = TryClient::batch(HS_OP_GET);
    const hs_ticket ticket = client.submit(batch, section);
    // Its own request leaves as a write, too.
    EXPECT_TRUE(comes_true([&] {
      verbs_.carry_out(verbs_.count("placed") == before ? SIZE_MAX : 0);
      return verbs_.count("placed") != before;
    }));
    return ticket;
  }
};

TEST_P(PlacedGets, BlocksOfAllSizesAreWrittenIntoTheirPlaces) {
  TryClient client(address(), 2);
  const int handle = client.layout(make_layout({peer::kOpaque}));
  ASSERT_TRUE(client.ready()) << client.facts().last_error;
  std::vector<Octets> blocks = sizes(100, 4096, 256);
  put(client, handle, blocks);
  Ground ground(client, blocks);
  for (int round = 0; round < 2; ++round) {
    const uint64_t registered = verbs_.count("reg_mr");
    TrySection get(handle, names(100));
    EXPECT_EQ(client.get(ground.into(get, blocks)).items_ok, 100U) << text_of(get.answers[0]);
    for (size_t i = 0; i < blocks.size(); ++i) EXPECT_TRUE(ground.has(i, blocks[i])) << i;
    EXPECT_TRUE(ground.guards_stand(blocks));
    if (round == 1) {
      EXPECT_EQ(verbs_.count("reg_mr"), registered) << "once";
    }
  }
  EXPECT_EQ(client.facts().placed_bytes, 2 * bytes_of(blocks));
  EXPECT_EQ(metric("halfstep_rdma_placed_bytes_total"), static_cast<double>(2 * bytes_of(blocks)));
  EXPECT_STREQ(client.facts().placement, "");
  EXPECT_EQ(client.facts().checksum_failures, 0U);
}

TEST_P(PlacedGets, APlaceMayHaveManyPiecesAndBeLongerThanItsBlock) {
  TryClient client(address());
  const int handle = client.layout(make_layout({kLayers}));
  ASSERT_TRUE(client.ready());
  std::vector<Octets> blocks(3, Octets());
  for (size_t i = 0; i < 3; ++i) blocks[i] = random_octets(208'000, i);
  put(client, handle, blocks);
  std::vector<Octets> room(3, Octets(220'000));
  Ground ground(client, room);
  TrySection get(handle, names(3));
  std::vector<uint32_t> counts;
  for (size_t i = 0; i < 3; ++i) {
    std::byte* const at = ground.memory.data() + ground.at[i];
    for (const auto& [from, to] : {std::pair(0, 5), {5, 100'000}, {100'000, 220'000}}) {
      get.iovecs.push_back({at + from, static_cast<size_t>(to - from)});
    }
    counts.push_back(3);
  }
  get.by_iovecs(counts.data());
  for (const uint8_t order : {HS_KEY_MAJOR, HS_LAYER_MAJOR}) {
    std::fill(ground.memory.begin(), ground.memory.end(), kGuard);
    EXPECT_EQ(client.get(get, order).items_ok, 3U) << text_of(get.answers[0]);
    for (size_t i = 0; i < 3; ++i) EXPECT_TRUE(ground.has(i, blocks[i])) << i;
    EXPECT_EQ(ground.memory[ground.at[0] + 208'000], kGuard);
  }
  EXPECT_EQ(client.facts().placed_bytes, 2 * bytes_of(blocks));
}

// A pool as engines have them: a row's parts lie far from each other.
TEST_P(PlacedGets, RowsOfATemplateAreWrittenWhereEachPartLies) {
  TryClient client(address());
  const int handle = client.layout(make_layout({kLayers}));
  ASSERT_TRUE(client.ready());
  constexpr size_t kRows = 6;
  std::vector<Octets> blocks;
  for (size_t i = 0; i < 4; ++i) blocks.push_back(random_octets(208'000, 10 + i));
  put(client, handle, blocks);
  Octets pool(kRows * 208'000 + 2 * kGuardBytes, kGuard);
  hs_region* region = nullptr;
  ASSERT_EQ(hs_region_open(client.client, pool.data(), pool.size(), 0, &region, nullptr, 0), 0);
  std::vector<hs_part_descriptor> parts;
  uint64_t at = kGuardBytes;
  for (uint32_t p = 0; p < 8; ++p) {
    const uint32_t bytes = p % 2 == 0 ? 12'000 : 40'000;
    parts.push_back({.base = pool.data(),
                     .base_bytes = pool.size(),
                     .offset = at,
                     .row_stride = bytes,
                     .inner_count = 2,
                     .inner_bytes = bytes / 2,
                     .inner_stride = bytes / 2});
    at += uint64_t{bytes} * kRows;
  }
  const std::vector<int64_t> rows{5, 0, 3, 1};
  for (const bool some : {false, true}) {
    for (const uint8_t order : {HS_KEY_MAJOR, HS_LAYER_MAJOR}) {
      std::fill(pool.begin(), pool.end(), kGuard);
      TrySection get(handle, names(4));
      if (some) get.select({{.start = 1, .count = 3, .stride = 2}});
      get.section.target_kind = HS_TARGET_ROWS;
      get.section.parts = parts.data();
      get.section.part_descriptor_count = 8;
      get.section.rows = rows.data();
      EXPECT_EQ(client.get(get, order).items_ok, 4U) << text_of(get.answers[0]);
      Octets expected(pool.size(), kGuard);
      for (size_t i = 0; i < 4; ++i) {
        size_t from = 0;
        for (uint32_t p = 0; p < 8; ++p) {
          const size_t bytes = parts[p].inner_count * parts[p].inner_bytes;
          if (!some || (p % 2 == 1 && p < 6)) {
            std::copy_n(blocks[i].begin() + static_cast<ptrdiff_t>(from), bytes,
                        expected.begin() + static_cast<ptrdiff_t>(parts[p].offset + static_cast<size_t>(rows[i]) * bytes));
          }
          from += bytes;
        }
      }
      EXPECT_TRUE(pool == expected) << some << int{order};
    }
  }
  EXPECT_EQ(client.facts().placed_bytes, 2U * (4 * 208'000 + 4 * 3 * 40'000));
  hs_region_close(region);
}

TEST_P(PlacedGets, WhatLiesInNoRegionAndWhatIsTooFineComesThroughTheRings) {
  TryClient client(address());
  const int handle = client.layout(make_layout({peer::kOpaque}));
  ASSERT_TRUE(client.ready());
  std::vector<Octets> blocks = sizes(10, 100'000, 2);
  put(client, handle, blocks);
  Ground ground(client, blocks);
  std::vector<Octets> back(10, Octets(200'000));
  TrySection outside(handle, names(10));
  EXPECT_EQ(client.get(outside.into(back)).items_ok, 10U);
  EXPECT_EQ(client.facts().placed_bytes, 0U);

  TrySection fine(handle, names(1));
  std::vector<uint32_t> counts{100};
  for (size_t i = 0; i < 100; ++i) fine.iovecs.push_back({ground.memory.data() + ground.at[0] + i * 1000, 1000});
  std::reverse(fine.iovecs.begin(), fine.iovecs.end());
  fine.by_iovecs(counts.data());
  EXPECT_EQ(client.get(fine).items_ok, 1U) << text_of(fine.answers[0]);
  EXPECT_EQ(client.facts().placed_bytes, 0U) << "a hundred writes for one block";
  EXPECT_TRUE(std::equal(blocks[0].begin(), blocks[0].begin() + 1000,
                         ground.memory.begin() + static_cast<ptrdiff_t>(ground.at[0]) + 99'000));
}

TEST_P(PlacedGets, AWrongByteInItsPlaceIsAMiss) {
  TryClient client(address());
  const int handle = client.layout(make_layout({peer::kOpaque}));
  ASSERT_TRUE(client.ready());
  std::vector<Octets> blocks = sizes(5, 300'000, 2);
  put(client, handle, blocks);
  Ground ground(client, blocks);
  verbs_.spoil_next_placed();
  TrySection get(handle, names(5));
  EXPECT_EQ(client.get(ground.into(get, blocks)).items_ok, 4U);
  EXPECT_EQ(text_of(get.answers[0]), "miss(corrupt)");
  EXPECT_EQ(client.facts().checksum_failures, 1U);
  EXPECT_TRUE(ground.guards_stand(blocks));
}

// The event of a get that was called off waits until the daemon has said that it writes no more.
TEST_P(PlacedGets, AfterACancelNothingIsWritten) {
  TryClient client(address());
  const int handle = client.layout(make_layout({peer::kOpaque}));
  ASSERT_TRUE(client.ready());
  std::vector<Octets> blocks = sizes(20, 300'000, 3);
  put(client, handle, blocks);
  Ground ground(client, blocks);
  TrySection get(handle, names(20));
  const hs_ticket ticket = begin_get(client, ground.into(get, blocks));
  hs_cancel(client.queue, ticket);
  hs_event event{};
  ASSERT_TRUE(comes_true([&] {
    verbs_.carry_out(8);
    return hs_queue_wait(client.queue, &event, 1, 0) == 1;
  }));
  EXPECT_EQ(event.ticket, ticket);
  const Octets then = ground.memory;
  verbs_.delay(false);
  verbs_.carry_out();
  // On a machine that is slow it may have had to come back.
  EXPECT_TRUE(comes_true([&] {
    TrySection one(handle, names(1));
    std::vector<Octets> back(1, Octets(300'000));
    return client.get(one.into(back)).items_ok == 1;
  }));
  EXPECT_TRUE(ground.memory == then);
  EXPECT_TRUE(ground.guards_stand(blocks));
}

// Of a daemon that never says so the connection is ended, and with it the queue pair.
TEST_P(PlacedGets, AfterADeadlineNothingIsWritten) {
  TryClient client(address());
  const int handle = client.layout(make_layout({peer::kOpaque}));
  ASSERT_TRUE(client.ready());
  std::vector<Octets> blocks = sizes(20, 300'000, 3);
  put(client, handle, blocks);
  Ground ground(client, blocks);
  TrySection get(handle, names(20));
  const hs_ticket ticket = begin_get(client, ground.into(get, blocks));
  hs_cancel(client.queue, ticket);
  const hs_event event = client.wait();  // and nothing is carried out meanwhile
  EXPECT_EQ(event.ticket, ticket);
  EXPECT_EQ(event.items_ok, 0U);
  const Octets then = ground.memory;
  verbs_.carry_out();
  EXPECT_TRUE(ground.memory == then) << "the queue pair is gone";
  verbs_.delay(false);
  verbs_.carry_out();
  ASSERT_TRUE(comes_true([&] { return client.facts().handshakes >= 2; })) << client.facts().last_error;
  EXPECT_NE(std::string(client.facts().last_error).find("was not let go of within 200 ms"), std::string::npos)
      << client.facts().last_error;
  TrySection again(handle, names(20));
  EXPECT_EQ(client.get(ground.into(again, blocks)).items_ok, 20U) << text_of(again.answers[0]);
  for (size_t i = 0; i < blocks.size(); ++i) EXPECT_TRUE(ground.has(i, blocks[i])) << i;
}

TEST_P(PlacedGets, ARegionIsClosedWhenNothingIsWrittenIntoItAnyMore) {
  TryClient client(address());
  const int handle = client.layout(make_layout({peer::kOpaque}));
  ASSERT_TRUE(client.ready());
  std::vector<Octets> blocks = sizes(20, 300'000, 3);
  put(client, handle, blocks);
  auto ground = std::make_unique<Ground>(client, blocks);
  TrySection get(handle, names(20));
  const hs_ticket ticket = begin_get(client, ground->into(get, blocks));
  hs_cancel(client.queue, ticket);
  hs_region_close(std::exchange(ground->region, nullptr));
  EXPECT_GE(verbs_.count("dereg_mr"), 3U) << "the ring and the outbox of the connection that had to end, and the region";
  const Octets then = ground->memory;
  verbs_.carry_out();
  EXPECT_TRUE(ground->memory == then);
  verbs_.delay(false);
}

// Its regions are closed after it.
TEST_P(PlacedGets, AClientThatIsClosedWhileItIsWrittenIntoHasItsMemoryForItself) {
  TryClient client(address());
  const int handle = client.layout(make_layout({peer::kOpaque}));
  ASSERT_TRUE(client.ready());
  std::vector<Octets> blocks = sizes(20, 300'000, 3);
  put(client, handle, blocks);
  Ground ground(client, blocks);
  TrySection get(handle, names(20));
  (void)begin_get(client, ground.into(get, blocks));
  hs_client_close(std::exchange(client.client, nullptr));
  const Octets then = ground.memory;
  verbs_.carry_out();
  verbs_.delay(false);
  verbs_.carry_out();
  EXPECT_TRUE(ground.memory == then);
  EXPECT_TRUE(ground.guards_stand(blocks));

  TryClient other(address());
  const int again = other.layout(make_layout({peer::kOpaque}));
  ASSERT_TRUE(other.ready()) << other.facts().last_error;
  TrySection whole(again, names(20));
  std::vector<Octets> back;
  for (const Octets& block : blocks) back.emplace_back(block.size());
  EXPECT_EQ(other.get(whole.into(back)).items_ok, 20U) << text_of(whole.answers[0]);
  EXPECT_TRUE(back == blocks);
}

TEST_P(PlacedGets, ADaemonThatEndsWhileItWritesLeavesMissesAndIsComeBackTo) {
  TryClient client(address());
  const int handle = client.layout(make_layout({peer::kOpaque}));
  ASSERT_TRUE(client.ready());
  std::vector<Octets> blocks = sizes(20, 300'000, 3);
  put(client, handle, blocks);
  Ground ground(client, blocks);
  TrySection get(handle, names(20));
  const hs_ticket ticket = begin_get(client, ground.into(get, blocks));
  config_.listen = server_->facts().listening;
  server_.reset();
  const hs_event event = client.wait();
  EXPECT_EQ(event.ticket, ticket);
  const Octets then = ground.memory;
  verbs_.delay(false);
  verbs_.carry_out();
  EXPECT_TRUE(ground.memory == then);
  // A path that ended without a word is not tried again for a second, and the connection that came meanwhile has to end first.
  ASSERT_TRUE(comes_true([&] {
    restart();
    return client.ready() && std::string(client.facts().transport) == "rdma";
  }));
  put(client, handle, blocks);
  TrySection again(handle, names(20));
  EXPECT_EQ(client.get(ground.into(again, blocks)).items_ok, 20U) << text_of(again.answers[0]);
  for (size_t i = 0; i < blocks.size(); ++i) EXPECT_TRUE(ground.has(i, blocks[i])) << i;
  EXPECT_TRUE(ground.guards_stand(blocks));
}

TEST_P(PlacedGets, WhereTheDeviceTakesNoMoreMemoryItSaysSoAndBytesComeThroughTheRings) {
  TryClient client(address());
  const int handle = client.layout(make_layout({peer::kOpaque}));
  ASSERT_TRUE(client.ready());
  std::vector<Octets> blocks = sizes(10, 100'000, 2);
  put(client, handle, blocks);
  Ground ground(client, blocks);
  verbs_.fail_next("reg_mr", ENOMEM);
  for (int round = 0; round < 2; ++round) {
    TrySection get(handle, names(10));
    EXPECT_EQ(client.get(ground.into(get, blocks)).items_ok, 10U) << text_of(get.answers[0]);
    for (size_t i = 0; i < blocks.size(); ++i) EXPECT_TRUE(ground.has(i, blocks[i])) << i;
  }
  EXPECT_EQ(client.facts().placed_bytes, 0U);
  EXPECT_NE(std::string(client.facts().placement).find("raise the limit of locked memory"), std::string::npos)
      << client.facts().placement;
}

TEST_P(PlacedGets, OverTcpARegionIsMemoryLikeAnyOther) {
  TryClient client(address(), 1, 0, 0, 5, 0, "tcp");
  const int handle = client.layout(make_layout({peer::kOpaque}));
  ASSERT_TRUE(client.ready());
  std::vector<Octets> blocks = sizes(10, 100'000, 2);
  put(client, handle, blocks);
  Ground ground(client, blocks);
  TrySection get(handle, names(10));
  EXPECT_EQ(client.get(ground.into(get, blocks)).items_ok, 10U);
  for (size_t i = 0; i < blocks.size(); ++i) EXPECT_TRUE(ground.has(i, blocks[i])) << i;
  EXPECT_EQ(client.facts().placed_bytes, 0U);
  EXPECT_EQ(verbs_.count("reg_mr"), 0U);
}

// What a daemon asks of its device for 1,000 gets of blocks of 256 KiB that are in memory (docs/performance.md).
class HotBlocks : public PlacedGets {
 protected:
  static constexpr size_t kBlocks = 100;
  void configure() override {
    PlacementFixture::configure();
    config_.arena_bytes = 96 * MiB;
  }
  struct Asked {
    double writes = 0;
    double posts = 0;
    double copied = 0;
    uint64_t signals = 0;
    uint64_t registered = 0;
  };
  Asked now() {
    return {.writes = metric("halfstep_rdma_writes_total"),
            .posts = metric("halfstep_rdma_posts_total"),
            .copied = metric("halfstep_rdma_bytes_total{outcome=\"copied\"}"),
            .signals = verbs_.signals_asked(),
            .registered = verbs_.count("reg_mr")};
  }
  void expect_few(const Asked& before, const char* what) {
    const Asked after = now();
    const double writes = after.writes - before.writes;
    const double posts = after.posts - before.posts;
    const uint64_t signals = after.signals - before.signals;
    const double copied = after.copied - before.copied;
    std::printf("%s: %.0f writes, %.0f posts, %llu completions of both ends, %.0f bytes copied\n", what, writes, posts,
                static_cast<unsigned long long>(signals), copied);
    // Nine to twelve as a rule; the turns of an idle machine are shorter, and each ends with one of both.
    EXPECT_LE(posts * 4, writes);
    EXPECT_LE(static_cast<double>(signals) * 4, writes) << "the client's included";
    EXPECT_EQ(after.registered, before.registered);
    EXPECT_LT(copied, 1000.0 * 512) << "heads of frames, and no payload";
  }
};

TEST_P(HotBlocks, AreFewCallsOfTheDevice) {
  TryClient client(address());
  const int handle = client.layout(make_layout({peer::kOpaque}));
  ASSERT_TRUE(client.ready());
  std::vector<Octets> blocks;
  for (size_t i = 0; i < kBlocks; ++i) blocks.push_back(random_octets(256 * KiB, i));
  put(client, handle, blocks);
  Ground ground(client, blocks);
  std::vector<Octets> elsewhere(kBlocks, Octets(256 * KiB));
  Asked before;
  for (const bool placed : {false, true}) {
    for (int round = -1; round < 10; ++round) {
      if (round == 0) before = now();  // the first registers the region
      TrySection get(handle, names(kBlocks));
      EXPECT_EQ(client.get(placed ? ground.into(get, blocks) : get.into(elsewhere)).items_ok, kBlocks);
      if (round == 9) expect_few(before, placed ? "placed" : "through rings");
    }
  }
  EXPECT_EQ(client.facts().placed_bytes, 11 * bytes_of(blocks));
}

TEST_P(PlacedGets, AClientHasSoManyRegionsAndTheirNumbersComeBack) {
  TryClient client(address());
  ASSERT_TRUE(client.ready());
  Octets memory(4096);
  std::vector<hs_region*> regions(wire::kRegionsMax, nullptr);
  for (hs_region*& region : regions)
    ASSERT_EQ(hs_region_open(client.client, memory.data(), memory.size(), 0, &region, nullptr, 0), 0);
  hs_region* more = nullptr;
  char why[256] = "";
  EXPECT_EQ(hs_region_open(client.client, memory.data(), memory.size(), 0, &more, why, sizeof(why)), -1);
  EXPECT_NE(std::string(why).find("at most 64"), std::string::npos) << why;
  EXPECT_EQ(std::string(client.facts().placement), why) << "for who goes on without";
  hs_region_close(regions[7]);
  EXPECT_EQ(hs_region_open(client.client, memory.data(), memory.size(), 0, &regions[7], why, sizeof(why)), 0) << why;
  for (hs_region* region : regions) hs_region_close(region);
}

INSTANTIATE_TEST_SUITE_P(Keys, PlacedGets, testing::Values(Keys::OfRegions, Keys::OfWindows), name_of_keys);
INSTANTIATE_TEST_SUITE_P(Keys, HotBlocks, testing::Values(Keys::OfRegions, Keys::OfWindows), name_of_keys);

}  // namespace
}  // namespace placed_gets_test
}  // namespace halfstep
