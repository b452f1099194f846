// prefetch over a real socket: what is answered when, what a cancel, a deadline and a lost connection leave behind.
#include <gtest/gtest.h>

#include <map>
#include <utility>

#include "shard/shard_fixture.h"
#include "wire/prefetch_kind.h"

namespace halfstep::shard {
namespace request_prefetch_test {

constexpr uint32_t kBlockBytes = 100;

class PrefetchTest : public ShardFixture {
 protected:
  static std::vector<std::byte> frame_of(uint64_t id, const std::vector<SectionSpec>& sections, wire::Batch batch = {},
                                         uint64_t keep_ms = 1000, uint32_t kind = 0) {
    return request_frame(Opcode::Prefetch, id, batch, sections, 0, [keep_ms, kind](wire::FrameWriter& frame) {
      frame.tlv(wire::Tlv::Until, wire::UntilRecord{.hold_ms = keep_ms, .flags = kind << wire::kUntilKindShift});
    });
  }
  // Request 6.
  static void cancel(RawClient& client) {
    const wire::CancelRecord record{.request_id = 6};
    EXPECT_EQ(client.simple(Opcode::Cancel, 7, wire::Tlv::CancelTarget, object_bytes(record)).whole, kOk);
  }
  void wait_for_stages(size_t count) {
    wait_until([&] { return fake_->stages() == count; });
  }
};

TEST_F(PrefetchTest, EachKeyIsAnsweredWhenAllHaveCome) {
  auto client = open({parted(1, kBlockBytes)});
  client->put(5, {section_of({"a", "b"}, kBlockBytes)});
  client->send(frame_of(6, {section_of({"a", "absent", "b"}, kBlockBytes)}));
  wait_for_stages(3);
  EXPECT_EQ(metric("halfstep_prefetch_queued_blocks"), 3);
  on_shard([&] { fake_->end_stages(); });
  const Said said = client->finish(6);
  EXPECT_EQ(said.at(0, 0), kOk);
  EXPECT_EQ(said.at(0, 1), (AnswerReason{Answer::Miss, Reason::Absent}));
  EXPECT_EQ(said.at(0, 2), kOk);
  EXPECT_EQ(metric("halfstep_prefetch_queued_blocks"), 0);
  expect_nothing_held();
}

TEST_F(PrefetchTest, TheStoreHearsOfEachItemAndHowItIsWanted) {
  auto client = open({parted(1, kBlockBytes)});
  SectionSpec section = section_of(keys_of("k", 50), kBlockBytes);  // more items than are taken at once
  section.first_component = 7;
  section.components = 2;
  const wire::Batch batch{.priority = 9, .flags = wire::kBatchFollow};
  client->send(frame_of(6, {section}, batch, 1500));
  client->send(frame_of(8, {section_of({"long"}, kBlockBytes)}, {}, UINT64_MAX, 4));
  client->send(frame_of(10, {section_of({"later"}, kBlockBytes)}, {}, 1500, 5));
  wait_for_stages(102);
  on_shard([&] {
    std::map<std::pair<uint64_t, uint64_t>, const store::Stage*> by_key;
    for (const store::Stage* stage : fake_->staging()) by_key[{stage->key.low, stage->key.high}] = stage;
    const auto stage_of = [&](uint32_t component, const std::string& key) {
      const store::IndexKey name = fake_->key_of({1, {component}, as_bytes(key)});
      return by_key.at({name.low, name.high});
    };
    for (const std::string& key : section.keys) {
      for (const uint32_t component : {7U, 8U}) {
        const store::Stage& stage = *stage_of(component, key);
        EXPECT_EQ(stage.component.value, component);
        EXPECT_EQ(stage.priority, 9);
        EXPECT_TRUE(stage.follow);
        EXPECT_EQ(stage.keep_us, 1'500'000U);
      }
    }
    EXPECT_FALSE(stage_of(0, "long")->follow);
    EXPECT_EQ(stage_of(7, "k0")->kind, 0);
    EXPECT_EQ(stage_of(0, "long")->kind, 4);
    EXPECT_EQ(stage_of(0, "later")->kind, 0) << "a kind of a later version says nothing";
    EXPECT_EQ(stage_of(0, "long")->keep_us, config_.store.lease_ms_max * 1000) << "as long as a lease at most";
  });
  client.reset();
  expect_nothing_held();
}

TEST_F(PrefetchTest, ACancelTakesBackWhatHasNotBegun) {
  auto client = open({parted(1, kBlockBytes)});
  client->send(frame_of(6, {section_of(keys_of("k", 4), kBlockBytes)}));
  wait_for_stages(4);
  cancel(*client);
  EXPECT_EQ(client->finish(6).at(0, 3), (AnswerReason{Answer::Cancelled, Reason::None}));
  EXPECT_EQ(on_shard([&] { return fake_->stages(); }), 0U);
  expect_nothing_held();
}

TEST_F(PrefetchTest, WhatHasBegunEndsInItsOwnTimeAndTellsNobody) {
  auto client = open({parted(1, kBlockBytes)});
  on_shard([&] { fake_->hold_stages = true; });
  client->send(frame_of(6, {section_of(keys_of("k", 4), kBlockBytes)}));
  wait_for_stages(4);
  cancel(*client);
  EXPECT_EQ(client->finish(6).at(0, 0), (AnswerReason{Answer::Cancelled, Reason::None}));
  EXPECT_EQ(metric("halfstep_prefetch_queued_blocks"), 4) << "they still take the store's time";
  on_shard([&] { fake_->end_stages(); });
  EXPECT_EQ(metric("halfstep_prefetch_queued_blocks"), 0);
  expect_nothing_held();
}

TEST_F(PrefetchTest, AfterItsDeadlineNothingMoreIsBegun) {
  auto client = open({parted(1, kBlockBytes)});
  client->send(frame_of(6, {section_of(keys_of("k", 2), kBlockBytes)}, {.deadline_us = 60'000'000}));
  wait_for_stages(2);
  pass_s(61);
  EXPECT_EQ(client->finish(6).at(0, 1), (AnswerReason{Answer::Late, Reason::None}));
  EXPECT_EQ(on_shard([&] { return fake_->stages(); }), 0U);
  expect_nothing_held();
}

TEST_F(PrefetchTest, AConnectionThatGoesLeavesNothing) {
  auto client = open({parted(1, kBlockBytes)});
  client->send(frame_of(6, {section_of(keys_of("k", 4), kBlockBytes)}));
  wait_for_stages(4);
  client.reset();
  wait_for_stages(0);
  expect_nothing_held();
}

TEST_F(PrefetchTest, AConnectionThatGoesWhileBlocksComeLeavesNothing) {
  auto client = open({parted(1, kBlockBytes)});
  on_shard([&] { fake_->hold_stages = true; });
  client->send(frame_of(6, {section_of(keys_of("k", 4), kBlockBytes)}));
  wait_for_stages(4);
  client.reset();
  wait_until([&] { return shard_->counts().requests_open == 0; });
  on_shard([&] { fake_->end_stages(); });
  expect_nothing_held();
}

TEST_F(PrefetchTest, MoreThanMayWaitIsThrottledAsAWhole) {
  auto client = open({parted(1, kBlockBytes)});
  uint64_t id = 10;
  for (size_t asked = 0; asked < PrefetchRequest::kStagesMax; asked += wire::kKeysMax) {
    client->send(frame_of(id++, {section_of(keys_of("k" + std::to_string(id) + ".", wire::kKeysMax), kBlockBytes)}));
  }
  wait_for_stages(PrefetchRequest::kStagesMax);
  client->send(frame_of(7, {section_of({"one more"}, kBlockBytes)}));
  const Said said = client->finish(7);
  EXPECT_EQ(said.whole, (AnswerReason{Answer::Throttled, Reason::Load}));
  EXPECT_NE(said.reason.find("65536"), std::string::npos) << said.reason;
  client.reset();
  expect_nothing_held();
}

TEST_F(PrefetchTest, ItNamesForHowLongAndNothingElse) {
  auto client = open({parted(1, kBlockBytes)});
  const std::vector<SectionSpec> sections{section_of({"a"}, kBlockBytes)};
  client->send(request_frame(Opcode::Prefetch, 6, {}, sections));
  EXPECT_EQ(client->finish(6).whole, (AnswerReason{Answer::Rejected, Reason::Malformed})) << "no Until";
  client->send(frame_of(7, sections, {.flags = wire::kBatchLengths}));
  EXPECT_EQ(client->finish(7).whole, (AnswerReason{Answer::Rejected, Reason::Malformed}));
  client->send(frame_of(8, sections, {}, 0));
  EXPECT_EQ(client->finish(8).whole, (AnswerReason{Answer::Rejected, Reason::Malformed}));
  EXPECT_EQ(client->ask(Opcode::Get, 9, {.flags = wire::kBatchFollow}, sections).whole,
            (AnswerReason{Answer::Rejected, Reason::Malformed}));
  expect_nothing_held();
}

}  // namespace request_prefetch_test
}  // namespace halfstep::shard
