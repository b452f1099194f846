// What becomes of blocks that the daemon is to decode and cannot, and of those that nobody waits for any more. What comes back
// of good ones is tests/integration/native/decoded_blocks_test.cc's.
#include "shard/decoder.h"

#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "base/crc.h"
#include "compress/codec.h"
#include "shard/get_fixture.h"

namespace halfstep::shard {
namespace {

class DecoderTest : public GetTest {
 protected:
  DecoderTest() { config_.decode_bytes = 8 * MiB; }
  double decodes(const std::string& outcome) { return metric("halfstep_decodes_total{outcome=\"" + outcome + "\"}"); }
};

TEST_F(DecoderTest, APartThatIsNoUnitIsAMissThatIsCounted) {
  const auto client = open({parted(2, 4096)});
  const std::vector<SectionSpec> both{section_of({"good", "bad"}, 8192)};
  fill(*client, both);
  on_shard([&] { fake_->mark_coded("bad"); });
  const Said said = client->ask(Opcode::Get, 5, {}, both);
  EXPECT_EQ(said.at(0, 0), kOk);
  EXPECT_EQ(said.at(0, 1), (AnswerReason{Answer::Miss, Reason::Corrupt}));
  EXPECT_EQ(decodes("corrupt"), 1);
  EXPECT_EQ(decodes("done"), 0);
  expect_nothing_held();
  EXPECT_EQ(metric("halfstep_decode_memory_bytes{of=\"used\"}"), 0);
}

TEST_F(DecoderTest, WithoutItTheReasonIsAsEver) {
  configure([](Config& config) { config.decode_bytes = 0; });
  const auto client = open({parted(2, 4096)});
  const std::vector<SectionSpec> one{section_of({"coded"}, 8192)};
  fill(*client, one);
  on_shard([&] { fake_->mark_coded("coded"); });
  EXPECT_EQ(client->ask(Opcode::Get, 5, {}, one).at(0, 0), (AnswerReason{Answer::Rejected, Reason::Unsupported}));
  EXPECT_EQ(decodes("corrupt"), 0);
  expect_nothing_held();
}

TEST_F(DecoderTest, AClientThatLeavesLeavesNothingBehind) {
  const std::vector<std::string> keys = keys_of("k", 48);
  {
    const auto client = open({parted(2, 65536)});
    const std::vector<SectionSpec> all{section_of(keys, 2 * 65536)};
    fill(*client, all);
    on_shard([&] {
      for (const std::string& key : keys) fake_->mark_coded(key);
    });
    client->send(request_frame(Opcode::Get, 5, {}, all));
    wait_until([&] { return fake_->reads_begun > 0; });
  }
  expect_nothing_held();
  EXPECT_EQ(metric("halfstep_decode_memory_bytes{of=\"used\"}"), 0);
}

// A pool of one thread that a test holds: what is abandoned begins no further part.
TEST(DecodePool, AnAbandonedJobIsNotBegun) {
  DecodePool pool;
  ASSERT_TRUE(pool.start().ok());
  struct Told final : DecodePool::Owner {
    void decoded(DecodePool::Job&) noexcept override { done.set_value(); }
    std::promise<void> done;
  } told;
  std::vector<std::byte> stored(100, std::byte{7});
  std::vector<std::byte> raw(100);
  DecodePool::Job job;
  job.owner = &told;
  job.abandoned = true;
  job.parts.push_back({.codec = compress::kRaw, .stored_bytes = 100, .raw_bytes = 100, .raw_crc = crc32c(stored)});
  job.in.emplace_back(stored);
  job.out.emplace_back(raw);
  pool.submit(job);
  told.done.get_future().wait();
  EXPECT_EQ(job.status, Code::Cancelled);
  EXPECT_EQ(raw, std::vector<std::byte>(100));
}

// Whatever pieces a part's memory is in, its bytes are those.
TEST(DecodePool, PartsInPiecesComeOutWhole) {
  DecodePool pool;
  ASSERT_TRUE(pool.start().ok());
  struct Told final : DecodePool::Owner {
    void decoded(DecodePool::Job&) noexcept override { done.set_value(); }
    std::promise<void> done;
  } told;
  compress::Scratch scratch;
  const std::vector<std::byte> part(9000, std::byte{42});
  std::vector<std::byte> unit(part.size());
  unit.resize(compress::find_codec(uint32_t{compress::kZstd})->encode(part, {}, scratch, unit));
  ASSERT_FALSE(unit.empty());
  std::vector<std::byte> raw(2 * part.size());
  DecodePool::Job job;
  job.owner = &told;
  const auto piece = [](auto& of, size_t from, size_t count) { return std::span(of).subspan(from, count); };
  for (uint32_t number = 0; number < 2; ++number) {
    job.parts.push_back({.codec = compress::kZstd,
                         .stored_bytes = static_cast<uint32_t>(unit.size()),
                         .raw_bytes = 9000,
                         .raw_crc = crc32c(part),
                         .in = 2 * number,
                         .out = 2 * number});
    job.in.emplace_back(piece(unit, 0, 10));
    job.in.emplace_back(piece(unit, 10, unit.size() - 10));
    job.out.push_back(piece(raw, number * 9000, 4000));
    job.out.push_back(piece(raw, number * 9000 + 4000, 5000));
  }
  pool.submit(job);
  told.done.get_future().wait();
  EXPECT_EQ(job.status, Status());
  EXPECT_EQ(raw, std::vector<std::byte>(18'000, std::byte{42}));
}

}  // namespace
}  // namespace halfstep::shard
