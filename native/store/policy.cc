#include "store/policy.h"

#include <string>

#include "store/policy_adapt.h"
#include "store/policy_fifo.h"
#include "store/policy_low.h"

namespace halfstep::store {

Keep keep_of(const Candidate& candidate, const ReclaimPolicy& policy, uint64_t now, uint64_t segment_pages,
             uint64_t kept_pages) noexcept {
  const uint64_t since = policy.young_since(now);
  const uint64_t pages_all = policy.keep_pages_max(segment_pages);
  const uint64_t pages_max = pages_all - std::min(kept_pages, pages_all);
  Keep keep;
  keep.all_since = keep.some_since = candidate.touched->since(pages_max, since);
  keep.pages = candidate.pages_worth(since);
  if (keep.all_since == since) return keep;
  keep.some_since = std::max(since, keep.all_since - TouchHistogram::kEpochStamps);
  keep.some_pages = pages_max - candidate.touched->pages_since(keep.all_since);
  keep.pages = std::min(keep.pages, candidate.held_pages + pages_max);
  return keep;
}

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
