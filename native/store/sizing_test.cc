#include "store/sizing.h"

#include <gtest/gtest.h>

#include "store/store_fixture.h"

namespace halfstep::store {
namespace {

constexpr uint64_t kArenaBytes = 8 * MiB;

SizingQuestion question_of(uint64_t blocks, uint64_t block_bytes, uint32_t parts = 1) {
  return {.blocks = blocks,
          .block_bytes = block_bytes,
          .parts = parts,
          .segment_bytes = StoreBed::kSegmentBytes,
          .arena_bytes = kArenaBytes};
}

TEST(Sizing, AStoreOfThatSizeKeepsTheBlocksAndNotManyMore) {
  constexpr uint64_t kBlocks = 8'000;
  Sizing sizing;
  const Fault fault = size_store(question_of(kBlocks, 16'384, 4), &sizing);
  ASSERT_TRUE(fault.ok()) << fault.what;
  EXPECT_GT(sizing.geometry.segments, format::kSegmentsPerShardMin);
  EXPECT_GE(sizing.blocks, kBlocks);
  StoreBed bed(1, sizing.geometry.segments, kArenaBytes);
  bed.open();
  uint64_t stored = 0;
  for (; bed.store->counters().blocks_evicted == 0 && stored < 2 * kBlocks; ++stored) {
    ASSERT_EQ(bed.put("block " + std::to_string(stored)), Code::Ok) << stored;
  }
  EXPECT_GT(stored, kBlocks) << "none gave way before";
  EXPECT_LT(stored, kBlocks + kBlocks / 3) << "flash is not asked for in vain";
}

TEST(Sizing, MoreBlocksLargerBlocksAndMoreShardsTakeMore) {
  const auto bytes_of = [](const SizingQuestion& question) {
    Sizing sizing;
    EXPECT_TRUE(size_store(question, &sizing).ok());
    EXPECT_TRUE(places_of(sizing.geometry).valid());
    return sizing.geometry.device_bytes;
  };
  SizingQuestion question{.blocks = 1'000'000, .block_bytes = 256 * KiB};
  const uint64_t bytes = bytes_of(question);
  EXPECT_GT(bytes, question.blocks * question.block_bytes);
  EXPECT_LT(bytes, question.blocks * question.block_bytes * 12 / 10);
  question.shards = 4;
  EXPECT_GT(bytes_of(question), bytes);
  question.shards = 1;
  question.block_bytes += 16 * KiB;
  EXPECT_GT(bytes_of(question), bytes);
  question.block_bytes -= 16 * KiB;
  question.blocks += 10'000;
  EXPECT_GT(bytes_of(question), bytes);
}

TEST(Sizing, AMebibyteLessIsTooLittle) {
  const SizingQuestion question = question_of(20'000, 64 * KiB);
  Sizing sizing;
  ASSERT_TRUE(size_store(question, &sizing).ok());
  Geometry smaller;
  ASSERT_TRUE(plan_geometry(sizing.geometry.device_bytes - MiB, question.segment_bytes, kArenaBytes / 2, &smaller).ok());
  EXPECT_LT(smaller.segments, sizing.geometry.segments);
}

TEST(Sizing, TheIndexHoldsTheBlocksAndOfSmallOnesMoreThanByDefault) {
  Sizing sizing;
  ASSERT_TRUE(size_store({.blocks = 10'000'000, .block_bytes = 16 * KiB}, &sizing).ok());
  EXPECT_GT(sizing.index_bytes, sizing.index_bytes_default);
  EXPECT_GE(sizing.index_bytes / 29, 10'000'000U);
  ASSERT_TRUE(size_store({.blocks = 1'000'000, .block_bytes = 1 * MiB}, &sizing).ok());
  EXPECT_LT(sizing.index_bytes, sizing.index_bytes_default);
}

TEST(Sizing, WhatNoStoreHoldsIsRefusedWithItsBound) {
  Sizing sizing;
  const auto said = [&](const SizingQuestion& question) { return size_store(question, &sizing).what; };
  EXPECT_NE(said({.blocks = 1'000'000'000, .block_bytes = MiB}).find("64 TiB"), std::string::npos);
  EXPECT_NE(said({.blocks = 1, .block_bytes = 100 * MiB}).find("at most"), std::string::npos);
  EXPECT_NE(said({.blocks = 0, .block_bytes = MiB}).find("above 0"), std::string::npos);
  EXPECT_NE(said({.blocks = 1, .block_bytes = MiB, .shards = 17}).find("shards=17"), std::string::npos);
  SizingQuestion odd = question_of(1, 4096);
  odd.segment_bytes = 3 * MiB + 1;
  EXPECT_NE(said(odd).find("segment_bytes="), std::string::npos);
}

}  // namespace
}  // namespace halfstep::store
