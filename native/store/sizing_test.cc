#include "store/sizing.h"

#include <gtest/gtest.h>

#include "store/store_fixture.h"

namespace halfstep::store {
namespace {

constexpr uint64_t kArenaBytes = 8 * MiB;

SizingQuestion question_of(uint64_t blocks, uint64_t block_bytes, uint32_t parts = 1) {
  return {.of = {{blocks, block_bytes, parts}}, .segment_bytes = StoreBed::kSegmentBytes, .arena_bytes = kArenaBytes};
}

TEST(Sizing, AStoreOfThatSizeKeepsTheBlocksAndNotManyMore) {
  constexpr uint64_t kBlocks = 8'000;
  Sizing sizing;
  const Fault fault = size_store(question_of(kBlocks, 16'384, 4), &sizing);
  ASSERT_TRUE(fault.ok()) << fault.what;
  EXPECT_GT(sizing.geometry.segments, format::kSegmentsPerShardMin);
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
  SizingQuestion question{.of = {{1'000'000, 256 * KiB, 1}}};
  const uint64_t bytes = bytes_of(question);
  EXPECT_GT(bytes, question.of[0].blocks * question.of[0].block_bytes);
  EXPECT_LT(bytes, question.of[0].blocks * question.of[0].block_bytes * 12 / 10);
  question.shards = 4;
  EXPECT_GT(bytes_of(question), bytes);
  question.shards = 1;
  question.of[0].block_bytes += 16 * KiB;
  EXPECT_GT(bytes_of(question), bytes);
  question.of[0].block_bytes -= 16 * KiB;
  question.of[0].blocks += 10'000;
  EXPECT_GT(bytes_of(question), bytes);
}

TEST(Sizing, BlocksOfAllSizesShareTheSegmentsAndStay) {
  constexpr uint64_t kEach = 1'500;
  SizingQuestion question = question_of(kEach, 16'384, 4);
  question.of.push_back({kEach, 16 * 16'384, 16});
  question.keys = kEach;
  Sizing sizing;
  const Fault fault = size_store(question, &sizing);
  ASSERT_TRUE(fault.ok()) << fault.what;
  StoreBed bed(1, sizing.geometry.segments, kArenaBytes);
  bed.open();
  for (uint64_t i = 0; i < kEach; ++i) {
    ASSERT_EQ(bed.put("small " + std::to_string(i)), Code::Ok) << i;
    ASSERT_EQ(bed.put("large " + std::to_string(i), kGroupLarge, 16 * 16'384), Code::Ok) << i;
  }
  EXPECT_EQ(bed.store->counters().blocks_evicted, 0U);
  Sizing of_one;
  ASSERT_TRUE(size_store(question_of(kEach, 16 * 16'384, 16), &of_one).ok());
  EXPECT_GT(sizing.geometry.device_bytes, of_one.geometry.device_bytes);
}

TEST(Sizing, KeysOfManyBlocksFallLessEvenlyOnShards) {
  const auto bytes_of = [](uint64_t keys) {
    Sizing sizing;
    EXPECT_TRUE(size_store({.of = {{6'400'000, 256 * KiB, 1}}, .keys = keys, .shards = 16}, &sizing).ok());
    return sizing.geometry.device_bytes;
  };
  EXPECT_GT(bytes_of(100'000), bytes_of(0) * 103 / 100);
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
  ASSERT_TRUE(size_store({.of = {{10'000'000, 16 * KiB, 1}}}, &sizing).ok());
  EXPECT_GT(sizing.index_bytes, sizing.index_bytes_default);
  EXPECT_GE(sizing.index_bytes / 29, 10'000'000U);
  ASSERT_TRUE(size_store({.of = {{1'000'000, 1 * MiB, 1}}}, &sizing).ok());
  EXPECT_LT(sizing.index_bytes, sizing.index_bytes_default);
}

TEST(Sizing, WhatNoStoreHoldsIsRefusedWithItsBound) {
  Sizing sizing;
  const auto said = [&](const SizingQuestion& question) { return size_store(question, &sizing).what; };
  EXPECT_NE(said({.of = {{1'000'000'000, MiB, 1}}}).find("64 TiB"), std::string::npos);
  EXPECT_NE(said({.of = {{1, 100 * MiB, 1}}}).find("at most"), std::string::npos);
  EXPECT_NE(said({.of = {{0, MiB, 1}}}).find("above 0"), std::string::npos);
  EXPECT_NE(said({.of = {{1, MiB, 1}}, .shards = 17}).find("shards=17"), std::string::npos);
  SizingQuestion odd = question_of(1, 4096);
  odd.segment_bytes = 3 * MiB + 1;
  EXPECT_NE(said(odd).find("segment="), std::string::npos);
}

}  // namespace
}  // namespace halfstep::store
