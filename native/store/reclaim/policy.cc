#include "store/reclaim/policy.h"

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

}  // namespace halfstep::store
