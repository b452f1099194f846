// Puts: slots, credit, bytes in any order, and everything that may go wrong with them.
#include <gtest/gtest.h>

#include "shard/put_fixture.h"

namespace halfstep::shard {
namespace {

TEST_F(PutTest, WantsAnOfferAndStoresItsPartsInAnyOrder) {
  auto client = open({parted(4, 1000)});
  const SectionSpec section = section_of({"k"}, 4000);
  const Said want = offer(*client, 5, section);
  EXPECT_EQ(want.credit_bytes, 4000U);
  ASSERT_EQ(want.grants.size(), 1U);
  EXPECT_EQ(want.grants[0].count, 1U);
  client->send(chunk_frame(5, {client->run_of(section, 0, 0, 2, 2)}));
  EXPECT_FALSE(there(*client, section, 91)) << "not before the last part";
  client->send(chunk_frame(5, {client->run_of(section, 0, 0, 1, 1), client->run_of(section, 0, 0, 0, 1)}));
  EXPECT_EQ(client->finish(5).at(0, 0), kStored);
  EXPECT_TRUE(there(*client, section));
  EXPECT_EQ(client->ask(Opcode::Get, 6, {}, {section}).at(0, 0), kOk);
  EXPECT_EQ(client->wrong_parts, 0U);
  expect_nothing_held();
}

TEST_F(PutTest, TakesEarlyBytesThatFollowTheOfferAtOnce) {
  auto client = open({parted(2, 1000)});
  const SectionSpec section = section_of({"a", "b"}, 2000);
  std::vector<std::byte> bytes = request_frame(Opcode::Put, 5, {}, {section});
  for (uint32_t item = 0; item < 2; ++item) {
    const std::vector<std::byte> chunk = chunk_frame(5, {client->run_of(section, 0, item, 0, 2)});
    bytes.insert(bytes.end(), chunk.begin(), chunk.end());
  }
  client->send(bytes);
  const Said said = client->finish(5);
  EXPECT_EQ(said.at(0, 0), kStored);
  EXPECT_EQ(said.at(0, 1), kStored);
  EXPECT_TRUE(there(*client, section));
}

TEST_F(PutTest, InterleavesItemsInOneChunk) {
  auto client = open({parted(2, 1000)});
  const SectionSpec section = section_of(keys_of("k", 3), 2000);
  offer(*client, 5, section);
  for (uint32_t part = 0; part < 2; ++part) {
    std::vector<RunSpec> runs;
    for (uint32_t item = 0; item < 3; ++item) runs.push_back(client->run_of(section, 0, item, part, 1));
    client->send(chunk_frame(5, runs));
  }
  const Said said = client->finish(5);
  for (uint32_t item = 0; item < 3; ++item) EXPECT_EQ(said.at(0, item), kStored);
}

TEST_F(PutTest, SaysPresentWithoutWantingBytes) {
  auto client = open({parted(1, 1000)});
  ASSERT_EQ(client->put(5, {section_of({"a"}, 1000)}).at(0, 0), kStored);
  const SectionSpec section = section_of({"a", "b"}, 1000);
  const Said said = client->put(6, {section});
  EXPECT_EQ(said.at(0, 0), (AnswerReason{Answer::Ok, Reason::Present}));
  EXPECT_EQ(said.at(0, 1), kStored);
  EXPECT_EQ(said.credit_bytes, 1000U);
}

TEST_F(PutTest, DropsEarlyBytesOfABlockThatIsPresent) {
  auto client = open({parted(1, 1000)});
  const SectionSpec section = section_of({"a"}, 1000);
  ASSERT_EQ(client->put(5, {section}).at(0, 0), kStored);
  std::vector<std::byte> bytes = request_frame(Opcode::Put, 6, {}, {section});
  const std::vector<std::byte> chunk = chunk_frame(6, {client->run_of(section, 0, 0, 0, 1)});
  bytes.insert(bytes.end(), chunk.begin(), chunk.end());
  client->send(bytes);
  EXPECT_EQ(client->finish(6).at(0, 0), (AnswerReason{Answer::Ok, Reason::Present}));
  EXPECT_EQ(client->ask(Opcode::Get, 7, {}, {section}).at(0, 0), kOk);
  EXPECT_EQ(metric("halfstep_put_scratch_bytes_total"), 1000);
}

TEST_F(PutTest, ThrottlesTheSecondWriterOfABlock) {
  auto first = open({parted(1, 1000)});
  auto second = open({parted(1, 1000)});
  const SectionSpec section = section_of({"a"}, 1000);
  offer(*first, 5, section);
  EXPECT_EQ(second->put(5, {section}).at(0, 0), (AnswerReason{Answer::Throttled, Reason::Pending}));
  first->send_item(5, section, 0, 0);
  EXPECT_EQ(first->finish(5).at(0, 0), kStored);
}

TEST_F(PutTest, RejectsAPartWhoseCheckDoesNotMatchAndThatItemAlone) {
  auto client = open({parted(2, 1000)});
  const SectionSpec section = section_of({"bad", "good"}, 2000);
  offer(*client, 5, section);
  RunSpec bad = client->run_of(section, 0, 0, 0, 2);
  bad.bytes[1500] ^= std::byte{1};
  client->send(chunk_frame(5, {bad, client->run_of(section, 0, 1, 0, 2)}));
  const Said said = client->finish(5);
  EXPECT_EQ(said.at(0, 0), (AnswerReason{Answer::Rejected, Reason::Checksum}));
  EXPECT_EQ(said.at(0, 1), kStored);
  EXPECT_FALSE(there(*client, section_of({"bad"}, 2000)));
  EXPECT_EQ(metric("halfstep_put_checks_failed_total"), 1);
  expect_nothing_held();
}

TEST_F(PutTest, RejectsTheRightBytesUnderAWrongName) {
  auto client = open({parted(1, 1000)});
  const SectionSpec section = section_of({"a", "b"}, 1000);
  offer(*client, 5, section);
  RunSpec swapped = client->run_of(section, 0, 0, 0, 1);
  swapped.run.item = 1;
  client->send(chunk_frame(5, {swapped}));
  client->send(chunk_frame(5, {client->run_of(section, 0, 0, 0, 1)}));
  const Said said = client->finish(5);
  EXPECT_EQ(said.at(0, 0), kStored);
  EXPECT_EQ(said.at(0, 1), (AnswerReason{Answer::Rejected, Reason::Checksum}));
}

// Each of these breaks one item; the item beside it is stored.
TEST_F(PutTest, RejectsRunsThatDoNotFitTheirItem) {
  auto client = open({parted(3, 1000)});
  using Change = std::function<std::vector<RunSpec>(const SectionSpec&)>;
  const std::vector<std::pair<const char*, Change>> changes = {
      {"a part twice in one chunk",
       [&](const SectionSpec& s) {
         return std::vector{client->run_of(s, 0, 0, 1, 1), client->run_of(s, 0, 0, 1, 1)};
       }},
      {"parts that overlap",
       [&](const SectionSpec& s) {
         return std::vector{client->run_of(s, 0, 0, 0, 2), client->run_of(s, 0, 0, 1, 2)};
       }},
      {"a part beyond the block",
       [&](const SectionSpec& s) {
         RunSpec run = client->run_of(s, 0, 0, 2, 1);
         run.run.part = 3;
         return std::vector{run};
       }},
      {"parts beyond the block",
       [&](const SectionSpec& s) {
         RunSpec run = client->run_of(s, 0, 0, 1, 2);
         run.run.part = 2;
         return std::vector{run};
       }},
      {"too many bytes for its part",
       [&](const SectionSpec& s) {
         RunSpec run = client->run_of(s, 0, 0, 0, 1);
         run.bytes.resize(1500);
         return std::vector{run};
       }},
      {"too few bytes for its parts",
       [&](const SectionSpec& s) {
         RunSpec run = client->run_of(s, 0, 0, 0, 2);
         run.bytes.resize(1999);
         return std::vector{run};
       }},
      {"a gap in a part",
       [&](const SectionSpec& s) {
         RunSpec run = client->run_of(s, 0, 0, 0, 1);
         run.run.offset = 500;
         run.bytes.resize(500);
         return std::vector{run};
       }},
      {"another length than offered",
       [&](const SectionSpec& s) {
         RunSpec run = client->run_of(s, 0, 0, 0, 1);
         run.run.block_bytes = 4000;
         return std::vector{run};
       }},
      {"a plain block said to be coded",
       [&](const SectionSpec& s) {
         RunSpec run = client->run_of(s, 0, 0, 0, 1);
         run.run.flags = wire::kRunCoded;
         return std::vector{run};
       }},
  };
  uint64_t id = 1000;
  for (const auto& [what, change] : changes) {
    SCOPED_TRACE(what);
    const std::string suffix = std::to_string(++id);
    const SectionSpec section = section_of({"bad" + suffix, "good" + suffix}, 3000);
    offer(*client, id, section);
    std::vector<RunSpec> runs = change(section);
    runs.push_back(client->run_of(section, 0, 1, 0, 3));
    client->send(chunk_frame(id, runs));
    const Said said = client->finish(id);
    EXPECT_EQ(said.at(0, 0), kMalformed);
    EXPECT_EQ(said.at(0, 1), kStored);
    client->parts_received.clear();
    EXPECT_EQ(client->ask(Opcode::Get, id + 5000, {}, {section}).at(0, 1), kOk);
    EXPECT_EQ(client->wrong_parts, 0U);
  }
  expect_nothing_held();
}

TEST_F(PutTest, GivesUpAnItemWhoseSenderAborted) {
  auto client = open({parted(2, 1000)});
  const SectionSpec section = section_of({"a", "b"}, 2000);
  offer(*client, 5, section);
  RunSpec aborted = client->run_of(section, 0, 0, 0, 1);
  aborted.run.flags = wire::kRunAborted;
  client->send(chunk_frame(5, {aborted, client->run_of(section, 0, 1, 0, 2)}));
  const Said said = client->finish(5);
  EXPECT_EQ(said.at(0, 0), (AnswerReason{Answer::Cancelled, Reason::None}));
  EXPECT_EQ(said.at(0, 1), kStored);
  expect_nothing_held();
}

TEST_F(PutTest, ClosesOnARunThatNamesNoItem) {
  auto client = open({parted(1, 1000)});
  const SectionSpec section = section_of({"a"}, 1000);
  offer(*client, 5, section);
  RunSpec run = client->run_of(section, 0, 0, 0, 1);
  run.run.item = 1;
  client->send(chunk_frame(5, {run}));
  EXPECT_TRUE(client->finish(5).malformed);
  EXPECT_EQ(metric("halfstep_protocol_errors_total{kind=\"chunk\"}"), 1);
  expect_nothing_held();
}

TEST_F(PutTest, ClosesOnBytesOverTheCredit) {
  configure([](Config& config) { config.connection_credit_bytes = 1 * MiB; });
  auto client = open({parted(1, 256 * 1024)});
  const SectionSpec section = section_of(keys_of("k", 8), 256 * 1024);
  const Said want = offer(*client, 5, section);
  EXPECT_EQ(want.credit_bytes, 1 * MiB) << "not more than the connection's credit";
  client->send(chunk_frame(5, {client->run_of(section, 0, 7, 0, 1)}));
  EXPECT_TRUE(client->finish(5).malformed);
  EXPECT_EQ(metric("halfstep_protocol_errors_total{kind=\"credit\"}"), 1);
  expect_nothing_held();
}

TEST_F(PutTest, SharesTheEarlyCreditAmongThePutsOfAConnection) {
  auto client = open({parted(1, 40'000)});
  on_shard([&] { fake_->throttle_writes = store::kThrottledMemory; });
  const SectionSpec first = section_of({"a", "a2"}, 40'000);
  const SectionSpec second = section_of({"b", "b2"}, 40'000);
  client->send(request_frame(Opcode::Put, 5, {}, {first}));
  client->send(request_frame(Opcode::Put, 6, {}, {second}));
  client->send(chunk_frame(5, {client->run_of(first, 0, 0, 0, 1)}));
  client->simple(Opcode::Cancel, 7, Tlv::CancelTarget, object_bytes(wire::CancelRecord{.request_id = 5}));
  // With the first one's Final its share is back.
  client->send(chunk_frame(6, {client->run_of(second, 0, 0, 0, 1)}));
  client->send(request_frame(Opcode::Put, 8, {}, {first}));
  EXPECT_FALSE(client->simple(Opcode::Stat, 9, Tlv::Reason, {}).malformed);
  client->send(chunk_frame(8, {client->run_of(first, 0, 0, 0, 1)}));
  EXPECT_TRUE(client->finish(8).malformed);
  EXPECT_EQ(metric("halfstep_protocol_errors_total{kind=\"credit\"}"), 1);
  expect_nothing_held();
}

TEST_F(PutTest, GrantsMoreAsItemsAreStored) {
  configure([](Config& config) { config.connection_credit_bytes = 1 * MiB; });
  auto client = open({parted(2, 128 * 1024)});
  const SectionSpec section = section_of(keys_of("k", 20), 256 * 1024);
  const Said said = client->put(5, {section});
  for (uint32_t item = 0; item < 20; ++item) EXPECT_EQ(said.at(0, item), kStored);
  EXPECT_EQ(said.credit_bytes, 20 * 256 * 1024U);
  expect_nothing_held();
}

TEST_F(PutTest, WaitsForMemoryAndThrottlesWhatComesBeforeItsTurn) {
  auto client = open({parted(1, 1000)});
  on_shard([&] { fake_->throttle_writes = store::kThrottledMemory; });
  const SectionSpec section = section_of({"early", "patient"}, 1000);
  client->send(request_frame(Opcode::Put, 5, {}, {section}));
  client->send(chunk_frame(5, {client->run_of(section, 0, 0, 0, 1)}));
  Frame frame;
  ASSERT_TRUE(client->next(5, &frame));
  Said answers;
  take_apart(frame.body, &answers);
  EXPECT_EQ(frame.opcode(), Opcode::Answers);
  EXPECT_EQ(answers.at(0, 0), (AnswerReason{Answer::Throttled, Reason::Budget}));
  on_shard([&] { fake_->release_memory(); });
  ASSERT_TRUE(client->next(5, &frame));
  EXPECT_EQ(frame.opcode(), Opcode::Want);
  client->send_item(5, section, 0, 1);
  EXPECT_EQ(client->finish(5).at(0, 1), kStored);
  expect_nothing_held();
}

TEST_F(PutTest, GivesUpSlotsThatNobodyFills) {
  auto idle = open({parted(2, 1000)});
  const SectionSpec section = section_of({"never", "half", "whole"}, 2000);
  offer(*idle, 5, section);
  idle->send(chunk_frame(5, {idle->run_of(section, 0, 1, 0, 1), idle->run_of(section, 0, 2, 0, 2)}));
  wait_until([&] { return fake_->open_writes() == 2; });
  pass_s(4);
  EXPECT_EQ(on_shard([&] { return fake_->open_writes(); }), 2U);
  pass_s(2);
  const Said said = idle->finish(5);
  EXPECT_EQ(said.at(0, 0), (AnswerReason{Answer::Throttled, Reason::Budget}));
  EXPECT_EQ(said.at(0, 1), (AnswerReason{Answer::Throttled, Reason::Budget}));
  EXPECT_EQ(said.at(0, 2), kStored);
  expect_nothing_held();
  // Late bytes of it are dropped.
  idle->send(chunk_frame(5, {idle->run_of(section, 0, 1, 1, 1)}));
  EXPECT_TRUE(there(*idle, section_of({"whole"}, 2000)));
}

TEST_F(PutTest, AByteNowAndThenIsNoHeadway) {
  auto client = open({parted(1, 1'000'000)});
  const SectionSpec section = section_of({"a"}, 1'000'000);
  offer(*client, 5, section);
  RunSpec byte = client->run_of(section, 0, 0, 0, 1);
  byte.bytes.resize(1);
  byte.checks.clear();
  client->send(chunk_frame(5, {byte}));
  wait_until([&] { return shard_->counts().put_payload_bytes == 1; });
  pass_s(5);
  EXPECT_EQ(client->finish(5).at(0, 0), (AnswerReason{Answer::Throttled, Reason::Budget}));
  expect_nothing_held();
}

TEST_F(PutTest, GoesOnAsLongAsItsBytesCome) {
  auto client = open({parted(8, 200'000)});
  const SectionSpec section = section_of({"a"}, 1'600'000);
  offer(*client, 5, section);
  for (uint32_t part = 0; part < 8; ++part) {
    client->send(chunk_frame(5, {client->run_of(section, 0, 0, part, 1)}));
    wait_until([&] { return shard_->counts().put_payload_bytes == (part + 1) * 200'000U; });
    if (part % 2 == 1) pass_s(5);
  }
  EXPECT_EQ(client->finish(5).at(0, 0), kStored);
}

TEST_F(PutTest, LeavesOthersSomeMemoryHoweverMuchItCouldUse) {
  std::vector<std::unique_ptr<RawClient>> clients;
  for (int i = 0; i < 4; ++i) {
    clients.push_back(open({opaque()}));
    offer(*clients.back(), 5, section_of(keys_of("of" + std::to_string(i) + "-", 64), 256 * KiB));
  }
  EXPECT_LT(on_shard([&] { return shard_->put_credits().out_bytes; }),
            on_shard([&] { return shard_->put_credits().memory_bytes; }));
}

TEST_F(PutTest, DoesNotWaitForMemoryForEver) {
  auto client = open({parted(1, 1000)});
  on_shard([&] { fake_->throttle_writes = store::kThrottledMemory; });
  client->send(request_frame(Opcode::Put, 5, {}, {section_of({"a", "b"}, 1000)}));
  wait_until([&] { return shard_->counts().requests_open == 1; });
  pass_s(5);
  const Said said = client->finish(5);
  EXPECT_EQ(said.at(0, 0), (AnswerReason{Answer::Throttled, Reason::Budget}));
  EXPECT_EQ(said.at(0, 1), (AnswerReason{Answer::Throttled, Reason::Budget}));
  expect_nothing_held();
}

TEST_F(PutTest, KeepsWhatTheStoreIsSlowToAnswer) {
  auto client = open({parted(1, 1000)});
  const SectionSpec section = section_of({"a"}, 1000);
  on_shard([&] { fake_->hold_writes = true; });
  offer(*client, 5, section);
  client->send_item(5, section, 0, 0);
  wait_until([&] { return shard_->counts().put_payload_bytes == 1000; });
  pass_s(20);
  on_shard([&] { fake_->finish_writes(); });
  EXPECT_EQ(client->finish(5).at(0, 0), kStored);
}

TEST_F(PutTest, CountsWhyItsBlocksAreCodedOrRaw) {
  const auto client = open({parted(1, 1000)});
  on_shard([&] { fake_->limits["default"].name = "default"; });
  SectionSpec section = section_of({"a", "b", "c", "d"}, 1000);
  using enum wire::CodingReason;
  for (const wire::CodingReason reason : {SlowDecode, SlowDecode, Faster}) section.choices.push_back(std::byte(reason));
  section.choices.push_back(std::byte{200});
  ASSERT_EQ(client->put(5, {section}).at(0, 3), kStored);
  ASSERT_EQ(client->put(6, {section_of({"e"}, 1000)}).at(0, 0), kStored) << "it says nothing, and is not counted";
  const auto choices = [&](const std::string& reason) {
    return metric("halfstep_coding_choices_total{namespace=\"default\",reason=\"" + reason + "\"}");
  };
  EXPECT_EQ(choices("slow_decode"), 2);
  EXPECT_EQ(choices("faster"), 1);
  EXPECT_EQ(choices("other"), 1);
  EXPECT_EQ(choices("room"), -1) << "what never was is not there";
  EXPECT_EQ(metric("halfstep_coding_known{namespace=\"default\",of=\"link_bytes_per_s\"}"), 200);
  EXPECT_EQ(metric("halfstep_coding_known{namespace=\"default\",of=\"ratio_milli\"}"), 1480);

  const Said said = client->simple(Opcode::Stat, 7, Tlv::Reason, {});
  EXPECT_EQ(said.counters.at("halfstep_coding_choices_total{namespace=\"default\",reason=\"slow_decode\"}"), 2U);
  EXPECT_EQ(said.counters.at("halfstep_coding_known{namespace=\"default\",of=\"encode_bytes_per_s\"}"), 5000U);
}

TEST_F(PutTest, SaysWhyItIsThrottled) {
  auto client = open({parted(1, 1000)});
  const std::pair<int32_t, Reason> expected[] = {{store::kThrottledSpace, Reason::Full},
                                                 {store::kThrottledQuota, Reason::Budget}};
  uint64_t id = 500;
  for (const auto& [why, reason] : expected) {
    on_shard([&, why = why] { fake_->throttle_writes = why; });
    EXPECT_EQ(client->put(++id, {section_of({"a"}, 1000)}).at(0, 0), (AnswerReason{Answer::Throttled, reason}));
  }
}

TEST_F(PutTest, RefusesLengthsThatCannotBe) {
  auto client = open({parted(2, 1000), opaque()});
  EXPECT_EQ(client->put(5, {section_of({"a"}, 1999)}).at(0, 0), kMalformed);
  EXPECT_EQ(client->put(6, {section_of({"a"}, 4 * MiB + 1, 1)}).at(0, 0), (AnswerReason{Answer::Rejected, Reason::TooLarge}));
  expect_nothing_held();
}

TEST_F(PutTest, DropsWhatIsIncompleteAtItsDeadline) {
  auto client = open({parted(2, 1000)});
  const SectionSpec section = section_of({"whole", "half"}, 2000);
  offer(*client, 5, section, {.deadline_us = 5'000'000});
  client->send(chunk_frame(5, {client->run_of(section, 0, 0, 0, 2), client->run_of(section, 0, 1, 0, 1)}));
  wait_until([&] { return shard_->counts().put_payload_bytes == 3 * 1000; });
  pass_s(6);
  const Said said = client->finish(5);
  EXPECT_EQ(said.at(0, 0), kStored);
  EXPECT_EQ(said.at(0, 1), (AnswerReason{Answer::Late, Reason::None}));
  // What was under way when the answer came is dropped, and the connection goes on.
  client->send(chunk_frame(5, {client->run_of(section, 0, 1, 1, 1)}));
  EXPECT_TRUE(there(*client, section_of({"whole"}, 2000)));
  EXPECT_FALSE(there(*client, section_of({"half"}, 2000), 92));
  expect_nothing_held();
}

TEST_F(PutTest, MemoryOfItemsThatAreOverGoesBackWhenTheRestOfTheirChunkDoesNotCome) {
  constexpr uint32_t kBytes = 64 * KiB;
  configure([](Config& config) { config.connection_credit_bytes = 4 * kBytes; });
  auto client = open({opaque()});
  const SectionSpec section = section_of({"a", "b", "c", "d", "waits for credit"}, kBytes);
  offer(*client, 5, section);
  std::vector<RunSpec> runs;
  for (uint16_t item = 0; item < 4; ++item) {
    RunSpec piece = client->run_of(section, 0, item, 0, 1);
    piece.checks.clear();
    piece.bytes.resize(1);
    RunSpec aborted = piece;
    aborted.run.flags = wire::kRunAborted;
    aborted.bytes.clear();
    runs.push_back(piece);
    runs.push_back(aborted);
  }
  const std::vector<std::byte> chunk = chunk_frame(5, runs);
  client->send(ConstBytes(chunk).first(chunk.size() - 4));
  Frame frame;
  do {
    ASSERT_TRUE(client->next(5, &frame));
  } while (frame.opcode() != Opcode::Answers);
  EXPECT_EQ(on_shard([&] { return fake_->open_writes(); }), 4U) << "bytes may still land there";
  for (int i = 0; i < 2; ++i) pass_s(6);  // what was there at one look and has not moved by the next
  EXPECT_LE(on_shard([&] { return fake_->open_writes(); }), 1U) << "of the one that waited for credit";
}

TEST_F(PutTest, CancelInTheMiddleOfAChunkSendsTheRestToScratch) {
  auto client = open({parted(1, 200'000)});
  const SectionSpec section = section_of({"a"}, 200'000);
  offer(*client, 5, section, {.deadline_us = 50'000});
  const std::vector<std::byte> chunk = chunk_frame(5, {client->run_of(section, 0, 0, 0, 1)});
  client->send(ConstBytes(chunk).first(100'000));
  EXPECT_EQ(client->finish(5).at(0, 0), (AnswerReason{Answer::Late, Reason::None}));
  expect_nothing_held();
  client->send(ConstBytes(chunk).subspan(100'000));
  EXPECT_EQ(client->put(6, {section}).at(0, 0), kStored);
  EXPECT_EQ(client->ask(Opcode::Get, 7, {}, {section}).at(0, 0), kOk);
  EXPECT_EQ(client->wrong_parts, 0U);
}

TEST_F(PutTest, ADisconnectLeavesNoSlotBehind) {
  auto client = open({parted(4, 100'000)});
  const SectionSpec section = section_of(keys_of("k", 10), 400'000);
  offer(*client, 5, section);
  const std::vector<std::byte> chunk = chunk_frame(5, {client->run_of(section, 0, 3, 1, 2)});
  client->send(ConstBytes(chunk).first(150'000));
  EXPECT_EQ(on_shard([&] { return fake_->open_writes(); }), 10U);
  client->close();
  expect_nothing_held();
  EXPECT_EQ(on_shard([&] { return fake_->blocks(); }), 0U);
}

TEST_F(PutTest, AnswersWhenTheStoreHasSaidSo) {
  auto client = open({parted(1, 1000)});
  const SectionSpec section = section_of({"a"}, 1000);
  on_shard([&] { fake_->hold_writes = true; });
  offer(*client, 5, section, {.durability = wire::Durability::Persist});
  client->send_item(5, section, 0, 0);
  EXPECT_FALSE(there(*client, section));
  EXPECT_EQ(on_shard([&] { return shard_->counts().requests_open; }), 1U);
  on_shard([&] { fake_->finish_writes(); });
  EXPECT_EQ(client->finish(5).at(0, 0), kStored);
}

TEST_F(PutTest, SurvivesAClientThatLeavesBeforeTheStoreAnswers) {
  auto client = open({parted(1, 1000)});
  const SectionSpec section = section_of({"a"}, 1000);
  on_shard([&] { fake_->hold_writes = true; });
  offer(*client, 5, section);
  client->send_item(5, section, 0, 0);
  wait_until([&] { return shard_->counts().put_payload_bytes == 1000; });
  client->close();
  wait_until([&] { return shard_->counts().requests_open == 0; });
  on_shard([&] { fake_->finish_writes(); });
  expect_nothing_held();
  EXPECT_TRUE(there(*open({parted(1, 1000)}), section)) << "what was committed stays";
}

TEST_F(PutTest, CarriesCodedBlocksWithTheirTable) {
  auto client = open({parted(2, 1000)});
  const std::vector<std::byte> coded(700, std::byte{9});
  const wire::PartRecord records[] = {{.codec = 3, .stored_bytes = 300, .raw_bytes = 1000, .raw_crc = 11},
                                      {.codec = 0, .stored_bytes = 400, .raw_bytes = 400, .raw_crc = 12}};
  SectionSpec section = section_of({"a"}, 1400);
  section.offers[0].stored_bytes = 700;
  section.offers[0].flags = wire::kOfferCoded;
  std::vector<std::byte> bytes = request_frame(Opcode::Put, 5, {}, {section});
  // The table follows the offers: the frame is closed again around it.
  std::vector<std::byte> with_table;
  wire::FrameWriter frame(with_table);
  frame.begin(Opcode::Put, 5);
  frame.value().put_bytes(ConstBytes(bytes).subspan(wire::kHeaderBytes));
  frame.open_tlv(Tlv::PartTable);
  frame.value().put(uint16_t{0});
  frame.value().put(uint16_t{0});
  frame.value().put(uint32_t{0});
  frame.value().put(uint32_t{2});
  frame.value().put(uint32_t{0});
  for (const wire::PartRecord& record : records) frame.value().put(record);
  frame.close_tlv();
  frame.finish();
  client->send(with_table);
  wire::Layout layout = parted(2, 1000);
  const uint32_t n = wire::name_number(layout.id(), {}, as_bytes("a"));
  RunSpec run;
  run.run = {.flags = wire::kRunCoded, .part_count = 2, .block_bytes = 1400};
  run.bytes = coded;
  const uint32_t crcs[] = {crc32c(ConstBytes(coded).first(300)), crc32c(ConstBytes(coded).subspan(300))};
  for (uint32_t p = 0; p < 2; ++p) run.checks.push_back(wire::wire_check(crcs[p], n, p));
  client->send(chunk_frame(5, {run}));
  ASSERT_EQ(client->finish(5).at(0, 0), kStored);

  EXPECT_EQ(client->ask(Opcode::Get, 6, {}, {section}).at(0, 0), (AnswerReason{Answer::Rejected, Reason::Unsupported}))
      << "this client said that it decodes codec 0 only";
  auto decoder = connect();
  decoder->codecs = 0xFF;
  decoder->hello();
  decoder->register_layout(layout);
  decoder->send(request_frame(Opcode::Get, 6, {}, {section}));
  Frame chunk;
  ASSERT_TRUE(decoder->next(6, &chunk));
  ASSERT_EQ(chunk.opcode(), Opcode::Chunk);
  EXPECT_EQ(chunk.payload, coded);
  wire::TlvReader reader(chunk.body);
  wire::TlvView tlv;
  ASSERT_TRUE(reader.next(&tlv));
  ASSERT_EQ(tlv.kind, static_cast<uint16_t>(Tlv::PartTable));
  wire::PartTableView table;
  uint32_t stored_bytes = 0;
  uint32_t raw_bytes = 0;
  ASSERT_TRUE(wire::parse_part_table(tlv.value, &table, &stored_bytes, &raw_bytes).ok());
  EXPECT_EQ(stored_bytes, 700U);
  EXPECT_EQ(raw_bytes, 1400U);
  EXPECT_EQ(table.records[0].codec, 3);
  EXPECT_EQ(table.records[1].raw_crc, 12U);

  // Who asks for what it can decode is not told of it, and its own put takes its place.
  const wire::Batch decodable{.flags = wire::kBatchDecodable};
  EXPECT_EQ(client->ask(Opcode::Match, 20, {}, {section}).matched.at(0), (std::vector<bool>{true}));
  EXPECT_EQ(client->ask(Opcode::Match, 21, decodable, {section}).matched.at(0), (std::vector<bool>{false}));
  EXPECT_EQ(client->ask(Opcode::Get, 22, decodable, {section}).at(0, 0), (AnswerReason{Answer::Miss, Reason::Absent}));
  EXPECT_EQ(decoder->ask(Opcode::Match, 23, decodable, {section}).matched.at(0), (std::vector<bool>{true}));
  const SectionSpec raw = section_of({"a"}, 2000);
  EXPECT_EQ(client->put(24, {raw}).at(0, 0), (AnswerReason{Answer::Ok, Reason::Present})) << "without the flag it is there";
  EXPECT_EQ(client->put(25, {raw}, decodable).at(0, 0), kStored);
  EXPECT_EQ(client->ask(Opcode::Match, 26, decodable, {section}).matched.at(0), (std::vector<bool>{true}));
  EXPECT_EQ(decoder->put(27, {raw}, decodable).at(0, 0), (AnswerReason{Answer::Ok, Reason::Present}));
}

}  // namespace
}  // namespace halfstep::shard
