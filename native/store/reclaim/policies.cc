#include "store/reclaim/policies.h"

#include <string>

#include "store/reclaim/policy_adapt.h"
#include "store/reclaim/policy_fifo.h"
#include "store/reclaim/policy_low.h"

namespace halfstep::store {

Fault make_policy(std::string_view name, const PolicySetup& setup, std::unique_ptr<ReclaimPolicy>* out) {
  if (!(setup.rewrite_share >= 0 && setup.rewrite_share <= 1)) {
    return {Code::Invalid, "rewrite_share=" + std::to_string(setup.rewrite_share) + ": must be from 0 to 1"};
  }
  if (name == SegAdapt::kName) {
    *out = std::make_unique<SegAdapt>(setup);
  } else if (name == SegLow::kName) {
    *out = std::make_unique<SegLow>();
  } else if (name == SegFifo::kName) {
    *out = std::make_unique<SegFifo>();
  } else {
    return {Code::Invalid, "policy=" + std::string(name) + ": there is no such policy; choose one of " +
                               std::string(SegAdapt::kName) + ", " + std::string(SegLow::kName) + ", " +
                               std::string(SegFifo::kName)};
  }
  return {};
}

}  // namespace halfstep::store
