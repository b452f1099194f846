// Gets and matches that wait for blocks which are stored while they wait.
#include <gtest/gtest.h>

#include "shard/get_fixture.h"

namespace halfstep::shard {
namespace {

constexpr wire::Batch kWaits{.flags = wire::kBatchWait};

class WaitTest : public GetTest {
 protected:
  uint64_t waiting() {
    return on_shard([&] { return shard_->key_waiters().counts().waiting; });
  }
  void wait_for_waiting(uint64_t count) {
    wait_until([&] { return shard_->key_waiters().counts().waiting == count; });
  }
  // Sends the request and returns when so many blocks are waited for.
  void begin(RawClient& client, Opcode opcode, uint64_t id, const std::vector<SectionSpec>& sections, uint64_t count,
             wire::Batch batch = kWaits) {
    client.remember(id, sections);
    client.send(request_frame(opcode, id, batch, sections));
    wait_for_waiting(count);
  }
  void expect_nobody_waits() {
    expect_nothing_held();
    EXPECT_EQ(waiting(), 0U);
    EXPECT_EQ(on_shard([&] { return shard_->wait_memory().bytes(); }), 0U);
    EXPECT_EQ(metric("halfstep_requests_waiting"), 0);
  }
};

TEST_F(WaitTest, HelloShowsTheFeature) {
  auto client = connect();
  const Said said = client->hello();
  ASSERT_TRUE(said.hello);
  EXPECT_EQ(said.hello->features,
            wire::kFeatureWait | wire::kFeaturePlace | wire::kFeaturePrefetchKind | wire::kFeaturePlaceKeys);
}

TEST_F(WaitTest, AGetIsAnsweredBlockByBlockAsTheyAreStored) {
  auto decode = open({parted(2, 1000)});
  auto prefill = open({parted(2, 1000)});
  const SectionSpec all = section_of(keys_of("k", 4), 2000);
  fill(*prefill, {section_of({"k1"}, 2000)});
  begin(*decode, Opcode::Get, 5, {all}, 3);
  ASSERT_TRUE(decode->next_chunk(5)) << "what is there does not wait for the rest";
  EXPECT_EQ(parts_of(*decode, 5), (std::vector<RawClient::PartName>{{0, 1, 0}, {0, 1, 1}}));
  std::vector<RawClient::PartName> expected = parts_of(*decode, 5);
  for (const uint32_t item : {2U, 0U, 3U}) {
    fill(*prefill, {section_of({all.keys[item]}, 2000)});
    if (item != 3) {
      ASSERT_TRUE(decode->next_chunk(5));
    }
    for (uint32_t part = 0; part < 2; ++part) expected.emplace_back(0, item, part);
  }
  const Said said = decode->finish(5);
  EXPECT_EQ(parts_of(*decode, 5), expected);
  expect_ok(*decode, said, 4);
  expect_nobody_waits();
  EXPECT_EQ(on_shard([&] { return shard_->key_waiters().counts().stored; }), 3U);
}

TEST_F(WaitTest, WhatComesTogetherIsSentLayerByLayer) {
  auto decode = open({parted(2, 1000)});
  auto prefill = open({parted(2, 1000)});
  const SectionSpec all = section_of(keys_of("k", 3), 2000);
  begin(*decode, Opcode::Get, 5, {all}, 3, {.order = wire::Order::LayerMajor, .flags = wire::kBatchWait});
  on_shard([&] { fake_->hold_reads = true; });
  fill(*prefill, {section_of({"k2"}, 2000)});
  wait_until([&] { return fake_->reads_begun == 1; });
  fill(*prefill, {section_of({"k1"}, 2000)});
  fill(*prefill, {section_of({"k0"}, 2000)});
  wait_for_waiting(0);
  on_shard([&] {
    fake_->hold_reads = false;
    fake_->finish_reads();
  });
  const Said said = decode->finish(5);
  EXPECT_EQ(parts_of(*decode, 5),
            (std::vector<RawClient::PartName>{{0, 2, 0}, {0, 2, 1}, {0, 0, 0}, {0, 1, 0}, {0, 0, 1}, {0, 1, 1}}));
  expect_ok(*decode, said, 3);
  expect_nobody_waits();
}

TEST_F(WaitTest, WithoutTheFlagNothingWaits) {
  auto client = open({parted(1, 500)});
  EXPECT_EQ(client->ask(Opcode::Get, 5, {}, {section_of({"k"}, 500)}).at(0, 0), kAbsent);
  EXPECT_EQ(client->ask(Opcode::Match, 6, {}, {section_of({"k"}, 500)}).matched.at(0), std::vector<bool>{false});
}

TEST_F(WaitTest, WhatNobodyStoresIsAbsentAtTheDeadline) {
  auto client = open({parted(1, 500)});
  fill(*client, {section_of({"k0"}, 500)});
  const SectionSpec section = section_of(keys_of("k", 3), 500);
  begin(*client, Opcode::Get, 5, {section}, 2, {.deadline_us = 50'000'000, .flags = wire::kBatchWait});
  begin(*client, Opcode::Match, 6, {section}, 3, {.deadline_us = 50'000'000, .flags = wire::kBatchWait | wire::kBatchLengths});
  pass_s(50);
  expect_ok(*client, client->finish(5), 3, {{1, kAbsent}, {2, kAbsent}});
  const Said matched = client->finish(6);
  EXPECT_EQ(matched.matched.at(0), (std::vector<bool>{true, false, false})) << "what is there is told all the same";
  EXPECT_EQ(matched.lengths.at(0), (std::vector<uint32_t>{500, 0, 0}));
  expect_nobody_waits();
  EXPECT_EQ(metric("halfstep_waits_total{outcome=\"expired\"}"), 3);
}

TEST_F(WaitTest, AMatchWaitsUntilAllOfItIsThere) {
  auto decode = open({parted(1, 500)});
  auto prefill = open({parted(1, 500)});
  const SectionSpec section = section_of(keys_of("k", 100), 500);
  begin(*decode, Opcode::Match, 5, {section}, 1);
  for (const std::string& key : section.keys) {
    EXPECT_EQ(waiting(), 1U) << "it stands in line once";
    fill(*prefill, {section_of({key}, 500)});
  }
  const Said said = decode->finish(5);
  EXPECT_EQ(said.matched.at(0), std::vector<bool>(100, true));
  expect_nobody_waits();
}

TEST_F(WaitTest, CancelAndTheConnectionsEndTakeItOut) {
  auto client = open({parted(1, 500)});
  auto other = open({parted(1, 500)});
  const SectionSpec section = section_of(keys_of("k", 3), 500);
  begin(*client, Opcode::Get, 5, {section}, 3);
  begin(*client, Opcode::Match, 6, {section}, 4);
  begin(*other, Opcode::Get, 5, {section}, 7);
  begin(*other, Opcode::Match, 6, {section}, 8);
  other->close();
  wait_for_waiting(4);
  for (const uint64_t id : {5, 6}) {
    const wire::CancelRecord target{id};
    EXPECT_EQ(client->simple(Opcode::Cancel, 9, Tlv::CancelTarget, object_bytes(target)).whole, kOk);
    const Said said = client->finish(id);
    EXPECT_EQ(said.at(0, 0), (AnswerReason{Answer::Cancelled, Reason::None}));
  }
  expect_nobody_waits();
  EXPECT_EQ(metric("halfstep_waits_total{outcome=\"ended\"}"), 8);
}

TEST_F(WaitTest, ADeleteOfTheBlockEndsTheWait) {
  auto client = open({parted(1, 500)});
  const SectionSpec section = section_of({"k0", "k1"}, 500);
  begin(*client, Opcode::Get, 5, {section}, 2);
  begin(*client, Opcode::Match, 6, {section}, 3);
  (void)client->ask(Opcode::Delete, 7, {}, {section_of({"k0"}, 500)});
  wait_for_waiting(1);
  EXPECT_EQ(client->finish(6).matched.at(0), (std::vector<bool>{false, false}));
  fill(*client, {section_of({"k1"}, 500)});
  expect_ok(*client, client->finish(5), 2, {{0, kAbsent}});
  expect_nobody_waits();
}

TEST_F(WaitTest, AClearOfTheLayoutEndsTheWait) {
  auto client = open({parted(1, 500), parted(1, 700)});
  begin(*client, Opcode::Get, 5, {section_of({"k0"}, 500)}, 1);
  begin(*client, Opcode::Match, 6, {section_of({"k0"}, 500)}, 2);
  begin(*client, Opcode::Get, 7, {section_of({"k0"}, 700, 1)}, 3);
  const wire::LayoutId id = parted(1, 500).id();
  EXPECT_EQ(client->simple(Opcode::Clear, 8, Tlv::NamedLayout, id).whole, kOk);
  EXPECT_EQ(client->finish(5).at(0, 0), kAbsent);
  EXPECT_EQ(client->finish(6).matched.at(0), std::vector<bool>{false});
  EXPECT_EQ(waiting(), 1U) << "others wait on";
  fill(*client, {section_of({"k0"}, 700, 1)});
  expect_ok(*client, client->finish(7), 1);
  expect_nobody_waits();
}

TEST_F(WaitTest, AClearEndsTheWaitWhereNoEventsAreRemembered) {
  on_shard([&] { fake_->remember_no_events(); });
  auto client = open({parted(1, 500)});
  begin(*client, Opcode::Get, 5, {section_of({"k0"}, 500)}, 1);
  const wire::LayoutId id = parted(1, 500).id();
  EXPECT_EQ(client->simple(Opcode::Clear, 8, Tlv::NamedLayout, id).whole, kOk);
  EXPECT_EQ(client->finish(5).at(0, 0), kAbsent);
  expect_nobody_waits();
}

// It looks for its last blocks when the layout has gone already.
TEST_F(WaitTest, WhatIsLookedForAfterTheClearIsNotWaitedFor) {
  configure([](Config& config) { config.get_credit_bytes_max = config.connection_credit_bytes = 1 * MiB; });
  auto client = open({parted(2, 200'000)});
  const SectionSpec all = section_of(keys_of("k", 8), 400'000);
  fill(*client, {section_of({all.keys[0], all.keys[1], all.keys[2], all.keys[3], all.keys[4], all.keys[5]}, 400'000)});
  on_shard([&] { fake_->hold_reads = true; });
  client->remember(5, {all});
  client->send(request_frame(Opcode::Get, 5, kWaits, {all}));
  wait_until([&] { return fake_->reads_begun != 0; });
  const wire::LayoutId id = parted(2, 200'000).id();
  EXPECT_EQ(client->simple(Opcode::Clear, 8, Tlv::NamedLayout, id).whole, kOk);
  on_shard([&] {
    fake_->hold_reads = false;
    fake_->finish_reads();
  });
  const Said said = client->finish(5);
  EXPECT_EQ(said.at(0, 6), kAbsent);
  EXPECT_EQ(said.at(0, 7), kAbsent);
  expect_nobody_waits();
}

TEST_F(WaitTest, AMatchOfSeveralLayoutsEndsAtTheOneThatWasCleared) {
  auto client = open({parted(1, 500), parted(1, 700)});
  begin(*client, Opcode::Match, 6, {section_of({"k0"}, 500), section_of({"k0"}, 700, 1)}, 1);
  const wire::LayoutId id = parted(1, 700).id();
  EXPECT_EQ(client->simple(Opcode::Clear, 8, Tlv::NamedLayout, id).whole, kOk);
  EXPECT_EQ(waiting(), 1U) << "the first layout is still there";
  fill(*client, {section_of({"k0"}, 500)});
  const Said said = client->finish(6);
  EXPECT_EQ(said.matched.at(0), std::vector<bool>{true});
  EXPECT_EQ(said.matched.at(1), std::vector<bool>{false});
  expect_nobody_waits();
}

// Each of them may wait for ten minutes: what they have is as bounded as what requests have that end soon.
TEST_F(WaitTest, WhoParksManyLeavesOthersTheirs) {
  constexpr uint64_t kMemory = 256 * KiB;  // a quarter of it for those who wait
  configure([](Config& config) { config.request_bytes_max = kMemory; });
  auto hostile = open({parted(1, 500)});
  auto client = open({parted(1, 500)});
  constexpr uint64_t kMany = 60;
  for (uint64_t id = 10; id < 10 + kMany; ++id) {
    const SectionSpec section = section_of({"k" + std::to_string(id)}, 500);
    hostile->remember(id, {section});
    hostile->send(request_frame(id % 2 == 0 ? Opcode::Get : Opcode::Match, id, kWaits, {section}));
  }
  const auto refused = [&] { return shard_->key_waiters().counts().refused; };
  wait_until([&] { return shard_->key_waiters().counts().waiting + refused() == kMany; });
  const uint64_t parked = waiting();
  EXPECT_GT(parked, 4U);
  EXPECT_LE(on_shard([&] { return shard_->wait_memory().bytes(); }), kMemory / 4 * 4 / 5);
  EXPECT_EQ(hostile->finish(10 + kMany - 1).at(0, 0), (AnswerReason{Answer::Throttled, Reason::Budget}));
  EXPECT_EQ(hostile->finish(10 + kMany - 2).at(0, 0), (AnswerReason{Answer::Throttled, Reason::Budget}));
  EXPECT_EQ(metric("halfstep_waits_total{outcome=\"throttled\"}"), static_cast<double>(kMany - parked));

  const SectionSpec section = section_of({"mine"}, 500);
  begin(*client, Opcode::Get, 5, {section}, parked + 1);
  fill(*client, {section});
  EXPECT_EQ(client->finish(5).at(0, 0), kOk) << "another connection has its share";
  const Said said = client->ask(Opcode::Get, 6, {}, {section});
  EXPECT_EQ(said.at(0, 0), kOk);
  EXPECT_EQ(said.load.value().queue_depth, 1U) << "who waits is no load";
  hostile->close();
  wait_for_waiting(0);
  expect_nobody_waits();
}

// What is there costs no share.
TEST_F(WaitTest, WhatIsThereIsServedWhereNobodyMayWait) {
  configure([](Config& config) { config.request_bytes_max = 256 * KiB; });
  auto client = open({parted(1, 500)});
  constexpr uint32_t kMany = 200;  // whose names alone are more than a share
  SectionSpec section = section_of(keys_of(std::string(240, 'k'), kMany), 500);
  fill(*client, {section});
  EXPECT_EQ(client->ask(Opcode::Match, 6, kWaits, {section}).matched.at(0), std::vector<bool>(kMany, true));
  section.keys.back() = "absent";
  expect_ok(*client, client->ask(Opcode::Get, 7, kWaits, {section}), kMany, {{kMany - 1, {Answer::Throttled, Reason::Budget}}});
  EXPECT_EQ(client->ask(Opcode::Match, 8, kWaits, {section}).whole, (AnswerReason{Answer::Throttled, Reason::Budget}));
  expect_nobody_waits();
}

// What does not fit the connection's credit goes in windows, and waits all the same.
TEST_F(WaitTest, MoreThanTheCreditIsSentAsItComes) {
  configure([](Config& config) { config.get_credit_bytes_max = config.connection_credit_bytes = 1 * MiB; });
  auto decode = open({parted(2, 200'000)});
  auto prefill = open({parted(2, 200'000)});
  const SectionSpec all = section_of(keys_of("k", 8), 400'000);
  for (const wire::Order order : {wire::Order::KeyMajor, wire::Order::LayerMajor}) {
    for (const uint32_t there : {0U, 6U}) {
      for (uint32_t item = 0; item < there; ++item) fill(*prefill, {section_of({all.keys[item]}, 400'000)});
      decode->remember(5, {all});
      decode->send(request_frame(Opcode::Get, 5, {.order = order, .flags = wire::kBatchWait}, {all}));
      if (there == 0) wait_for_waiting(8);
      for (uint32_t item = there; item < 8; ++item) fill(*prefill, {section_of({all.keys[item]}, 400'000)});
      expect_ok(*decode, decode->finish(5), 8);
      (void)prefill->ask(Opcode::Delete, 7, {}, {all});
    }
  }
  expect_nobody_waits();
}

TEST_F(WaitTest, AStopEndsTheWait) {
  auto client = open({parted(1, 500)});
  begin(*client, Opcode::Get, 5, {section_of({"k0"}, 500)}, 1);
  begin(*client, Opcode::Match, 6, {section_of({"k0"}, 500)}, 2);
  ASSERT_TRUE(shard_->post([this] { shard_->stop(60'000); }));
  for (const uint64_t id : {5, 6}) {
    EXPECT_EQ(client->finish(id).at(0, 0), (AnswerReason{Answer::Unavailable, Reason::Stopping}));
  }
}

}  // namespace
}  // namespace halfstep::shard
