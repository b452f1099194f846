// match, holds, release, delete, list, stat, namespaces, and what this version does not have.
#include <gtest/gtest.h>

#include <future>

#include "shard/shard_fixture.h"

namespace halfstep::shard {
namespace request_keys_test {

using KeysTest = ShardFixture;

TEST_F(KeysTest, MatchSaysWhichKeysHaveAllTheirComponents) {
  auto client = open({parted(1, 100)});
  SectionSpec whole = section_of({"both"}, 100);
  whole.components = 2;
  whole.offers.assign(2, offer_of(100));
  SectionSpec half = section_of({"one"}, 100);
  client->put(5, {whole, half});
  SectionSpec asked = section_of({"both", "one", "none"}, 100);
  asked.components = 2;
  const Said said = client->ask(Opcode::Match, 6, {.flags = wire::kBatchLengths}, {asked});
  EXPECT_EQ(said.matched.at(0), (std::vector<bool>{true, false, false}));
  EXPECT_EQ(said.lengths.at(0), (std::vector<uint32_t>{100, 100, 100, 0, 0, 0}));
  EXPECT_TRUE(said.statuses.empty());
  EXPECT_TRUE(client->ask(Opcode::Match, 7, {}, {asked}).lengths.empty()) << "only when asked for";
}

TEST_F(KeysTest, MatchHoldsWhatItFindsForItsOwner) {
  auto client = open({parted(1, 100)});
  client->put(5, {section_of(keys_of("k", 3), 100)});
  const SectionSpec asked = section_of({"k0", "k1", "k2", "absent"}, 100);
  const Said said = client->ask(Opcode::Match, 6, {.hold_owner = 77, .hold_ms = 4'000'000}, {asked});
  EXPECT_EQ(said.matched.at(0), (std::vector<bool>{true, true, true, false}));
  EXPECT_EQ(on_shard([&] { return fake_->holds(); }), 3U);
  EXPECT_EQ(client->ask(Opcode::Release, 7, {}, {section_of({"k1"}, 100)}, 77).whole, kOk);
  EXPECT_EQ(on_shard([&] { return fake_->holds(); }), 2U);
  EXPECT_EQ(client->ask(Opcode::Release, 8, {}, {}, 78).whole, kOk) << "another owner's";
  EXPECT_EQ(on_shard([&] { return fake_->holds(); }), 2U);
  client->ask(Opcode::Release, 9, {}, {}, 77);
  EXPECT_EQ(on_shard([&] { return fake_->holds(); }), 0U);
}

TEST_F(KeysTest, AnOwnerIsWithinItsNamespace) {
  auto client = open({parted(1, 100)});
  on_shard([&] { fake_->create_namespace({"other", 0, 0}, [](Status) {}); });
  client->put(5, {section_of({"a"}, 100)});
  client->ask(Opcode::Match, 6, {.hold_owner = 77, .hold_ms = 4'000'000}, {section_of({"a"}, 100)});
  auto other = connect();
  other->hello("other");
  EXPECT_EQ(other->ask(Opcode::Release, 7, {}, {}, 77).whole, kOk);
  EXPECT_EQ(on_shard([&] { return fake_->holds(); }), 1U) << "the same number in another namespace is another owner";
  client->ask(Opcode::Release, 8, {}, {}, 77);
  EXPECT_EQ(on_shard([&] { return fake_->holds(); }), 0U);
}

TEST_F(KeysTest, MatchSaysWhichHoldsWereRefused) {
  auto client = open({parted(1, 100)});
  client->put(5, {section_of(keys_of("k", 2), 100)});
  on_shard([&] { fake_->refuse_holds = true; });
  const Said said = client->ask(Opcode::Match, 6, {.hold_owner = 7, .hold_ms = 10}, {section_of(keys_of("k", 2), 100)});
  EXPECT_EQ(said.matched.at(0), (std::vector<bool>{true, true}));
  EXPECT_EQ(said.at(0, 1), (AnswerReason{Answer::Throttled, Reason::Budget}));
}

TEST_F(KeysTest, DeleteIsAnsweredWhenItIsOnMedia) {
  auto client = open({parted(1, 100)});
  client->put(5, {section_of({"a", "b"}, 100)});
  on_shard([&] { fake_->hold_removes = true; });
  client->send(request_frame(Opcode::Delete, 6, {}, {section_of({"a", "absent"}, 100)}));
  wait_until([&] { return shard_->counts().requests_open == 1; });
  on_shard([&] { fake_->finish_removes(); });
  const Said said = client->finish(6);
  EXPECT_EQ(said.at(0, 0), kOk);
  EXPECT_EQ(said.at(0, 1), (AnswerReason{Answer::Miss, Reason::Absent}));
  EXPECT_EQ(client->ask(Opcode::Match, 7, {}, {section_of({"a", "b"}, 100)}).matched.at(0), (std::vector<bool>{false, true}));
}

TEST_F(KeysTest, AShardWhoseStoreWasTakenEndsAndSaysWhy) {
  ends_because_ = "another process has taken the store";
  auto client = open({parted(1, 100)});
  client->put(5, {section_of({"a"}, 100)});
  on_shard([&] { fake_->hold_removes = true; });
  client->send(request_frame(Opcode::Delete, 6, {}, {section_of({"a"}, 100)}));
  wait_until([&] { return shard_->counts().requests_open == 1; });
  on_shard([&] { fake_->is_lost = true; });
  EXPECT_TRUE(client->finish(6).malformed) << "the connection is closed without an answer";
}

TEST_F(KeysTest, ADeleteOutlivesItsDeadlineAndItsConnection) {
  auto client = open({parted(1, 100)});
  client->put(5, {section_of({"a", "b"}, 100)});
  on_shard([&] { fake_->hold_removes = true; });
  const Said late = client->ask(Opcode::Delete, 6, {.deadline_us = 10'000}, {section_of({"a"}, 100)});
  EXPECT_EQ(late.at(0, 0), (AnswerReason{Answer::Late, Reason::None}));
  client->send(request_frame(Opcode::Delete, 7, {}, {section_of({"b"}, 100)}));
  wait_until([&] { return shard_->counts().requests_open == 1; });
  client->close();
  wait_until([&] { return shard_->counts().requests_open == 0; });
  on_shard([&] { fake_->finish_removes(); });
  expect_nothing_held();
}

TEST_F(KeysTest, ListsInPages) {
  auto client = open({parted(1, 100)});
  client->put(5, {section_of(keys_of("key-", 10), 100)});
  std::vector<std::string> listed;
  wire::CursorRecord cursor{.limit = 4};
  for (uint64_t id = 100; id < 110; ++id) {
    const Said said = client->simple(Opcode::List, id, Tlv::Cursor, object_bytes(cursor));
    ASSERT_FALSE(said.malformed);
    EXPECT_LE(said.listed.size(), 4U);
    listed.insert(listed.end(), said.listed.begin(), said.listed.end());
    cursor.position = said.cursor->position;
    if (cursor.position == 0) break;
  }
  std::sort(listed.begin(), listed.end());
  EXPECT_EQ(listed, keys_of("key-", 10));
}

TEST_F(KeysTest, ListsHaveTheirShareOfTheMemoryOfRequests) {
  configure([](Config& config) { config.request_bytes_max = 1 * MiB; });
  auto client = open({});
  on_shard([&] { fake_->hold_lists = true; });
  const wire::CursorRecord cursor;
  constexpr uint64_t kLists = 32;
  for (uint64_t id = 100; id < 100 + kLists; ++id) {
    std::vector<std::byte> one;
    wire::FrameWriter frame(one);
    frame.begin(Opcode::List, id);
    frame.tlv(Tlv::Cursor, cursor);
    frame.finish();
    client->send(one);
  }
  EXPECT_EQ(client->finish(100 + kLists - 1).whole, (AnswerReason{Answer::Throttled, Reason::Budget}));
  EXPECT_LE(metric("halfstep_request_memory_bytes"), 1 * MiB);
  on_shard([&] { fake_->finish_lists(); });
  EXPECT_EQ(client->finish(100).whole, kOk);
  wait_until([&] { return shard_->counts().requests_open == 0; });
  EXPECT_EQ(client->simple(Opcode::List, 99, Tlv::Cursor, object_bytes(cursor)).whole, kOk) << "all of it came back";
}

// The store walks outside of the connection's turns: what it took counts as if it had been one.
TEST_F(KeysTest, WhoListsLongHasItsNextTurnAfterTheOthers) {
  stop_clock();
  auto lists = open({parted(1, 100)});
  auto other = open({parted(1, 100)});
  std::string order;
  on_shard([&] {
    fake_->at_remove = [&] { order += 'l'; };
    fake_->at_find = [&] { order += 'o'; };
  });
  const auto both = [&](uint64_t id) {
    on_shard([&] {  // both are there before the loop looks
      lists->send(request_frame(Opcode::Delete, id, {}, {section_of({"a"}, 100)}));
      other->send(request_frame(Opcode::Match, id, {}, {section_of({"a"}, 100)}));
    });
    lists->finish(id);
    other->finish(id);
  };
  both(5);
  EXPECT_EQ(on_shard([&] { return std::exchange(order, {}); }), "lo");
  on_shard([&] { fake_->list_later_us = 5'000; });
  EXPECT_EQ(lists->simple(Opcode::List, 6, Tlv::Cursor, object_bytes(wire::CursorRecord())).whole, kOk);
  both(7);
  EXPECT_EQ(on_shard([&] { return order; }), "ol");
}

TEST_F(KeysTest, AClientThatDoesNotReadIsNotReadEither) {
  if (over_rdma()) GTEST_SKIP() << "it sends and reads in two threads; an end over RDMA is one thread's";
  auto client = open({});
  constexpr uint64_t kStats = 4'000;
  std::vector<std::byte> bytes;
  for (uint64_t id = 1000; id < 1000 + kStats; ++id) {
    std::vector<std::byte> one;
    wire::FrameWriter frame(one);
    frame.begin(Opcode::Stat, id);
    frame.finish();
    bytes.insert(bytes.end(), one.begin(), one.end());
  }
  std::thread sender([&] { client->send(bytes); });
  wait_until([&] { return shard_->counts().connections_unread != 0; });
  auto other = open({});
  EXPECT_EQ(other->simple(Opcode::Stat, 5, Tlv::Reason, {}).whole, kOk) << "others are served meanwhile";
  EXPECT_LT(metric("halfstep_requests_total{command=\"stat\"}"), kStats);
  // It reads after all: nothing was lost.
  for (uint64_t id = 1000; id < 1000 + kStats; ++id) {
    Frame frame;
    ASSERT_TRUE(client->receive(&frame));
    ASSERT_EQ(frame.header.request_id, id);
    ASSERT_EQ(frame.opcode(), Opcode::Final);
  }
  sender.join();
}

TEST_F(KeysTest, StatTellsWhatWasCounted) {
  auto client = open({parted(1, 100)});
  client->put(5, {section_of({"a"}, 100)});
  client->ask(Opcode::Get, 6, {}, {section_of({"a", "b"}, 100)});
  const Said said = client->simple(Opcode::Stat, 7, Tlv::Reason, {});
  ASSERT_FALSE(said.malformed);
  EXPECT_EQ(said.counters.at("halfstep_requests_total{command=\"get\"}"), 1U);
  EXPECT_EQ(said.counters.at("halfstep_answers_total{command=\"get\",answer=\"ok\",reason=\"\"}"), 1U);
  EXPECT_EQ(said.counters.at("halfstep_answers_total{command=\"get\",answer=\"miss\",reason=\"absent\"}"), 1U);
  EXPECT_EQ(said.counters.at("halfstep_answers_total{command=\"put\",answer=\"ok\",reason=\"stored\"}"), 1U);
  EXPECT_EQ(said.counters.at("halfstep_payload_bytes_total{command=\"put\"}"), 100U);
  EXPECT_EQ(said.counters.at("halfstep_connections_open"), 1U);
}

TEST_F(KeysTest, NamespacesKeepTheirBlocksApart) {
  auto client = open({parted(1, 100)});
  client->put(5, {section_of({"a"}, 100)});
  const auto change = [&](uint64_t id, wire::NamespaceVerb verb) {
    std::vector<std::byte> out;
    wire::FrameWriter frame(out);
    frame.begin(Opcode::Namespace, id);
    frame.tlv_bytes(Tlv::NamespaceName, as_bytes("other"));
    frame.tlv(Tlv::NamespaceAction, wire::NamespaceRecord{.verb = verb});
    frame.finish();
    client->send(out);
    return client->finish(id).whole;
  };
  EXPECT_EQ(change(6, wire::NamespaceVerb::Create), kOk);
  auto other = connect();
  other->hello("other");
  other->register_layout(parted(1, 100));
  EXPECT_EQ(other->ask(Opcode::Match, 7, {}, {section_of({"a"}, 100)}).matched.at(0), (std::vector<bool>{false}));
  EXPECT_EQ(change(8, wire::NamespaceVerb::Delete), kOk);
  EXPECT_EQ(other->ask(Opcode::Match, 9, {}, {section_of({"a"}, 100)}).whole,
            (AnswerReason{Answer::Rejected, Reason::UnknownLayout}));
  EXPECT_EQ(change(10, wire::NamespaceVerb::Limit), (AnswerReason{Answer::Rejected, Reason::UnknownNamespace}));
}

TEST_F(KeysTest, AGreetingTellsHowBlocksOfItsNamespaceAreToBeCoded) {
  auto client = open({});
  uint64_t id = 5;
  const auto change = [&](wire::NamespaceVerb verb, std::optional<wire::CodingRecord> coding) {
    std::vector<std::byte> out;
    wire::FrameWriter frame(out);
    frame.begin(Opcode::Namespace, ++id);
    frame.tlv_bytes(Tlv::NamespaceName, as_bytes("other"));
    frame.tlv(Tlv::NamespaceAction, wire::NamespaceRecord{.verb = verb});
    if (coding) frame.tlv(Tlv::SetCoding, *coding);
    frame.finish();
    client->send(out);
    return client->finish(id).whole;
  };
  const auto told = [&](std::string_view name) { return connect()->hello(name).coding; };
  constexpr AnswerReason kMalformed = {Answer::Rejected, Reason::Malformed};
  EXPECT_EQ(change(wire::NamespaceVerb::Create, std::nullopt), kOk);
  EXPECT_FALSE(told("other")) << "nothing to tell";
  EXPECT_EQ(change(wire::NamespaceVerb::Limit, wire::CodingRecord{.policy = wire::kPolicyHigh, .step_limit = 800}), kOk);
  ASSERT_TRUE(told("other"));
  EXPECT_EQ(told("other")->policy, wire::kPolicyHigh);
  EXPECT_EQ(told("other")->step_limit, 800);
  EXPECT_FALSE(told("default")) << "another namespace";
  EXPECT_EQ(change(wire::NamespaceVerb::Limit, wire::CodingRecord{.policy = wire::kPolicyOff + 1}), kMalformed);
  EXPECT_EQ(change(wire::NamespaceVerb::Limit, wire::CodingRecord{.reserved = 1}), kMalformed);
  EXPECT_EQ(change(wire::NamespaceVerb::Limit, std::nullopt), kOk);
  ASSERT_TRUE(told("other")) << "a limit that says nothing of it leaves it";
  EXPECT_EQ(change(wire::NamespaceVerb::Limit, wire::CodingRecord{.step_limit = 1}), kOk);
  ASSERT_TRUE(told("other")) << "a floor alone";
  EXPECT_EQ(told("other")->policy, 0);
  EXPECT_EQ(told("other")->step_limit, 1);
  EXPECT_EQ(change(wire::NamespaceVerb::Limit, wire::CodingRecord{}), kOk);
  EXPECT_FALSE(told("other"));
}

TEST_F(KeysTest, SaysHowManyLayoutsANamespaceMayHave) {
  auto client = open({});
  on_shard([&] { fake_->refuse_layouts = true; });
  const Said said = client->register_layout(opaque());
  EXPECT_EQ(said.whole, (AnswerReason{Answer::Rejected, Reason::Limit}));
  EXPECT_NE(said.reason.find("256 layouts"), std::string::npos) << said.reason;
}

// A change of names waits for its place in the header. Who calls it off takes no memory back by that.
TEST_F(KeysTest, LayoutsThatAreBeingRegisteredHaveNoMoreMemoryThanThereIsForRequests) {
  configure([](Config& config) { config.request_bytes_max = 1 * MiB; });
  auto client = open({});
  on_shard([&] { fake_->hold_layouts = true; });
  uint64_t begun = 0;
  for (uint64_t id = 10;; id += 2) {
    wire::Layout layout;
    std::string value(8'000, 'x');
    value += std::to_string(id);
    ASSERT_TRUE(
        wire::Layout::make({{"model", value}}, {{.part_count = 1, .size_count = 1, .part_bytes = {100}}}, &layout).ok());
    std::vector<std::byte> out;
    wire::FrameWriter frame(out);
    frame.begin(Opcode::RegisterLayout, id);
    frame.tlv_bytes(Tlv::LayoutCanonical, layout.canonical());
    frame.finish();
    client->send(out);
    client->simple(Opcode::Cancel, id + 1, Tlv::CancelTarget, object_bytes(wire::CancelRecord{.request_id = id}));
    const Said said = client->finish(id);
    if (said.whole == AnswerReason{Answer::Throttled, Reason::Budget}) break;
    EXPECT_EQ(said.whole, (AnswerReason{Answer::Cancelled, Reason::None}));
    ASSERT_LT(++begun, 100U);
  }
  EXPECT_GE(begun, 4U);
  on_shard([&] { fake_->finish_layouts(); });
  client.reset();
  wait_until([&] { return shard_->request_memory().bytes() == 0; });
  expect_nothing_held();
}

TEST_F(KeysTest, StatComesInPagesHoweverManyNamespacesThereAre) {
  auto client = open({});
  constexpr uint32_t kNamespaces = 1200;
  on_shard([&] {
    for (uint32_t i = 0; i < kNamespaces; ++i) {
      std::string name = std::to_string(i);
      name.resize(250, '"');  // escaped, it is twice as long
      fake_->create_namespace({name, i + 1}, [](Status) {});
    }
  });
  std::map<std::string, uint64_t> told;
  wire::CursorRecord cursor;
  uint64_t pages = 0;
  for (uint64_t id = 100; pages == 0 || cursor.position != 0; ++id, ++pages) {
    ASSERT_LT(pages, 100U);
    const Said said = client->simple(Opcode::Stat, id, Tlv::Cursor, object_bytes(cursor));
    ASSERT_EQ(said.whole, kOk);
    ASSERT_TRUE(said.cursor && !said.malformed);
    ASSERT_TRUE(said.cursor->position == 0 || said.cursor->position > cursor.position);
    for (const auto& [name, value] : said.counters) EXPECT_TRUE(told.emplace(name, value).second) << name << " twice";
    cursor = *said.cursor;
  }
  EXPECT_GT(pages, 3U);
  EXPECT_EQ(told.count("halfstep_connections_open"), 1U);
  const auto quotas = std::count_if(told.begin(), told.end(), [](const auto& counter) {
    return counter.first.starts_with("halfstep_namespace_bytes") && counter.first.ends_with("of=\"quota\"}");
  });
  EXPECT_EQ(quotas, kNamespaces);
  const wire::CursorRecord limited{.limit = 4};
  EXPECT_EQ(client->simple(Opcode::Stat, 300, Tlv::Cursor, object_bytes(limited)).whole,
            (AnswerReason{Answer::Rejected, Reason::Malformed}));
}

TEST_F(KeysTest, LayoutOfTellsALayoutOfTheNamespaceByItsId) {
  auto client = open({parted(1, 100)});
  const Said said = client->simple(Opcode::LayoutOf, 6, Tlv::NamedLayout, parted(1, 100).id());
  EXPECT_EQ(said.whole, kOk);
  const wire::Layout registered = parted(1, 100);
  EXPECT_TRUE(
      std::equal(said.canonical.begin(), said.canonical.end(), registered.canonical().begin(), registered.canonical().end()));
  const AnswerReason absent{Answer::Miss, Reason::Absent};
  EXPECT_EQ(client->simple(Opcode::LayoutOf, 7, Tlv::NamedLayout, parted(2, 100).id()).whole, absent);
  EXPECT_EQ(client->simple(Opcode::LayoutOf, 8, Tlv::NamedLayout, as_bytes("short")).whole,
            (AnswerReason{Answer::Rejected, Reason::Malformed}));
  on_shard([&] { fake_->create_namespace({"other", 0, 0}, [](Status) {}); });
  auto other = connect();
  other->hello("other");
  EXPECT_EQ(other->simple(Opcode::LayoutOf, 9, Tlv::NamedLayout, parted(1, 100).id()).whole, absent) << "another namespace's";
  EXPECT_EQ(metric("halfstep_answers_total{command=\"layout_of\",answer=\"miss\",reason=\"absent\"}"), 2);
}

TEST_F(KeysTest, ALayoutThatIsRegisteredAgainKeepsItsHandle) {
  auto client = open({parted(1, 100)});
  EXPECT_EQ(client->simple(Opcode::Clear, 6, Tlv::NamedLayout, parted(1, 100).id()).whole, kOk);
  EXPECT_EQ(client->register_layout(parted(1, 100), 50).handle->handle, 0);
  EXPECT_EQ(client->put(7, {section_of({"a"}, 100)}).at(0, 0), (AnswerReason{Answer::Ok, Reason::Stored}));
}

TEST_F(KeysTest, TheDefaultNamespaceCannotBeDeleted) {
  auto client = open({});
  std::vector<std::byte> out;
  wire::FrameWriter frame(out);
  frame.begin(Opcode::Namespace, 6);
  frame.tlv_bytes(Tlv::NamespaceName, as_bytes("default"));
  frame.tlv(Tlv::NamespaceAction, wire::NamespaceRecord{.verb = wire::NamespaceVerb::Delete});
  frame.finish();
  client->send(out);
  EXPECT_EQ(client->finish(6).whole, (AnswerReason{Answer::Rejected, Reason::Policy}));
  open({});
}

TEST_F(KeysTest, RegistersALayoutOnceAndRefusesWhatIsNotCanonical) {
  auto client = open({parted(1, 100)});
  EXPECT_EQ(client->register_layout(parted(1, 100), 50).handle->handle, 0);
  EXPECT_EQ(client->register_layout(opaque(), 51).handle->handle, 1);
  const wire::Layout layout = opaque();
  std::vector<std::byte> broken(layout.canonical().begin(), layout.canonical().end());
  broken.push_back(std::byte{0});
  EXPECT_EQ(client->simple(Opcode::RegisterLayout, 52, Tlv::LayoutCanonical, broken).whole,
            (AnswerReason{Answer::Rejected, Reason::Malformed}));
}

TEST_F(KeysTest, RefusesTlvsThatDoNotBelongInARequestWithoutKeys) {
  auto client = open({});
  const wire::Layout layout = opaque();
  const wire::CancelRecord cancel{.request_id = 99};
  const wire::CursorRecord cursor;
  const std::tuple<Opcode, Tlv, ConstBytes> bodies[] = {{Opcode::RegisterLayout, Tlv::LayoutCanonical, layout.canonical()},
                                                        {Opcode::Cancel, Tlv::CancelTarget, object_bytes(cancel)},
                                                        {Opcode::List, Tlv::Cursor, object_bytes(cursor)},
                                                        {Opcode::Namespace, Tlv::NamespaceName, as_bytes("default")},
                                                        {Opcode::Stat, static_cast<Tlv>(0x63), {}}};
  uint64_t id = 100;
  for (const auto& [opcode, kind, value] : bodies) {
    const auto with = [&, opcode = opcode, kind = kind, value = value](Tlv more, ConstBytes behind) {
      std::vector<std::byte> out;
      wire::FrameWriter frame(out);
      frame.begin(opcode, ++id);
      frame.tlv_bytes(kind, value);
      frame.tlv_bytes(more, {});
      frame.value().put_bytes(behind);
      frame.finish();
      client->send(out);
      return client->finish(id).whole;
    };
    SCOPED_TRACE(static_cast<int>(opcode));
    EXPECT_EQ(with(static_cast<Tlv>(0x8063), {}), (AnswerReason{Answer::Rejected, Reason::Unsupported}));
    EXPECT_EQ(with(Tlv::Batch, {}), (AnswerReason{Answer::Rejected, Reason::Malformed})) << "known, and not of this command";
    const std::vector<std::byte> garbage(8, std::byte{0xFF});
    EXPECT_EQ(with(static_cast<Tlv>(0x63), garbage), (AnswerReason{Answer::Rejected, Reason::Malformed}));
    if (opcode == Opcode::Namespace) continue;  // it has no action
    EXPECT_NE(with(static_cast<Tlv>(0x63), {})->answer, Answer::Rejected);
  }
}

TEST_F(KeysTest, AQuestionToStatIsAnsweredOrRefusedWithItsBound) {
  auto client = open({});
  uint64_t id = 100;
  const auto ask = [&](wire::KeyQuestionHead head, wire::ComponentRange range) {
    std::vector<std::byte> question;
    Writer writer(question);
    writer.put(head);
    for (uint16_t i = 0; i < head.range_count; ++i) writer.put(range);
    writer.put_bytes(as_bytes("key"));
    return client->simple(Opcode::Stat, ++id, Tlv::KeyQuestion, question).whole;
  };
  EXPECT_EQ(ask({.range_count = 1, .key_bytes = 3}, {0, 4096}), (AnswerReason{Answer::Ok, Reason::None}));
  EXPECT_EQ(ask({.range_count = 2, .key_bytes = 3}, {0, 4096}), (AnswerReason{Answer::Rejected, Reason::Limit}));
  EXPECT_EQ(ask({.range_count = 9, .key_bytes = 3}, {0, 1}), (AnswerReason{Answer::Rejected, Reason::Limit}));
  EXPECT_EQ(ask({.range_count = 1, .key_bytes = 4}, {0, 1}), (AnswerReason{Answer::Rejected, Reason::Malformed}));
  EXPECT_EQ(ask({.range_count = 1, .key_bytes = 3}, {0, 0}), (AnswerReason{Answer::Rejected, Reason::Malformed}));
  EXPECT_EQ(ask({.range_count = 1, .key_bytes = 3}, {0xFFFFFF, 2}), (AnswerReason{Answer::Rejected, Reason::Malformed}));
  EXPECT_EQ(ask({.flags = 1, .range_count = 1, .key_bytes = 3}, {1 << 24, 1}),
            (AnswerReason{Answer::Rejected, Reason::Malformed}));
  EXPECT_EQ(ask({.flags = 2, .range_count = 0, .key_bytes = 3}, {}), (AnswerReason{Answer::Rejected, Reason::Malformed}));
}

// Sixteen thousand items, of which each takes a while: others have their turn between them.
class ManyItems : public KeysTest {
 protected:
  static constexpr uint32_t kItems = wire::kItemsMax;
  static SectionSpec many() {
    SectionSpec section = section_of(keys_of("absent", wire::kKeysMax), 100);
    section.components = kItems / wire::kKeysMax;
    return section;
  }
};

TEST_F(ManyItems, ADeleteOfThemLeavesAMatchOfAnotherConnectionItsTurn) {
  auto deleting = open({parted(1, 100)});
  auto other = open({parted(1, 100)});
  uint64_t removed_before_match = UINT64_MAX;
  on_shard([&] {
    fake_->at_remove = [&] {
      take_us(1);
      if (fake_->removes_begun != 1) return;
      fake_->at_find = [&] { removed_before_match = std::min(removed_before_match, fake_->removes_begun); };
      other->send(request_frame(Opcode::Match, 6, {}, {section_of({"a"}, 100)}));
    };
  });
  const Said said = deleting->ask(Opcode::Delete, 5, {}, {many()});
  EXPECT_EQ(said.at(0, 0), (AnswerReason{Answer::Miss, Reason::Absent}));
  EXPECT_EQ(said.at(0, kItems - 1), (AnswerReason{Answer::Miss, Reason::Absent}));
  EXPECT_FALSE(other->finish(6).malformed);
  on_shard([&] {
    // A turn is over after half a millisecond, or two while it is alone: some two thousand items. How long the match's frame
    // takes to get here is the machine's.
    EXPECT_LE(removed_before_match, kItems / 2);
    EXPECT_EQ(fake_->removes_begun, kItems);
  });
  expect_nothing_held();
}

TEST_F(ManyItems, WhatWasNotBegunAtTheDeadlineIsNotDone) {
  auto client = open({parted(1, 100)});
  stop_clock();
  on_shard([&] { fake_->at_remove = [&] { take_us(10); }; });
  const Said said = client->ask(Opcode::Delete, 5, {.deadline_us = 20'000}, {many()});
  EXPECT_EQ(said.at(0, 0), (AnswerReason{Answer::Miss, Reason::Absent}));
  EXPECT_EQ(said.at(0, kItems - 1), (AnswerReason{Answer::Late, Reason::None}));
  EXPECT_LT(on_shard([&] { return fake_->removes_begun; }), kItems);
  expect_nothing_held();
}

TEST_F(ManyItems, RequestsUnderWayHaveNoMoreMemoryThanTheShardHasForThem) {
  configure([](Config& config) { config.request_bytes_max = 8 * MiB; });
  auto client = open({parted(1, 100)});
  on_shard([&] { fake_->hold_removes = true; });
  constexpr uint64_t kRequests = 32;
  for (uint64_t id = 5; id < 5 + kRequests; ++id) client->send(request_frame(Opcode::Delete, id, {}, {many()}));
  // The last is answered at once, since there is no memory for it; so all before it have been looked at.
  EXPECT_EQ(client->finish(5 + kRequests - 1).whole, (AnswerReason{Answer::Throttled, Reason::Budget}));
  EXPECT_LE(metric("halfstep_request_memory_bytes"), 8 * MiB);
  auto other = open({parted(1, 100)});
  on_shard([&] { fake_->hold_removes = false; });
  EXPECT_EQ(other->ask(Opcode::Delete, 5, {}, {section_of({"a"}, 100)}).at(0, 0), (AnswerReason{Answer::Miss, Reason::Absent}))
      << "one that asks for little has its share";
  on_shard([&] { fake_->finish_removes(); });
  EXPECT_EQ(client->finish(5).at(0, 0), (AnswerReason{Answer::Miss, Reason::Absent}));
  expect_nothing_held();
}

TEST_F(ManyItems, ADisconnectWhileTheyAreDoneLeavesNothingHeld) {
  auto client = open({parted(1, 100)});
  // The shard stands in its first remove until this thread, whose the client is, has closed the connection.
  std::promise<void> begun;
  std::promise<void> closed;
  on_shard([&] {
    fake_->at_remove = [&] {
      take_us(10);
      if (fake_->removes_begun != 1) return;
      begun.set_value();
      closed.get_future().wait();
    };
  });
  client->send(request_frame(Opcode::Delete, 5, {}, {many()}));
  begun.get_future().wait();
  client->close();
  closed.set_value();
  expect_nothing_held();
  EXPECT_LT(on_shard([&] { return fake_->removes_begun; }), kItems) << "it goes on for nobody";
}

TEST_F(ManyItems, NobodyIsMatchedForOnceTheClientHasGone) {
  auto client = open({parted(1, 100)});
  std::promise<void> begun;
  std::promise<void> closed;
  uint64_t looks = 0;
  on_shard([&] {
    fake_->at_find = [&] {
      take_us(10'000);  // longer than a turn
      if (++looks != 1) return;
      begun.set_value();
      closed.get_future().wait();
    };
  });
  std::vector<std::byte> frames;
  for (uint64_t id = 5; id < 15; ++id) {
    const std::vector<std::byte> one = request_frame(Opcode::Match, id, {}, {section_of({"a"}, 100)});
    frames.insert(frames.end(), one.begin(), one.end());
  }
  client->send(frames);
  begun.get_future().wait();
  client->close();
  closed.set_value();
  while (metric("halfstep_connections_open") != 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  EXPECT_EQ(on_shard([&] { return looks; }), 1U);
}

TEST_F(ManyItems, WhatChangesSomethingIsDoneThoughTheClientHasGone) {
  auto client = open({parted(1, 100)});
  client->put(4, {section_of({"a"}, 100)});
  std::promise<void> begun;
  std::promise<void> closed;
  uint64_t looks = 0;
  on_shard([&] {
    fake_->at_find = [&] {
      if (++looks != 1) return;
      take_us(10'000);  // longer than a turn
      begun.set_value();
      closed.get_future().wait();
    };
  });
  const std::vector<SectionSpec> sections = {section_of({"a"}, 100)};
  std::vector<std::byte> frames = request_frame(Opcode::Match, 5, {}, sections);
  for (const auto& one : {request_frame(Opcode::Touch, 6, {}, sections),
                          request_frame(Opcode::Match, 7, {.hold_owner = 9, .hold_ms = 60'000}, sections)}) {
    frames.insert(frames.end(), one.begin(), one.end());
  }
  client->send(frames);
  begun.get_future().wait();
  client->close();
  closed.set_value();
  while (metric("halfstep_connections_open") != 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  EXPECT_EQ(on_shard([&] { return fake_->touched.size(); }), 1U);
  EXPECT_EQ(on_shard([&] { return fake_->holds(); }), 1U);
}

}  // namespace request_keys_test
}  // namespace halfstep::shard
