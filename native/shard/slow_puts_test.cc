// Puts that fill what they were granted slowly, while others wait for memory.
#include <gtest/gtest.h>

#include "shard/put_fixture.h"

namespace halfstep::shard {
namespace {

// Writes may hold half of 64 MiB; the fake store lets them have all.
class SlowPuts : public PutTest {
 protected:
  static constexpr uint32_t kBlockBytes = 4 * MiB;
  // All of the memory but `left_bytes` is granted, to connections that send nothing.
  void hoard_all(uint32_t left_bytes) {
    while (const uint64_t room = free_bytes() - left_bytes) {
      auto client = open({opaque()});
      const auto bytes = static_cast<uint32_t>(std::min<uint64_t>(room, kBlockBytes));
      offer(*client, 5, section_of({"hoard" + std::to_string(hoards_.size())}, bytes));
      hoards_.push_back(std::move(client));
    }
  }
  uint64_t free_bytes() {
    return on_shard([&] { return fake_->free_bytes(); });
  }
  std::vector<std::unique_ptr<RawClient>> hoards_;
};

TEST_F(SlowPuts, GiveTheirMemoryToWhoeverWaitsForIt) {
  hoard_all(0);
  auto patient = open({opaque()});
  const SectionSpec section = section_of({"patient"}, kBlockBytes);
  patient->send(request_frame(Opcode::Put, 7, {}, {section}));
  wait_until([&] { return !shard_->write_waiters().empty(); });
  stop_clock();  // a look that the machine makes late would count for none
  // The first one sends in each half second, and so it is not slow.
  const SectionSpec first = section_of({"hoard0"}, kBlockBytes);
  uint32_t sent = 0;
  while (sent < 8 && on_shard([&] { return shard_->counts().grants_taken_back; }) == 0) {
    hoards_[0]->send(chunk_frame(5, {hoards_[0]->run_of(first, 0, 0, sent, 1)}));
    ++sent;
    wait_until([&] { return shard_->counts().put_payload_bytes == sent * 256 * KiB; });
    pass_ms(500);
  }
  EXPECT_GE(sent, 2U) << "once may be an accident";
  Frame want;
  ASSERT_TRUE(patient->next(7, &want));
  EXPECT_EQ(want.opcode(), Opcode::Want);
  patient->send_item(7, section, 0, 0);
  EXPECT_EQ(patient->finish(7).at(0, 0), kStored);
  EXPECT_EQ(metric("halfstep_put_grants_taken_back_total"), 1) << "no more than was needed";
  for (uint32_t part = sent; part < 16; ++part) {
    hoards_[0]->send(chunk_frame(5, {hoards_[0]->run_of(first, 0, 0, part, 1)}));
  }
  EXPECT_EQ(hoards_[0]->finish(5).at(0, 0), kStored);
}

TEST_F(SlowPuts, KeepTheirMemoryWhenItWasTheShardThatStoodStill) {
  hoard_all(0);
  auto patient = open({opaque()});
  patient->send(request_frame(Opcode::Put, 7, {}, {section_of({"patient"}, kBlockBytes)}));
  wait_until([&] { return !shard_->write_waiters().empty(); });
  stop_clock();
  for (int i = 0; i < 3; ++i) pass_ms(1'000);  // each look is half a second late
  EXPECT_EQ(metric("halfstep_put_grants_taken_back_total"), 0);
}

TEST_F(SlowPuts, KeepTheirMemoryWhileNobodyWaitsForIt) {
  hoard_all(0);
  pass_ms(2'000);
  EXPECT_EQ(metric("halfstep_put_grants_taken_back_total"), 0);
  EXPECT_EQ(on_shard([&] { return fake_->open_writes(); }), hoards_.size());
}

TEST_F(SlowPuts, ASmallPutPassesOneThatWantsMuch) {
  hoard_all(512 * KiB);
  auto large = open({opaque()});
  large->send(request_frame(Opcode::Put, 7, {}, {section_of({"large"}, kBlockBytes)}));
  wait_until([&] { return !shard_->write_waiters().empty(); });
  auto small = open({opaque()});
  EXPECT_EQ(small->put(8, {section_of({"small"}, 1000)}).at(0, 0), kStored);
  // Not one that would need much as well.
  small->send(request_frame(Opcode::Put, 9, {}, {section_of({"not small"}, kBlockBytes / 2)}));
  EXPECT_FALSE(there(*small, section_of({"not small"}, kBlockBytes / 2)));
  EXPECT_EQ(on_shard([&] { return shard_->counts().requests_open; }), hoards_.size() + 2);
}

}  // namespace
}  // namespace halfstep::shard
