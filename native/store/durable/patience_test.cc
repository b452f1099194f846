// How long a start waits: for a place, for many of them, for a device that says nothing. All times are of the bed's clock.
#include "store/durable/patience.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "store/durable/blocking_io.h"
#include "store/format/page.h"
#include "store/store_fixture.h"

namespace halfstep::store {
namespace patience_test {

struct Bed : StoreBed {
  Bed() : StoreBed(1, 12, 8 * MiB) {}
  Patience patience_by(const Clock& by) const {
    const Places where = places_of(geometry);
    return {by, *engine, {where.header(0), where.header(1)}};
  }
  Patience patience() const { return patience_by(clock); }
};

TEST(Patience, OfManyPlacesThatFailAmongOthersEndsForAllOfThemTogether) {
  Bed bed;
  Patience patience = bed.patience();
  BlockingIo io(*bed.engine);
  PageBuffer page(1);
  const uint64_t from_us = bed.clock.us;
  for (int places = 0; places < 10'000; ++places) {
    ASSERT_TRUE(io.read(0, page.bytes()).ok());
    Unanswered place;
    (void)patience.wait(place);
  }
  EXPECT_LT(bed.clock.us - from_us, 30'000'000U);
}

TEST(Patience, WithASilentDeviceEndsForAllPlacesTogether) {
  Bed bed;
  Patience patience = bed.patience();
  const uint64_t from_us = bed.clock.us;
  for (int places = 0; places < 1'000; ++places) {
    Unanswered place;
    while (patience.wait(place)) {
    }
    ASSERT_GE(bed.clock.us - from_us, 60'000'000U) << "a device that comes back within a minute was given up";
    ASSERT_LT(bed.clock.us - from_us, 61'000'000U) << places;
  }
  // An answer: it is there again, and what fails from here on is another outage.
  BlockingIo io(*bed.engine);
  PageBuffer page(1);
  ASSERT_TRUE(io.read(0, page.bytes()).ok());
  Unanswered place;
  EXPECT_TRUE(patience.wait(place));
}

TEST(Patience, OfAPlaceBeginsWhenOthersAnswer) {
  Bed bed;
  Patience patience = bed.patience();
  BlockingIo io(*bed.engine);
  PageBuffer page(1);
  Unanswered place;
  for (const uint64_t from_us = bed.clock.us; bed.clock.us - from_us < 20'000'000;) ASSERT_TRUE(patience.wait(place));
  ASSERT_TRUE(io.read(0, page.bytes()).ok());  // back, just after this place was asked for
  EXPECT_TRUE(patience.wait(place));
}

// A process that is stopped between two looks at the clock.
class StoppedClock final : public Clock {
 public:
  uint64_t now_us() const noexcept override { return us_ += 3'000'000; }
  uint64_t wall_s() const noexcept override { return 0; }
  void pause_us(uint64_t us) const noexcept override { longest_us = std::max(longest_us, us); }
  mutable uint64_t longest_us = 0;

 private:
  mutable uint64_t us_ = 1;
};

TEST(Patience, OfAProcessThatWasStoppedIsNoPauseForEver) {
  Bed bed;
  StoppedClock clock;
  Patience patience = bed.patience_by(clock);
  Unanswered place;
  while (patience.wait(place)) {
  }
  EXPECT_LT(clock.longest_us, 1'000'000U);
}

}  // namespace patience_test
}  // namespace halfstep::store
