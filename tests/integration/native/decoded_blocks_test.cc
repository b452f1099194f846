// Coded blocks for clients that know no codec, from a daemon that decodes: what comes back, in which order, and within which
// memory.
#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "base/prng.h"
#include "compress/codec.h"
#include "daemon_fixture.h"
#include "peer/try_client.h"
#include "shard/metrics_fixture.h"

namespace halfstep {
namespace decoded_blocks_test {

using peer::names;
using peer::Octets;
using peer::text_of;
using peer::TryClient;
using peer::TrySection;

constexpr uint32_t kPartBytes = 300'000;  // in two pieces of memory, which no page ends
constexpr uint32_t kParts = 4;
constexpr uint32_t kBlockBytes = kParts * kPartBytes;
constexpr uint32_t kKeys = 20;

Octets kv_block(uint64_t seed) {
  Prng prng(seed);
  Octets out(kBlockBytes);
  for (size_t i = 0; i < out.size(); i += 2) {
    const auto value = static_cast<uint16_t>((118 + prng.below(8)) << 7 | prng.below(128));
    std::memcpy(out.data() + i, &value, sizeof(value));
  }
  return out;
}

class DecodedBlocks : public DaemonFixture, public ::testing::WithParamInterface<size_t> {
 protected:
  void configure() override {
    config_.decode_bytes = 8 * MiB;  // six blocks
    for (uint32_t i = 0; i < kKeys; ++i) blocks_.push_back(kv_block(i));
  }
  std::unique_ptr<TryClient> connect(uint64_t codecs) const {
    return std::make_unique<TryClient>(address(GetParam()), 1, 0, 0, 5, codecs);
  }
  static wire::Layout layout_of(const std::string& codec) {
    wire::Layout layout;
    const wire::GroupShape shape{.part_count = kParts, .size_count = 1, .part_bytes = {kPartBytes}};
    const std::string part = codec == "ubq" ? "bf16/120/0.1" : "bf16/120";
    EXPECT_TRUE(wire::Layout::make({{"codec", codec}, {"codec.0", part}}, {shape}, &layout).ok());
    return layout;
  }
  void put(const std::string& codec) {
    const auto client = connect(compress::kCodecs);
    TrySection section(client->layout(layout_of(codec)), names(kKeys));
    hs_batch batch = TryClient::batch(HS_OP_PUT, 30'000'000);
    batch.durability = HS_PERSIST;
    ASSERT_EQ(client->call(batch, section.into(blocks_)).items_ok, kKeys) << text_of(section.answers[0]);
  }
  double metric(const std::string& name) const { return shard::value_of(server_->metrics(), name); }
  double decoded() const { return metric("halfstep_decodes_total{outcome=\"done\"}"); }

