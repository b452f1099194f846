#include "store/format/geometry.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <utility>
#include <vector>

namespace halfstep::store {
namespace {

TEST(Geometry, PlacesOfAnySizeDoNotOverlapAndEndWithTheDevice) {
  for (const uint64_t device_bytes : {160 * MiB, 1 * GiB, 10 * GiB + 12'345, 100 * GiB, 4096 * GiB, 60'000 * GiB}) {
    SCOPED_TRACE(device_bytes);
    Geometry geometry;
    const Fault fault = plan_geometry(device_bytes, 0, 128 * MiB, &geometry);
    ASSERT_TRUE(fault.ok()) << fault.what;
    EXPECT_GE(geometry.segments, format::kSegmentsPerShardMin);
    const Places places = places_of(geometry);
    ASSERT_TRUE(places.valid());
    EXPECT_EQ(places.header(0) + format::kHeaderReserveBytes, places.log(0, 0, 0));
    EXPECT_EQ(places.log(0, 0, 1) + uint64_t{places.log_half_pages} * kPageBytes, places.touch_map(0));
    EXPECT_LE(places.touch_map(geometry.segments), places.segment(0));
    EXPECT_LE(places.segment(geometry.segments), places.log(1, 0, 0));
    EXPECT_EQ(places.log(1, 0, 0) + places.logs_bytes(), places.header(1));
    EXPECT_EQ(places.header(1) + format::kHeaderReserveBytes, geometry.device_bytes);
    EXPECT_LE(geometry.device_bytes, device_bytes);
    // All but a hundredth and one segment hold data.
    EXPECT_GE(places.geometry.segments * geometry.segment_bytes + geometry.segment_bytes + 8 * MiB, device_bytes / 100 * 99);
  }
}

TEST(Geometry, SmallStoresTakeTheLargestSegmentsThatFit) {
  Geometry geometry;
  ASSERT_TRUE(plan_geometry(512 * MiB, 0, GiB, &geometry).ok());
  EXPECT_EQ(geometry.segment_bytes, 7 * MiB);
  EXPECT_GE(geometry.block_bytes_max, 1 * MiB);
  ASSERT_TRUE(plan_geometry(1024 * GiB, 0, GiB, &geometry).ok());
  EXPECT_EQ(geometry.segment_bytes, format::kSegmentBytesDefault);
}

TEST(Geometry, NamesTheSmallestSizeAndThatSizeWorks) {
  Geometry geometry;
  const Fault fault = plan_geometry(64 * MiB, 0, 128 * MiB, &geometry);
  EXPECT_EQ(fault.status, Code::NoSpace);
  const size_t at = fault.what.find("smallest size is ");
  ASSERT_NE(at, std::string::npos);
  const uint64_t smallest = std::stoull(fault.what.substr(at + 17)) * MiB;
  EXPECT_TRUE(plan_geometry(smallest, 0, 128 * MiB, &geometry).ok());
  EXPECT_FALSE(plan_geometry(smallest - MiB, 0, 128 * MiB, &geometry).ok());
}

TEST(Geometry, BlocksTakeAtMostAQuarterOfASegmentAndHalfTheWriteBuffer) {
  Geometry geometry;
  ASSERT_TRUE(plan_geometry(100 * GiB, GiB, GiB, &geometry).ok());
  EXPECT_EQ(geometry.block_bytes_max, 256 * MiB - 256 * KiB);
  ASSERT_TRUE(plan_geometry(100 * GiB, GiB, 32 * MiB, &geometry).ok());
  EXPECT_EQ(geometry.block_bytes_max, 16 * MiB);
  EXPECT_EQ(plan_geometry(100 * GiB, 3 * MiB + 1, GiB, &geometry).status, Code::Invalid);
}

TEST(Geometry, AStoreIsNoLargerThanItsIndexReaches) {
  Geometry geometry;
  EXPECT_TRUE(plan_geometry(uint64_t{64} << 40, 0, GiB, &geometry).ok());
  EXPECT_EQ(plan_geometry((uint64_t{64} << 40) + MiB, 0, GiB, &geometry).status, Code::TooLarge);
}

TEST(Geometry, NumbersFromADamagedHeaderAreRefused) {
  Geometry geometry;
  ASSERT_TRUE(plan_geometry(GiB, 0, 128 * MiB, &geometry).ok());
  const Places good = places_of(geometry);
  Places bad = good;
  bad.geometry.segments += 2;
  EXPECT_FALSE(bad.valid());
  bad = good;
  bad.log_half_pages = UINT32_MAX;
  EXPECT_FALSE(bad.valid());
  bad = good;
  bad.geometry.segment_bytes = UINT64_MAX / 4 * 4;
  EXPECT_FALSE(bad.valid());
  bad = good;
  bad.geometry.device_bytes = 4096;
  EXPECT_FALSE(bad.valid());
  bad = good;
  bad.geometry.block_bytes_max = 0;
  EXPECT_FALSE(bad.valid());
}

// Every byte belongs to one shard's log, map or segments, or to the header.
TEST(Geometry, ShardsHavePlacesOfTheirOwn) {
  for (const uint32_t shards : {1U, 2U, 3U, 16U}) {
    Geometry geometry;
    ASSERT_TRUE(plan_geometry(8 * GiB, 0, GiB, &geometry, shards).ok());
    EXPECT_EQ(geometry.shards, shards);
    EXPECT_EQ(geometry.segments % shards, 0U);
    EXPECT_GE(geometry.segments / shards, format::kSegmentsPerShardMin);
    const Places places = places_of(geometry);
    ASSERT_TRUE(places.valid());
    std::vector<std::pair<uint64_t, uint64_t>> ranges;
    for (const uint32_t copy : {0U, 1U}) ranges.emplace_back(places.header(copy), format::kHeaderReserveBytes);
    for (uint32_t shard = 0; shard < shards; ++shard) {
      const Places own = places.of_shard(shard);
      EXPECT_EQ(own.segments(), geometry.segments / shards);
      for (const uint32_t copy : {0U, 1U}) {
        for (const uint32_t half : {0U, 1U}) {
          ranges.emplace_back(own.log(copy, shard, half), uint64_t{own.log_half_pages} * kPageBytes);
        }
      }
      for (uint32_t number = 0; number < own.segments(); ++number) {
        ranges.emplace_back(own.touch_map(number), uint64_t{own.touch_pages} * kPageBytes);
        ranges.emplace_back(own.segment(number), geometry.segment_bytes);
      }
    }
    std::sort(ranges.begin(), ranges.end());
    for (size_t i = 1; i < ranges.size(); ++i) ASSERT_LE(ranges[i - 1].first + ranges[i - 1].second, ranges[i].first) << i;
    EXPECT_EQ(ranges.back().first + ranges.back().second, geometry.device_bytes);
  }
}

TEST(Geometry, ASegmentIsCutOffWhereTheBackingEndsInIt) {
  Geometry geometry;
  ASSERT_TRUE(plan_geometry(GiB, 0, 128 * MiB, &geometry, 2).ok());
  const Places places = places_of(geometry).of_shard(1);
  const uint64_t end = places.segment(3) + geometry.segment_bytes;
  EXPECT_FALSE(places.cut_off(3, end));
  EXPECT_TRUE(places.cut_off(3, end - 1));
  EXPECT_TRUE(places.cut_off(4, end));
  EXPECT_FALSE(places.cut_off(4, 0)) << "nobody knows where it ends";
}

TEST(Geometry, ShardsNeedRoomAndHaveABound) {
  Geometry geometry;
  ASSERT_TRUE(plan_geometry(140 * MiB, 0, GiB, &geometry).ok());
  const Fault fault = plan_geometry(140 * MiB, 0, GiB, &geometry, 2);
  EXPECT_EQ(fault.status, Code::NoSpace);
  EXPECT_NE(fault.what.find("each of 2 shards"), std::string::npos) << fault.what;
  EXPECT_EQ(plan_geometry(64 * GiB, 0, GiB, &geometry, 17).status, Code::Invalid);
  EXPECT_EQ(plan_geometry(64 * GiB, 0, GiB, &geometry, 0).status, Code::Invalid);
  ASSERT_TRUE(plan_geometry(GiB, 0, 128 * MiB, &geometry, 2).ok());
  Places bad = places_of(geometry);
  --bad.geometry.segments;
  EXPECT_FALSE(bad.valid()) << "each shard has as many";
}

}  // namespace
}  // namespace halfstep::store
