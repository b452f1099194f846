// Matches and gets that wait, and kinds of prefetches: what is asked of daemons that know how, and of older ones.
#include <gtest/gtest.h>

#include <atomic>
#include <memory>

#include "peer/fake_daemon.h"
#include "peer/ticket.h"
#include "peer/try_client.h"
#include "wire/prefetch_kind.h"

namespace halfstep::peer {
namespace wait_test {

using Frame = FakeDaemon::Frame;

// Notes the Batch of each match and get.
struct Asked {
  explicit Asked(uint32_t features) : daemon(0) {
    daemon.hello.features = features;
    daemon.hook = [this](FakeDaemon::Connection&, const Frame& frame) {
      const auto opcode = static_cast<wire::Opcode>(frame.header.opcode);
      wire::RequestView view;
      if (opcode != wire::Opcode::Match && opcode != wire::Opcode::Get && opcode != wire::Opcode::Prefetch) return false;
      if (!wire::parse_request(opcode, frame.body, &view).ok()) return false;
      if (view.has_until) until_flags = view.until.flags;
      flags = view.batch.flags;
      deadline_us = view.batch.deadline_us;
      return false;
    };
  }
  FakeDaemon daemon;
  std::atomic<uint32_t> flags{0};
  std::atomic<uint32_t> until_flags{UINT32_MAX};  // of a prefetch
  std::atomic<uint32_t> deadline_us{0};
};

hs_batch waiting(uint32_t operation, uint32_t deadline_us) {
  hs_batch batch = TryClient::batch(operation, deadline_us);
  batch.wait = 1;
  return batch;
}

TEST(Wait, TheFlagGoesToADaemonThatHasTheFeature) {
  Asked asked(wire::kFeatureWait);
  TryClient client(asked.daemon.address());
  const int layout = client.layout(make_layout({kOpaque}));
  ASSERT_TRUE(client.ready());
  TrySection match(layout, names(2));
  hs_batch batch = waiting(HS_OP_MATCH, 3'600'000'000U);
  client.call(batch, match);
  EXPECT_EQ(asked.flags & wire::kBatchWait, wire::kBatchWait);
  EXPECT_LE(asked.deadline_us, 3'600'000'000U - 50'000) << "its answer is to come in time";
  EXPECT_EQ(client.facts().not_waited, 0U);
  batch = TryClient::batch(HS_OP_MATCH);
  client.call(batch, match);
  EXPECT_EQ(asked.flags & wire::kBatchWait, 0U);
}

TEST(Wait, AnOlderDaemonIsAskedAsEverAndItIsCounted) {
  Asked asked(0);
  TryClient client(asked.daemon.address());
  const int layout = client.layout(make_layout({kOpaque}));
  ASSERT_TRUE(client.ready());
  TrySection match(layout, names(2));
  hs_batch batch = waiting(HS_OP_MATCH, 3'600'000'000U);
  client.call(batch, match);
  EXPECT_TRUE(match.all("miss(absent)")) << text_of(match.answers[0]);
  EXPECT_EQ(asked.flags & wire::kBatchWait, 0U);
  EXPECT_EQ(client.facts().not_waited, 1U);
}

TEST(PrefetchKind, ItGoesToADaemonThatHasTheFeatureAndToNoOther) {
  for (const uint32_t features : {wire::kFeaturePrefetchKind, wire::kFeatureWait}) {
    Asked asked(features);
    TryClient client(asked.daemon.address());
    const int layout = client.layout(make_layout({kOpaque}));
    ASSERT_TRUE(client.ready());
    TrySection section(layout, names(2));
    hs_batch batch = TryClient::batch(HS_OP_PREFETCH);
    batch.value = 1000;
    batch.prefetch_kind = 3;
    client.call(batch, section);
    EXPECT_EQ(asked.until_flags, features == wire::kFeaturePrefetchKind ? 3U << wire::kUntilKindShift : 0U);
  }
}

class NoHost final : public TicketHost {
 public:
  void recycle(Ticket&) override {}
  void on_payload_released(Ticket&) override {}
  void on_placement_over(Ticket&) override {}
};

// The daemon says what is ok in its Final, which comes when the wait is over, or too late.
TEST(Wait, WhatHasArrivedByTheDeadlineIsOk) {
  constexpr uint32_t kItems = 3;
  const wire::GroupShape shape{.part_count = 2, .size_count = 1, .part_bytes = {100}};
  for (const bool waits : {true, false}) {
    NoHost host;
    Ticket ticket(host, nullptr);
    ticket.operation = HS_OP_GET;
    ticket.batch.flags = waits ? wire::kBatchWait : 0;
    ticket.section_count = 1;
    ticket.sections.resize(1);
    Section& section = ticket.sections[0];
    section.layout = std::make_shared<const wire::Layout>(make_layout({shape}));
    section.shape = shape;
    section.key_count = section.item_count = kItems;
    section.selection.set_all();
    Octets memory(size_t{kItems} * 200);
    const hs_iovec iovecs[] = {{memory.data(), 200}, {memory.data() + 200, 200}, {memory.data() + 400, 200}};
    hs_section described{};
    described.target_kind = HS_TARGET_IOVEC;
    described.iovecs = iovecs;
    ASSERT_TRUE(section.target.set(described, kItems, shape, section.selection).ok());
    hs_answer answers[kItems]{};
    section.answers = answers;
    ticket.prepare();
    // All of the first, half of the second, nothing of the third.
    for (const uint32_t item : {0U, 1U}) ASSERT_TRUE(ticket.announce(section, item, 200).ok());
    for (const uint32_t part : {0U, 1U}) ticket.part_arrived(section, 0, part, /*verified=*/true);
    ticket.part_arrived(section, 1, 0, /*verified=*/true);
    ticket.end = {wire::Answer::Late, wire::Reason::Deadline};
    ticket.finish();
    EXPECT_EQ(text_of(answers[0]), waits ? "ok(none)" : "late(deadline)");
    EXPECT_EQ(text_of(answers[1]), "late(deadline)");
    EXPECT_EQ(text_of(answers[2]), "late(deadline)");
  }
}

TEST(Wait, OnlyAMatchOrAGetMayWait) {
  Asked asked(wire::kFeatureWait);
  TryClient client(asked.daemon.address());
  const int layout = client.layout(make_layout({kOpaque}));
  TrySection section(layout, names(1));
  hs_batch batch = waiting(HS_OP_TOUCH, 0);
  EXPECT_EQ(client.submit(batch, section), 0U);
  EXPECT_EQ(client.why, "wait=1: 0, or 1 in a match or get");
}

}  // namespace wait_test
}  // namespace halfstep::peer
