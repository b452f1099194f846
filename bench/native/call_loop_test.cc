#include "call_loop.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <deque>
#include <numeric>
#include <optional>
#include <vector>

namespace halfstep::bench {
namespace {

constexpr uint64_t kMs = 1'000'000;
constexpr uint64_t kSecond = 1000 * kMs;

double ms_of(uint64_t ns) { return static_cast<double>(ns) / 1e6; }

// Calls that take as long as they are told to, in virtual time: a nanosecond passes with each look at the clock, a microsecond
// with each look for what has ended.
class FakeCaller final : public Caller {
 public:
  explicit FakeCaller(std::vector<uint64_t> takes_ns) : takes_ns_(takes_ns.begin(), takes_ns.end()) {}

  uint64_t now_ns() const override { return ++now_; }
  void prepare(size_t place) override {
    EXPECT_FALSE(prepared(place)) << "it has a call already";
    now_ += prepare_ns;
    grow(place);
    places_[place].prepared = true;
    ++prepares;
  }
  void submit(size_t place) override {
    ASSERT_TRUE(prepared(place) && !places_[place].ends.has_value());
    ASSERT_FALSE(takes_ns_.empty());
    submitted_at.push_back(now_);
    places_[place].ends = now_ + takes_ns_.front();
    takes_ns_.pop_front();
    under_way_max = std::max(under_way_max, under_way());
  }
  std::span<const uint64_t> poll() override {
    ++looks;
    now_ += 1000;
    ended_.clear();
    for (size_t place = 0; place < places_.size() && ended_.size() < at_once; ++place) {
      if (places_[place].ends.value_or(UINT64_MAX) > now_) continue;
      places_[place] = {};
      ended_.push_back(place);
    }
    return ended_;
  }
  std::span<const uint64_t> wait(uint64_t timeout_ns) override {
    if (wakes_early && !woken_) {
      woken_ = true;
      return {};
    }
    woken_ = false;
    uint64_t until = timeout_ns == UINT64_MAX ? UINT64_MAX : now_ + timeout_ns;
    for (const Place& place : places_) until = std::min(until, place.ends.value_or(UINT64_MAX));
    if (until == UINT64_MAX) {
      ADD_FAILURE() << "it would wait for ever";
      std::abort();
    }
    now_ = std::max(now_, until);
    return poll();
  }
  void ended(size_t place, uint64_t latency_ns) override {
    EXPECT_FALSE(prepared(place)) << "it has another call before this one has ended";
    latencies_ms.push_back(ms_of(latency_ns));
  }
  void check(size_t place, bool counts) override {
    EXPECT_FALSE(prepared(place)) << "what came is gone: it has another call";
    now_ += check_ns;
    ++checks;
    counted += counts ? 1 : 0;
  }

  // How it is.
  uint64_t prepare_ns = 0;
  uint64_t check_ns = 0;
  size_t at_once = SIZE_MAX;
  bool wakes_early = false;
  // What was asked of it.
  std::vector<uint64_t> submitted_at;
  std::vector<double> latencies_ms;
  uint64_t prepares = 0;
  uint64_t checks = 0;
  uint64_t counted = 0;
  uint64_t looks = 0;
  uint64_t under_way_max = 0;

 private:
  struct Place {
    bool prepared = false;
    std::optional<uint64_t> ends;
  };
  void grow(size_t place) { places_.resize(std::max(places_.size(), place + 1)); }
  bool prepared(size_t place) const { return place < places_.size() && places_[place].prepared; }
  uint64_t under_way() const {
    return static_cast<uint64_t>(std::ranges::count_if(places_, [](const Place& place) { return place.ends.has_value(); }));
  }

