#include "store/reclaim/policies.h"

#include <gtest/gtest.h>

#include <vector>

#include "base/units.h"
#include "store/reclaim/policy_adapt.h"
#include "store/reclaim/policy_fifo.h"

namespace halfstep::store {
namespace {

constexpr uint64_t kNow = 10 * kStampsPerCapacity;

// Segments of 1,000 pages, of which so many were touched at kNow.
struct Segments {
  explicit Segments(const std::vector<uint32_t>& touched) : histograms(touched.size()) {
    for (size_t i = 0; i < touched.size(); ++i) {
      histograms[i].add(kNow, touched[i]);
      candidates.push_back({static_cast<uint32_t>(i), 1000, 0, &histograms[i]});
    }
  }
  std::vector<TouchHistogram> histograms;
  std::vector<Candidate> candidates;
};

PolicySetup setup() { return {128, 0.10, 0}; }

TEST(Policy, UnknownNamesAreRefusedWithTheKnownOnes) {
  std::unique_ptr<ReclaimPolicy> policy;
  for (const char* name : {"seg-adapt10", "seg-low", "seg-fifo"}) {
    ASSERT_TRUE(make_policy(name, setup(), &policy).ok());
    EXPECT_EQ(policy->name(), name);
  }
  const Fault fault = make_policy("lru", setup(), &policy);
  EXPECT_EQ(fault.status, Code::Invalid);
  EXPECT_NE(fault.what.find("seg-adapt10, seg-low, seg-fifo"), std::string::npos) << fault.what;
  EXPECT_EQ(make_policy("seg-low", {128, -0.1, 0}, &policy).status, Code::Invalid);
}

TEST(Policy, FifoTakesTheOldestAndKeepsNothing) {
  SegFifo policy;
  Segments segments({900, 0, 0});
  EXPECT_EQ(policy.pick(segments.candidates, kNow), 0U);
  EXPECT_FALSE(policy.worth_keeping(kTouchedMore, 0));
}

TEST(Policy, LowTakesTheSegmentWithTheLeastToKeepAmongTheOldestQuarter) {
  SegLow policy;
  std::vector<uint32_t> touched(40, 500);
  touched[7] = 20;
  touched[9] = 10;
  touched[10] = 0;  // the eleventh of forty: not among the oldest quarter
  Segments segments(touched);
  EXPECT_EQ(policy.pick(segments.candidates, kNow), 9U);
  segments.candidates[9].held_pages = 100;  // what is held has to be written again, too
  EXPECT_EQ(policy.pick(segments.candidates, kNow), 7U);
}

TEST(Policy, LowTakesTheFirstThatHasNothingToKeep) {
  SegLow policy;
  std::vector<uint32_t> touched(40, 0);
  touched[0] = 1;
  Segments segments(touched);
  EXPECT_EQ(policy.pick(segments.candidates, kNow), 1U);
}

TEST(Policy, WhatAHintGaveUpGoesFirstHoweverYoungItIs) {
  SegLow policy;
  Segments segments(std::vector<uint32_t>(40, 100));
  segments.candidates[30].first_pages = 900;  // the others of its 1,000 were used, and are copied
  EXPECT_EQ(policy.pick(segments.candidates, kNow), 30U);
  segments.candidates[30].held_pages = 1;
  EXPECT_NE(policy.pick(segments.candidates, kNow), 30U) << "somebody holds a block of it";
}

TEST(Policy, AHintTakesNothingOfOthersThatLieBesideIt) {
  SegLow policy;
  Segments segments(std::vector<uint32_t>(40, 100));
  segments.candidates[30].first_pages = 899;  // a page that nobody has used, and no hint speaks of
  EXPECT_NE(policy.pick(segments.candidates, kNow), 30U);
}

TEST(Policy, WithFewSegmentsTheOldestGoes) {
  SegLow policy;
  Segments segments({900, 0, 0, 0});
  EXPECT_EQ(policy.pick(segments.candidates, kNow), 0U);
}

TEST(Policy, LowKeepsWhatWasTouchedWithinACapacityOfWrites) {
  SegLow policy;
  EXPECT_TRUE(policy.worth_keeping(kTouchedOnce, 0));
  EXPECT_TRUE(policy.worth_keeping(kTouchedMore, kStampsPerCapacity));
  EXPECT_FALSE(policy.worth_keeping(kTouchedOnce, kStampsPerCapacity + 1));
  EXPECT_FALSE(policy.worth_keeping(kUntouched, 0));
}

TEST(Policy, TheAgeLimitAndThenTheWindowFollowTheShareOfRewritesAndStayInBounds) {
  SegAdapt policy(setup());
  for (int i = 0; i < 1000; ++i) policy.after_reclaim({1000, 50, 1});
  EXPECT_DOUBLE_EQ(policy.age_limit(), SegAdapt::kAgeLimitMax);
  EXPECT_DOUBLE_EQ(policy.window(), SegAdapt::kWindowMin);
  for (int i = 0; i < 20; ++i) policy.after_reclaim({1000, 1500, 1});
  EXPECT_DOUBLE_EQ(policy.age_limit(), SegAdapt::kAgeLimitMax);
  EXPECT_GT(policy.window(), SegAdapt::kWindowMin);
  for (int i = 0; i < 1000; ++i) policy.after_reclaim({1000, 150, 1});
  EXPECT_DOUBLE_EQ(policy.age_limit(), SegAdapt::kAgeLimitMin);
  EXPECT_DOUBLE_EQ(policy.window(), SegAdapt::kWindowMax);
  EXPECT_TRUE(policy.worth_keeping(kTouchedOnce, kStampsPerCapacity / 25));
  EXPECT_FALSE(policy.worth_keeping(kTouchedOnce, kStampsPerCapacity / 15));
}

TEST(Policy, WhatWasSavedIsSpentUntilTheShareOfAllWritesIsReached) {
  SegAdapt policy(setup());
  for (int i = 0; i < 100; ++i) policy.after_reclaim({1000, 0, 1});
  for (int i = 0; i < 200; ++i) policy.after_reclaim({1000, 108, 1});  // more than the share, and paid for
  EXPECT_DOUBLE_EQ(policy.window(), SegAdapt::kWindowMin);
  for (int i = 0; i < 2000; ++i) policy.after_reclaim({1000, 108, 1});
  EXPECT_DOUBLE_EQ(policy.age_limit(), SegAdapt::kAgeLimitMin);
}

// A loop closed over a cache in which the rewrites grow with the age limit.
TEST(Policy, TheControllerSettlesAtItsBudget) {
  SegAdapt policy(setup());
  double rewritten = 0;
  for (int i = 0; i < 4000; ++i) {
    const double now = 300 * policy.age_limit();
    policy.after_reclaim({1000, static_cast<uint64_t>(now), 1});
    rewritten += now;
  }
  EXPECT_NEAR(rewritten / 4000, 97, 4);
}

TEST(Policy, ABudgetInBytesPerDayLetsWriteLightTrafficRewriteMore) {
  PolicySetup daily = setup();
  daily.rewrite_bytes_per_day = 86'400 * 1000;  // 1,000 bytes a second
  SegAdapt policy(daily);
  // A reclaim a second that follows 200 bytes of users' writes and rewrites 700: 3.5 times the users', within the budget.
  for (int i = 0; i < 1000; ++i) policy.after_reclaim({200, 700, 1'000'000});
  EXPECT_DOUBLE_EQ(policy.age_limit(), SegAdapt::kAgeLimitMax);
  for (int i = 0; i < 1000; ++i) policy.after_reclaim({200, 900, 1'000'000});
  EXPECT_DOUBLE_EQ(policy.age_limit(), SegAdapt::kAgeLimitMin);
  // Users write more than the budget: the share is what is left.
  for (int i = 0; i < 10'000; ++i) policy.after_reclaim({2000, 150, 1'000'000});
  EXPECT_DOUBLE_EQ(policy.age_limit(), SegAdapt::kAgeLimitMax);
}

// What a victim of 1,000 pages may keep.
uint64_t keep_max(const SegAdapt& policy) { return policy.keep_pages_max(1000); }

TEST(Policy, AVictimKeepsAllUntilTheFadingSumIsThreeBudgets) {
  SegAdapt policy(setup());
  EXPECT_EQ(keep_max(policy), 1000U);  // from the start on: a store that was full when it was started
  uint64_t rewritten = 0;
  constexpr uint64_t kReclaims = 64;  // half of the segments
  for (uint64_t i = 0; i < kReclaims; ++i) {
    const uint64_t kept = keep_max(policy);
    rewritten += kept;
    policy.after_reclaim({(1000 - kept) * kPageBytes, kept * kPageBytes, 1});
  }
  // Three times the budget of a quarter at once, and then as much in every further quarter.
  constexpr uint64_t kQuarter = 32 * 1000 * 11 / 100;
  EXPECT_GT(rewritten, 2 * 3 * kQuarter);
  EXPECT_LT(rewritten, 3 * 3 * kQuarter + 1000);
  EXPECT_LT(keep_max(policy), 350U);
  for (int i = 0; i < 200; ++i) policy.after_reclaim({1000 * kPageBytes, 50 * kPageBytes, 1});
  EXPECT_EQ(keep_max(policy), 1000U);
}

TEST(Policy, AVictimKeepsItsShareHoweverMuchWasSpent) {
  SegAdapt policy(setup());
  for (int i = 0; i < 40; ++i) policy.after_reclaim({0, 1000 * kPageBytes, 1});
  EXPECT_EQ(keep_max(policy), 90U);  // a tenth of what users write
}

// Growing conversations: all that was ever written is touched again and again, so that even at the shortest age limit and in
// the widest window a victim has three times its share to keep.
TEST(Policy, TheShareHoldsInTheLongRunThoughTheLowestKnobsKeepMore) {
  for (const double share : {0.05, 0.08, 0.10}) {
    SegAdapt policy({128, share, 0});
    uint64_t user = 0;
    uint64_t rewritten = 0;
    for (int i = 0; i < 100 * 128; ++i) {
      const uint64_t kept = std::min<uint64_t>(keep_max(policy), 300);
      user += 1000 - kept;
      rewritten += kept;
      policy.after_reclaim({(1000 - kept) * kPageBytes, kept * kPageBytes, 1});
    }
    EXPECT_DOUBLE_EQ(policy.age_limit(), SegAdapt::kAgeLimitMin);
    EXPECT_LE(static_cast<double>(rewritten), 1.02 * share * static_cast<double>(user)) << share;
    EXPECT_GE(static_cast<double>(rewritten), 0.90 * share * static_cast<double>(user)) << share;
  }
}

TEST(Policy, ABudgetInBytesPerDayBoundsNoVictimThatItPaysFor) {
  PolicySetup daily = setup();
  daily.rewrite_bytes_per_day = 86'400ULL * 1000 * kPageBytes;  // a segment a second
  SegAdapt policy(daily);
  for (int i = 0; i < 1000; ++i) {
    policy.after_reclaim({200 * kPageBytes, 800 * kPageBytes, 1'000'000});
    ASSERT_EQ(keep_max(policy), 1000U) << i;
  }
}

TEST(Policy, KeepsTheMostRecentlyTouchedAsFarAsTheShareReaches) {
  SegAdapt policy(setup());
  for (int i = 0; i < 40; ++i) policy.after_reclaim({0, 1000 * kPageBytes, 1});
  ASSERT_EQ(keep_max(policy), 90U);
  constexpr uint64_t kEpoch = TouchHistogram::kEpochStamps;
  TouchHistogram touched;
  touched.add(kNow - 2 * kEpoch, 300);
  touched.add(kNow - kEpoch, 200);
  touched.add(kNow, 40);
  const Candidate candidate{0, 1000, 25, &touched};
  const Keep keep = keep_of(candidate, policy, kNow, 1000);
  EXPECT_EQ(keep.all_since, kNow / kEpoch * kEpoch);
  EXPECT_EQ(keep.some_since, keep.all_since - kEpoch);
  EXPECT_EQ(keep.some_pages, 50U);
  EXPECT_EQ(keep.pages, 25U + 90U);
  // One that keeps everything is asked nothing.
  const Keep low = keep_of(candidate, SegLow(), kNow, 1000);
  EXPECT_EQ(low.all_since, kNow - kStampsPerCapacity);
  EXPECT_EQ(low.some_pages, 0U);
  EXPECT_EQ(low.pages, 25U + 540U);
}

}  // namespace
}  // namespace halfstep::store
