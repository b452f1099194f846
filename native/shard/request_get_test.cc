// Gets against a store that delays, refuses and rots on command.
#include <gtest/gtest.h>

#include "shard/get_fixture.h"

namespace halfstep::shard {
namespace {

TEST_F(GetTest, ReturnsWhatWasPutKeyMajor) {
  auto client = open({parted(3, 1000)});
  const SectionSpec section = section_of(keys_of("k", 4), 3000);
  fill(*client, {section});
  const Said said = client->ask(Opcode::Get, 5, {}, {section});
  ASSERT_FALSE(said.malformed);
  EXPECT_EQ(client->wrong_parts, 0U);
  std::vector<RawClient::PartName> expected;
  for (uint32_t item = 0; item < 4; ++item) {
    EXPECT_EQ(said.at(0, item), kOk);
    for (uint32_t part = 0; part < 3; ++part) expected.emplace_back(0, item, part);
  }
  EXPECT_EQ(parts_of(*client, 5), expected);
  EXPECT_EQ(client->chunks, 1U) << "small blocks share a chunk";
  EXPECT_TRUE(said.load);
  expect_nothing_held();
}

TEST_F(GetTest, SendsLayerByLayerAcrossSections) {
  auto client = open({parted(3, 1000), opaque()});
  const SectionSpec first = section_of(keys_of("a", 2), 3000);
  const SectionSpec second = section_of(keys_of("b", 2), 300'000, 1);
  fill(*client, {first, second});
  const Said said = client->ask(Opcode::Get, 5, {.order = wire::Order::LayerMajor}, {first, second});
  ASSERT_FALSE(said.malformed);
  EXPECT_EQ(client->wrong_parts, 0U);
  const std::vector<RawClient::PartName> expected = {{0, 0, 0}, {0, 1, 0}, {1, 0, 0}, {1, 1, 0}, {0, 0, 1},
                                                     {0, 1, 1}, {1, 0, 1}, {1, 1, 1}, {0, 0, 2}, {0, 1, 2}};
  EXPECT_EQ(parts_of(*client, 5), expected);
  expect_nothing_held();
}

TEST_F(GetTest, ServesComponentsAndSeveralGroups) {
  const wire::Layout layout = layout_of("hybrid", {{.part_count = 2, .size_count = 2, .part_bytes = {1000, 200}},
                                                   {.part_count = 1, .size_count = 1, .part_bytes = {5000}}});
  auto client = open({layout});
  SectionSpec attention = section_of(keys_of("k", 2), 1200);
  attention.components = 3;
  attention.offers.assign(6, offer_of(1200));
  SectionSpec state = section_of(keys_of("k", 2), 5000);
  state.first_component = wire::Component::of(1, 0, 7).value;
  fill(*client, {attention, state});
  const Said said = client->ask(Opcode::Get, 5, {}, {attention, state});
  for (uint32_t item = 0; item < 6; ++item) EXPECT_EQ(said.at(0, item), kOk);
  for (uint32_t item = 0; item < 2; ++item) EXPECT_EQ(said.at(1, item), kOk);
  EXPECT_EQ(client->wrong_parts, 0U);
  EXPECT_EQ(client->parts_received.size(), 14U);
}

TEST_F(GetTest, AnswersRangesPartByPart) {
  auto client = open({parted(8, 700)});
  SectionSpec section = section_of(keys_of("k", 2), 5600);
  fill(*client, {section});
  section.keys.push_back("absent");
  section.ranges = {{.start = 1, .count = 3, .stride = 2}, {.start = 0, .count = 1, .stride = 1}};
  const Said said = client->ask(Opcode::Get, 5, {}, {section});
  const std::vector<RawClient::PartName> expected = {{0, 0, 1}, {0, 0, 3}, {0, 0, 5}, {0, 0, 0},
                                                     {0, 1, 1}, {0, 1, 3}, {0, 1, 5}, {0, 1, 0}};
  EXPECT_EQ(parts_of(*client, 5), expected);
  EXPECT_EQ(client->wrong_parts, 0U);
  for (uint32_t n = 0; n < 8; ++n) EXPECT_EQ(said.at(0, n), kOk);
  for (uint32_t n = 8; n < 12; ++n) EXPECT_EQ(said.at(0, n), kAbsent);
}

TEST_F(GetTest, AnswersARangeBeyondABlockAsAMissOfLength) {
  auto client = open({opaque()});
  SectionSpec small = section_of({"small"}, 100'000);
  SectionSpec large = section_of({"large"}, 600'000);
  fill(*client, {small, large});
  SectionSpec section = section_of({"small", "large"}, 0);
  section.ranges = {{.start = 1, .count = 2, .stride = 1}};
  const Said said = client->ask(Opcode::Get, 5, {}, {section});
  EXPECT_EQ(said.at(0, 0), (AnswerReason{Answer::Miss, Reason::Length}));
  EXPECT_EQ(said.at(0, 1), (AnswerReason{Answer::Miss, Reason::Length}));
  EXPECT_EQ(said.at(0, 2), kOk);
  EXPECT_EQ(said.at(0, 3), kOk);
  expect_nothing_held();
}

TEST_F(GetTest, StopsAtTheFirstMissOfASectionWhereAsked) {
  auto client = open({parted(1, 500)});
  fill(*client, {section_of({"0", "1", "3", "4"}, 500)});
  SectionSpec stops = section_of({"0", "1", "2", "3", "4"}, 500);
  stops.flags = wire::kSectionStopAtMiss;
  SectionSpec goes_on = stops;
  goes_on.flags = 0;
  const Said said = client->ask(Opcode::Get, 5, {}, {stops, goes_on});
  const AnswerReason expected[] = {kOk, kOk, kAbsent, kSkipped, kSkipped, kOk, kOk, kAbsent, kOk, kOk};
  for (uint16_t s = 0; s < 2; ++s) {
    for (uint32_t item = 0; item < 5; ++item) EXPECT_EQ(said.at(s, item), expected[s * 5 + item]) << s << " " << item;
  }
}

TEST_F(GetTest, StopsAtAMissThatOnlyTheReadFinds) {
  auto client = open({parted(1, 500)});
  SectionSpec section = section_of({"0", "1", "2", "3"}, 500);
  fill(*client, {section});
  on_shard([&] { fake_->corrupt.insert("1"); });
  section.flags = wire::kSectionStopAtMiss;
  for (const wire::Order order : {wire::Order::KeyMajor, wire::Order::LayerMajor}) {
    const Said said = client->ask(Opcode::Get, 5, {.order = order}, {section});
    EXPECT_EQ(said.at(0, 0), kOk);
    EXPECT_EQ(said.at(0, 1), (AnswerReason{Answer::Miss, Reason::Corrupt}));
    EXPECT_EQ(said.at(0, 2), kSkipped);
    EXPECT_EQ(said.at(0, 3), kSkipped);
  }
  expect_nothing_held();
}

TEST_F(GetTest, SplitsPartsThatAreLongerThanAChunk) {
  auto client = open({parted(2, 700'000)});
  const SectionSpec section = section_of({"k"}, 1'400'000);
  fill(*client, {section});
  for (const wire::Order order : {wire::Order::KeyMajor, wire::Order::LayerMajor}) {
    client->parts_received.clear();
    EXPECT_EQ(client->ask(Opcode::Get, 5, {.order = order}, {section}).at(0, 0), kOk);
    EXPECT_EQ(client->wrong_parts, 0U);
    EXPECT_EQ(client->parts_received.size(), 2U);
  }
  EXPECT_EQ(client->chunks, 12U) << "three pieces of each part, twice";
}

TEST_F(GetTest, ServesMoreThanTheCreditInWindows) {
  configure([](Config& config) { config.connection_credit_bytes = config.get_credit_bytes_max = 1 * MiB; });
  auto client = open({parted(4, 64 * 1024)});
  const SectionSpec section = section_of(keys_of("k", 40), 256 * 1024);
  for (uint32_t at = 0; at < 40; at += 10) {
    SectionSpec some = section;
    some.keys.assign(section.keys.begin() + at, section.keys.begin() + at + 10);
    some.offers.resize(10);
    fill(*client, {some});
  }
  for (const wire::Order order : {wire::Order::KeyMajor, wire::Order::LayerMajor}) {
    client->parts_received.clear();
    const Said said = client->ask(Opcode::Get, 5, {.order = order}, {section});
    for (uint32_t item = 0; item < 40; ++item) EXPECT_EQ(said.at(0, item), kOk);
    EXPECT_EQ(client->parts_received.size(), 160U);
    EXPECT_EQ(client->wrong_parts, 0U);
  }
  expect_nothing_held();
}

TEST_F(GetTest, CutsAWindowThatMemoryCouldNeverHold) {
  auto client = open({parted(1, 100'000)});
  const SectionSpec section = section_of(keys_of("k", 8), 100'000);
  fill(*client, {section});
  on_shard([&] { fake_->window_bytes_max = 250'000; });
  const Said said = client->ask(Opcode::Get, 5, {.order = wire::Order::LayerMajor}, {section});
  for (uint32_t item = 0; item < 8; ++item) EXPECT_EQ(said.at(0, item), kOk);
  on_shard([&] { fake_->window_bytes_max = 50'000; });
  EXPECT_EQ(client->ask(Opcode::Get, 6, {}, {section}).at(0, 7), (AnswerReason{Answer::Rejected, Reason::TooLarge}));
  expect_nothing_held();
}

TEST_F(GetTest, WaitsForMemory) {
  auto client = open({parted(1, 1000)});
  const SectionSpec section = section_of(keys_of("k", 3), 1000);
  fill(*client, {section});
  on_shard([&] { fake_->throttle_reads = true; });
  client->remember(5, {section});
  client->send(request_frame(Opcode::Get, 5, {}, {section}));
  wait_until([&] { return shard_->counts().requests_open == 1; });
  on_shard([&] { fake_->release_memory(); });
  EXPECT_EQ(client->finish(5).at(0, 2), kOk);
  EXPECT_EQ(client->wrong_parts, 0U);
}

TEST_F(GetTest, IsLateWhenItsDeadlinePassesAndKeepsNothing) {
  auto client = open({parted(1, 1000)});
  const SectionSpec section = section_of(keys_of("k", 3), 1000);
  fill(*client, {section});
  on_shard([&] { fake_->hold_reads = true; });
  const Said said = client->ask(Opcode::Get, 5, {.deadline_us = 20'000}, {section});
  for (uint32_t item = 0; item < 3; ++item) EXPECT_EQ(said.at(0, item), (AnswerReason{Answer::Late, Reason::None}));
  EXPECT_TRUE(client->parts_received.empty());
  on_shard([&] { fake_->finish_reads(); });
  expect_nothing_held();
}

TEST_F(GetTest, EndsWhenCancelledAndKeepsWhatWasSent) {
  auto client = open({parted(1, 1000)});
  const SectionSpec section = section_of(keys_of("k", 3), 1000);
  fill(*client, {section});
  on_shard([&] { fake_->hold_reads = true; });
  client->remember(5, {section});
  client->send(request_frame(Opcode::Get, 5, {}, {section}));
  wait_until([&] { return fake_->reads_begun == 3; });
  const wire::CancelRecord cancel{.request_id = 5};
  EXPECT_EQ(client->simple(Opcode::Cancel, 6, Tlv::CancelTarget, object_bytes(cancel)).whole, kOk);
  EXPECT_EQ(client->finish(5).at(0, 1), (AnswerReason{Answer::Cancelled, Reason::None}));
  on_shard([&] { fake_->finish_reads(); });
  expect_nothing_held();
  EXPECT_EQ(client->simple(Opcode::Cancel, 7, Tlv::CancelTarget, object_bytes(cancel)).whole, kAbsent);
}

TEST_F(GetTest, StopsAtAChunksBorderWhenCancelledOnTheWay) {
  auto client = open({parted(4, 256 * 1024)});
  const SectionSpec section = section_of(keys_of("k", 16), 1 * MiB);
  fill(*client, {section});
  client->remember(5, {section});
  // The client does not read, so that the sockets fill.
  client->send(request_frame(Opcode::Get, 5, {}, {section}));
  wait_until([&] { return shard_->counts().get_payload_bytes != 0; });
  const wire::CancelRecord cancel{.request_id = 5};
  EXPECT_EQ(client->simple(Opcode::Cancel, 6, Tlv::CancelTarget, object_bytes(cancel)).whole, kOk);
  const Said said = client->finish(5);
  EXPECT_EQ(client->wrong_parts, 0U);
  uint32_t ok = 0;
  for (uint32_t item = 0; item < 16; ++item) {
    if (said.at(0, item) == kOk) {
      EXPECT_EQ(item, ok++);
    } else {
      EXPECT_EQ(said.at(0, item), (AnswerReason{Answer::Cancelled, Reason::None}));
    }
  }
  EXPECT_LT(ok, 16U);
  EXPECT_GE(client->parts_received.size(), ok * 4U);
  expect_nothing_held();
}

TEST_F(GetTest, KeepsNothingForAClientThatLeft) {
  auto client = open({parted(4, 256 * 1024)});
  const SectionSpec section = section_of(keys_of("k", 16), 1 * MiB);
  fill(*client, {section});
  client->send(request_frame(Opcode::Get, 5, {}, {section}));
  wait_until([&] { return shard_->counts().get_payload_bytes != 0; });
  client->close();
  expect_nothing_held();
  auto other = open({parted(4, 256 * 1024)});
  on_shard([&] { fake_->hold_reads = true; });
  other->send(request_frame(Opcode::Get, 5, {}, {section}));
  wait_until([&] { return fake_->reads_begun >= 20; });
  other->close();
  wait_until([&] { return shard_->counts().requests_open == 0; });
  on_shard([&] { fake_->finish_reads(); });
  expect_nothing_held();
}

TEST_F(GetTest, SmallGetsTakeTurnsWithALargeOne) {
  auto client = open({parted(4, 256 * 1024), parted(1, 100)});
  const SectionSpec large = section_of(keys_of("large", 16), 1 * MiB);
  const SectionSpec small = section_of({"small"}, 100, 1);
  fill(*client, {large});
  fill(*client, {small});
  client->remember(5, {large});
  client->remember(6, {small});
  std::vector<std::byte> both = request_frame(Opcode::Get, 5, {}, {large});
  const std::vector<std::byte> second = request_frame(Opcode::Get, 6, {}, {small});
  both.insert(both.end(), second.begin(), second.end());
  client->send(both);
  EXPECT_EQ(client->finish(6).at(0, 0), kOk);
  size_t before = 0;
  for (const uint64_t id : client->order()) {
    if (id == 6) break;
    before += id == 5 ? 1 : 0;
  }
  EXPECT_LT(before, 16U) << "the small one does not wait for the large one's 64 chunks";
  EXPECT_EQ(client->finish(5).at(0, 15), kOk);
  EXPECT_EQ(client->wrong_parts, 0U);
}

TEST_F(GetTest, ServesPipelinedRequests) {
  auto client = open({parted(2, 1000)});
  const SectionSpec section = section_of(keys_of("k", 8), 2000);
  fill(*client, {section});
  std::vector<std::byte> bytes;
  for (uint64_t id = 1000; id < 1200; ++id) {
    client->remember(id, {section});
    const std::vector<std::byte> frame = request_frame(Opcode::Get, id, {}, {section});
    bytes.insert(bytes.end(), frame.begin(), frame.end());
  }
  client->send(bytes);
  for (uint64_t id = 1000; id < 1200; ++id) EXPECT_EQ(client->finish(id).at(0, 7), kOk);
  EXPECT_EQ(client->parts_received.size(), 200U * 16);
  EXPECT_EQ(client->wrong_parts, 0U);
}

TEST_F(GetTest, RefusesMoreRequestsInFlightThanAnnounced) {
  auto client = open({parted(1, 100)});
  const SectionSpec section = section_of({"k"}, 100);
  fill(*client, {section});
  on_shard([&] { fake_->hold_reads = true; });
  for (uint64_t id = 1000; id < 1000 + wire::kRequestsInFlightMax; ++id) {
    client->remember(id, {section});
    client->send(request_frame(Opcode::Get, id, {}, {section}));
  }
  EXPECT_EQ(client->ask(Opcode::Get, 5, {}, {section}).whole, (AnswerReason{Answer::Rejected, Reason::Limit}));
  const wire::CancelRecord cancel{.request_id = 1000};
  EXPECT_EQ(client->simple(Opcode::Cancel, 6, Tlv::CancelTarget, object_bytes(cancel)).whole, kOk);
  on_shard([&] {
    fake_->hold_reads = false;
    fake_->finish_reads();
  });
  for (uint64_t id = 1001; id < 1000 + wire::kRequestsInFlightMax; ++id) EXPECT_EQ(client->finish(id).at(0, 0), kOk);
}

TEST_F(GetTest, ClosesOnARequestIdThatIsInFlight) {
  auto client = open({parted(1, 100)});
  const SectionSpec section = section_of({"k"}, 100);
  fill(*client, {section});
  on_shard([&] { fake_->hold_reads = true; });
  for (int i = 0; i < 2; ++i) client->send(request_frame(Opcode::Get, 5, {}, {section}));
  EXPECT_TRUE(client->finish(5).malformed);
  EXPECT_EQ(metric("halfstep_protocol_errors_total{kind=\"request_id\"}"), 1);
  on_shard([&] { fake_->finish_reads(); });
  expect_nothing_held();
}

TEST_F(GetTest, RefusesLayoutsAndGroupsThatItDoesNotKnow) {
  auto client = open({parted(1, 100)});
  SectionSpec section = section_of({"k"}, 100, 9);
  EXPECT_EQ(client->ask(Opcode::Get, 5, {}, {section}).whole, (AnswerReason{Answer::Rejected, Reason::UnknownLayout}));
  section.layout = 0;
  section.first_component = wire::Component::of(3, 0, 0).value;
  const Said said = client->ask(Opcode::Get, 6, {}, {section});
  EXPECT_EQ(said.whole, (AnswerReason{Answer::Rejected, Reason::Malformed}));
  EXPECT_NE(said.reason.find("group 3"), std::string::npos);
}

TEST_F(GetTest, NamesTheFieldOfAMalformedRequest) {
  auto client = open({parted(1, 100)});
  SectionSpec section = section_of({"k"}, 100);
  section.ranges = {{.start = 0, .count = 0, .stride = 1}};
  const Said ranges = client->ask(Opcode::Get, 5, {}, {section});
  EXPECT_EQ(ranges.whole, (AnswerReason{Answer::Rejected, Reason::Malformed}));
  EXPECT_NE(ranges.reason.find("section 0: range=0"), std::string::npos) << ranges.reason;
  const Said none = client->ask(Opcode::Get, 6, {}, {});
  EXPECT_NE(none.reason.find("section"), std::string::npos) << none.reason;
  const Said hold = client->ask(Opcode::Match, 7, {.hold_owner = 1}, {section_of({"k"}, 100)});
  EXPECT_NE(hold.reason.find("hold_ms"), std::string::npos) << hold.reason;
}

TEST_F(GetTest, RefusesKeysOfAnotherShardWithTheMap) {
  claim_shards(2);
  auto client = open({parted(1, 100)});
  std::vector<std::string> here;
  std::vector<std::string> elsewhere;
  for (const std::string& key : keys_of("k", 64)) {
    (wire::route(as_bytes(key), 2) == 0 ? here : elsewhere).push_back(key);
  }
  fill(*client, {section_of(here, 100)});
  EXPECT_EQ(client->ask(Opcode::Get, 5, {}, {section_of(here, 100)}).at(0, 0), kOk);
  EXPECT_EQ(client->ask(Opcode::Get, 6, {}, {section_of(elsewhere, 100)}).whole,
            (AnswerReason{Answer::Rejected, Reason::WrongShard}));
}

TEST_F(GetTest, AClientThatTakesNothingForTenSecondsIsClosedAndHoldsNoMemory) {
  auto client = open({opaque()});
  const SectionSpec section = section_of(keys_of("k", 4), 2 * MiB);
  client->put(5, {section});
  client->send(request_frame(Opcode::Get, 6, {}, {section}));
  wait_until([&] { return fake_->pinned() != 0; });
  pass_s(10);  // bytes left since the first was queued
  EXPECT_EQ(metric("halfstep_connections_stalled_total"), 0);
  // On a busy machine some may leave after the first look, too.
  for (int i = 0; i < 3 && metric("halfstep_connections_stalled_total") == 0; ++i) pass_s(10);
  EXPECT_EQ(metric("halfstep_connections_stalled_total"), 1);
  expect_nothing_held();
}

TEST_F(GetTest, ABlockThatIsDeletedWhileItIsSentArrivesWhole) {
  auto reader = open({opaque()});
  auto other = open({opaque()});
  const SectionSpec section = section_of(keys_of("k", 4), 2 * MiB);  // more than a socket takes at once
  reader->put(5, {section});
  reader->remember(6, {section});
  reader->send(request_frame(Opcode::Get, 6, {}, {section}));
  wait_until([&] { return fake_->pinned() != 0; });
  EXPECT_EQ(other->ask(Opcode::Delete, 7, {}, {section}).at(0, 0), kOk);
  on_shard([&] {
    EXPECT_NE(fake_->pinned(), 0U);
    EXPECT_EQ(fake_->blocks(), 0U);
  });
  EXPECT_EQ(reader->finish(6).at(0, 0), kOk);
  EXPECT_EQ(reader->wrong_parts, 0U);
  EXPECT_EQ(reader->ask(Opcode::Get, 8, {}, {section}).at(0, 0).answer, Answer::Miss);
  expect_nothing_held();
}

TEST_F(GetTest, DoesNotWaitForMemoryBehindAPut) {
  auto client = open({parted(1, 1000)});
  const SectionSpec stored = section_of({"a"}, 1000);
  client->put(5, {stored});
  on_shard([&] {
    fake_->throttle_reads = true;
    fake_->throttle_writes = store::kThrottledMemory;
  });
  client->send(request_frame(Opcode::Put, 6, {}, {section_of({"b"}, 1000)}));
  client->remember(7, {stored});
  client->send(request_frame(Opcode::Get, 7, {}, {stored}));
  wait_until([&] { return shard_->counts().requests_open == 2; });
  on_shard([&] { fake_->release_read_memory(); });
  EXPECT_EQ(client->finish(7).at(0, 0), kOk);
}

TEST_F(GetTest, GoesOnWhenTheWaiterBeforeItLeaves) {
  configure([](Config& config) { config.connection_credit_bytes = config.get_credit_bytes_max = 1 * MiB; });
  auto client = open({parted(1, 256 * 1024)});
  const std::vector<std::string> keys = keys_of("k", 6);
  client->put(5, {section_of(keys, 256 * 1024)});
  const auto get = [&](uint64_t id, std::vector<std::string> names) {
    client->remember(id, {section_of(names, 256 * 1024)});
    client->send(request_frame(Opcode::Get, id, {.order = wire::Order::LayerMajor}, {section_of(names, 256 * 1024)}));
  };
  on_shard([&] { fake_->hold_reads = true; });
  get(6, {"k0", "k1", "k2"});  // three quarters of the credit
  get(7, {"k0", "k1", "k2"});  // waits
  get(8, {"k5"});              // would fit, and stands behind it
  wait_until([&] { return shard_->counts().requests_open == 3; });
  EXPECT_EQ(on_shard([&] { return fake_->reads_begun; }), 3U);
  client->simple(Opcode::Cancel, 9, Tlv::CancelTarget, object_bytes(wire::CancelRecord{.request_id = 7}));
  wait_until([&] { return fake_->reads_begun == 4; });
  on_shard([&] {
    fake_->hold_reads = false;
    fake_->finish_reads();
  });
  EXPECT_EQ(client->finish(8).at(0, 0), kOk);
  EXPECT_EQ(client->finish(6).at(0, 2), kOk);
}

// Alone a connection reads ahead as far as four fifths of the memory reach, and the next one into what is left.
TEST_F(GetTest, HasAsMuchMemoryAsOthersLeave) {
  for (const wire::Order order : {wire::Order::KeyMajor, wire::Order::LayerMajor}) {
    configure([](Config& config) {
      config.connection_credit_bytes = 1 * MiB;
      config.get_credit_bytes_max = 64 * MiB;
    });
    const auto memory = on_shard([&] { return shard_->get_credits().memory_bytes; });
    ASSERT_GT(memory, 8 * MiB);
    const auto blocks = static_cast<uint32_t>(memory / (256 * KiB));
    auto first = open({parted(1, 256 * 1024)});
    const std::vector<std::string> keys = keys_of("k", blocks);
    for (uint32_t at = 0; at < blocks; at += 4) {
      const size_t count = std::min<size_t>(4, keys.size() - at);
      const std::vector<std::string> some(keys.begin() + at, keys.begin() + at + static_cast<ptrdiff_t>(count));
      fill(*first, {section_of(some, 256 * 1024)});
    }
    on_shard([&] { fake_->hold_reads = true; });
    const SectionSpec all = section_of(keys, 256 * 1024);
    const auto out_bytes = [&] { return on_shard([&] { return shard_->get_credits().out_bytes; }); };
    first->remember(6, {all});
    first->send(request_frame(Opcode::Get, 6, {.order = order}, {all}));
    wait_until([&] { return shard_->counts().requests_open == 1 && fake_->reads_begun != 0; });
    const uint64_t alone = out_bytes();
    EXPECT_LE(alone, memory / 5 * 4);
    EXPECT_GE(alone, memory / 2);

    auto second = open({parted(1, 256 * 1024)});
    second->remember(6, {all});
    second->send(request_frame(Opcode::Get, 6, {.order = order}, {all}));
    wait_until([&] { return shard_->counts().requests_open == 2 && shard_->get_credits().out_bytes > alone; });
    EXPECT_LE(out_bytes(), memory);
    on_shard([&] {
      fake_->hold_reads = false;
      fake_->finish_reads();
    });
    EXPECT_EQ(first->finish(6).at(0, blocks - 1), kOk);
    EXPECT_EQ(second->finish(6).at(0, blocks - 1), kOk);
    expect_nothing_held();
    EXPECT_EQ(out_bytes(), 0U);
  }
}

TEST_F(GetTest, SendsFirstWhatIsNearestItsEnd) {
  auto client = open({parted(1, 256 * 1024)});
  const std::vector<std::string> keys = keys_of("k", 24);
  for (size_t at = 0; at < keys.size(); at += 8) {
    const std::vector<std::string> some(keys.begin() + static_cast<ptrdiff_t>(at),
                                        keys.begin() + static_cast<ptrdiff_t>(at) + 8);
    fill(*client, {section_of(some, 256 * 1024)});
  }
  on_shard([&] { fake_->hold_reads = true; });
  const size_t before = client->order().size();
  const auto get = [&](uint64_t id, size_t first, size_t count) {
    const auto from = keys.begin() + static_cast<ptrdiff_t>(first);
    const SectionSpec section = section_of({from, from + static_cast<ptrdiff_t>(count)}, 256 * 1024);
    client->remember(id, {section});
    client->send(request_frame(Opcode::Get, id, {}, {section}));
  };
  get(6, 0, 12);  // the oldest, which gets each fourth chunk meanwhile
  get(7, 12, 8);
  get(8, 20, 1);
  wait_until([&] { return fake_->reads_begun == 21; });
  on_shard([&] {
    fake_->hold_reads = false;
    fake_->finish_reads();
  });
  EXPECT_EQ(client->finish(6).at(0, 11), kOk);
  EXPECT_EQ(client->finish(7).at(0, 7), kOk);
  EXPECT_EQ(client->finish(8).at(0, 0), kOk);
  const std::vector<uint64_t> order(client->order().begin() + static_cast<ptrdiff_t>(before), client->order().end());
  const auto last_of = [&](uint64_t id) { return std::find(order.rbegin(), order.rend(), id).base() - order.begin(); };
  EXPECT_LT(last_of(8), last_of(7));
  EXPECT_LT(last_of(7), last_of(6));
  const auto of_oldest = std::count(order.begin(), order.begin() + last_of(7), uint64_t{6});
  EXPECT_GE(of_oldest, 2);
  EXPECT_LE(of_oldest, 4);
  EXPECT_EQ(client->wrong_parts, 0U);
}

TEST_F(GetTest, EndsAfterAMinuteWithoutADeadline) {
  auto client = open({parted(1, 1000)});
  const SectionSpec section = section_of({"a"}, 1000);
  client->put(5, {section});
  on_shard([&] { fake_->throttle_reads = true; });
  client->send(request_frame(Opcode::Get, 6, {}, {section}));
  wait_until([&] { return shard_->counts().requests_open == 1; });
  pass_s(60);
  EXPECT_EQ(client->finish(6).at(0, 0), (AnswerReason{Answer::Late, Reason::None}));
  expect_nothing_held();
}

}  // namespace
}  // namespace halfstep::shard