  mutable uint64_t now_ = 0;
  std::deque<uint64_t> takes_ns_;
  std::vector<Place> places_;
  std::vector<uint64_t> ended_;
  bool woken_ = false;
};

std::vector<uint64_t> one_slow(uint64_t others) {
  std::vector<uint64_t> takes(1 + others, 1 * kMs);
  takes[0] = 50 * kMs;
  return takes;
}
std::vector<uint64_t> every(uint64_t gap_ns, uint64_t count, uint64_t first) {
  std::vector<uint64_t> due(count);
  for (uint64_t i = 0; i < count; ++i) due[i] = (first + i) * gap_ns;
  return due;
}

void expect_near(const std::vector<double>& seen, const std::vector<double>& expected) {
  ASSERT_EQ(seen.size(), expected.size());
  for (size_t i = 0; i < seen.size(); ++i) EXPECT_NEAR(seen[i], expected[i], 0.3) << "call " << i;
}

TEST(DueNs, GapsAreExponentialAndFollowFromTheSeed) {
  Prng prng(7);
  Prng same(7);
  const std::vector<uint64_t> due = due_ns(prng, 5000, 20);
  EXPECT_EQ(due, due_ns(same, 5000, 20));
  EXPECT_TRUE(std::ranges::is_sorted(due));
  EXPECT_LT(due.back(), 20 * kSecond);
  EXPECT_NEAR(static_cast<double>(due.size()), 100'000, 2000);
  std::vector<double> gaps;
  for (size_t i = 1; i < due.size(); ++i) gaps.push_back(static_cast<double>(due[i] - due[i - 1]));
  const auto count = static_cast<double>(gaps.size());
  const double mean = std::accumulate(gaps.begin(), gaps.end(), 0.0) / count;
  double squares = 0;
  for (const double gap : gaps) squares += (gap - mean) * (gap - mean);
  EXPECT_NEAR(std::sqrt(squares / count), mean, 0.03 * mean) << "an exponential distribution has one parameter";
  const auto longer = static_cast<double>(std::ranges::count_if(gaps, [&](double gap) { return gap > mean; }));
  EXPECT_NEAR(longer / count, std::exp(-1), 0.03 * std::exp(-1));
  EXPECT_EQ(due_ns(prng, 0.001, 0.001), std::vector<uint64_t>{0}) << "a run has a call at least";
}

TEST(OpenLoop, ACallThatWaitedForASlowOneHasWaited) {
  FakeCaller caller(one_slow(7));
  const LoopTime time = open_loop(caller, 1, every(10 * kMs, 8, 1), {.run_ns = kSecond});
  // Due at 10, over at 60; due at 20, begun at 60, over at 61; ...; the last ones are on time again.
  expect_near(caller.latencies_ms, {50, 41, 32, 23, 14, 5, 1, 1});
  EXPECT_NEAR(ms_of(caller.submitted_at.front()), 10, 0.3);
  EXPECT_NEAR(ms_of(caller.submitted_at.back()), 80, 0.3);
  EXPECT_EQ(time.due, 8U);
  EXPECT_EQ(time.begun, 8U);
  EXPECT_EQ(time.made, 8U);
  EXPECT_EQ(time.ever, 8U);
  EXPECT_EQ(caller.counted, 8U);
  EXPECT_NEAR(time.seconds, 0.081, 0.001);
}

TEST(OpenLoop, WithAPlaceLeftASlowCallMakesNoneWait) {
  FakeCaller caller(one_slow(7));
  open_loop(caller, 2, every(10 * kMs, 8, 1), {.run_ns = kSecond});
  std::ranges::sort(caller.latencies_ms);
  expect_near(caller.latencies_ms, {1, 1, 1, 1, 1, 1, 1, 50});
}

TEST(OpenLoop, NoCallComesBeforeItIsDue) {
  const std::vector<uint64_t> due{5 * kMs, 6 * kMs, 300 * kMs, 300 * kMs, 900 * kMs};
  for (const bool wakes_early : {false, true}) {
    FakeCaller caller(std::vector<uint64_t>(5, 1 * kMs));
    caller.wakes_early = wakes_early;
    open_loop(caller, 3, due, {.run_ns = kSecond});
    ASSERT_EQ(caller.submitted_at.size(), due.size());
    for (size_t i = 0; i < due.size(); ++i) {
      EXPECT_GE(caller.submitted_at[i], due[i]);
      EXPECT_LE(caller.submitted_at[i], due[i] + kMs / 10);
    }
    EXPECT_LE(caller.looks, 5 * (kLookNs / 1000 + 3)) << "it sleeps most of the way";
  }
}

TEST(OpenLoop, KeysAreMadeBeforeACallIsDue) {
  FakeCaller caller(std::vector<uint64_t>(3, 1 * kMs));
  caller.prepare_ns = 5 * kMs;
  open_loop(caller, 1, every(10 * kMs, 3, 1), {.run_ns = kSecond});
  expect_near(caller.latencies_ms, {1, 1, 1});
  EXPECT_EQ(caller.prepares, 3U) << "no call is chosen that nobody asks for";
}

TEST(OpenLoop, WhoIsDueDoesNotWaitUntilAllThatCameWasLookedAt) {
  // Four end together just before the fifth is due; to look at each takes a millisecond.
  FakeCaller caller({40 * kMs, 40 * kMs, 40 * kMs, 40 * kMs, 1 * kMs});
  caller.check_ns = 1 * kMs;
  open_loop(caller, 4, {0, 0, 0, 0, 40 * kMs + kMs / 2}, {.run_ns = kSecond});
  EXPECT_NEAR(ms_of(caller.submitted_at.back()), 41, 0.3);
  EXPECT_EQ(caller.checks, 5U);
}

TEST(OpenLoop, CallsThatAreLateTakeTogetherWhatHasCome) {
  FakeCaller caller(std::vector<uint64_t>(40, 1));
  const LoopTime time = open_loop(caller, 8, std::vector<uint64_t>(40, 0), {.run_ns = kSecond});
  EXPECT_EQ(time.made, 40U);
  EXPECT_EQ(caller.checks, 40U);
  EXPECT_LE(caller.looks, 40U / 8 + 2);
  EXPECT_EQ(caller.under_way_max, 8U);
}

TEST(OpenLoop, WhoGivesOneAtATimeIsAskedUntilAllHaveCome) {
  FakeCaller caller(std::vector<uint64_t>(40, 1));
  caller.at_once = 1;
  const LoopTime time = open_loop(caller, 8, std::vector<uint64_t>(40, 0), {.run_ns = kSecond});
  EXPECT_EQ(time.made, 40U);
  EXPECT_EQ(caller.latencies_ms.size(), 40U);
  EXPECT_EQ(caller.checks, 40U);
}

TEST(OpenLoop, ARateThatCannotBeKeptShows) {
  // 100 calls of 10 ms are due within half a second: twice what one place can do.
  FakeCaller caller(std::vector<uint64_t>(100, 10 * kMs));
  const LoopTime time = open_loop(caller, 1, every(5 * kMs, 100, 0), {.run_ns = kSecond / 2});
  EXPECT_EQ(time.due, 100U);
  EXPECT_NEAR(static_cast<double>(time.made), 100, 1);
  EXPECT_NEAR(static_cast<double>(time.begun), 50, 2);
  EXPECT_NEAR(*std::ranges::max_element(caller.latencies_ms), 505, 25) << "the queue has grown for half a second";
}

TEST(OpenLoop, WhatIsLateForAsLongAsTheRunWasIsLeftOutAndCounted) {
  FakeCaller caller(std::vector<uint64_t>(100, 10 * kMs));
  const LoopTime time = open_loop(caller, 1, every(1 * kMs, 100, 0), {.run_ns = kSecond / 10});
  EXPECT_EQ(time.due, 100U);
  EXPECT_NEAR(static_cast<double>(time.made), 20, 1);
  EXPECT_EQ(caller.latencies_ms.size(), time.made);
  EXPECT_LT(time.seconds, 0.25);
}

TEST(OpenLoop, WhatIsDueInTheWarmUpIsMadeAndDoesNotCount) {
  FakeCaller caller(one_slow(7));
  const LoopTime time = open_loop(caller, 1, every(10 * kMs, 8, 1), {.warm_up_ns = 45 * kMs, .run_ns = kSecond});
  expect_near(caller.latencies_ms, {14, 5, 1, 1});
  EXPECT_EQ(time.ever, 8U);
  EXPECT_EQ(time.due, 4U);
  EXPECT_EQ(time.begun, 4U);
  EXPECT_EQ(time.made, 4U);
  EXPECT_EQ(caller.checks, 8U);
  EXPECT_EQ(caller.counted, 4U);
  EXPECT_NEAR(time.seconds, 0.081 - 0.045, 0.001);
}

TEST(ClosedLoop, EachPlaceMakesACallWhenItsOneBeforeHasEnded) {
  FakeCaller caller(std::vector<uint64_t>(100, 10 * kMs));
  caller.check_ns = 1 * kMs;
  const LoopTime time = closed_loop(caller, 2, {.run_ns = 100 * kMs});
  EXPECT_EQ(caller.under_way_max, 2U);
  // One every 11 ms in each place: those that begin at 0 to 99.
  EXPECT_EQ(time.made, 20U);
  EXPECT_EQ(caller.latencies_ms.size(), time.made);
  EXPECT_EQ(caller.checks, time.made);
  EXPECT_EQ(caller.counted, time.made);
  EXPECT_EQ(time.ever, time.made);
  EXPECT_EQ(time.due + time.begun, 0U);
  EXPECT_GE(*std::ranges::min_element(caller.latencies_ms), 10);
}

TEST(ClosedLoop, WhatEndsInTheWarmUpDoesNotCount) {
  FakeCaller caller(std::vector<uint64_t>(100, 10 * kMs));
  const LoopTime time = closed_loop(caller, 1, {.warm_up_ns = 45 * kMs, .run_ns = 50 * kMs});
  // Those that end at 10 to 40 are of the warm-up, and with the one that ends at 50 the time that counts begins.
  EXPECT_EQ(time.made, 5U);
  EXPECT_EQ(time.ever, 10U);
  EXPECT_EQ(caller.checks, 10U);
  EXPECT_EQ(caller.counted, 5U);
  EXPECT_NEAR(time.seconds, 0.050, 0.001);
  expect_near(caller.latencies_ms, {10, 10, 10, 10, 10});
}

TEST(ClosedLoop, GoesOnUntilACallHasCounted) {
  FakeCaller caller(std::vector<uint64_t>(2, 500 * kMs));
  const LoopTime time = closed_loop(caller, 1, {.warm_up_ns = 10 * kMs, .run_ns = 10 * kMs});
  EXPECT_EQ(time.made, 1U);
  EXPECT_EQ(time.ever, 2U);
  EXPECT_NEAR(time.seconds, 0.5, 0.001);
}

TEST(ClosedLoop, MakesAsManyCallsAsItIsTold) {
  for (const uint64_t calls : {0, 1, 2, 3, 17}) {
    FakeCaller caller(std::vector<uint64_t>(calls, 10 * kMs));
    const LoopTime time = closed_loop(caller, 3, calls);
    EXPECT_EQ(time.made, calls);
    EXPECT_EQ(time.ever, calls);
    EXPECT_EQ(caller.prepares, calls);
    EXPECT_EQ(caller.checks, calls);
    EXPECT_EQ(caller.under_way_max, std::min<uint64_t>(calls, 3));
  }
}

}  // namespace
}  // namespace halfstep::bench
