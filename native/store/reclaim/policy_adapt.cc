#include "store/reclaim/policy_adapt.h"

#include "base/units.h"

namespace halfstep::store {
namespace {

constexpr double kStepUp = 1.03;
constexpr double kStepDown = 0.97;
constexpr double kUsPerDay = 86'400e6;

// What was saved while the store filled up, or in quiet times, may be spent a little at a time.
constexpr double kSpendSaved = 1.1;
constexpr double kShareEver = 0.97;

// The knobs move a little with each reclaim, and segments differ: only where the rewrites of the last quarter (which fade)
// reach so many times their budget, a victim keeps no more than what is left of that, or the share of one segment. In all that
// is up to six budgets in a store's first quarter, and three in each after it, until the debt is as high as that first
// quarter's: from there on a victim keeps its share and no more. The knobs end somewhere, and traffic that touches all that it
// ever wrote has more to keep there than its share.
constexpr double kOverdraft = 3;
constexpr double kDebtOverdrafts = 2;
// A quarter of few segments is less than one of them: nothing to hold a victim to.
constexpr double kOverdraftSegmentsMin = 2;

}  // namespace

SegAdapt::SegAdapt(const PolicySetup& setup) noexcept
    : segments_(std::max(setup.segments, 8U)),
      share_(setup.rewrite_share),
      bytes_per_us_(static_cast<double>(setup.rewrite_bytes_per_day) / kUsPerDay) {}

// For the rewrites of the last quarter of the segments.
double SegAdapt::budget_bytes() const noexcept {
  const double by_share = saved_bytes_ > 0 ? kSpendSaved * share_ * user_bytes_ : 0;
  // Who writes little may rewrite more: the drive does not wear by shares.
  return std::max(by_share, bytes_per_us_ * elapsed_us_ - user_bytes_);
}

uint64_t SegAdapt::keep_pages_max(uint64_t segment_pages) const noexcept {
  const double segment_bytes = static_cast<double>(segment_pages) * kPageBytes;
  // As if users had written a quarter of the store since: who was just started has seen nothing yet.
  const double by_share = kSpendSaved * share_ * segments_ * segment_bytes / 4;
  const double by_day = bytes_per_us_ * elapsed_us_ - user_bytes_;
  const double least = kOverdraftSegmentsMin * segment_bytes;
  const double budget = std::max(kOverdraft * std::max(by_share, by_day), least);
  const double debt_max = kDebtOverdrafts * std::max(kOverdraft * by_share, least);
  const double left_bytes = std::min(budget - rewritten_bytes_, debt_max + saved_bytes_);
  return static_cast<uint64_t>(std::clamp(left_bytes, share_ / (1 + share_) * segment_bytes, segment_bytes)) / kPageBytes;
}

void SegAdapt::after_reclaim(const ReclaimCost& cost) noexcept {
  const double fade = 1.0 - 4.0 / segments_;  // what is a quarter of the segments ago hardly counts
  user_bytes_ = user_bytes_ * fade + static_cast<double>(cost.user_bytes);
  rewritten_bytes_ = rewritten_bytes_ * fade + static_cast<double>(cost.rewritten_bytes);
  elapsed_us_ = elapsed_us_ * fade + static_cast<double>(cost.elapsed_us);
  saved_bytes_ += kShareEver * share_ * static_cast<double>(cost.user_bytes) - static_cast<double>(cost.rewritten_bytes);
  // Where a budget in bytes a day is more than users write, it is the bound, and what it pays for is no debt for long.
  if (user_bytes_ < bytes_per_us_ * elapsed_us_) saved_bytes_ = std::max(saved_bytes_, -share_ * user_bytes_);
  if (rewritten_bytes_ < budget_bytes()) {
    double& knob = age_limit_ < kAgeLimitMax ? age_limit_ : window_;
    knob *= &knob == &age_limit_ ? kStepUp : kStepDown;
  } else {
    double& knob = window_ < kWindowMax ? window_ : age_limit_;
    knob *= &knob == &window_ ? kStepUp : kStepDown;
  }
  age_limit_ = std::clamp(age_limit_, kAgeLimitMin, kAgeLimitMax);
  window_ = std::clamp(window_, kWindowMin, kWindowMax);
}

}  // namespace halfstep::store
