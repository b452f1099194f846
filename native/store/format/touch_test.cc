#include "store/format/touch.h"

#include <gtest/gtest.h>

#include <vector>

#include "base/prng.h"

namespace halfstep::store {
namespace {

constexpr uint64_t kUnit = 4096;

TEST(LogClock, CountsShareOfTheCapacityAndFindsTheTimeOfAStampAgain) {
  LogClock clock(kUnit * kStampsPerCapacity);
  clock.advance(10 * kUnit + 1);
  EXPECT_EQ(clock.now(), 10U);
  EXPECT_EQ(clock.when(3), 3U);
  clock.advance(200'000 * kUnit);
  const uint64_t then = clock.now();
  clock.advance(65'535 * kUnit);
  EXPECT_EQ(clock.when(static_cast<uint16_t>(then)), then);
}

TEST(LogClock, AStampFromAheadOfAClockThatWasLostIsNotBeforeTheBeginning) {
  LogClock clock(kUnit * kStampsPerCapacity);
  EXPECT_EQ(clock.when(500), 0U);
  clock.resume(700);
  EXPECT_EQ(clock.when(500), 500U);
}

// Against a list of all that was ever added.
TEST(TouchHistogram, KnowsWhatWasTouchedSinceAnyTimeOfTheLastCapacityAndAHalf) {
  Prng prng(7);
  TouchHistogram histogram;
  struct Touched {
    uint64_t when;
    uint32_t pages;
  };
  std::vector<Touched> touched;
  uint64_t now = 0;
  for (int step = 0; step < 5000; ++step) {
    now += prng.below(prng.chance(0.01) ? 5000 : 20);
    if (!touched.empty() && prng.chance(0.4)) {  // again: only the newest counts
      const size_t i = prng.below(touched.size());
      histogram.remove(touched[i].when, touched[i].pages);
      touched.erase(touched.begin() + static_cast<ptrdiff_t>(i));
    }
    const auto pages = static_cast<uint32_t>(1 + prng.below(9));
    histogram.add(now, pages);
    touched.push_back({now, pages});

    const uint64_t newest_epoch = now / TouchHistogram::kEpochStamps;
    const uint64_t since = now - std::min(now, prng.below(1500));
    const uint64_t first_epoch =
        std::max(since / TouchHistogram::kEpochStamps,
                 newest_epoch < TouchHistogram::kEpochs ? 0 : newest_epoch - TouchHistogram::kEpochs + 1);
    uint64_t expected = 0;
    for (const Touched& t : touched) expected += t.when / TouchHistogram::kEpochStamps >= first_epoch ? t.pages : 0;
    ASSERT_EQ(histogram.pages_since(since), expected) << "step " << step;

    const uint64_t pages_max = prng.below(expected + 10);
    const uint64_t later = histogram.since(pages_max, since);
    ASSERT_GE(later, since);
    ASSERT_LE(histogram.pages_since(later), pages_max) << "step " << step;
    if (later > since) {
      ASSERT_GT(histogram.pages_since(later - 1), pages_max) << "step " << step;
    }
  }
}

TEST(TouchHistogram, ForgetsWhatIsTooOldToBeKept) {
  TouchHistogram histogram;
  histogram.add(100, 5);
  histogram.add(100 + 2 * kStampsPerCapacity, 7);
  EXPECT_EQ(histogram.pages_since(0), 7U);
  histogram.remove(100, 5);
  EXPECT_EQ(histogram.pages_since(0), 7U);
  histogram.add(90, 3);  // of a copy whose last touch is long ago
  EXPECT_EQ(histogram.pages_since(0), 7U);
}

// 64 capacities after its touch, a held block's stamp reads as one of today.
TEST(TouchHistogram, IsNotTurnedRoundByAStampThatHasComeRound) {
  LogClock clock(1024 * kStampsPerCapacity);
  TouchHistogram histogram;
  clock.advance(2000 * 1024);
  const auto stamp = static_cast<uint16_t>(clock.now());
  histogram.add(clock.when(stamp), 10);
  clock.advance((65'536 + 5) * 1024);
  histogram.add(clock.now(), 3);
  histogram.remove(clock.when(stamp), 10);
  EXPECT_LE(histogram.pages_since(0), 3U);
}

}  // namespace
}  // namespace halfstep::store
