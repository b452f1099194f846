// Puts whose bytes a daemon reads out of the client's own memory, on a table of verbs that moves bytes within the process: what
// is stored is what lay there, nothing is read after the terminal event, no slot goes back while a device may write into it,
// and what cannot be read there is sent.
#include <gtest/gtest.h>

#include <cerrno>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "placement_fixture.h"

namespace halfstep {
namespace placed_puts_test {
namespace {

class PlacedPuts : public PlacementFixture, public testing::WithParamInterface<Keys> {
 protected:
  explicit PlacedPuts(const rdma::FakeDevice& device = {}) : PlacementFixture(with(GetParam(), device)) {}
  // Lays the blocks into their places.
  static void lay(Ground& ground, const std::vector<Octets>& blocks) {
    for (size_t i = 0; i < blocks.size(); ++i)
      std::memcpy(ground.memory.data() + ground.at[i], blocks[i].data(), blocks[i].size());
  }
  static size_t stored(TryClient& client, int handle, const std::vector<Octets>& blocks) {
    std::vector<Octets> back;
    for (const Octets& block : blocks) back.emplace_back(block.size());
    TrySection get(handle, names(blocks.size()));
    (void)client.get(get.into(back));
    size_t same = 0;
    for (size_t i = 0; i < blocks.size(); ++i) {
      const bool ok = get.answers[i].answer == HS_OK;
      EXPECT_TRUE(!ok || back[i] == blocks[i]) << i;
      same += ok ? 1 : 0;
    }
    return same;
  }
  double pulled() const { return metric("halfstep_rdma_pulled_bytes_total"); }
  // A block that was sent is held until the daemon has heard of it, which may be after the client has it.
  bool holds_nothing() const {
    return comes_true([&] { return metric("halfstep_credit_held_bytes") == 0; });
  }
  // Offers all, and waits until the daemon has posted reads that are not carried out.
  hs_ticket begin_put(TryClient& client, TrySection& section, uint32_t deadline_us = 0) {
    const uint64_t before = verbs_.count("read");
    verbs_.delay(true);
    hs_batch batch = TryClient::batch(HS_OP_PUT);
    batch.deadline_us = deadline_us;
    const hs_ticket ticket = client.submit(batch, section);
    EXPECT_TRUE(comes_true([&] {
      verbs_.carry_out(verbs_.count("read") == before ? SIZE_MAX : 0);
      return verbs_.count("read") != before;
    }));
    return ticket;
  }
};

TEST_P(PlacedPuts, BlocksOfAllSizesAreReadFromTheirPlaces) {
  TryClient client(address(), 2);
  const int handle = client.layout(make_layout({peer::kOpaque}));
  ASSERT_TRUE(client.ready()) << client.facts().last_error;
  const std::vector<Octets> blocks = sizes(100, 4096, 256);
  Ground ground(client, blocks);
  lay(ground, blocks);
  TrySection put(handle, names(100));
  EXPECT_EQ(client.put(ground.into(put, blocks)).items_ok, 100U) << text_of(put.answers[0]);
  EXPECT_TRUE(put.all("ok(stored)"));
  EXPECT_EQ(pulled(), static_cast<double>(bytes_of(blocks)));
  EXPECT_EQ(stored(client, handle, blocks), 100U);
  EXPECT_TRUE(ground.guards_stand(blocks));
  EXPECT_STREQ(client.facts().placement, "");
  EXPECT_LT(metric("halfstep_bytes_received_total"), 200'000) << "the blocks themselves did not travel as frames";
  EXPECT_TRUE(holds_nothing());
  const uint64_t reads = verbs_.count("read");
  TrySection again(handle, names(100));
  EXPECT_EQ(client.put(ground.into(again, blocks)).items_ok, 100U);
  EXPECT_TRUE(again.all("ok(present)"));
  EXPECT_EQ(verbs_.count("read"), reads) << "what is there already is not read";
}

TEST_P(PlacedPuts, PiecesOfABlockAreReadInTheirOrder) {
  TryClient client(address());
  const int handle = client.layout(make_layout({kLayers}));
  ASSERT_TRUE(client.ready());
  const std::vector<Octets> blocks = {random_octets(208'000, 1), random_octets(208'000, 2)};
  Ground ground(client, {Octets(420'000), Octets(420'000)});
  TrySection put(handle, names(2));
  std::vector<uint32_t> counts;
  for (size_t i = 0; i < 2; ++i) {
    size_t from = 0;
    for (const size_t bytes : {5, 99'995, 100'000, 8'000}) {
      std::byte* const to = ground.memory.data() + ground.at[i] + 2 * from;  // with holes between
      std::memcpy(to, blocks[i].data() + from, bytes);
      put.iovecs.push_back({to, bytes});
      from += bytes;
    }
    counts.push_back(4);
    put.block_bytes.push_back(208'000);
  }
  put.by_iovecs(counts.data());
  EXPECT_EQ(client.put(put).items_ok, 2U) << text_of(put.answers[0]);
  EXPECT_EQ(pulled(), 416'000);
  EXPECT_EQ(stored(client, handle, blocks), 2U);
}

// A pool as engines have them: a row's parts lie far from each other.
TEST_P(PlacedPuts, RowsOfATemplateAreReadWhereEachPartLies) {
  TryClient client(address());
  const int handle = client.layout(make_layout({kLayers}));
  ASSERT_TRUE(client.ready());
  constexpr size_t kRows = 4;
  Octets pool(8 * 2 * kRows * 40'000, kGuard);
  hs_region* region = nullptr;
  char why[256] = "";
  ASSERT_EQ(hs_region_open(client.client, pool.data(), pool.size(), 0, &region, why, sizeof(why)), 0) << why;
  std::vector<Octets> blocks;
  std::vector<hs_part_descriptor> parts;
  const auto bytes_of_part = [](size_t part) { return part % 2 == 0 ? 12'000U : 40'000U; };
  for (size_t p = 0; p < 8; ++p) {
    // Two halves of each, one plane apart.
    parts.push_back({.base = pool.data(),
                     .base_bytes = pool.size(),
                     .offset = p * 2 * kRows * 40'000,
                     .row_stride = 40'000,
                     .inner_count = 2,
                     .inner_bytes = bytes_of_part(p) / 2,
                     .inner_stride = static_cast<int64_t>(kRows * 40'000)});
  }
  for (size_t row = 0; row < kRows; ++row) {
    blocks.push_back(random_octets(208'000, row + 1));
    const std::byte* from = blocks.back().data();
    for (size_t p = 0; p < 8; ++p) {
      for (size_t half = 0; half < 2; ++half) {
        std::memcpy(pool.data() + parts[p].offset + row * 40'000 + half * kRows * 40'000, from, parts[p].inner_bytes);
        from += parts[p].inner_bytes;
      }
    }
  }
  TrySection put(handle, names(kRows));
  const std::vector<int64_t> rows = {0, 1, 2, 3};
  put.block_bytes.assign(kRows, 208'000);
  put.section.target_kind = HS_TARGET_ROWS;
  put.section.parts = parts.data();
  put.section.part_descriptor_count = static_cast<uint32_t>(parts.size());
  put.section.rows = rows.data();
  put.section.block_bytes = put.block_bytes.data();
  EXPECT_EQ(client.put(put).items_ok, kRows) << text_of(put.answers[0]);
  EXPECT_EQ(pulled(), kRows * 208'000.0);
  EXPECT_EQ(stored(client, handle, blocks), kRows);
  hs_region_close(region);
}

TEST_P(PlacedPuts, WhatLiesInNoRegionOrInTooManyPiecesIsSent) {
  TryClient client(address());
  const int handle = client.layout(make_layout({peer::kOpaque}));
  ASSERT_TRUE(client.ready());
  std::vector<Octets> outside = {random_octets(300'000, 1)};
  put(client, handle, outside);
  EXPECT_EQ(pulled(), 0);
  // A hundred pieces of one part, and a block in one.
  const std::vector<Octets> blocks = {random_octets(100'000, 2), random_octets(500'000, 3)};
  Ground ground(client, {Octets(200'000), Octets(500'000)});
  TrySection put(handle, {"fine", "whole"});
  for (size_t i = 0; i < 100; ++i) {
    std::byte* const to = ground.memory.data() + ground.at[0] + i * 2000;
    std::memcpy(to, blocks[0].data() + i * 1000, 1000);
    put.iovecs.push_back({to, 1000});
  }
  std::memcpy(ground.memory.data() + ground.at[1], blocks[1].data(), 500'000);
  put.iovecs.push_back({ground.memory.data() + ground.at[1], 500'000});
  const std::vector<uint32_t> counts = {100, 1};
  put.block_bytes = {100'000, 500'000};
  put.by_iovecs(counts.data());
  EXPECT_EQ(client.put(put).items_ok, 2U) << text_of(put.answers[0]);
  EXPECT_EQ(pulled(), 500'000);
  TrySection get(handle, {"fine", "whole"});
  std::vector<Octets> back = {Octets(100'000), Octets(500'000)};
  EXPECT_EQ(client.get(get.into(back)).items_ok, 2U);
  EXPECT_TRUE(back == blocks);
}

// Keys, offers, part tables and places of the largest put would not fit a request's body: places give way.
TEST_P(PlacedPuts, PlacesThatWouldMakeTheRequestTooLongAreLeftOut) {
  TryClient client(address());
  const int handle = client.layout(make_layout({peer::kOpaque}));
  ASSERT_TRUE(client.ready());
  constexpr size_t kBlocks = 4096;
  Ground ground(client, {Octets(kBlocks * 400)});
  for (const uint32_t pieces : {3, 4}) {
    const double before = pulled();
    TrySection put(handle, names(kBlocks, "of " + std::to_string(pieces) + " "));
    for (size_t i = 0; i < kBlocks; ++i) {
      for (uint32_t p = 0; p < pieces; ++p) {
        std::byte* const to = ground.memory.data() + ground.at[0] + (i * 4 + p) * 100;
        put.iovecs.push_back({to, 50});
      }
      put.block_bytes.push_back(pieces * 50);
    }
    const std::vector<uint32_t> counts(kBlocks, pieces);
    put.by_iovecs(counts.data());
    EXPECT_EQ(client.put(put).items_ok, kBlocks) << text_of(put.answers[0]);
    EXPECT_EQ(pulled() - before, pieces == 3 ? kBlocks * 150.0 : 0) << pieces;
  }
}

// A part that is longer than a Placed goes one way or the other, never both: its sum is made in the order of its bytes.
TEST_P(PlacedPuts, AllPiecesOfAPartGoTheSameWay) {
  TryClient client(address());
  const int handle = client.layout(make_layout({{.part_count = 1, .size_count = 1, .part_bytes = {700'000}}}));
  ASSERT_TRUE(client.ready());
  const std::vector<Octets> blocks = {random_octets(700'000, 1), random_octets(700'000, 2)};
  Ground ground(client, {Octets(1'000'000), Octets(1'000'000)});
  TrySection put(handle, names(2));
  std::vector<uint32_t> counts;
  const auto lay_piece = [&](size_t block, size_t from, size_t bytes, size_t hole) {
    std::byte* const to = ground.memory.data() + ground.at[block] + from + hole;
    std::memcpy(to, blocks[block].data() + from, bytes);
    put.iovecs.push_back({to, bytes});
  };
  lay_piece(0, 0, 600'000, 0);
  for (size_t i = 0; i < 100; ++i) lay_piece(0, 600'000 + i * 1000, 1000, (i + 1) * 100);
  lay_piece(1, 0, 300'001, 0);
  lay_piece(1, 300'001, 399'999, 100);
  counts = {101, 2};
  put.block_bytes = {700'000, 700'000};
  put.by_iovecs(counts.data());
  EXPECT_EQ(client.put(put).items_ok, 2U) << text_of(put.answers[0]);
  EXPECT_EQ(pulled(), 700'000) << "of the block that has two pieces";
  EXPECT_EQ(stored(client, handle, blocks), 2U);
}

TEST_P(PlacedPuts, AByteThatArrivesWrongIsRefusedAndNothingIsStored) {
  TryClient client(address());
  const int handle = client.layout(make_layout({peer::kOpaque}));
  ASSERT_TRUE(client.ready());
  const std::vector<Octets> blocks = sizes(5, 100'000, 2);
  Ground ground(client, blocks);
  lay(ground, blocks);
  verbs_.spoil_next_read();
  TrySection put(handle, names(5));
  EXPECT_EQ(client.put(ground.into(put, blocks)).items_ok, 4U);
  EXPECT_EQ(text_of(put.answers[0]), "rejected(checksum)");
  EXPECT_EQ(stored(client, handle, blocks), 4U);
  EXPECT_TRUE(holds_nothing());
}

TEST_P(PlacedPuts, AfterACancelNothingIsReadAndNoSlotIsKept) {
  TryClient client(address());
  const int handle = client.layout(make_layout({peer::kOpaque}));
  ASSERT_TRUE(client.ready());
  const std::vector<Octets> blocks = sizes(20, 300'000, 3);
  Ground ground(client, blocks);
  lay(ground, blocks);
  TrySection put(handle, names(20));
  const hs_ticket ticket = begin_put(client, ground.into(put, blocks));
  hs_cancel(client.queue, ticket);
  hs_event event{};
  ASSERT_TRUE(comes_true([&] {
    verbs_.carry_out(4);
    return hs_queue_wait(client.queue, &event, 1, 0) == 1;
  }));
  EXPECT_EQ(event.ticket, ticket);
  const uint64_t reads = verbs_.count("read");
  std::fill(ground.memory.begin(), ground.memory.end(), kGuard);
  verbs_.delay(false);
  verbs_.carry_out();
  EXPECT_TRUE(holds_nothing());
  EXPECT_EQ(verbs_.count("read"), reads);
  (void)stored(client, handle, blocks);  // what is there is what was put
  EXPECT_TRUE(comes_true([&] {
    std::vector<Octets> other = {random_octets(300'000, 99)};
    TrySection one(handle, {"another"});
    return client.put(one.into(other)).items_ok == 1;
  }));
}

// Nothing is carried out any more: the client ends the queue pair, and the daemon the connection. Slots come back with it.
TEST_P(PlacedPuts, AClientThatWaitsNoLongerTakesItsQueuePairAway) {
  TryClient client(address());
  const int handle = client.layout(make_layout({peer::kOpaque}));
  ASSERT_TRUE(client.ready());
  const std::vector<Octets> blocks = sizes(20, 300'000, 3);
  Ground ground(client, blocks);
  lay(ground, blocks);
  TrySection put(handle, names(20));
  const hs_ticket ticket = begin_put(client, ground.into(put, blocks));
  hs_cancel(client.queue, ticket);
  const hs_event event = client.wait();
  EXPECT_EQ(event.ticket, ticket);
  EXPECT_EQ(event.items_ok, 0U);
  std::fill(ground.memory.begin(), ground.memory.end(), kGuard);
  verbs_.delay(false);
  verbs_.carry_out();
  EXPECT_TRUE(holds_nothing());
  ASSERT_TRUE(comes_true([&] { return client.facts().handshakes >= 2; })) << client.facts().last_error;
  EXPECT_EQ(stored(client, handle, blocks), 0U);
  lay(ground, blocks);
  TrySection again(handle, names(20));
  EXPECT_EQ(client.put(ground.into(again, blocks)).items_ok, 20U) << text_of(again.answers[0]);
  EXPECT_EQ(stored(client, handle, blocks), 20U);
}

TEST_P(PlacedPuts, AClientThatIsClosedWhileItIsReadLeavesNothing) {
  const std::vector<Octets> blocks = sizes(20, 300'000, 3);
  {
    TryClient client(address());
    const int handle = client.layout(make_layout({peer::kOpaque}));
    ASSERT_TRUE(client.ready());
    Ground ground(client, blocks);
    lay(ground, blocks);
    TrySection put(handle, names(20));
    (void)begin_put(client, ground.into(put, blocks));
    hs_client_close(std::exchange(client.client, nullptr));
  }
  EXPECT_TRUE(comes_true([&] { return metric("halfstep_connections_open") == 0; }));
  EXPECT_TRUE(holds_nothing());
  verbs_.carry_out();
  verbs_.delay(false);
  verbs_.carry_out();
  TryClient other(address());
  const int handle = other.layout(make_layout({peer::kOpaque}));
  ASSERT_TRUE(other.ready()) << other.facts().last_error;
  EXPECT_EQ(stored(other, handle, blocks), 0U);
}

TEST_P(PlacedPuts, ADaemonThatEndsWhileItReadsEndsThePut) {
  TryClient client(address());
  const int handle = client.layout(make_layout({peer::kOpaque}));
  ASSERT_TRUE(client.ready());
  const std::vector<Octets> blocks = sizes(20, 300'000, 3);
  Ground ground(client, blocks);
  lay(ground, blocks);
  TrySection put(handle, names(20));
  const hs_ticket ticket = begin_put(client, ground.into(put, blocks));
  server_.reset();
  const hs_event event = client.wait();
  EXPECT_EQ(event.ticket, ticket);
  EXPECT_EQ(event.items_ok, 0U);
  verbs_.delay(false);
  verbs_.carry_out();
}

class WithoutReads : public PlacedPuts {
 protected:
  WithoutReads() : PlacedPuts(rdma::FakeDevice{.max_reads = 0}) {}
};

TEST_P(WithoutReads, BytesTravelAsEver) {
  TryClient client(address());
  const int handle = client.layout(make_layout({peer::kOpaque}));
  ASSERT_TRUE(client.ready());
  const std::vector<Octets> blocks = sizes(5, 100'000, 2);
  Ground ground(client, blocks);
  lay(ground, blocks);
  TrySection put(handle, names(5));
  EXPECT_EQ(client.put(ground.into(put, blocks)).items_ok, 5U);
  EXPECT_EQ(verbs_.count("read"), 0U);
  EXPECT_EQ(pulled(), 0);
  EXPECT_EQ(stored(client, handle, blocks), 5U);
}

INSTANTIATE_TEST_SUITE_P(Keys, PlacedPuts, testing::Values(Keys::OfRegions, Keys::OfWindows), name_of_keys);
INSTANTIATE_TEST_SUITE_P(Keys, WithoutReads, testing::Values(Keys::OfRegions, Keys::OfWindows), name_of_keys);

}  // namespace
}  // namespace placed_puts_test
}  // namespace halfstep
