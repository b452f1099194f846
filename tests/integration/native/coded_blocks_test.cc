// Blocks that travel coded between a client and a daemon in one process: what comes back, for whom, and in how many bytes.
#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/prng.h"
#include "compress/codec.h"
#include "daemon_fixture.h"
#include "peer/try_client.h"

namespace halfstep {
namespace {

using peer::names;
using peer::Octets;
using peer::random_octets;
using peer::text_of;
using peer::TryClient;
using peer::TrySection;

constexpr uint32_t kPartBytes = 16'384;
constexpr uint32_t kParts = 8;
constexpr uint32_t kBlockBytes = kParts * kPartBytes;
constexpr uint64_t kBfx = uint64_t{1} << compress::kBfx;

// bf16 values of both signs and of a few magnitudes, as a cache has them.
Octets kv_block(uint64_t seed, uint32_t bytes = kBlockBytes) {
  Prng prng(seed);
  Octets out(bytes);
  for (size_t i = 0; i + 1 < out.size(); i += 2) {
    const auto low = static_cast<uint16_t>(prng.below(256));
    const auto exponent = static_cast<uint16_t>(124 - __builtin_ctzll(prng.next() | 1U << 12));
    const auto value = static_cast<uint16_t>(exponent << 7 | (low & 0x7F) | (low >> 7) << 15);
    std::memcpy(out.data() + i, &value, sizeof(value));
  }
  return out;
}

std::vector<Octets> kv_blocks(size_t count, uint64_t seed) {
  std::vector<Octets> out;
  for (size_t i = 0; i < count; ++i) out.push_back(kv_block(seed + i));
  return out;
}

wire::Layout layout_of(const std::string& codec, uint32_t part_bytes = kPartBytes, uint16_t parts = kParts) {
  std::vector<std::pair<std::string, std::string>> fields{{"model", "tiny"}};
  if (!codec.empty()) fields.insert(fields.end(), {{"codec", codec}, {"codec.0", "bf16/128"}});
  wire::Layout layout;
  const wire::GroupShape shape{.part_count = parts, .size_count = 1, .part_bytes = {part_bytes}};
  EXPECT_TRUE(wire::Layout::make(std::move(fields), {shape}, &layout).ok());
  return layout;
}

class CodedBlocks : public DaemonFixture, public ::testing::WithParamInterface<size_t> {
 protected:
  std::unique_ptr<TryClient> connect(uint64_t codecs = kBfx) const {
    return std::make_unique<TryClient>(address(GetParam()), 2, 0, 0, 5, codecs);
  }
  // Of blocks and of what follows them, in pages.
  static uint64_t sent_bytes(TryClient& client) { return client.facts().bytes_sent; }
};
INSTANTIATE_TEST_SUITE_P(Transports, CodedBlocks, ::testing::Values(0U, 1U),
                         [](const auto& of) { return of.param == 0 ? "tcp" : "shm"; });

TEST_P(CodedBlocks, ComeBackExactlyAndTravelInFewerBytesThenAndAfterARestart) {
  std::vector<Octets> blocks = kv_blocks(32, 1);
  for (size_t round = 0; round < 2; ++round) {
    const auto client = connect();
    const int handle = client->layout(layout_of("bfx"));
    if (round == 0) {
      TrySection put(handle, names(32));
      put.into(blocks);
      hs_batch batch = TryClient::batch(HS_OP_PUT);
      batch.durability = HS_PERSIST;
      batch.sections = &put.section;
      batch.section_count = 1;
      ASSERT_EQ(client->call(batch).items_ok, 32U) << text_of(put.answers[0]);
      EXPECT_TRUE(put.all("ok(stored)"));
      EXPECT_LT(sent_bytes(*client), 32 * kBlockBytes * 3 / 4);
      EXPECT_GT(sent_bytes(*client), 32 * kBlockBytes / 2);
    }
    for (const uint8_t order : {HS_KEY_MAJOR, HS_LAYER_MAJOR}) {
      const uint64_t before = client->facts().bytes_received;
      std::vector<Octets> back(32, Octets(kBlockBytes));
      TrySection get(handle, names(32));
      ASSERT_EQ(client->get(get.into(back), order).items_ok, 32U) << text_of(get.answers[0]);
      EXPECT_EQ(back, blocks);
      EXPECT_EQ(get.lengths[31], kBlockBytes) << "what the caller gets";
      EXPECT_LT(client->facts().bytes_received - before, 32 * kBlockBytes * 3 / 4);
    }
    EXPECT_EQ(client->facts().checksum_failures, 0U);
    EXPECT_EQ(client->facts().decode_failures, 0U);
    restart();
  }
}

TEST_P(CodedBlocks, GiveTheirPartsToRangesAndToMemoryInPieces) {
  std::vector<Octets> blocks = kv_blocks(5, 50);
  const auto client = connect();
  const int handle = client->layout(layout_of("bfx"));
  TrySection put(handle, names(5));
  ASSERT_EQ(client->put(put.into(blocks)).items_ok, 5U);
  for (const uint8_t order : {HS_KEY_MAJOR, HS_LAYER_MAJOR}) {
    std::vector<Octets> some(5, Octets(3 * kPartBytes));
    TrySection ranged(handle, names(5));
    ranged.select({{6, 2, 1}, {1, 1, 1}}).into(some);
    ASSERT_EQ(client->get(ranged, order).items_ok, 5U) << text_of(ranged.answers[0]);
    for (size_t i = 0; i < 5; ++i) {
      Octets expected(blocks[i].begin() + 6 * kPartBytes, blocks[i].end());
      expected.insert(expected.end(), blocks[i].begin() + kPartBytes, blocks[i].begin() + 2 * kPartBytes);
      EXPECT_EQ(some[i], expected);
    }
  }
  // Rows of 1,000-odd bytes that no part begins or ends with.
  std::vector<Octets> back(5, Octets(kBlockBytes));
  TrySection get(handle, names(5));
  get.into(back);
  std::vector<hs_iovec> pieces;
  std::vector<uint32_t> counts;
  for (Octets& block : back) {
    const size_t before = pieces.size();
    for (size_t at = 0; at < block.size(); at += 1021) {
      pieces.push_back({block.data() + at, std::min<size_t>(1021, block.size() - at)});
    }
    counts.push_back(static_cast<uint32_t>(pieces.size() - before));
  }
  get.section.iovecs = pieces.data();
  get.section.iovec_counts = counts.data();
  ASSERT_EQ(client->get(get).items_ok, 5U);
  EXPECT_EQ(back, blocks);
  // And out of such memory.
  TrySection again(handle, names(5, "again-"));
  again.into(blocks);
  std::vector<hs_iovec> sources;
  for (Octets& block : blocks) {
    for (size_t at = 0; at < block.size(); at += 1021) {
      sources.push_back({block.data() + at, std::min<size_t>(1021, block.size() - at)});
    }
  }
  again.section.iovecs = sources.data();
  again.section.iovec_counts = counts.data();
  ASSERT_EQ(client->put(again).items_ok, 5U);
  std::vector<Octets> whole(5, Octets(kBlockBytes));
  TrySection last(handle, names(5, "again-"));
  ASSERT_EQ(client->get(last.into(whole)).items_ok, 5U);
  EXPECT_EQ(whole, blocks);
}

TEST_P(CodedBlocks, PartsLongerThanAChunkComeInPieces) {
  constexpr uint32_t kLong = 1 << 20;
  std::vector<Octets> blocks{kv_block(70, 3 * kLong), kv_block(71, 3 * kLong)};
  const auto client = connect();
  const int handle = client->layout(layout_of("bfx", kLong, 3));
  TrySection put(handle, names(2));
  ASSERT_EQ(client->put(put.into(blocks)).items_ok, 2U);
  for (const uint8_t order : {HS_KEY_MAJOR, HS_LAYER_MAJOR}) {
    std::vector<Octets> back(2, Octets(3 * kLong));
    TrySection get(handle, names(2));
    ASSERT_EQ(client->get(get.into(back), order).items_ok, 2U);
    EXPECT_EQ(back, blocks);
  }
}

TEST_P(CodedBlocks, AreMissesToAClientWithoutTheCodecWhichMayReplaceThem) {
  std::vector<Octets> blocks = kv_blocks(2, 90);
  const auto client = connect();
  const wire::Layout layout = layout_of("bfx");
  TrySection put(client->layout(layout), names(2));
  hs_batch batch = TryClient::batch(HS_OP_PUT);
  batch.durability = HS_PERSIST;  // one that is still being written is its writer's
  ASSERT_EQ(client->call(batch, put.into(blocks)).items_ok, 2U);

  const auto plain = connect(0);
  const int handle = plain->layout(layout);
  TrySection match(handle, names(2));
  EXPECT_EQ(plain->match(match).items_ok, 0U);
  std::vector<Octets> back(2, Octets(kBlockBytes));
  TrySection get(handle, names(2));
  EXPECT_EQ(plain->get(get.into(back)).items_ok, 0U);
  EXPECT_TRUE(get.all("miss(absent)")) << text_of(get.answers[0]);
  TrySection replace(handle, names(2));
  EXPECT_EQ(plain->put(replace.into(blocks)).items_ok, 2U);
  EXPECT_TRUE(replace.all("ok(stored)")) << text_of(replace.answers[0]);
  TrySection now(handle, names(2));
  EXPECT_EQ(plain->get(now.into(back)).items_ok, 2U);
  EXPECT_EQ(back, blocks);
  // Plain blocks are there for those with the codec as well.
  std::vector<Octets> decoded(2, Octets(kBlockBytes));
  TrySection both(client->layout(layout), names(2));
  EXPECT_EQ(client->get(both.into(decoded)).items_ok, 2U);
  EXPECT_EQ(decoded, blocks);
}

TEST_P(CodedBlocks, NoiseTravelsPlainAndPartsThatDoNotGainAreRaw) {
  std::vector<Octets> blocks{random_octets(kBlockBytes, 1), kv_block(2), kv_block(3)};
  const Octets noise = random_octets(3 * kPartBytes, 4);
  std::copy(noise.begin(), noise.end(), blocks[2].begin() + kPartBytes);
  const auto client = connect();
  const int handle = client->layout(layout_of("bfx"));
  TrySection put(handle, names(3));
  ASSERT_EQ(client->put(put.into(blocks)).items_ok, 3U);
  std::vector<Octets> back(3, Octets(kBlockBytes));
  TrySection get(handle, names(3));
  ASSERT_EQ(client->get(get.into(back)).items_ok, 3U);
  EXPECT_EQ(back, blocks);
  // The first is there for who knows no codec; the other two are coded.
  const auto plain = connect(0);
  TrySection match(plain->layout(layout_of("bfx")), names(3));
  EXPECT_EQ(plain->match(match).items_ok, 1U);
  EXPECT_EQ(text_of(match.answers[0]), "ok(present)");
}

TEST_P(CodedBlocks, ManyPartTablesAreCutIntoRequestsThatTheyFit) {
  constexpr uint16_t kManyParts = 512;
  constexpr uint32_t kSmall = 1024;
  constexpr uint32_t kBytes = kManyParts * kSmall;
  std::vector<Octets> blocks;
  for (uint64_t i = 0; i < 48; ++i) blocks.push_back(kv_block(300 + i, kBytes));
  const auto client = connect();
  const int handle = client->layout(layout_of("bfx", kSmall, kManyParts));
  TrySection put(handle, names(48));
  ASSERT_EQ(client->put(put.into(blocks)).items_ok, 48U) << text_of(put.answers[0]);
  std::vector<Octets> back(48, Octets(kBytes));
  TrySection get(handle, names(48));
  ASSERT_EQ(client->get(get.into(back)).items_ok, 48U);
  EXPECT_EQ(back, blocks);
}

// A deadline or a cancel in the midst of coding and of decoding: when the terminal event has come, nobody reads the source and
// nobody writes the target any more.
TEST_P(CodedBlocks, NothingTouchesTheCallersMemoryAfterTheTerminalEvent) {
  std::vector<Octets> blocks = kv_blocks(24, 500);
  const auto client = connect();
  const int handle = client->layout(layout_of("bfx"));
  ASSERT_TRUE(client->ready());
  TrySection put(handle, names(24));
  ASSERT_EQ(client->put(put.into(blocks)).items_ok, 24U);
  Prng prng(7);
  uint64_t cut = 0;
  for (int round = 0; round < 300; ++round) {
    const bool puts = round % 2 == 0;
    std::vector<Octets> memory = puts ? blocks : std::vector<Octets>(24, Octets(kBlockBytes));
    TrySection section(handle, names(24, puts ? std::to_string(round).append("-") : "key-"));
    section.into(memory);
    hs_batch batch = TryClient::batch(puts ? HS_OP_PUT : HS_OP_GET);
    batch.sections = &section.section;
    batch.section_count = 1;
    batch.deadline_us = static_cast<uint32_t>(100 + prng.below(3000));
    const hs_event event = client->call(batch);
    cut += event.items_ok < 24 ? 1 : 0;
    // Whoever still read or wrote here would race with this, which the thread sanitizer sees; and what is written is seen
    // below.
    for (Octets& block : memory) std::memset(block.data(), 0x5A, block.size());
    if (round % 16 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(2));
    for (const Octets& block : memory) ASSERT_EQ(block, Octets(kBlockBytes, std::byte{0x5A}));
  }
  EXPECT_GT(cut, 0U) << "no deadline came in the midst of anything";
  std::vector<Octets> back(24, Octets(kBlockBytes));
  TrySection get(handle, names(24));
  ASSERT_EQ(client->get(get.into(back)).items_ok, 24U);
  EXPECT_EQ(back, blocks);
}

TEST_P(CodedBlocks, AClientThatIsClosedWhileItCodesEndsItsTickets) {
  std::vector<Octets> blocks = kv_blocks(64, 900);
  for (int round = 0; round < 10; ++round) {
    auto client = connect();
    const int handle = client->layout(layout_of("bfx"));
    TrySection put(handle, names(64, std::to_string(round).append("-")));
    put.into(blocks);
    hs_batch batch = TryClient::batch(HS_OP_PUT);
    batch.sections = &put.section;
    batch.section_count = 1;
    ASSERT_NE(client->submit(batch), 0U);
    client.reset();
    for (const hs_answer& answer : put.answers) EXPECT_NE(answer.answer, HS_PENDING);
  }
}

}  // namespace
}  // namespace halfstep
