#include "store/policy_adapt.h"

namespace halfstep::store {
namespace {

constexpr double kStepUp = 1.03;
constexpr double kStepDown = 0.97;
constexpr double kDayUs = 86'400e6;

}  // namespace

SegAdapt::SegAdapt(const PolicySetup& setup) noexcept
    : fade_(1.0 - 4.0 / std::max(setup.segments, 8U)),
      share_(setup.rewrite_share),
      bytes_per_us_(static_cast<double>(setup.rewrite_bytes_per_day) / kDayUs) {}

void SegAdapt::after_reclaim(const ReclaimCost& cost) noexcept {
  user_bytes_ = user_bytes_ * fade_ + static_cast<double>(cost.user_bytes);
  rewritten_bytes_ = rewritten_bytes_ * fade_ + static_cast<double>(cost.rewritten_bytes);
  elapsed_us_ = elapsed_us_ * fade_ + static_cast<double>(cost.elapsed_us);
  // Who writes little may rewrite more: the drive does not wear by shares.
  const double budget = std::max(share_ * user_bytes_, bytes_per_us_ * elapsed_us_ - user_bytes_);
  age_limit_ = std::clamp(age_limit_ * (rewritten_bytes_ < budget ? kStepUp : kStepDown), kAgeLimitMin, kAgeLimitMax);
}

}  // namespace halfstep::store
