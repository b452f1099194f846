// Which parts a section selects, and how rounds cut them.
#include "shard/part_places.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "base/bytes.h"

namespace halfstep::shard {
namespace {

// A section of these ranges; it lives as long as this.
struct Ranges {
  explicit Ranges(std::vector<wire::PartRange> of) : ranges(std::move(of)) {
    section.head.range_count = static_cast<decltype(section.head.range_count)>(ranges.size());
    section.ranges = std::as_bytes(std::span(ranges));
  }
  Ranges(const Ranges&) = delete;

  std::vector<wire::PartRange> ranges;
  wire::SectionView section;
};

wire::GroupShape shape(uint32_t parts, std::vector<uint32_t> part_bytes) {
  wire::GroupShape shape{.part_count = static_cast<uint16_t>(parts), .size_count = static_cast<uint16_t>(part_bytes.size())};
  std::copy(part_bytes.begin(), part_bytes.end(), shape.part_bytes.begin());
  return shape;
}

// Where the rounds of so many bytes begin, and after the last one ends.
std::vector<uint32_t> rounds(const wire::SectionView& section, const wire::GroupShape& shape, uint64_t bytes) {
  std::vector<uint32_t> at = {0};
  for (;;) {
    const uint32_t end = end_of_round(section, shape, at.back(), bytes);
    if (end == at.back()) return at;
    at.push_back(end);
  }
}

TEST(PartPlaces, WithoutRangesAreTheParts) {
  const Ranges all({});
  EXPECT_EQ(places_of(all.section), 0U);
  EXPECT_EQ(part_at(all.section, 0), 0U);
  EXPECT_EQ(part_at(all.section, 17), 17U);
  EXPECT_EQ(span_of(all.section, 0, UINT32_MAX).count, 0U) << "the whole block";
  const store::PartSpan some = span_of(all.section, 3, 7);
  EXPECT_EQ(some.first, 3U);
  EXPECT_EQ(some.count, 4U);
}

TEST(PartPlaces, GoThroughRangesInTheirOrder) {
  const Ranges ranges({{.start = 8, .count = 3, .stride = 2}, {.start = 1, .count = 2, .stride = 1}});
  EXPECT_EQ(places_of(ranges.section), 5U);
  const uint64_t parts[] = {8, 10, 12, 1, 2};
  for (uint32_t place = 0; place < 5; ++place) EXPECT_EQ(part_at(ranges.section, place), parts[place]) << place;
}

TEST(PartPlaces, SpanWhatLiesBetweenThePartsOfAnyPlaces) {
  const Ranges ranges({{.start = 8, .count = 3, .stride = 2}, {.start = 1, .count = 2, .stride = 1}});
  for (uint32_t first = 0; first < 5; ++first) {
    for (uint32_t end = first + 1; end <= 6; ++end) {
      uint64_t low = UINT64_MAX;
      uint64_t high = 0;
      for (uint32_t place = first; place < std::min(end, 5U); ++place) {
        low = std::min(low, part_at(ranges.section, place));
        high = std::max(high, part_at(ranges.section, place));
      }
      const store::PartSpan span = span_of(ranges.section, first, end);
      EXPECT_EQ(span.first, low) << first << " to " << end;
      EXPECT_EQ(span.count, high - low + 1) << first << " to " << end;
    }
  }
  EXPECT_EQ(span_of(ranges.section, 5, 9).count, 0U) << "there are none";
}

TEST(PartPlaces, BeyondWhatABlockMayHaveSpanNothing) {
  const Ranges ranges({{.start = 1, .count = 2, .stride = UINT32_MAX}});
  EXPECT_EQ(span_of(ranges.section, 0, UINT32_MAX).count, 0U);
  EXPECT_EQ(part_at(ranges.section, 1), 1 + uint64_t{UINT32_MAX});
  EXPECT_EQ(end_of_round(ranges.section, shape(4, {1}), 0, UINT64_MAX / 2), 1U);
}

TEST(PartPlaces, MakeARoundOfAboutSoManyBytes) {
  const Ranges all({});
  EXPECT_EQ(rounds(all.section, shape(16, {100}), 400), (std::vector<uint32_t>{0, 4, 8, 12, 16}));
  EXPECT_EQ(rounds(all.section, shape(6, {100, 300}), 400), (std::vector<uint32_t>{0, 2, 4, 6}));
  EXPECT_EQ(rounds(all.section, shape(3, {1000}), 400), (std::vector<uint32_t>{0, 1, 2, 3})) << "one at least";
  const Ranges ranges({{.start = 2, .count = 5, .stride = 1}});
  EXPECT_EQ(rounds(ranges.section, shape(16, {100}), 300), (std::vector<uint32_t>{0, 3, 5}));
}

TEST(PartPlaces, MakeNoRoundOverPartsThatLieFarApart) {
  const Ranges strided({{.start = 0, .count = 4, .stride = 8}});
  EXPECT_EQ(rounds(strided.section, shape(32, {100}), 400), (std::vector<uint32_t>{0, 1, 2, 3, 4}));
  const Ranges jumps({{.start = 20, .count = 2, .stride = 1}, {.start = 0, .count = 2, .stride = 1}});
  EXPECT_EQ(rounds(jumps.section, shape(32, {100}), 400), (std::vector<uint32_t>{0, 2, 4}));
}

}  // namespace
}  // namespace halfstep::shard
