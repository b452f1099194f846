// Gets in layer order: rounds over blocks that exceed the credit, and layers that go as they land.
#include <gtest/gtest.h>

#include "shard/get_fixture.h"

namespace halfstep::shard {
namespace {

// Two mebibytes each, of which a round sends a quarter.
class LayerRounds : public GetTest {
 protected:
  static constexpr uint32_t kBlockBytes = 2 * MiB;
  static constexpr uint32_t kKeys = 6;

  std::unique_ptr<RawClient> filled(uint32_t parts, uint64_t credit_bytes = 7 * MiB) {
    configure([&](Config& config) { config.connection_credit_bytes = config.get_credit_bytes_max = credit_bytes; });
    auto client = open({parted(static_cast<uint16_t>(parts), kBlockBytes / parts)});
    for (const std::string& key : keys_of("k", kKeys)) fill(*client, {section_of({key}, kBlockBytes)});
    on_shard([&] { fake_->parts_alone = true; });
    return client;
  }
  // Of blocks of four parts: the first two rounds have come, and the reads of the next two wait.
  void receive_two_rounds(RawClient& client, const SectionSpec& section) {
    begin_layers(client, section, 2 * kKeys);
    on_shard([&] { fake_->finish_reads(); });
    while (client.parts_received.size() < 2 * kKeys) ASSERT_TRUE(client.next_chunk(5));
    wait_until([&] { return fake_->reads_begun == 4 * kKeys; });
  }
  // Part p of all keys before part p + 1 of any, from round to round; within one, window by window.
  static std::vector<RawClient::PartName> in_rounds(uint32_t parts, uint32_t of_round, uint32_t keys_of_window) {
    std::vector<RawClient::PartName> order;
    for (uint32_t round = 0; round < parts; round += of_round) {
      for (uint32_t window = 0; window < kKeys; window += keys_of_window) {
        for (uint32_t part = round; part < std::min(parts, round + of_round); ++part) {
          for (uint32_t item = window; item < std::min(kKeys, window + keys_of_window); ++item)
            order.emplace_back(0, item, part);
        }
      }
    }
    return order;
  }
};

TEST_F(LayerRounds, SendLayersOfAllKeysInOrderThoughTheyExceedTheCredit) {
  auto client = filled(4);
  const SectionSpec section = section_of(keys_of("k", kKeys), kBlockBytes);
  const Said said = client->ask(Opcode::Get, 5, {.order = wire::Order::LayerMajor}, {section});
  EXPECT_EQ(parts_of(*client, 5), in_rounds(4, 1, 6));
  on_shard([&] { EXPECT_EQ(fake_->parts_read, 4 * kKeys); });
  expect_ok(*client, said, kKeys);
}

TEST_F(LayerRounds, GoWindowByWindowWhereNotEvenARoundFitsIntoHalfOfTheCredit) {
  auto client = filled(16, 2 * MiB);
  const SectionSpec section = section_of(keys_of("k", kKeys), kBlockBytes);
  const Said said = client->ask(Opcode::Get, 5, {.order = wire::Order::LayerMajor}, {section});
  EXPECT_EQ(parts_of(*client, 5), in_rounds(16, 2, 4));
  expect_ok(*client, said, kKeys);
}

TEST_F(LayerRounds, AnswerRangesAndMissesAsEver) {
  auto client = filled(16);
  SectionSpec section = section_of(keys_of("k", kKeys), kBlockBytes);
  section.keys[2] = "absent";
  section.ranges = {
      {.start = 1, .count = 10, .stride = 1}, {.start = 0, .count = 1, .stride = 1}, {.start = 12, .count = 2, .stride = 2}};
  const Said said = client->ask(Opcode::Get, 5, {.order = wire::Order::LayerMajor}, {section});
  for (uint32_t n = 0; n < 13 * kKeys; ++n) EXPECT_EQ(said.at(0, n), n / 13 == 2 ? kAbsent : kOk) << n;
  EXPECT_EQ(client->wrong_parts, 0U);
  const std::vector<RawClient::PartName> got = parts_of(*client, 5);
  ASSERT_EQ(got.size(), 13 * (kKeys - 1));
  const uint32_t parts[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 0, 12, 14};
  // Where the ranges jump, what lies between would be read for nothing: another round begins.
  const uint32_t rounds[] = {0, 4, 8, 10, 11, 13};
  size_t at = 0;
  for (size_t round = 0; round + 1 < std::size(rounds); ++round) {
    for (uint32_t place = rounds[round]; place < rounds[round + 1]; ++place) {
      for (const uint32_t item : {0U, 1U, 3U, 4U, 5U}) EXPECT_EQ(got[at++], (RawClient::PartName{0, item, parts[place]}));
    }
  }
  expect_nothing_held();
}

TEST_F(LayerRounds, TakeLessOfEachBlockWhereAllKeysStandInOneWindowThen) {
  auto client = filled(16, 6 * MiB);
  const SectionSpec section = section_of(keys_of("k", kKeys), kBlockBytes);
  const Said said = client->ask(Opcode::Get, 5, {.order = wire::Order::LayerMajor}, {section});
  EXPECT_EQ(parts_of(*client, 5), in_rounds(16, 3, 6));
  expect_ok(*client, said, kKeys);
}

TEST_F(LayerRounds, AreReadWhileTheOneBeforeIsSent) {
  auto client = filled(4);
  const SectionSpec section = section_of(keys_of("k", kKeys), kBlockBytes);
  begin_layers(*client, section, 2 * kKeys);
  // What is there first does not go first.
  on_shard([&] { fake_->finish_last_reads(kKeys); });
  on_shard([&] {
    EXPECT_EQ(fake_->reads_begun, 2 * kKeys);
    EXPECT_EQ(shard_->counts().get_payload_bytes, 0U);
  });
  on_shard([&] {
    fake_->hold_reads = false;
    fake_->finish_reads();
  });
  const Said said = client->finish(5);
  EXPECT_EQ(parts_of(*client, 5), in_rounds(4, 1, 6));
  expect_ok(*client, said, kKeys);
}

TEST_F(LayerRounds, SendNothingMoreOfABlockOnceALaterRoundHasMissedIt) {
  auto client = filled(4);
  const SectionSpec section = section_of(keys_of("k", kKeys), kBlockBytes);
  begin_layers(*client, section, 2 * kKeys);
  on_shard([&] {
    fake_->corrupt.insert(section.keys[3]);
    fake_->finish_last_reads(kKeys);
    fake_->corrupt.clear();
    fake_->hold_reads = false;
    fake_->finish_reads();
  });
  const Said said = client->finish(5);
  std::vector<RawClient::PartName> wanted = in_rounds(4, 1, 6);
  std::erase_if(wanted, [](const RawClient::PartName& part) { return std::get<1>(part) == 3; });
  EXPECT_EQ(parts_of(*client, 5), wanted);
  expect_ok(*client, said, kKeys, {{3, {Answer::Miss, Reason::Corrupt}}});
}

TEST_F(LayerRounds, StopAtAMissThatALaterRoundFinds) {
  auto client = filled(4);
  SectionSpec section = section_of(keys_of("k", kKeys), kBlockBytes);
  section.flags = wire::kSectionStopAtMiss;
  receive_two_rounds(*client, section);
  on_shard([&] {
    fake_->corrupt.insert(section.keys[3]);
    fake_->hold_reads = false;
    fake_->finish_reads();
  });
  const Said said = client->finish(5);
  expect_ok(*client, said, kKeys, {{3, {Answer::Miss, Reason::Corrupt}}, {4, kSkipped}, {5, kSkipped}});
}

TEST_F(LayerRounds, KeepNothingWhenTheyAreCancelledBetweenTwo) {
  auto client = filled(4);
  const SectionSpec section = section_of(keys_of("k", kKeys), kBlockBytes);
  receive_two_rounds(*client, section);
  const wire::CancelRecord cancel{.request_id = 5};
  EXPECT_EQ(client->simple(Opcode::Cancel, 6, Tlv::CancelTarget, object_bytes(cancel)).whole, kOk);
  const Said said = client->finish(5);
  for (uint32_t item = 0; item < kKeys; ++item) EXPECT_EQ(said.at(0, item), (AnswerReason{Answer::Cancelled, Reason::None}));
  on_shard([&] { fake_->finish_reads(); });
  EXPECT_EQ(client->wrong_parts, 0U);
  expect_nothing_held();
}

TEST_F(LayerRounds, LeaveBlocksOfFewRoundsInWindows) {
  configure([](Config& config) { config.connection_credit_bytes = config.get_credit_bytes_max = 2 * MiB; });
  auto client = open({parted(4, 128 * 1024)});
  const SectionSpec section = section_of(keys_of("k", kKeys), 512 * 1024);
  fill(*client, {section});
  on_shard([&] { fake_->parts_alone = true; });
  const Said said = client->ask(Opcode::Get, 5, {.order = wire::Order::LayerMajor}, {section});
  for (uint32_t item = 0; item < kKeys; ++item) EXPECT_EQ(said.at(0, item), kOk);
  on_shard([&] { EXPECT_EQ(fake_->parts_read, 0U); });
  EXPECT_EQ(parts_of(*client, 5), in_rounds(4, 4, 2));
}

TEST_F(LayerRounds, MissABlockThatWasWrittenAnewBetweenTwo) {
  auto client = filled(4);
  const SectionSpec section = section_of(keys_of("k", kKeys), kBlockBytes);
  receive_two_rounds(*client, section);
  on_shard([&] {
    fake_->replace(section.keys[3]);
    fake_->hold_reads = false;
    fake_->finish_reads();
  });
  const Said said = client->finish(5);
  expect_ok(*client, said, kKeys, {{3, kAbsent}});
}

TEST_F(LayerRounds, AreNotWorthItForBlocksThatCannotBeReadInParts) {
  auto client = filled(4);
  on_shard([&] { fake_->parts_alone = false; });
  const SectionSpec section = section_of(keys_of("k", kKeys), kBlockBytes);
  const Said said = client->ask(Opcode::Get, 5, {.order = wire::Order::LayerMajor}, {section});
  on_shard([&] { EXPECT_EQ(fake_->reads_begun, kKeys); });
  EXPECT_EQ(parts_of(*client, 5), in_rounds(4, 4, 1)) << "half of the credit holds one";
  expect_ok(*client, said, kKeys);
}

// Blocks of four layers that are told of layer by layer.
class LayersAsTheyLand : public GetTest {
 protected:
  static constexpr uint32_t kKeys = 3;
  static constexpr uint32_t kBlockBytes = 4 * 1000;

