// touch, hold, renew, release, expire, clear and the limits of namespaces, as clients say them.
#include <gtest/gtest.h>

#include "shard/shard_fixture.h"

namespace halfstep::shard {
namespace request_life_test {

constexpr AnswerReason kAbsent{Answer::Miss, Reason::Absent};
constexpr AnswerReason kMalformed{Answer::Rejected, Reason::Malformed};

auto until(uint64_t hold_ms, uint32_t flags = 0) {
  return [=](wire::FrameWriter& frame) { frame.tlv(Tlv::Until, wire::UntilRecord{.hold_ms = hold_ms, .flags = flags}); };
}
auto expiry(uint32_t ttl_s) {
  return [=](wire::FrameWriter& frame) { frame.tlv(Tlv::Expiry, wire::ExpiryRecord{.ttl_s = ttl_s}); };
}

class LifeTest : public ShardFixture {
 protected:
  std::unique_ptr<RawClient> open_with_blocks() {
    auto client = open({parted(1, 100)});
    client->put(5, {section_of(keys_of("k", 4), 100)});
    return client;
  }
  AnswerReason change_namespace(RawClient& client, uint64_t id, std::string_view name, const wire::NamespaceRecord& record,
                                std::optional<uint64_t> pin_budget = {}) {
    std::vector<std::byte> out;
    wire::FrameWriter frame(out);
    frame.begin(Opcode::Namespace, id);
    frame.tlv_bytes(Tlv::NamespaceName, as_bytes(name));
    frame.tlv(Tlv::NamespaceAction, record);
    if (pin_budget) frame.tlv(Tlv::PinBudget, wire::PinBudgetRecord{*pin_budget});
    frame.finish();
    client.send(out);
    return client.finish(id).whole.value_or(AnswerReason());
  }
};

TEST_F(LifeTest, TouchTellsTheStoreWhatIsThereInTheOrderOfTheRequest) {
  auto client = open_with_blocks();
  const Said said = client->ask(Opcode::Touch, 6, {}, {section_of({"k2", "absent", "k0"}, 100), section_of({"k1"}, 100)});
  EXPECT_EQ(said.at(0, 0), (AnswerReason{Answer::Ok, Reason::Present}));
  EXPECT_EQ(said.at(0, 1), kAbsent);
  EXPECT_EQ(said.at(1, 0), (AnswerReason{Answer::Ok, Reason::Present}));
  const auto touched = on_shard([&] { return fake_->touched; });
  const auto key = [&](const char* name) {
    return on_shard([&, name] { return fake_->key_of({1, wire::Component{}, as_bytes(std::string_view(name))}); });
  };
  ASSERT_EQ(touched.size(), 3U);
  EXPECT_EQ(touched[0], key("k2"));
  EXPECT_EQ(touched[1], key("k0"));
  EXPECT_EQ(touched[2], key("k1"));
}

TEST_F(LifeTest, ALeaseIsTakenAtOnceAndRenewedByItsOwner) {
  auto client = open_with_blocks();
  const Said held = client->ask(Opcode::Hold, 6, {}, {section_of({"k0", "absent"}, 100)}, 77, until(1000));
  EXPECT_EQ(held.at(0, 0), kOk);
  EXPECT_EQ(held.at(0, 1), kAbsent);
  EXPECT_EQ(on_shard([&] { return std::pair(fake_->holds(), fake_->pins()); }), std::pair(uint64_t{1}, uint64_t{0}));
  EXPECT_EQ(client->ask(Opcode::Renew, 7, {}, {}, 77, until(uint64_t{1} << 60)).whole, kOk);
  const uint64_t longest_us = uint64_t{on_shard([&] { return shard_->hello().lease_ms_max; })} * 1000;
  EXPECT_LE(on_shard([&] { return fake_->renewed_until_us; }), on_shard([&] { return shard_->loop().now_us(); }) + longest_us)
      << "cut, not wrapped";
  EXPECT_EQ(client->ask(Opcode::Renew, 8, {}, {}, 78, until(1000)).whole, kAbsent);
  EXPECT_EQ(client->ask(Opcode::Release, 9, {}, {}, 77).whole, kOk);
  EXPECT_EQ(on_shard([&] { return fake_->holds(); }), 0U);
}

TEST_F(LifeTest, APersistentHoldIsAnsweredWhenItIsOnMedia) {
  auto client = open_with_blocks();
  on_shard([&] { fake_->hold_removes = true; });
  client->send(
      request_frame(Opcode::Hold, 6, {}, {section_of({"k0", "k1", "absent"}, 100)}, 77, until(0, wire::kHoldPersistent)));
  wait_until([&] { return shard_->counts().requests_open == 1; });
  EXPECT_EQ(on_shard([&] { return fake_->pins(); }), 2U);
  on_shard([&] { fake_->finish_removes(); });
  const Said said = client->finish(6);
  EXPECT_EQ(said.at(0, 0), kOk);
  EXPECT_EQ(said.at(0, 1), kOk);
  EXPECT_EQ(said.at(0, 2), kAbsent);
}

TEST_F(LifeTest, SaysWhyAHoldFoundNoRoom) {
  auto client = open_with_blocks();
  const auto refused = [&](uint64_t id, Status why) {
    on_shard([&] { fake_->change_status = why; });
    return client->ask(Opcode::Hold, id, {}, {section_of({"k0"}, 100)}, 77, until(0, wire::kHoldPersistent)).at(0, 0);
  };
  EXPECT_EQ(refused(6, {Code::Throttled, store::kThrottledPins}), (AnswerReason{Answer::Throttled, Reason::Budget}));
  EXPECT_EQ(refused(7, {Code::Throttled, store::kThrottledLog}), (AnswerReason{Answer::Throttled, Reason::Load}));
  EXPECT_EQ(refused(8, Code::IoError), (AnswerReason{Answer::Unavailable, Reason::Media}));
  on_shard([&] { fake_->refuse_holds = true; });
  EXPECT_EQ(client->ask(Opcode::Hold, 9, {}, {section_of({"k0"}, 100)}, 77, until(10)).at(0, 0),
            (AnswerReason{Answer::Throttled, Reason::Budget}));
}

TEST_F(LifeTest, AReleaseIsAnsweredAsAWholeWithTheFirstThatFailed) {
  auto client = open_with_blocks();
  client->ask(Opcode::Hold, 6, {}, {section_of(keys_of("k", 4), 100)}, 77, until(0, wire::kHoldPersistent));
  EXPECT_EQ(client->ask(Opcode::Release, 7, {}, {section_of({"k0", "never held"}, 100)}, 77).whole, kOk);
  EXPECT_EQ(on_shard([&] { return fake_->pins(); }), 3U);
  on_shard([&] { fake_->change_status = Code::IoError; });
  EXPECT_EQ(client->ask(Opcode::Release, 8, {}, {section_of({"k1"}, 100)}, 77).whole,
            (AnswerReason{Answer::Unavailable, Reason::Media}));
  EXPECT_EQ(client->ask(Opcode::Release, 9, {}, {}, 77).whole, (AnswerReason{Answer::Unavailable, Reason::Media}));
}

TEST_F(LifeTest, ExpireSaysAnewWhenBlocksEnd) {
  auto client = open_with_blocks();
  const Said said = client->ask(Opcode::Expire, 6, {}, {section_of({"k0", "absent"}, 100)}, 0, expiry(60));
  EXPECT_EQ(said.at(0, 0), kOk);
  EXPECT_EQ(said.at(0, 1), kAbsent);
  EXPECT_EQ(on_shard([&] { return fake_->expires_in_s; }), (std::map<std::string, uint64_t>{{"k0", 60}}));
}

TEST_F(LifeTest, ClearLeavesTheHandlesOfEveryConnectionGood) {
  auto client = open_with_blocks();
  auto other = open({parted(1, 100)});
  EXPECT_EQ(client->simple(Opcode::Clear, 6, Tlv::NamedLayout, parted(1, 100).id()).whole, kOk);
  EXPECT_EQ(other->ask(Opcode::Match, 7, {}, {section_of({"k0"}, 100)}).matched.at(0), (std::vector<bool>{false}));
  EXPECT_EQ(client->put(8, {section_of({"k0"}, 100)}).at(0, 0), (AnswerReason{Answer::Ok, Reason::Stored}));
  EXPECT_EQ(other->ask(Opcode::Match, 9, {}, {section_of({"k0"}, 100)}).matched.at(0), (std::vector<bool>{true}));
  EXPECT_EQ(client->simple(Opcode::Clear, 10, Tlv::NamedLayout, parted(7, 100).id()).whole, kAbsent);
}

TEST_F(LifeTest, NamespacesAreLimitedAndToldOf) {
  if (over_rdma() && over_rdma()->address != "127.0.0.1")
    GTEST_SKIP() << "over the address of a device nobody has the admin right";
  auto client = open({});
  EXPECT_EQ(change_namespace(*client, 6, "ten\"ant", {.verb = wire::NamespaceVerb::Create, .quota_bytes = 5}, 6), kOk);
  EXPECT_EQ(
      change_namespace(*client, 7, "ten\"ant", {.verb = wire::NamespaceVerb::Limit, .default_ttl_s = 7, .quota_bytes = 8}),
      kOk);
  const Said said = client->simple(Opcode::Stat, 8, Tlv::Reason, {});
  EXPECT_EQ(said.counters.at("halfstep_namespace_bytes{namespace=\"ten\\\"ant\",of=\"quota\"}"), 8U);
  EXPECT_EQ(said.counters.at("halfstep_namespace_bytes{namespace=\"ten\\\"ant\",of=\"pin_budget\"}"), 6U) << "as it was";
  EXPECT_EQ(said.counters.at("halfstep_namespace_default_ttl_seconds{namespace=\"ten\\\"ant\"}"), 7U);
  EXPECT_EQ(change_namespace(*client, 9, "nobody", {.verb = wire::NamespaceVerb::Limit}),
            (AnswerReason{Answer::Rejected, Reason::UnknownNamespace}));
}

TEST_F(LifeTest, WhatDoesNotParseIsRejectedWithASentence) {
  auto client = open_with_blocks();
  const SectionSpec section = section_of({"k0"}, 100);
  uint64_t id = 5;
  const auto rejected = [&](Opcode opcode, const std::vector<SectionSpec>& sections, uint64_t owner,
                            const std::function<void(wire::FrameWriter&)>& more) {
    const Said said = client->ask(opcode, ++id, {}, sections, owner, more);
    EXPECT_EQ(said.whole, kMalformed) << said.reason;
    EXPECT_FALSE(said.reason.empty());
  };
  rejected(Opcode::Hold, {section}, 77, {});                            // no Until
  rejected(Opcode::Hold, {section}, 0, until(1000));                    // no Owner
  rejected(Opcode::Hold, {}, 77, until(1000));                          // no section
  rejected(Opcode::Hold, {section}, 77, until(0));                      // a lease without end
  rejected(Opcode::Hold, {section}, 77, until(1000, 2));                // an unknown flag
  rejected(Opcode::Renew, {section}, 77, until(1000));                  // a section
  rejected(Opcode::Renew, {}, 77, until(1000, wire::kHoldPersistent));  // only leases are renewed
  rejected(Opcode::Expire, {section}, 0, {});                           // no Expiry
  rejected(Opcode::Expire, {section}, 77, expiry(1));                   // an Owner
  rejected(Opcode::Touch, {section}, 0, expiry(1));                     // an Expiry
  rejected(Opcode::Touch, {}, 0, {});
  EXPECT_EQ(client->simple(Opcode::Clear, 100, Tlv::NamedLayout, as_bytes("short")).whole, kMalformed);
  EXPECT_EQ(client->simple(Opcode::Clear, 101, Tlv::Reason, {}).whole, kMalformed);
  expect_nothing_held();
}

}  // namespace request_life_test
}  // namespace halfstep::shard
