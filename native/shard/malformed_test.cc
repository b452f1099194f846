// Malformed frames in great number, from a printed seed, while a good client is served.
#include <gtest/gtest.h>

#include "shard/shard_fixture.h"

namespace halfstep::shard {
namespace {

class MalformedTest : public ShardFixture {
 protected:
  // A frame that is well formed, of any kind that a client may send.
  std::vector<std::byte> some_frame(Prng& prng, const RawClient& client) {
    const uint64_t id = 1 + prng.below(8);
    const SectionSpec section = section_of(keys_of("storm-", 1 + prng.below(4)), 2000);
    switch (prng.below(8)) {
      case 0: return request_frame(Opcode::Match, id, {.hold_owner = 1, .hold_ms = 5}, {section});
      case 1: return request_frame(Opcode::Get, id, {.deadline_us = 1000}, {section});
      case 2: return request_frame(Opcode::Put, id, {.deadline_us = 1000}, {section});
      case 3: return request_frame(Opcode::Delete, id, {}, {section});
      case 4: return request_frame(Opcode::Release, id, {}, {}, 1);
      case 5: return request_frame(Opcode::Get, id, {.order = wire::Order::LayerMajor}, {section, section});
      default: return chunk_frame(id, {client.run_of(section, 0, 0, 0, 2)});
    }
  }

  // Changes the frame, and seals it again more often than not: what lies behind the checksums is what has to be robust.
  static void mutate(Prng& prng, std::vector<std::byte>* frame) {
    const uint64_t changes = 1 + prng.below(4);
    for (uint64_t i = 0; i < changes; ++i) {
      const size_t at = prng.below(frame->size());
      (*frame)[at] = prng.chance(0.3) ? std::byte{0xFF} : static_cast<std::byte>(prng.next());
    }
    if (prng.chance(0.2)) frame->resize(prng.below(frame->size()) + 1);
    if (frame->size() < wire::kHeaderBytes || prng.chance(0.1)) return;
    auto header = load_le<wire::Header>(frame->data());
    if (prng.chance(0.9)) {
      header.magic = wire::kMagic;
      header.flags = 0;
      header.reserved = 0;
      if (header.body_bytes > frame->size() - wire::kHeaderBytes) {
        header.body_bytes = static_cast<uint32_t>(frame->size() - wire::kHeaderBytes);
      }
    }
    const size_t body = std::min<size_t>(header.body_bytes, frame->size() - wire::kHeaderBytes);
    wire::seal_header(header, ConstBytes(*frame).subspan(wire::kHeaderBytes, body));
    store_le(frame->data(), header);
  }
};

TEST_F(MalformedTest, AStormCostsNobodyElseAnythingAndLeavesNothing) {
  const uint64_t seed = 20261121;
  SCOPED_TRACE("seed " + std::to_string(seed));
  Prng prng(seed);
  auto good = open({parted(2, 1000)});
  const SectionSpec section = section_of(keys_of("good-", 4), 2000);
  ASSERT_EQ(good->put(5, {section}).at(0, 3).answer, Answer::Ok);

  auto bad = open({parted(2, 1000)});
  uint64_t closed = 0;
  for (uint64_t sent = 0; sent < 50'000; ++sent) {
    std::vector<std::byte> frame = some_frame(prng, *good);
    mutate(prng, &frame);
    if (!bad->send(frame) || bad->ended()) {
      ++closed;
      bad = prng.chance(0.9) ? open({parted(2, 1000)}) : connect();
    }
    if (sent % 1000 != 0) continue;
    good->parts_received.clear();
    const Said said = good->ask(Opcode::Get, 1000 + sent, {.deadline_us = 5'000'000}, {section});
    ASSERT_FALSE(said.malformed);
    for (uint32_t item = 0; item < 4; ++item) ASSERT_EQ(said.at(0, item).answer, Answer::Ok);
    ASSERT_EQ(good->parts_received.size(), 8U);
    ASSERT_EQ(good->wrong_parts, 0U);
  }
  EXPECT_GT(closed, 100U);
  bad->close();
  expect_nothing_held();
  EXPECT_GE(metric("halfstep_protocol_errors_total{kind=\"frame\"}"), 1);
  EXPECT_GE(metric("halfstep_protocol_errors_total{kind=\"chunk\"}"), 1);
}

}  // namespace
}  // namespace halfstep::shard