  void begin() {
    client = open({parted(4, 1000)});
    section = section_of(keys_of("k", kKeys), kBlockBytes);
    fill(*client, {section});
    begin_layers(*client, section, kKeys);
  }
  void land(uint32_t count, std::string_view name = {}) {
    on_shard([&] { fake_->land_parts(count, name); });
  }
  void receive(size_t parts) {
    while (client->parts_received.size() < parts) ASSERT_TRUE(client->next_chunk(5));
    ASSERT_EQ(client->parts_received.size(), parts);
  }
  Said finish() {
    on_shard([&] { fake_->finish_reads(); });
    return client->finish(5);
  }
  // So many of all blocks but this one, of which there are two.
  static std::vector<RawClient::PartName> layers(uint32_t count, uint32_t ended = kKeys) {
    std::vector<RawClient::PartName> order;
    for (uint32_t part = 0; part < count; ++part) {
      for (uint32_t item = 0; item < kKeys; ++item) {
        if (item != ended || part < 2) order.emplace_back(0, item, part);
      }
    }
    return order;
  }

  std::unique_ptr<RawClient> client;
  SectionSpec section;
};

TEST_F(LayersAsTheyLand, GoOnceAllBlocksBeforeHaveThem) {
  begin();
  land(2, section.keys[1]);
  land(3, section.keys[2]);
  on_shard([&] { EXPECT_EQ(shard_->counts().get_payload_bytes, 0U); });
  land(2, section.keys[0]);
  receive(6);
  land(3);
  receive(9);
  const Said said = finish();
  EXPECT_EQ(parts_of(*client, 5), layers(4));
  expect_ok(*client, said, kKeys);
}

TEST_F(LayersAsTheyLand, AreAllThatComesOfABlockWhoseRestFails) {
  begin();
  land(2);
  receive(6);
  on_shard([&] { fake_->corrupt.insert(section.keys[1]); });
  const Said said = finish();
  EXPECT_EQ(parts_of(*client, 5), layers(4, 1));
  expect_ok(*client, said, kKeys, {{1, {Answer::Miss, Reason::Corrupt}}});
}

TEST_F(LayersAsTheyLand, ThatWereAllAskedForAreOkAndStopNothingThoughTheRestFails) {
  client = open({parted(4, 1000)});
  section = section_of(keys_of("k", kKeys), kBlockBytes);
  fill(*client, {section});
  section.flags = wire::kSectionStopAtMiss;
  section.ranges = {{.start = 0, .count = 1, .stride = 1}};
  begin_layers(*client, section, kKeys);
  land(1, section.keys[0]);
  receive(1);
  on_shard([&] {
    fake_->corrupt.insert(section.keys[0]);
    fake_->finish_reads();
  });
  const Said said = client->finish(5);
  expect_ok(*client, said, kKeys);
}

TEST_F(LayersAsTheyLand, AreFollowedByOthersFromOtherMemory) {
  begin();
  on_shard([&] { fake_->reads_again = true; });
  land(2);
  receive(6);
  const Said said = finish();
  EXPECT_EQ(parts_of(*client, 5), layers(4));
  expect_ok(*client, said, kKeys);
}

TEST_F(LayersAsTheyLand, AreFollowedByNoneOfAnotherVersion) {
  begin();
  on_shard([&] { fake_->reads_again = true; });
  land(2);
  receive(6);
  on_shard([&] { fake_->replace(section.keys[0]); });
  const Said said = finish();
  EXPECT_EQ(parts_of(*client, 5), layers(4, 0));
  expect_ok(*client, said, kKeys, {{0, kAbsent}});
}

TEST_F(LayersAsTheyLand, EndWithARequestThatIsCancelled) {
  begin();
  land(2);
  receive(6);
  const wire::CancelRecord cancel{.request_id = 5};
  EXPECT_EQ(client->simple(Opcode::Cancel, 6, Tlv::CancelTarget, object_bytes(cancel)).whole, kOk);
  const Said said = client->finish(5);
  for (uint32_t item = 0; item < kKeys; ++item) EXPECT_EQ(said.at(0, item), (AnswerReason{Answer::Cancelled, Reason::None}));
  land(3);  // nobody listens any more
  on_shard([&] { fake_->finish_reads(); });
  EXPECT_EQ(client->parts_received.size(), 6U);
  expect_nothing_held();
}

TEST_F(LayersAsTheyLand, EndWithTheirConnection) {
  begin();
  land(1);
  receive(3);
  client.reset();
  wait_until([&] { return shard_->counts().requests_open == 0; });
  land(2);
  on_shard([&] { fake_->finish_reads(); });
  expect_nothing_held();
}

TEST_F(LayersAsTheyLand, OfABlockThatIsShorterThanAskedForAreNone) {
  client = open({parted(4, 1000)});
  section = section_of(keys_of("k", kKeys), kBlockBytes);
  fill(*client, {section});
  section.ranges = {{.start = 2, .count = 3, .stride = 1}};
  on_shard([&] { fake_->hold_reads = true; });
  client->send(request_frame(Opcode::Get, 5, {.order = wire::Order::LayerMajor}, {section}));
  wait_until([&] { return fake_->reads_begun == kKeys; });
  land(3);
  const Said said = client->finish(5);
  for (uint32_t n = 0; n < 3 * kKeys; ++n) EXPECT_EQ(said.at(0, n), (AnswerReason{Answer::Miss, Reason::Length})) << n;
  EXPECT_TRUE(client->parts_received.empty());
  on_shard([&] { fake_->finish_reads(); });
  expect_nothing_held();
}

// Whoever looked through a block's parts for each Chunk that has one of them would do so as often as it has parts.
TEST_F(GetTest, LooksOnceWhetherABlockIsCoded) {
  auto client = open({parted(3, 100'000)});
  const SectionSpec section = section_of({"k"}, 300'000);
  fill(*client, {section});
  begin_layers(*client, section, 1);
  on_shard([&] { fake_->land_parts(1); });
  ASSERT_TRUE(client->next_chunk(5));
  on_shard([&] {
    fake_->mark_coded("k");
    fake_->land_parts(2);
  });
  Frame frame;
  ASSERT_TRUE(client->next(5, &frame));
  wire::RunsView runs;
  ASSERT_TRUE(wire::parse_chunk(frame.body, frame.header.payload_bytes, &runs).ok());
  ASSERT_EQ(runs.run_count, 1U);
  EXPECT_EQ(runs.run(0).part, 1U);
  EXPECT_EQ(runs.run(0).flags & wire::kRunCoded, 0);
  on_shard([&] { fake_->finish_reads(); });
  EXPECT_FALSE(client->finish(5).malformed);
}

}  // namespace
}  // namespace halfstep::shard
