// fsck against what was put in, and against what a start makes of the same damage.
#include "store/recover/fsck.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "store/durable/blocking_io.h"
#include "store/format/page.h"
#include "store/twin_fixture.h"

namespace halfstep::store {
namespace fsck_test {

constexpr uint32_t kBlocks = 120;

std::string name_of(uint32_t number) {
  return (number % 2 == 0 ? "block " : "a block with a key of more than thirty-two bytes ") + std::to_string(number);
}
uint32_t group_of(uint32_t number) { return number % 3 == 0 ? kGroupRagged : kGroupPlain; }
uint32_t bytes_of(uint32_t number) { return number % 3 == 0 ? 5000 + number : 16384; }

std::string text_of(const FsckReport& report) {
  std::string text;
  for (const FsckFinding& f : report.findings)
    text += std::string(fsck_kind_name(f.kind)) + " " + f.where + ": " + f.what + "\n";
  return text;
}

class FsckTest : public ::testing::Test {
 protected:
  void fill(uint32_t blocks = kBlocks) {
    bed.open();
    for (uint32_t i = 0; i < blocks; ++i) ASSERT_EQ(bed.put(name_of(i), group_of(i), bytes_of(i)), Code::Ok);
    bed.settle();
  }
  FsckReport check(bool payloads = true) {
    bed.store.reset();
    bed.restart_engine();
    FsckOptions options;
    options.payloads = payloads;
    FsckReport report;
    const Fault fault = fsck(*bed.engine, bed.clock, options, &report);
    EXPECT_TRUE(fault.ok()) << fault.what;
    EXPECT_EQ(bed.engine->counters().writes, 0U);
    EXPECT_EQ(bed.engine->counters().flushes, 0U);
    return report;
  }
  // The page of this kind that was written last, as an offset of the device: a log's half may be one that nobody reads.
  uint64_t find_page(format::PageKind kind) const {
    std::vector<std::byte> page(kPageBytes);
    uint64_t newest = 0;
    uint64_t found = 0;
    for (uint64_t at = 0; at < bed.geometry.device_bytes; at += kPageBytes) {
      bed.device->read(at, page);
      const auto header = load_le<format::PageHeader>(page.data());
      if (header.magic != format::kPageMagic || header.kind != static_cast<uint8_t>(kind)) continue;
      if (header.sequence < newest) continue;
      newest = header.sequence;
      found = at;
    }
    EXPECT_NE(found, 0U) << "no page of kind " << static_cast<int>(kind);
    return found;
  }

