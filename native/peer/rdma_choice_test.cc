#include "peer/rdma_choice.h"

#include <gtest/gtest.h>

namespace halfstep::peer {
namespace {

constexpr uint64_t kNow = 1'000'000'000;

TEST(RdmaChoice, OffersUnlessTcpWasAskedFor) {
  EXPECT_TRUE(RdmaChoice(Carrier::Auto).offers(kNow));
  EXPECT_TRUE(RdmaChoice(Carrier::Rdma).offers(kNow));
  EXPECT_FALSE(RdmaChoice(Carrier::Tcp).offers(kNow));
  EXPECT_TRUE(RdmaChoice(Carrier::Rdma).required());
  EXPECT_FALSE(RdmaChoice(Carrier::Auto).required());
}

TEST(RdmaChoice, APathThatFailsIsTriedAgainAfterLongerAndLongerTimes) {
  RdmaChoice choice(Carrier::Auto);
  uint64_t now = kNow;
  uint64_t pause = RdmaChoice::kBackoffUsMin;
  for (int failure = 1; failure <= 10; ++failure) {
    choice.failed(now, now, "it died");
    EXPECT_EQ(choice.failures(), static_cast<uint64_t>(failure));
    EXPECT_FALSE(choice.offers(now + pause - 1)) << failure;
    EXPECT_TRUE(choice.offers(now + pause)) << failure;
    now += pause;
    pause = std::min(2 * pause, RdmaChoice::kBackoffUsMax);
  }
  EXPECT_EQ(pause, RdmaChoice::kBackoffUsMax);
  EXPECT_EQ(choice.why_not(), "it died");
}

TEST(RdmaChoice, AfterARingOfBytesTheNextFailureIsTheFirst) {
  RdmaChoice choice(Carrier::Auto);
  uint64_t now = kNow;
  for (int i = 0; i < 5; ++i, now += RdmaChoice::kBackoffUsMax) choice.failed(now, now, "it died");
  choice.made();
  EXPECT_EQ(choice.why_not(), "");
  choice.carried((2 << 20) - 1, 1 << 20);  // small answers: they may be all that arrives
  choice.failed(now, now, "again");
  EXPECT_FALSE(choice.offers(now + RdmaChoice::kBackoffUsMin));
  now += RdmaChoice::kBackoffUsMax;
  choice.carried(2 << 20, 1 << 20);
  choice.failed(now, now, "again");
  EXPECT_TRUE(choice.offers(now + RdmaChoice::kBackoffUsMin));
  EXPECT_EQ(choice.failures(), 7U) << "all are counted";
}

TEST(RdmaChoice, PathsThatWereThereBeforeAFailureAreOfTheSameOne) {
  RdmaChoice choice(Carrier::Auto);
  for (uint64_t connection = 0; connection < 16; ++connection) choice.failed(kNow + connection, kNow - 5, "it died");
  EXPECT_EQ(choice.failures(), 1U);
  EXPECT_TRUE(choice.offers(kNow + RdmaChoice::kBackoffUsMin));
  const uint64_t later = kNow + RdmaChoice::kBackoffUsMin;
  choice.failed(later + 10, later, "again");
  EXPECT_EQ(choice.failures(), 2U);
  EXPECT_FALSE(choice.offers(later + 10 + 2 * RdmaChoice::kBackoffUsMin - 1));
}

TEST(RdmaChoice, WhoInsistsOffersAtOnce) {
  RdmaChoice choice(Carrier::Rdma);
  choice.failed(kNow, kNow, "it died");
  EXPECT_TRUE(choice.offers(kNow));
}

TEST(RdmaChoice, AReasonThatStaysKeepsNobodyFromAskingAgain) {
  RdmaChoice choice(Carrier::Auto);
  choice.refused("no device");
  EXPECT_EQ(choice.why_not(), "no device");
  EXPECT_TRUE(choice.offers(kNow));
  EXPECT_EQ(choice.failures(), 0U);
}

}  // namespace
}  // namespace halfstep::peer
