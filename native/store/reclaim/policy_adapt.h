// policy_adapt.h — seg-low that follows a write budget. While rewriting costs less than it may, first blocks are kept longer,
// then the victim is looked for among fewer, older segments, which have more to keep: fresh blocks get their time to be used.
// When it costs more, the same way back. So traffic that writes little keeps all that it touches, and chat keeps its newest
// turns. The knobs move a little with each reclaim; until they have come down, a store full of used blocks would copy nearly
// all of itself, so that there is a bound for each victim, too.
// Invariants: age limit and window stay within their bounds; in the long run rewrites stay below the share, unless a budget in
// bytes a day allows more.
#pragma once

#include "store/reclaim/policy_low.h"

namespace halfstep::store {

class SegAdapt final : public SegLow {
 public:
  static constexpr std::string_view kName = "seg-adapt10";
  static constexpr double kAgeLimitMin = 0.05, kAgeLimitMax = 1.0;
  static constexpr double kWindowMin = 0.12, kWindowMax = kWindow;

  explicit SegAdapt(const PolicySetup& setup) noexcept;

  std::string_view name() const noexcept override { return kName; }
  void after_reclaim(const ReclaimCost& cost) noexcept override;
  uint64_t keep_pages_max(uint64_t segment_pages) const noexcept override;
  double window() const noexcept { return window_; }

 private:
  double budget_bytes() const noexcept;

  double segments_;
  double share_;
  double bytes_per_us_;
  double user_bytes_ = 0;
  double rewritten_bytes_ = 0;
  double elapsed_us_ = 0;
  double saved_bytes_ = 0;  // of the share, since the start
};

}  // namespace halfstep::store