  StoreBed bed{7};
};

TEST_F(FsckTest, ACleanStoreHasNothingToSayAndEveryPayloadWasRead) {
  fill();
  bed.close();
  const FsckReport report = check();
  EXPECT_TRUE(report.findings.empty()) << text_of(report);
  EXPECT_TRUE(report.clean_stop);
  EXPECT_TRUE(report.complete);
  EXPECT_EQ(report.blocks_live, kBlocks);
  EXPECT_EQ(report.payloads_checked, kBlocks);
  EXPECT_EQ(report.payload_bytes, report.bytes_live);
  EXPECT_EQ(report.payloads_bad, 0U);
  ASSERT_EQ(report.namespaces.size(), 1U);
  EXPECT_EQ(report.namespaces[0].name, "default");
}

TEST_F(FsckTest, DeletedExpiredAndDeadBlocksAreCountedApart) {
  fill(10);
  ASSERT_EQ(bed.put("short", kGroupPlain, 16384, false, 5), Code::Ok);
  ASSERT_EQ(bed.remove(name_of(1), group_of(1)), Code::Ok);
  bed.settle();
  bed.crash(io::MemoryEngine::Crash::Killed);
  bed.clock.wall += 10;
  const FsckReport report = check();
  EXPECT_EQ(report.blocks_live, 9U) << text_of(report);
  EXPECT_EQ(report.deleted + report.gone, 1U);
  EXPECT_EQ(report.expired, 1U);
}

TEST_F(FsckTest, AfterAKillItSaysSoAndNothingElse) {
  fill();
  bed.crash(io::MemoryEngine::Crash::Killed);
  const FsckReport report = check();
  EXPECT_FALSE(report.clean_stop);
  EXPECT_TRUE(report.has(FsckKind::Crash));
  EXPECT_FALSE(report.has(FsckKind::Damage)) << text_of(report);
  EXPECT_FALSE(report.has(FsckKind::Loss)) << text_of(report);
  EXPECT_EQ(report.blocks_live, kBlocks);
}

TEST_F(FsckTest, AFlippedPayloadIsOneLostBlock) {
  fill();
  const IndexKey key = bed.key(name_of(4), group_of(4));
  bed.close();
  const std::vector<std::byte> content = bytes_of_key(name_of(4), kPageBytes);
  ASSERT_NE(key, IndexKey{});
  std::vector<std::byte> page(kPageBytes);
  uint64_t at = 0;
  for (; at < bed.geometry.device_bytes; at += kPageBytes) {
    bed.device->read(at, page);
    if (page == content) break;
  }
  ASSERT_LT(at, bed.geometry.device_bytes);
  bed.device->flip_bit(at + 100, 3);
  const FsckReport report = check();
  EXPECT_EQ(report.payloads_bad, 1U);
  ASSERT_EQ(report.findings.size(), 1U) << text_of(report);
  EXPECT_EQ(report.findings[0].kind, FsckKind::Loss);
  EXPECT_EQ(check(false).findings.size(), 0U) << "payloads were not to be read";
}

TEST_F(FsckTest, WhatHasASecondCopyIsDamageAndNoLoss) {
  fill();
  bed.close();
  const uint64_t end_copy = bed.geometry.device_bytes - format::kHeaderReserveBytes;
  for (const uint64_t at : {uint64_t{0}, end_copy, find_page(format::PageKind::RecordLog),
                            find_page(format::PageKind::FooterEntries), find_page(format::PageKind::FooterTail),
                            find_page(format::PageKind::FrameEntries), find_page(format::PageKind::FrameTable)}) {
    bed.device->flip_bit(at + 300, 1);
    const FsckReport report = check();
    EXPECT_TRUE(report.has(FsckKind::Damage)) << at << "\n" << text_of(report);
    EXPECT_FALSE(report.has(FsckKind::Loss)) << at << "\n" << text_of(report);
    EXPECT_EQ(report.blocks_live, kBlocks) << at;
    bed.device->flip_bit(at + 300, 1);
  }
}

TEST_F(FsckTest, BothHeadersGoneIsRefusedInASentence) {
  fill(3);
  bed.close();
  bed.device->flip_bit(300, 1);
  bed.device->flip_bit(bed.geometry.device_bytes - format::kHeaderReserveBytes + 300, 1);
  bed.restart_engine();
  FsckReport report;
  const Fault fault = fsck(*bed.engine, bed.clock, {}, &report);
  EXPECT_EQ(fault.status, Code::Corrupt);
  EXPECT_NE(fault.what.find("both damaged"), std::string::npos) << fault.what;
}

TEST_F(FsckTest, ItStopsWhenAskedTo) {
  fill();
  bed.close();
  bed.restart_engine();
  FsckOptions options;
  uint64_t calls = 0;
  options.progress = [&](uint64_t done, uint64_t total) {
    EXPECT_LE(done, total);
    return ++calls < 1;
  };
  FsckReport report;
  EXPECT_TRUE(fsck(*bed.engine, bed.clock, options, &report).ok());
  EXPECT_FALSE(report.complete);
  EXPECT_EQ(calls, 1U);
}

TEST_F(FsckTest, ALogThatIsOlderThanTheFramesIsALossAndTheNextStartEmpty) {
  fill(10);
  bed.close();
  const Places where = places_of(bed.geometry);
  PageBuffer logs[2] = {PageBuffer(2 * where.log_half_pages), PageBuffer(2 * where.log_half_pages)};
  for (uint32_t copy = 0; copy < 2; ++copy) bed.device->read(where.log(copy, 0, 0), logs[copy].bytes());
  bed.restart_engine();
  bed.open();
  for (uint32_t i = 0; i < kBlocks; ++i) ASSERT_EQ(bed.put("later " + std::to_string(i)), Code::Ok);  // into other segments
  bed.settle();
  ASSERT_EQ(bed.remove(name_of(1), group_of(1)), Code::Ok);
  bed.close();
  bed.restart_engine();
  BlockingIo io(*bed.engine);
  for (uint32_t copy = 0; copy < 2; ++copy) ASSERT_TRUE(io.write(where.log(copy, 0, 0), logs[copy].bytes()).ok());
  const FsckReport report = check();
  ASSERT_EQ(report.findings.size(), 1U) << text_of(report);
  EXPECT_EQ(report.findings[0].kind, FsckKind::Loss);
  EXPECT_EQ(report.findings[0].where, "record log");
  EXPECT_NE(report.findings[0].what.find("older than the frames"), std::string::npos) << text_of(report);
  EXPECT_EQ(report.blocks_live, 0U);
  bed.restart_engine();
  bed.open();
  EXPECT_EQ(bed.store->gauges().blocks, report.blocks_live);
}

// The oracle is a start: whatever one flip does to the metadata, both count the same blocks.
TEST_F(FsckTest, ItCountsTheBlocksThatAStartWouldFind) {
  fill();
  for (uint32_t i = 0; i < kBlocks; i += 7) ASSERT_EQ(bed.remove(name_of(i), group_of(i)), Code::Ok);
  bed.close();
  const io::MemoryDevice image(*bed.device);
  Prng prng(11);
  std::vector<std::byte> page(kPageBytes);
  uint32_t flips = 0;
  while (flips < 60) {
    const uint64_t at = prng.below(bed.geometry.device_bytes / kPageBytes) * kPageBytes;
    image.read(at, page);
    if (load_le<format::PageHeader>(page.data()).magic != format::kPageMagic) continue;
    ++flips;
    bed.device = std::make_unique<io::MemoryDevice>(image);
    bed.device->flip_bit(at + prng.below(kPageBytes), static_cast<uint32_t>(prng.below(8)));
    const FsckReport report = check(false);
    bed.restart_engine();
    ASSERT_TRUE(Store::open(*bed.engine, *bed.slots, bed.clock, bed.options, &bed.store).ok());
    EXPECT_EQ(report.blocks_live, bed.store->recovery().blocks) << "flip in the page at " << at << "\n" << text_of(report);
    EXPECT_EQ(report.has(FsckKind::Damage) || report.has(FsckKind::Loss), !bed.store->recovery().notes.empty())
        << "flip in the page at " << at << "\n"
        << text_of(report);
  }
}

// The same of blocks that are there twice, with one birth: each counts in the segment that a start takes it from.
TEST(FsckTwins, ItCountsEachBlockInTheSegmentThatAStartTakesItFrom) {
  TwinBed bed(53);
  bed.make_twins();
  const io::MemoryDevice image(*bed.device);
  Prng prng(12);
  std::vector<std::byte> page(kPageBytes);
  for (uint32_t flips = 0; flips < 60;) {
    const uint64_t at = prng.below(bed.geometry.device_bytes / kPageBytes) * kPageBytes;
    image.read(at, page);
    if (flips > 0 && load_le<format::PageHeader>(page.data()).magic != format::kPageMagic) continue;
    SCOPED_TRACE("flip " + std::to_string(flips) + " in the page at " + std::to_string(at));
    bed.device = std::make_unique<io::MemoryDevice>(image);
    if (flips++ > 0) bed.device->flip_bit(at + prng.below(kPageBytes), static_cast<uint32_t>(prng.below(8)));
    bed.restart_engine();
    FsckOptions options;
    options.payloads = false;
    FsckReport report;
    ASSERT_TRUE(fsck(*bed.engine, bed.clock, options, &report).ok());
    bed.restart_engine();
    bed.open();
    std::vector<uint32_t> taken(report.segments.size());
    bed.list("default", 0, UINT32_MAX, [&](const Listed& listed) { ++taken.at(bed.segment_of(as_text(listed.engine_key))); });
    for (const FsckSegment& segment : report.segments) {
      EXPECT_EQ(segment.blocks_live, taken[segment.number]) << "segment " << segment.number << "\n" << text_of(report);
    }
  }
}

TEST(FsckTwins, ItSaysNothingOfABadCopyThatNoStartTakes) {
  TwinBed bed(54);
  bed.make_twins();
  for (const uint64_t at : bed.offsets_of(TwinBed::twin(0))) {
    if (bed.segment_at(at) == bed.newer()) bed.device->flip_bit(at + 100, 3);
  }
  bed.restart_engine();
  FsckReport report;
  ASSERT_TRUE(fsck(*bed.engine, bed.clock, {}, &report).ok());
  EXPECT_EQ(report.payloads_bad, 0U) << text_of(report);
  EXPECT_FALSE(report.has(FsckKind::Loss)) << text_of(report);
  bed.restart_engine();
  bed.open();
  EXPECT_EQ(bed.store->recovery().blocks, report.blocks_live);
  EXPECT_EQ(bed.get(TwinBed::twin(0)), Code::Ok);
}

}  // namespace fsck_test
}  // namespace halfstep::store
