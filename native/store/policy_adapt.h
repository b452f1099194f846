// policy_adapt.h — seg-low with an age limit that follows the write budget: while rewriting costs less than it may, blocks are
// kept longer, and the other way round. So traffic that writes little keeps all that it touches, and chat keeps its newest
// turns. Invariant: the age limit stays within kAgeLimitMin and kAgeLimitMax.
#pragma once

#include "store/policy_low.h"

namespace halfstep::store {

class SegAdapt final : public SegLow {
 public:
  static constexpr std::string_view kName = "seg-adapt10";
  static constexpr double kAgeLimitMin = 0.05, kAgeLimitMax = 1.5;

  explicit SegAdapt(const PolicySetup& setup) noexcept;

  std::string_view name() const noexcept override { return kName; }
  void after_reclaim(const ReclaimCost& cost) noexcept override;

 private:
  double fade_;  // of the sums below, per reclaim: what is a quarter of the segments ago hardly counts
  double share_;
  double bytes_per_us_;
  double user_bytes_ = 0;
  double rewritten_bytes_ = 0;
  double elapsed_us_ = 0;
};

}  // namespace halfstep::store
