#include "base/check.h"

#include <gtest/gtest.h>

#include "base/build_info.h"

namespace halfstep {
namespace {

enum class Colour : uint8_t { Red, Green };

TEST(CheckDeathTest, AFailedOneSaysWhereWhyAndWithWhichValues) {
  const uint64_t used = 3;
  const int signed_bytes = -2;
  EXPECT_DEATH(HALFSTEP_CHECK(used < 2 && signed_bytes > 0, used, signed_bytes, Colour::Green),
               "check failed: check_test.cc:[0-9]+: used < 2 && signed_bytes > 0; "
               "used=3, signed_bytes=-2, Colour::Green=1; build .*" +
                   std::string(kBuildType));
}

TEST(CheckDeathTest, NamesKeepTheirCommasInBrackets) {
  const auto sum = [](int a, int b) { return a + b; };
  EXPECT_DEATH(HALFSTEP_CHECK(sum(1, 2) == 4, sum(1, 2), uint8_t{7}), "; sum\\(1, 2\\)=3, uint8_t\\{7\\}=7; build");
}

TEST(CheckDeathTest, OneWithoutValuesSaysItsCondition) {
  EXPECT_DEATH(HALFSTEP_CHECK(sizeof(int) == 1), "sizeof\\(int\\) == 1; build");
}

TEST(Check, OneThatHoldsLooksOnceAndSaysNothing) {
  int looked = 0;
  const auto holds = [&] { return ++looked > 0; };
  HALFSTEP_CHECK(holds(), looked);
  EXPECT_EQ(looked, 1);
}

TEST(CheckDeathTest, ADebugCheckIsLookedAtWhereAssertionsAre) {
#ifdef NDEBUG
  int looked = 0;
  const auto fails = [&] { return ++looked < 0; };
  HALFSTEP_DCHECK(fails(), looked);
  EXPECT_EQ(looked, 0);
#else
  EXPECT_DEATH(HALFSTEP_DCHECK(1 + 1 == 3), "1 \\+ 1 == 3");
#endif
}

}  // namespace
}  // namespace halfstep
