// What a namespace has, by group and codecs: the bytes that were put, those that are stored, and whole pages of flash; after
// restarts, deletions and reclaim as well.
#include <gtest/gtest.h>

#include "store/store_fixture.h"

namespace halfstep::store {
namespace stock_test {

constexpr uint64_t kThird = 8;

// A block of the plain group, of which three parts of four are coded by codec 3.
Status put_coded(StoreBed& bed, std::string_view name) {
  std::vector<PartInfo> parts(4);
  for (PartInfo& part : parts) part = {0, 3000, 4096, 0, 77, 3};
  parts[3] = {0, 4096, 4096, 0, 0, 0};
  StoreBed::Put put;
  const Status status = bed.begin_put(put, name, kGroupPlain, 16384, true, parts);
  if (!status.ok()) return status;
  while (!put.done) bed.pump();
  return put.write.status;
}

class Stocks : public ::testing::Test {
 protected:
  Stocks() : bed_(1, 16) { bed_.open(); }

  NamespaceStock of(uint64_t codecs, uint16_t group = kGroupPlain) {
    for (const NamespaceStock& stock : bed_.store->stocks()) {
      if (stock.codecs == codecs && stock.group == group) return stock;
    }
    return {};
  }
  void expect(uint64_t codecs, uint64_t blocks, uint64_t stored_bytes, uint64_t flash_bytes) {
    const NamespaceStock stock = of(codecs);
    EXPECT_EQ(stock.blocks, blocks);
    EXPECT_EQ(stock.logical_bytes, blocks * 16384);
    EXPECT_EQ(stock.stored_bytes, blocks * stored_bytes);
    EXPECT_EQ(stock.flash_bytes, blocks * flash_bytes);
    if (blocks > 0) {
      EXPECT_EQ(stock.name_space, "default");
    }
  }
  // 13,096 bytes and a trailer for four parts are four pages.
  void expect_both(uint64_t coded, uint64_t raw) {
    expect(kThird, coded, 13096, 16384);
    expect(0, raw, 16384, 16384);
    uint64_t flash_bytes = 0;
    for (const NamespaceStock& stock : bed_.store->stocks()) flash_bytes += stock.flash_bytes;
    EXPECT_EQ(flash_bytes, bed_.store->gauges().bytes_live) << "all that lives is of some kind";
  }

  StoreBed bed_;
};

TEST_F(Stocks, CountLogicalStoredAndFlashBytesByCodec) {
  expect_both(0, 0);
  for (const char* name : {"a", "b", "c"}) ASSERT_EQ(put_coded(bed_, name), Code::Ok);
  ASSERT_EQ(bed_.put("raw", kGroupPlain, 16384, true), Code::Ok);
  bed_.settle();
  expect_both(3, 1);
}

TEST_F(Stocks, AreTheSameAfterARestart) {
  for (const char* name : {"a", "b", "c"}) ASSERT_EQ(put_coded(bed_, name), Code::Ok);
  ASSERT_EQ(bed_.put("raw", kGroupPlain, 16384, true), Code::Ok);
  for (const bool clean : {true, false}) {
    if (clean) {
      bed_.reopen();
    } else {
      bed_.crash(io::MemoryEngine::Crash::PowerCut);
      bed_.open();
    }
    expect_both(3, 1);
  }
}

TEST_F(Stocks, LoseWhatIsDeletedOrReplaced) {
  for (const char* name : {"a", "b", "c"}) ASSERT_EQ(put_coded(bed_, name), Code::Ok);
  bed_.settle();
  ASSERT_EQ(bed_.remove("b"), Code::Ok);
  expect_both(2, 0);
  // Whoever cannot decode it puts it plain, in its place.
  StoreBed::Put put;
  put.write.codecs = 1;
  ASSERT_EQ(bed_.begin_put(put, "c", kGroupPlain, 16384, true), Code::Ok);
  while (!put.done) bed_.pump();
  bed_.settle();
  expect_both(1, 1);
}

// The store is written over several times; what is told is what a look at the index finds.
TEST_F(Stocks, AddUpThroughReclaim) {
  for (int round = 0; round < 600; ++round) {
    const std::string name = "block-" + std::to_string(round);
    const Status status = round % 3 == 0 ? put_coded(bed_, name) : bed_.put(name, kGroupPlain, 16384, true);
    ASSERT_TRUE(status.ok() || status == Code::Throttled) << round;
    if (status == Code::Throttled) bed_.settle();
  }
  bed_.settle();
  const NamespaceStock coded = of(kThird);
  const NamespaceStock raw = of(0);
  EXPECT_GT(coded.blocks, 10U);
  EXPECT_GT(raw.blocks, 10U);
  expect_both(coded.blocks, raw.blocks);
  EXPECT_EQ(coded.blocks + raw.blocks, bed_.store->gauges().blocks);
}

// Blocks of all lengths in one segment, some of which go alone: then what is told of the rest is near, and never more than
// their pages.
TEST_F(Stocks, OfUnequalBlocksKeepTheirMeasure) {
  uint64_t put_bytes = 0;
  for (uint32_t i = 0; i < 8; ++i) {
    ASSERT_EQ(bed_.put("ragged-" + std::to_string(i), kGroupOpaque, 1000 + 9000 * i, true), Code::Ok);
    put_bytes += 1000 + 9000 * i;
  }
  bed_.settle();
  NamespaceStock stock = of(0, kGroupOpaque);
  EXPECT_EQ(stock.blocks, 8U);
  EXPECT_EQ(stock.logical_bytes, put_bytes) << "exactly, as long as none has gone";
  for (uint32_t i = 1; i < 7; ++i) ASSERT_EQ(bed_.remove("ragged-" + std::to_string(i), kGroupOpaque), Code::Ok);
  stock = of(0, kGroupOpaque);
  EXPECT_EQ(stock.blocks, 2U);
  EXPECT_LE(stock.stored_bytes, stock.flash_bytes);
  const uint64_t left_bytes = 1000 + 64'000;
  EXPECT_NEAR(static_cast<double>(stock.logical_bytes), left_bytes, left_bytes / 10);
  bed_.reopen();
  EXPECT_EQ(of(0, kGroupOpaque).logical_bytes, left_bytes) << "a start adds up anew";
}

}  // namespace stock_test
}  // namespace halfstep::store