  std::vector<Octets> blocks_;
};
INSTANTIATE_TEST_SUITE_P(Transports, DecodedBlocks, ::testing::Values(0U, 1U),
                         [](const auto& of) { return of.param == 0 ? "tcp" : "shm"; });

TEST_P(DecodedBlocks, ComeExactlyFromMemoryAndFromFlashThroughLessMemoryThanTheyTake) {
  put("bfx");
  for (int round = 0; round < 2; ++round) {
    const auto plain = connect(0);
    std::vector<Octets> back(kKeys, Octets(kBlockBytes));
    TrySection get(plain->layout(layout_of("bfx")), names(kKeys));
    hs_batch batch = TryClient::batch(HS_OP_GET, 30'000'000);
    ASSERT_EQ(plain->call(batch, get.into(back)).items_ok, kKeys) << text_of(get.answers[0]);
    EXPECT_EQ(back, blocks_);
    EXPECT_EQ(decoded(), kKeys);
    EXPECT_EQ(metric("halfstep_decoded_bytes_total{of=\"raw\"}"), double{kKeys} * kBlockBytes);
    EXPECT_LT(metric("halfstep_decoded_bytes_total{of=\"stored\"}"), double{kKeys} * kBlockBytes * 3 / 4);
    EXPECT_EQ(plain->facts().checksum_failures, 0U);
    restart();
  }
}

TEST_P(DecodedBlocks, GiveTheirRangesAndTheirLayers) {
  put("zstd");
  restart();
  const auto plain = connect(0);
  const int handle = plain->layout(layout_of("zstd"));
  for (const uint8_t order : {HS_KEY_MAJOR, HS_LAYER_MAJOR}) {
    std::vector<Octets> some(5, Octets(2 * kPartBytes));
    TrySection ranged(handle, names(5));
    ranged.select({{3, 1, 1}, {1, 1, 1}}).into(some);
    ASSERT_EQ(plain->get(ranged, order).items_ok, 5U) << text_of(ranged.answers[0]);
    for (size_t i = 0; i < 5; ++i) {
      Octets expected(blocks_[i].begin() + 3 * kPartBytes, blocks_[i].end());
      expected.insert(expected.end(), blocks_[i].begin() + kPartBytes, blocks_[i].begin() + 2 * kPartBytes);
      EXPECT_EQ(some[i], expected) << i;
    }
    std::vector<Octets> whole(4, Octets(kBlockBytes));
    TrySection all(handle, names(4));
    ASSERT_EQ(plain->get(all.into(whole), order).items_ok, 4U) << text_of(all.answers[0]);
    EXPECT_TRUE(std::equal(whole.begin(), whole.end(), blocks_.begin()));
  }
}

// All of a window are sent layer by layer, and so all of them have to be there: what does not fit is asked for again.
TEST_P(DecodedBlocks, OfAWindowThatTheMemoryDoesNotHoldTheRestIsThrottled) {
  put("bfx");
  const auto plain = connect(0);
  const int handle = plain->layout(layout_of("bfx"));
  std::vector<Octets> back(kKeys, Octets(kBlockBytes));
  TrySection get(handle, names(kKeys));
  const uint32_t ok = plain->get(get.into(back), HS_LAYER_MAJOR).items_ok;
  EXPECT_GE(ok, 4U);
  EXPECT_LT(ok, kKeys);
  for (uint32_t i = 0; i < kKeys; ++i) {
    if (text_of(get.answers[i]).starts_with("ok")) {
      EXPECT_EQ(back[i], blocks_[i]) << i;
    } else {
      EXPECT_EQ(text_of(get.answers[i]), "throttled(budget)") << i;
    }
  }
  EXPECT_EQ(metric("halfstep_decodes_total{outcome=\"throttled\"}"), kKeys - ok);
}

TEST_P(DecodedBlocks, OfALossyLayoutAreTheSameForAllWhoNameIt) {
  put("ubq");
  const auto plain = connect(0);
  const auto coded = connect(compress::kCodecs);
  std::vector<Octets> here(3, Octets(kBlockBytes));
  std::vector<Octets> there(3, Octets(kBlockBytes));
  TrySection decoded_there(plain->layout(layout_of("ubq")), names(3));
  TrySection decoded_here(coded->layout(layout_of("ubq")), names(3));
  ASSERT_EQ(plain->get(decoded_there.into(there)).items_ok, 3U) << text_of(decoded_there.answers[0]);
  ASSERT_EQ(coded->get(decoded_here.into(here)).items_ok, 3U) << text_of(decoded_here.answers[0]);
  EXPECT_EQ(here, there);
  EXPECT_NE(here[0], blocks_[0]) << "it is lossy";
}

TEST_P(DecodedBlocks, AreThereForAMatchAndForAPut) {
  put("bfx");
  const auto plain = connect(0);
  const int handle = plain->layout(layout_of("bfx"));
  TrySection match(handle, names(kKeys));
  EXPECT_EQ(plain->match(match).items_ok, kKeys);
  EXPECT_EQ(match.lengths[0], kBlockBytes);
  TrySection again(handle, names(1));
  std::vector<Octets> first(blocks_.begin(), blocks_.begin() + 1);
  EXPECT_EQ(plain->put(again.into(first)).items_ok, 1U);
  EXPECT_EQ(text_of(again.answers[0]), "ok(present)") << "it need not be stored plain for this client";
}

}  // namespace decoded_blocks_test
}  // namespace halfstep
