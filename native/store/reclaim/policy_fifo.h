// policy_fifo.h — the segment that was written longest ago goes, with all that nobody holds. Writes nothing again by itself.
#pragma once

#include "store/reclaim/policy.h"

namespace halfstep::store {

class SegFifo final : public ReclaimPolicy {
 public:
  static constexpr std::string_view kName = "seg-fifo";

  std::string_view name() const noexcept override { return kName; }
  size_t pick(std::span<const Candidate>, uint64_t) const noexcept override { return 0; }
  bool worth_keeping(uint8_t, uint64_t) const noexcept override { return false; }
  double age_limit() const noexcept override { return 0; }
};

}  // namespace halfstep::store
