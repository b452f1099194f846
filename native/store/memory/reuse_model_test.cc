#include "store/memory/reuse_model.h"

#include <gtest/gtest.h>

#include <cmath>

namespace halfstep::store {
namespace reuse_model_test {

constexpr double kThird = 1.2599210498948732;

TEST(ReuseModel, BucketsOfAgesGrowByTheCubeRootOfTwo) {
  EXPECT_EQ(ReuseModel::bucket_of(0), 0U);
  EXPECT_EQ(ReuseModel::bucket_of(1), 3U);
  EXPECT_EQ(ReuseModel::bucket_of(2), 4U) << "3 is 2 x 1.5";
  EXPECT_EQ(ReuseModel::bucket_of(3), 6U);
  for (uint32_t doubling = 3; doubling < 24; ++doubling) {
    const uint64_t age = (uint64_t{1} << doubling) - 1;
    EXPECT_EQ(ReuseModel::bucket_of(age), doubling * 3);
    EXPECT_EQ(ReuseModel::bucket_of(age - 1), doubling * 3 - 1);
  }
  EXPECT_EQ(ReuseModel::bucket_of((uint64_t{1} << 24) - 1), ReuseModel::kBuckets - 1);
  EXPECT_EQ(ReuseModel::bucket_of(UINT64_MAX), ReuseModel::kBuckets - 1);
}

TEST(ReuseModel, BelievesInYoungBlocksAndInThoseThatWereUsedOftenBeforeItSawAny) {
  const ReuseModel model;
  for (uint32_t c = 0; c < ReuseModel::kClasses; ++c) EXPECT_GT(model.worth(c, 10), model.worth(c, 1000));
  EXPECT_GT(model.worth(1, 100), model.worth(0, 100));
  EXPECT_GT(model.worth(2, 100), model.worth(1, 100));
}

// All blocks come back at age 7, which is the bucket from 8 to 8 x 2^(1/3): to keep one so long takes that less 1.
TEST(ReuseModel, WorthIsReusesByTheTimeThatKeepingTakes) {
  ReuseModel model;
  for (int i = 0; i < 100'000; ++i) model.reused(0, 7);
  const double before = model.worth(0, 0);
  model.renew();
  EXPECT_NE(model.worth(0, 0), before);
  EXPECT_NEAR(model.worth(0, 0), 1 / (8 * kThird - 1), 1e-4);
  EXPECT_NEAR(model.worth(0, 7), 1 / (8 * (kThird - 1)), 1e-4) << "the time before has been paid";
  EXPECT_LT(model.worth(0, 15), 0.01) << "nothing is left to come back";
}

// Half of them never come back: those are paid for, too, as long as one waits for the others.
TEST(ReuseModel, WhatWasForgottenCostsAsMuchAndBringsNothing) {
  ReuseModel model;
  for (int i = 0; i < 100'000; ++i) {
    model.reused(1, 7);
    model.forgotten(1, 1 << 20);
  }
  model.renew();
  EXPECT_NEAR(model.worth(1, 0), 0.5 / (8 * kThird - 1), 1e-4);
  EXPECT_LT(model.worth(1, 1000), 1e-6);
}

TEST(ReuseModel, OldCountsFadeAndNeverToNothing) {
  ReuseModel model;
  for (int i = 0; i < 100'000; ++i) model.reused(0, 7);
  model.renew();
  for (int i = 0; i < 400; ++i) {
    for (int j = 0; j < 1000; ++j) model.reused(0, 63);
    model.renew();
  }
  EXPECT_NEAR(model.worth(0, 0), 1 / (64 * kThird - 1), 1e-3) << "what is seen now";
  const ReuseModel fresh;
  for (int i = 0; i < 50'000; ++i) model.renew();
  EXPECT_NEAR(model.worth(0, 1000), fresh.worth(0, 1000), 1e-9);
  EXPECT_TRUE(std::isnormal(model.worth(2, 1 << 23)));
}

}  // namespace reuse_model_test
}  // namespace halfstep::store
