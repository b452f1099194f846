// What is promised of a pause: it ends, it grows with refusals that follow each other, and it forgets them.
#include "io/gather_pause.h"

#include <gtest/gtest.h>

namespace halfstep::io {
namespace {

TEST(GatherPause, OneRefusalIsTriedAgainLater) {
  GatherPause pause;
  EXPECT_TRUE(pause.gathers());
  pause.refused();
  EXPECT_FALSE(pause.gathers());
  pause.passed(GatherPause::kRequestsMin - 1);
  EXPECT_FALSE(pause.gathers());
  pause.passed(1);
  EXPECT_TRUE(pause.gathers());
}

TEST(GatherPause, RefusalsOfOneMomentCountOnce) {
  GatherPause pause;
  for (int i = 0; i < 30; ++i) pause.refused();
  pause.passed(GatherPause::kRequestsMin);
  EXPECT_TRUE(pause.gathers());
}

TEST(GatherPause, ADeviceThatAlwaysRefusesIsAskedEverMoreSeldomAndNeverLeft) {
  GatherPause pause;
  uint64_t last = 0;
  for (int i = 0; i < 40; ++i) {
    pause.refused();
    uint64_t rest = 0;
    for (; !pause.gathers(); rest += 256) pause.passed(256);
    EXPECT_GE(rest, last);
    EXPECT_LE(rest, GatherPause::kRequestsMax);
    last = rest;
  }
  EXPECT_EQ(last, GatherPause::kRequestsMax);
  pause.went_well();
  pause.refused();
  pause.passed(GatherPause::kRequestsMin);
  EXPECT_TRUE(pause.gathers()) << "what went well in between is a new beginning";
}

}  // namespace
}  // namespace halfstep::io
