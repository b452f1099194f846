// policy_low.h — keeps what was touched since it was last written, unless that is long ago; of the oldest quarter of the
// segments the one goes that has the least to keep. Among all segments instead, fresh blocks that nobody had the time to touch
// would go first.
#pragma once

#include "store/reclaim/policy.h"

namespace halfstep::store {

class SegLow : public ReclaimPolicy {
 public:
  static constexpr std::string_view kName = "seg-low";
  static constexpr double kAgeLimit = 1.0;
  static constexpr double kWindow = 0.25;

  std::string_view name() const noexcept override { return kName; }
  size_t pick(std::span<const Candidate> candidates, uint64_t now) const noexcept override;
  bool worth_keeping(uint8_t touch_class, uint64_t age) const noexcept override {
    return touch_class != kUntouched && age <= limit_stamps();
  }
  double age_limit() const noexcept override { return age_limit_; }

 protected:
  uint64_t limit_stamps() const noexcept { return static_cast<uint64_t>(age_limit_ * kStampsPerCapacity); }
  double age_limit_ = kAgeLimit;
  double window_ = kWindow;  // of the candidates, the oldest first: the victim is among them
};

}  // namespace halfstep::store
