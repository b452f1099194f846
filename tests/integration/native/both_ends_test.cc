// Put, match, get and cancel between a client and a daemon in one process, over TCP and shared memory, without an interpreter.
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "daemon_fixture.h"
#include "peer/try_client.h"

namespace halfstep {
namespace {

using peer::make_layout;
using peer::names;
using peer::Octets;
using peer::random_octets;
using peer::text_of;
using peer::TryClient;
using peer::TrySection;

class BothEnds : public DaemonFixture {};

// The same conversations with a store that is divided: a batch goes to all shards, and its answer comes from all of them.
class BothEndsOfShards : public BothEnds, public ::testing::WithParamInterface<uint32_t> {
 protected:
  void configure() override { config_.shards = GetParam(); }
};
INSTANTIATE_TEST_SUITE_P(Shards, BothEndsOfShards, ::testing::Values(1U, 2U, 3U));

TEST_P(BothEndsOfShards, WhatIsPutIsMatchedComesBackAndSurvivesARestart) {
  const wire::GroupShape attention{.part_count = 6, .size_count = 2, .part_bytes = {8192, 512}};
  const wire::Layout layout = make_layout({peer::kOpaque, attention});
  std::vector<Octets> opaque{random_octets(1, 1), random_octets(700'000, 2), random_octets(600'000, 3)};
  std::vector<Octets> blocks;
  for (uint64_t i = 0; i < 16; ++i) blocks.push_back(random_octets(26'112, 100 + i));
  for (size_t round = 0; round < 2; ++round) {
    for (const size_t which : {0U, 1U}) {
      SCOPED_TRACE(address(which));
      TryClient client(address(which), 2);
      const int handle = client.layout(layout);
      ASSERT_TRUE(client.ready()) << client.facts().last_error;
      EXPECT_STREQ(client.facts().transport, which == 0 ? "tcp" : "shm");
      TrySection put(handle, names(3));
      put.into(opaque);
      TrySection cells(handle, names(4), 4);
      cells.section.first_component = hs_component(1, 0, 2);
      cells.into(blocks);
      const hs_section both[] = {put.section, cells.section};
      hs_batch batch = TryClient::batch(HS_OP_PUT);
      batch.durability = HS_PERSIST;
      batch.sections = both;
      batch.section_count = 2;
      EXPECT_EQ(client.call(batch).items_ok, 19U) << text_of(put.answers[0]) << text_of(cells.answers[0]);
      const bool first = round == 0 && which == 0;
      EXPECT_TRUE(put.all(first ? "ok(stored)" : "ok(present)")) << text_of(put.answers[0]);

      TrySection match(handle, names(5));
      EXPECT_EQ(client.match(match).items_ok, 3U);
      EXPECT_EQ(match.lengths, (std::vector<uint32_t>{1, 700'000, 600'000, 0, 0}));

      std::vector<Octets> back(5, Octets(1 << 20));
      TrySection get(handle, names(5));
      EXPECT_EQ(client.get(get.into(back)).items_ok, 3U) << text_of(get.answers[0]);
      for (size_t i = 0; i < 3; ++i) {
        back[i].resize(opaque[i].size());
        EXPECT_EQ(back[i], opaque[i]);
      }
      EXPECT_EQ(text_of(get.answers[4]), "miss(absent)");

      for (const uint8_t order : {HS_KEY_MAJOR, HS_LAYER_MAJOR}) {
        std::vector<Octets> planes(16, Octets(8192 + 512 + 8192));
        TrySection ranged(handle, names(4), 4);
        ranged.section.first_component = hs_component(1, 0, 2);
        ranged.select({{4, 2, 1}, {0, 1, 1}}).into(planes);
        const hs_event event = client.get(ranged, order);
        EXPECT_EQ(event.items_ok, 16U) << text_of(ranged.answers[0]);
        for (size_t i = 0; i < 16; ++i) {
          Octets expected(blocks[i].begin() + 17'408, blocks[i].end());
          expected.insert(expected.end(), blocks[i].begin(), blocks[i].begin() + 8192);
          EXPECT_EQ(planes[i], expected);
        }
      }
      EXPECT_EQ(client.facts().checksum_failures, 0U);
    }
    server_.reset();
    start();
  }
}

// Over shared memory or a socket: both come with one shard or several.
TEST_P(BothEndsOfShards, DeleteListStatReleaseAndHoldsAreAnswered) {
  TryClient client(address(GetParam() % 2));
  const int handle = client.layout(make_layout({peer::kOpaque}));
  std::vector<Octets> blocks{random_octets(5000, 1), random_octets(6000, 2)};
  TrySection put(handle, names(2));
  ASSERT_EQ(client.put(put.into(blocks)).items_ok, 2U);

  TrySection held(handle, names(2));
  hs_batch match = TryClient::batch(HS_OP_MATCH);
  match.hold_owner = 77;
  match.hold_ms = 1000;
  EXPECT_EQ(client.call(match, held).items_ok, 2U);
  hs_answer outcome{};
  hs_batch release = TryClient::batch(HS_OP_RELEASE);
  release.hold_owner = 77;
  release.outcome = &outcome;
  client.call(release);
  EXPECT_EQ(outcome.answer, HS_OK) << text_of(outcome);
  TrySection some(handle, names(1));
  client.call(release, some);
  EXPECT_EQ(some.answers[0].answer, HS_OK) << text_of(some.answers[0]);

  std::vector<std::string> listed;
  uint64_t cursor = 0;
  do {
    hs_batch list = TryClient::batch(HS_OP_LIST);
    list.cursor = cursor;
    list.cursor_out = &cursor;
    list.outcome = &outcome;
    list.sink_context = &listed;
    list.sink = [](void* to, const void*, size_t, const void* name, size_t bytes) {
      static_cast<std::vector<std::string>*>(to)->emplace_back(static_cast<const char*>(name), bytes);
    };
    client.call(list);
    EXPECT_EQ(outcome.answer, HS_OK) << text_of(outcome);
  } while (cursor != 0);
  std::sort(listed.begin(), listed.end());
  EXPECT_EQ(listed, names(2));

  size_t counters = 0;
  hs_batch stat = TryClient::batch(HS_OP_STAT);
  stat.outcome = &outcome;
  stat.sink_context = &counters;
  stat.sink = [](void* to, const void*, size_t, const void*, size_t) { ++*static_cast<size_t*>(to); };
  client.call(stat);
  EXPECT_EQ(outcome.answer, HS_OK) << text_of(outcome);
  EXPECT_GT(counters, 0U);

  TrySection gone(handle, names(2));
  hs_batch erase = TryClient::batch(HS_OP_DELETE);
  EXPECT_EQ(client.call(erase, gone).items_ok, 2U) << text_of(gone.answers[0]);
  TrySection after(handle, names(2));
  EXPECT_EQ(client.match(after).items_ok, 0U);
}

// Whether the cancel comes before or after the last byte, every item has an answer, what is ok is whole, and the connection
// serves the next call.
TEST_P(BothEndsOfShards, ACancelledGetEndsAndWhatItCallsOkIsWhole) {
  TryClient client(address(GetParam() % 2));
  const int handle = client.layout(make_layout({peer::kOpaque}));
  std::vector<Octets> blocks;
  for (uint64_t i = 0; i < 8; ++i) blocks.push_back(random_octets(600'000, i));
  TrySection put(handle, names(8));
  ASSERT_EQ(client.put(put.into(blocks)).items_ok, 8U) << text_of(put.answers[0]);
  for (int round = 0; round < 20; ++round) {
    std::vector<Octets> back(8, Octets(600'000));
    TrySection get(handle, names(8));
    hs_batch batch = TryClient::batch(HS_OP_GET);
    batch.wants_progress = 1;
    const hs_ticket ticket = client.submit(batch, get.into(back));
    hs_event event{};
    if (round % 2 == 0) event = client.wait();  // progress; or it is over already
    hs_cancel(client.queue, ticket);
    while (event.kind != HS_EVENT_DONE) event = client.wait();
    for (size_t i = 0; i < 8; ++i) {
      if (get.answers[i].answer == HS_OK) {
        EXPECT_EQ(back[i], blocks[i]);
      } else {
        EXPECT_EQ(text_of(get.answers[i]), "cancelled(none)");
      }
    }
  }
  TrySection last(handle, names(8));
  std::vector<Octets> back(8, Octets(600'000));
  EXPECT_EQ(client.get(last.into(back)).items_ok, 8U) << text_of(last.answers[0]);
  EXPECT_EQ(back, blocks);
}

}  // namespace
}  // namespace halfstep
