// Every operation of the C interface, against a daemon that behaves.
#include "peer/halfstep.h"

#include <gtest/gtest.h>
#include <poll.h>

#include <array>
#include <thread>

#include "peer/fake_daemon.h"
#include "peer/try_client.h"

namespace halfstep::peer {
namespace {

std::vector<Octets> blocks_of(const std::vector<size_t>& sizes, uint64_t seed = 1) {
  std::vector<Octets> out;
  for (const size_t size : sizes) out.push_back(random_octets(size, seed++));
  return out;
}

TEST(Halfstep, WhatIsPutIsMatchedAndComesBack) {
  FakeDaemon daemon;
  TryClient client(daemon.address());
  const int layout = client.layout(make_layout({kOpaque}));
  std::vector<Octets> blocks = blocks_of({1, 300'000, 262'144, 1 << 20});
  TrySection put(layout, names(4));
  EXPECT_EQ(client.put(put.into(blocks)).items_ok, 4U);
  EXPECT_TRUE(put.all("ok(stored)"));

  TrySection match(layout, names(5));
  EXPECT_EQ(client.match(match).items_ok, 4U);
  EXPECT_EQ(text_of(match.answers[3]), "ok(present)");
  EXPECT_EQ(text_of(match.answers[4]), "miss(absent)");
  EXPECT_EQ(match.lengths, (std::vector<uint32_t>{1, 300'000, 262'144, 1 << 20, 0}));

  std::vector<Octets> back(5, Octets(1 << 20));
  TrySection get(layout, names(5));
  const hs_event event = client.get(get.into(back));
  EXPECT_EQ(event.items_ok, 4U);
  EXPECT_EQ(event.steps_done, 5U);
  EXPECT_EQ(text_of(get.answers[4]), "miss(absent)");
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(text_of(get.answers[i]), "ok(none)");
    EXPECT_EQ(get.lengths[i], blocks[i].size());
    back[i].resize(blocks[i].size());
    EXPECT_EQ(back[i], blocks[i]);
  }
  EXPECT_EQ(client.facts().checksum_failures, 0U);
}

TEST(Halfstep, SeveralConnectionsCarryOneBatch) {
  FakeDaemon daemon;
  TryClient client(daemon.address(), 4);
  const int layout = client.layout(make_layout({kOpaque}));
  ASSERT_TRUE(client.ready());
  ASSERT_TRUE(comes_true([&] { return client.facts().connected == 4; })) << client.facts().last_error;
  std::vector<Octets> blocks = blocks_of(std::vector<size_t>(16, 1 << 20));
  TrySection put(layout, names(16));
  EXPECT_EQ(client.put(put.into(blocks)).items_ok, 16U);
  std::vector<Octets> back(16, Octets(1 << 20));
  TrySection get(layout, names(16));
  EXPECT_EQ(client.get(get.into(back)).items_ok, 16U);
  EXPECT_EQ(back, blocks);
}

TEST(Halfstep, FragmentsOfAnySizeArePutTogether) {
  FakeDaemon daemon;
  daemon.fragment_bytes_max = 3000;
  daemon.chunk_bytes = 10'000;
  TryClient client(daemon.address());
  const int layout = client.layout(make_layout({kOpaque}));
  std::vector<Octets> blocks = blocks_of({5, 9'999, 10'000, 10'001, 262'144, 262'145, 700'000});
  TrySection put(layout, names(7));
  ASSERT_EQ(client.put(put.into(blocks)).items_ok, 7U);
  for (const uint8_t order : {HS_KEY_MAJOR, HS_LAYER_MAJOR}) {
    std::vector<Octets> back = blocks_of({5, 9'999, 10'000, 10'001, 262'144, 262'145, 700'000}, 99);
    TrySection get(layout, names(7));
    ASSERT_EQ(client.get(get.into(back), order).items_ok, 7U);
    EXPECT_EQ(back, blocks);
  }
}

TEST(Halfstep, ComponentsAndGroupsHaveBytesOfTheirOwn) {
  FakeDaemon daemon;
  TryClient client(daemon.address());
  const wire::GroupShape attention{.part_count = 4, .size_count = 2, .part_bytes = {4096, 2048}};
  const int layout = client.layout(make_layout({kOpaque, attention}));
  std::vector<Octets> blocks = blocks_of(std::vector<size_t>(6, 12'288));
  TrySection put(layout, names(2), 3);
  put.section.first_component = hs_component(1, 0, 5);
  ASSERT_EQ(client.put(put.into(blocks)).items_ok, 6U);
  std::vector<Octets> back(6, Octets(12'288));
  TrySection get(layout, names(2), 3);
  get.section.first_component = hs_component(1, 0, 5);
  ASSERT_EQ(client.get(get.into(back)).items_ok, 6U);
  EXPECT_EQ(back, blocks);
  TrySection other(layout, names(2), 3);
  other.section.first_component = hs_component(1, 1, 5);
  EXPECT_EQ(client.match(other).items_ok, 0U);
}

TEST(Halfstep, RangesBringTheirPartsBackToBack) {
  FakeDaemon daemon;
  TryClient client(daemon.address());
  const wire::GroupShape attention{.part_count = 6, .size_count = 2, .part_bytes = {4096, 512}};
  const int layout = client.layout(make_layout({attention}));
  std::vector<Octets> blocks = blocks_of({13'824, 13'824});
  TrySection put(layout, names(2));
  ASSERT_EQ(client.put(put.into(blocks)).items_ok, 2U);

  std::vector<Octets> back(3, Octets(512 + 4096 + 4096));
  TrySection get(layout, names(3));
  get.select({{5, 1, 1}, {0, 2, 2}}).into(back);
  const hs_event event = client.get(get, HS_LAYER_MAJOR);
  EXPECT_EQ(event.items_ok, 2U);
  EXPECT_EQ(event.steps_done, 3U);
  for (size_t i = 0; i < 2; ++i) {
    Octets expected(blocks[i].begin() + 13'312, blocks[i].end());
    expected.insert(expected.end(), blocks[i].begin(), blocks[i].begin() + 4096);
    expected.insert(expected.end(), blocks[i].begin() + 4608, blocks[i].begin() + 8704);
    EXPECT_EQ(back[i], expected);
    for (size_t o = 0; o < 3; ++o) EXPECT_EQ(text_of(get.answers[i * 3 + o]), "ok(none)");
  }
  for (size_t o = 0; o < 3; ++o) EXPECT_EQ(text_of(get.answers[6 + o]), "miss(absent)");
}

TEST(Halfstep, ARangeOfABlockWhoseLengthDecidesItsPartsMayEndInAShortOne) {
  FakeDaemon daemon;
  TryClient client(daemon.address());
  const wire::GroupShape pieces{.part_count = 0, .size_count = 1, .part_bytes = {1000}};
  const int layout = client.layout(make_layout({pieces}));
  std::vector<Octets> blocks = blocks_of({2500, 900});
  TrySection put(layout, names(2));
  ASSERT_EQ(client.put(put.into(blocks)).items_ok, 2U);
  // The short part stands first: what follows it moves up.
  std::vector<Octets> back(2, Octets(2000));
  TrySection get(layout, names(2));
  get.select({{2, 1, 1}, {0, 1, 1}}).into(back);
  EXPECT_EQ(client.get(get).items_ok, 1U);
  Octets expected(blocks[0].begin() + 2000, blocks[0].end());
  expected.insert(expected.end(), blocks[0].begin(), blocks[0].begin() + 1000);
  back[0].resize(1500);
  EXPECT_EQ(back[0], expected);
  EXPECT_EQ(text_of(get.answers[2]), "miss(length)");
}

TEST(Halfstep, RowsScatterPartsOverStridedMemory) {
  FakeDaemon daemon;
  TryClient client(daemon.address());
  const wire::GroupShape shape{.part_count = 2, .size_count = 1, .part_bytes = {1024}};
  const int layout = client.layout(make_layout({shape}));
  // Per part a plane: [rows][4 pieces of 256 bytes, 512 apart].
  constexpr size_t kRow = 2048;
  std::vector<Octets> planes = blocks_of({8 * kRow, 8 * kRow});
  const std::vector<Octets> before = planes;
  const auto describe = [&](TrySection& section, std::vector<hs_part_descriptor>& parts, const std::vector<int64_t>& rows) {
    for (Octets& plane : planes) parts.push_back({plane.data(), plane.size(), 128, kRow, 4, 256, 512});
    section.section.target_kind = HS_TARGET_ROWS;
    section.section.parts = parts.data();
    section.section.part_descriptor_count = 2;
    section.section.rows = rows.data();
  };
  std::vector<hs_part_descriptor> parts;
  const std::vector<int64_t> rows{6, 1, 3};
  TrySection put(layout, names(3));
  describe(put, parts, rows);
  const std::vector<uint32_t> lengths(3, 2048);
  put.section.block_bytes = lengths.data();
  ASSERT_EQ(client.put(put).items_ok, 3U) << client.why;

  for (Octets& plane : planes) std::fill(plane.begin(), plane.end(), std::byte{0});
  std::vector<hs_part_descriptor> again;
  TrySection get(layout, names(3));
  describe(get, again, rows);
  ASSERT_EQ(client.get(get).items_ok, 3U);
  for (size_t p = 0; p < planes.size(); ++p) {
    for (size_t at = 0; at < planes[p].size(); ++at) {
      const size_t row = at / kRow;
      const size_t within = at % kRow;
      const bool target = (row == 6 || row == 1 || row == 3) && within >= 128 && (within - 128) % 512 < 256;
      ASSERT_EQ(planes[p][at], target ? before[p][at] : std::byte{0}) << "plane " << p << " byte " << at;
    }
  }
}

TEST(Halfstep, APutIsAnsweredPresentWithoutItsBytes) {
  FakeDaemon daemon;
  TryClient client(daemon.address());
  const int layout = client.layout(make_layout({kOpaque}));
  std::vector<Octets> blocks = blocks_of({4 << 20});
  TrySection put(layout, names(1));
  ASSERT_EQ(client.put(put.into(blocks)).items_ok, 1U);
  const uint64_t sent = client.facts().bytes_sent;
  TrySection again(layout, names(1));
  ASSERT_EQ(client.put(again.into(blocks)).items_ok, 1U);
  EXPECT_EQ(text_of(again.answers[0]), "ok(present)");
  EXPECT_LT(client.facts().bytes_sent - sent, wire::kEarlyCreditBytes + 4096U);
}

TEST(Halfstep, DeleteReleaseListStatAndNamespacesAreAnswered) {
  FakeDaemon daemon;
  TryClient client(daemon.address());
  const int layout = client.layout(make_layout({kOpaque}));
  std::vector<Octets> blocks = blocks_of({10, 20, 30});
  TrySection put(layout, names(3));
  ASSERT_EQ(client.put(put.into(blocks)).items_ok, 3U);

  TrySection gone(layout, {"key-1", "key-9"});
  hs_batch erase = TryClient::batch(HS_OP_DELETE);
  EXPECT_EQ(client.call(erase, gone).items_ok, 1U);
  EXPECT_EQ(text_of(gone.answers[1]), "miss(absent)");

  hs_answer outcome{};
  hs_batch release = TryClient::batch(HS_OP_RELEASE);
  release.hold_owner = 7;
  release.outcome = &outcome;
  client.call(release);
  EXPECT_EQ(text_of(outcome), "ok(none)");

  std::vector<std::string> listed;
  uint64_t cursor = 0;
  do {
    hs_batch list = TryClient::batch(HS_OP_LIST);
    list.cursor = cursor;
    list.cursor_out = &cursor;
    list.limit = 1;
    list.outcome = &outcome;
    list.sink_context = &listed;
    list.sink = [](void* to, const void*, size_t record_bytes, const void* name, size_t name_bytes) {
      EXPECT_EQ(record_bytes, sizeof(wire::EntryRecord));
      static_cast<std::vector<std::string>*>(to)->emplace_back(static_cast<const char*>(name), name_bytes);
    };
    client.call(list);
    ASSERT_EQ(text_of(outcome), "ok(none)");
  } while (cursor != 0);
  EXPECT_EQ(listed, (std::vector<std::string>{"key-0", "key-2"}));

  uint64_t blocks_counted = 0;
  hs_batch stat = TryClient::batch(HS_OP_STAT);
  stat.sink_context = &blocks_counted;
  stat.sink = [](void* to, const void* record, size_t record_bytes, const void* name, size_t name_bytes) {
    EXPECT_EQ(record_bytes, 8U);
    if (std::string_view(static_cast<const char*>(name), name_bytes) == "blocks") std::memcpy(to, record, 8);
  };
  client.call(stat);
  EXPECT_EQ(blocks_counted, 2U);

  hs_batch create = TryClient::batch(HS_OP_NAMESPACE_CREATE);
  create.text = "other";
  create.outcome = &outcome;
  client.call(create);
  EXPECT_EQ(text_of(outcome), "ok(none)");
}

TEST(Halfstep, ABatchBeyondTheProtocolsLimitsIsCutAndPutTogetherAgain) {
  FakeDaemon daemon;
  TryClient client(daemon.address(), 2);
  const int layout = client.layout(make_layout({kOpaque}));
  constexpr size_t kCount = 10'000;
  const auto batch = [](uint32_t operation) { return TryClient::batch(operation, 120'000'000); };  // with a sanitizer on, too
  std::vector<Octets> blocks = blocks_of(std::vector<size_t>(kCount, 64));
  TrySection put(layout, names(kCount));
  std::vector<uint64_t> parents(kCount);
  for (size_t i = 0; i < kCount; ++i) parents[i] = i == 0 ? HS_PARENT_ROOT : i - 1;
  put.section.parents = parents.data();
  hs_batch puts = batch(HS_OP_PUT);
  ASSERT_EQ(client.call(puts, put.into(blocks)).items_ok, kCount);
  TrySection match(layout, names(kCount + 5000), 2);
  hs_batch matches = batch(HS_OP_MATCH);
  matches.wants_lengths = 1;
  EXPECT_EQ(client.call(matches, match).items_ok, kCount);
  std::vector<Octets> back(kCount, Octets(64));
  TrySection get(layout, names(kCount));
  hs_batch gets = batch(HS_OP_GET);
  ASSERT_EQ(client.call(gets, get.into(back)).items_ok, kCount);
  EXPECT_EQ(back, blocks);
}

TEST(Halfstep, KeysFindTheirShards) {
  FakeDaemon daemon(0, 3);
  std::atomic<uint32_t> wrong{0};
  daemon.hook = [&](FakeDaemon::Connection& connection, const FakeDaemon::Frame& frame) {
    wire::RequestView view;
    if (!wire::parse_request(frame.opcode(), frame.body, &view).ok()) return false;
    for (uint32_t s = 0; s < view.section_count; ++s) {
      for (uint32_t k = 0; k < view.sections[s].head.key_count; ++k) {
        if (wire::route(FakeDaemon::key_of(view.sections[s], k), 3) != connection.shard) ++wrong;
      }
    }
    return false;
  };
  TryClient client(daemon.address(), 2);
  const int layout = client.layout(make_layout({kOpaque}));
  std::vector<Octets> blocks = blocks_of(std::vector<size_t>(100, 5000));
  TrySection put(layout, names(100));
  std::vector<uint64_t> parents(100, 0);
  put.section.parents = parents.data();
  ASSERT_EQ(client.put(put.into(blocks)).items_ok, 100U);
  std::vector<Octets> back(100, Octets(5000));
  TrySection get(layout, names(100));
  ASSERT_EQ(client.get(get.into(back)).items_ok, 100U);
  EXPECT_EQ(back, blocks);
  EXPECT_EQ(wrong.load(), 0U);
  std::array<hs_shard_load, 4> loads{};
  ASSERT_EQ(hs_client_get_loads(client.client, loads.data(), loads.size()), 3U);
  for (uint32_t s = 0; s < 3; ++s) {
    EXPECT_EQ(loads[s].queue_depth, 1 + s) << "each shard's own, whoever answered last";
    EXPECT_EQ(loads[s].bytes_per_s, 3 + s);
  }
  EXPECT_EQ(client.facts().queue_depth, 6U);
  EXPECT_EQ(client.facts().queue_us, 4U);
  EXPECT_EQ(client.facts().bytes_per_s, 12U);
  EXPECT_EQ(hs_client_get_loads(client.client, loads.data(), 1), 3U);
}

TEST(Halfstep, ProgressOfALayerMajorGetCountsPartsOverAllItems) {
  FakeDaemon daemon;
  daemon.chunk_bytes = 4096;
  daemon.fragment_bytes_max = 4096;
  TryClient client(daemon.address());
  const wire::GroupShape shape{.part_count = 8, .size_count = 1, .part_bytes = {4096}};
  const int layout = client.layout(make_layout({shape}));
  std::vector<Octets> blocks = blocks_of({32'768, 32'768});
  TrySection put(layout, names(2));
  ASSERT_EQ(client.put(put.into(blocks)).items_ok, 2U);
  std::vector<Octets> back(2, Octets(32'768));
  TrySection get(layout, names(2));
  hs_batch batch = TryClient::batch(HS_OP_GET);
  batch.order = HS_LAYER_MAJOR;
  batch.wants_progress = 1;
  ASSERT_NE(client.submit(batch, get.into(back)), 0U);
  uint32_t steps = 0;
  for (hs_event event = client.wait();; event = client.wait()) {
    EXPECT_GE(event.steps_done, steps);
    steps = event.steps_done;
    for (size_t i = 0; i < 2; ++i) {
      EXPECT_TRUE(std::equal(blocks[i].begin(), blocks[i].begin() + steps * 4096, back[i].begin()));
    }
    if (event.kind == HS_EVENT_DONE) break;
  }
  EXPECT_EQ(steps, 8U);
}

TEST(Halfstep, TheDescriptorIsReadableWhileEventsWait) {
  FakeDaemon daemon;
  TryClient client(daemon.address());
  const int layout = client.layout(make_layout({kOpaque}));
  pollfd waiting{hs_queue_descriptor(client.queue), POLLIN, 0};
  ASSERT_GE(waiting.fd, 0);
  EXPECT_EQ(::poll(&waiting, 1, 0), 0);
  TrySection match(layout, names(3));
  hs_batch batch = TryClient::batch(HS_OP_MATCH);
  batch.user_data = 42;
  ASSERT_NE(client.submit(batch, match), 0U);
  ASSERT_EQ(::poll(&waiting, 1, 10'000), 1);
  hs_event event{};
  ASSERT_EQ(hs_queue_poll(client.queue, &event, 1), 1U);
  EXPECT_EQ(event.user_data, 42U);
  EXPECT_EQ(::poll(&waiting, 1, 0), 0);
  EXPECT_EQ(hs_queue_poll(client.queue, &event, 1), 0U);
}

TEST(Halfstep, SeveralQueuesGetTheirOwnEvents) {
  FakeDaemon daemon;
  TryClient client(daemon.address());
  const int layout = client.layout(make_layout({kOpaque}));
  hs_queue* queues[3];
  for (hs_queue*& queue : queues) ASSERT_EQ(hs_queue_open(client.client, &queue), 0);
  TrySection match(layout, names(1));
  for (uint64_t i = 0; i < 3; ++i) {
    hs_batch batch = TryClient::batch(HS_OP_MATCH);
    batch.sections = &match.section;
    batch.section_count = 1;
    batch.user_data = i;
    ASSERT_NE(hs_submit(queues[i], &batch, nullptr, 0), 0U);
    hs_event event{};
    ASSERT_EQ(hs_queue_wait(queues[i], &event, 1, 10'000'000), 1U);
    EXPECT_EQ(event.user_data, i);
  }
  for (hs_queue* queue : queues) hs_queue_close(queue);
}

TEST(Halfstep, AFullClientThrottlesAndTheTicketEnds) {
  FakeDaemon daemon;
  daemon.hook = [](FakeDaemon::Connection&, const FakeDaemon::Frame& frame) {
    return frame.opcode() == wire::Opcode::Match;  // never answered
  };
  TryClient client(daemon.address(), 1, 2);
  const int layout = client.layout(make_layout({kOpaque}));
  TrySection first(layout, names(1));
  TrySection second(layout, names(1));
  TrySection third(layout, names(1));
  hs_batch batch = TryClient::batch(HS_OP_MATCH);
  const hs_ticket one = client.submit(batch, first);
  const hs_ticket two = client.submit(batch, second);
  const hs_ticket over = client.submit(batch, third);
  EXPECT_EQ(client.wait().ticket, over);
  EXPECT_EQ(text_of(third.answers[0]), "throttled(queue_full)");
  hs_cancel(client.queue, one);
  hs_cancel(client.queue, two);
  EXPECT_EQ(client.wait().ticket, one);
  EXPECT_EQ(client.wait().ticket, two);
  EXPECT_TRUE(first.all("cancelled(none)") && second.all("cancelled(none)"));
}

TEST(Halfstep, ALayoutThatTheDaemonRefusesRejectsItsItemsAlone) {
  FakeDaemon daemon;
  daemon.hook = [](FakeDaemon::Connection& connection, const FakeDaemon::Frame& frame) {
    const std::string body(as_text(frame.body));
    if (frame.opcode() != wire::Opcode::RegisterLayout || body.find("refused") == std::string::npos) return false;
    connection.send(FakeDaemon::final(frame.header.request_id, {wire::Answer::Rejected, wire::Reason::Policy}));
    return true;
  };
  TryClient client(daemon.address());
  const int good = client.layout(make_layout({kOpaque}));
  const int bad = client.layout(make_layout({kOpaque}, "refused"));
  EXPECT_EQ(client.layout(make_layout({kOpaque})), good);
  ASSERT_TRUE(client.ready());
  TrySection no(bad, names(2));
  TrySection yes(good, names(2));
  const hs_section sections[] = {no.section, yes.section, no.section};
  hs_batch batch = TryClient::batch(HS_OP_MATCH);
  batch.sections = sections;
  batch.section_count = 3;
  client.call(batch);
  EXPECT_TRUE(no.all("rejected(policy)"));
  EXPECT_TRUE(yes.all("miss(absent)"));
  EXPECT_EQ(client.match(no).items_ok, 0U);
  EXPECT_TRUE(no.all("rejected(policy)"));
}

struct Refusal {
  const char* sentence;
  void (*spoil)(hs_batch& batch, hs_section& section);
};

TEST(Halfstep, ABatchThatBreaksARuleIsRefusedWithASentence) {
  TryClient client("127.0.0.1:1");
  const wire::GroupShape shape{.part_count = 2, .size_count = 1, .part_bytes = {64}};
  const int layout = client.layout(make_layout({shape}));
  const Refusal kRefusals[] = {
      {"struct_bytes=", [](hs_batch& b, hs_section&) { b.struct_bytes = 3; }},
      {"operation=", [](hs_batch& b, hs_section&) { b.operation = 99; }},
      {"order=", [](hs_batch& b, hs_section&) { b.order = 2; }},
      {"section_count=0", [](hs_batch& b, hs_section&) { b.section_count = 0; }},
      {"section_count=17", [](hs_batch& b, hs_section&) { b.section_count = 17; }},
      {"layout=9", [](hs_batch&, hs_section& s) { s.layout = 9; }},
      {"group 1; the layout has 1", [](hs_batch&, hs_section& s) { s.first_component = hs_component(1, 0, 0); }},
      {"cells end at 2^20",
       [](hs_batch&, hs_section& s) { s.first_component = hs_component(0, 0, (1 << 20) - 1), s.component_count = 2; }},
      {"flags=2", [](hs_batch&, hs_section& s) { s.flags = 2; }},
      {"key_count=0", [](hs_batch&, hs_section& s) { s.key_count = 0; }},
      {"keys_bytes=", [](hs_batch&, hs_section& s) { s.keys_bytes += 1; }},
      {"keys: key 1", [](hs_batch&, hs_section& s) { s.keys_bytes -= 1; }},
      {"target_kind=0", [](hs_batch&, hs_section& s) { s.target_kind = HS_TARGET_NONE; }},
      {"iovecs: null", [](hs_batch&, hs_section& s) { s.iovecs = nullptr; }},
      {"iovec of item 0: 64 bytes; the parts asked for have 128",
       [](hs_batch&, hs_section& s) {
         static hs_iovec small[2];
         small[0] = small[1] = {s.iovecs[0].base, 64};
         s.iovecs = small;
       }},
      {"part 1 is selected twice",
       [](hs_batch&, hs_section& s) {
         static const hs_range twice[] = {{0, 2, 1}, {1, 1, 1}};
         s.ranges = twice;
         s.range_count = 2;
       }},
      {"the group has at most 2 parts",
       [](hs_batch&, hs_section& s) {
         static const hs_range far[] = {{1, 2, 1}};
         s.ranges = far;
         s.range_count = 1;
       }},
      {"question: 0 bytes", [](hs_batch& b, hs_section&) { b.operation = HS_OP_EXPLAIN; }},
      {"parts, rows: null", [](hs_batch&, hs_section& s) { s.target_kind = HS_TARGET_ROWS; }},
  };
  for (const Refusal& refusal : kRefusals) {
    std::vector<Octets> back(2, Octets(128));
    TrySection get(layout, names(2));
    get.into(back);
    hs_batch batch = TryClient::batch(HS_OP_GET);
    batch.sections = &get.section;
    batch.section_count = 1;
    refusal.spoil(batch, get.section);
    EXPECT_EQ(client.submit(batch), 0U) << refusal.sentence;
    EXPECT_NE(client.why.find(refusal.sentence), std::string::npos) << client.why;
  }
  std::vector<Octets> wrong(2, Octets(127));
  TrySection put(layout, names(2));
  hs_batch batch = TryClient::batch(HS_OP_PUT);
  EXPECT_EQ(client.submit(batch, put.into(wrong)), 0U);
  EXPECT_NE(client.why.find("all have 128"), std::string::npos) << client.why;
}

TEST(Halfstep, NamesAreTheProtocols) {
  EXPECT_STREQ(hs_answer_name(HS_UNAVAILABLE), "unavailable");
  EXPECT_STREQ(hs_answer_name(200), "unknown");
  EXPECT_STREQ(hs_reason_name(81), "outcome_unknown");
  EXPECT_STREQ(hs_reason_name(9999), "unknown");
  EXPECT_EQ(hs_component(1, 2, 3), 0x01200003U);
  EXPECT_NE(std::string(hs_version()), "");
}

}  // namespace
}  // namespace halfstep::peer
