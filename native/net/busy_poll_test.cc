#include "net/busy_poll.h"

#include <gtest/gtest.h>

namespace halfstep::net {
namespace {

// Of `waits`, how many were looked at, when every `short_each`-th is short (0: none).
uint32_t looks(BusyPoll& poll, uint32_t waits, uint32_t short_each) {
  uint32_t count = 0;
  for (uint32_t wait = 0; wait < waits; ++wait) {
    if (!poll.begin()) continue;
    ++count;
    poll.looked(short_each != 0 && wait % short_each == 0);
  }
  return count;
}

TEST(BusyPoll, GoesOnAsLongAsWaitsAreShort) {
  BusyPoll poll;
  EXPECT_EQ(looks(poll, 1000, 1), 1000U);
}

TEST(BusyPoll, CostsLittleWhereAllWaitsAreLong) {
  BusyPoll poll;
  looks(poll, 1000, 1);
  EXPECT_LE(looks(poll, 6400, 0), 6400 / BusyPoll::kRestWaits + 4);
}

TEST(BusyPoll, OneLongWaitDoesNotEndIt) {
  BusyPoll poll;
  looks(poll, 1000, 1);
  EXPECT_EQ(looks(poll, 1, 0), 1U);
  EXPECT_EQ(looks(poll, 1000, 1), 1000U);
}

TEST(BusyPoll, BeginsAgainWhenWaitsHaveBecomeShort) {
  BusyPoll poll;
  looks(poll, 1000, 0);
  EXPECT_GE(looks(poll, 1000, 1), 1000 - BusyPoll::kRestWaits);
}

TEST(BusyPoll, StaysOffALongTimeWhereSomebodyElseWantsTheCore) {
  BusyPoll poll;
  looks(poll, 1000, 1);
  for (int stall = 0; stall < 2; ++stall) {
    ASSERT_TRUE(poll.begin());
    poll.crowded();
  }
  EXPECT_EQ(looks(poll, BusyPoll::kRestWaitsCrowded - 1, 1), 0U);
  EXPECT_EQ(looks(poll, 10, 1), 10U);
}

}  // namespace
}  // namespace halfstep::net
