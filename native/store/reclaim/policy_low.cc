#include "store/reclaim/policy_low.h"

namespace halfstep::store {
namespace {

constexpr size_t kFewCandidates = 4;

}  // namespace

size_t SegLow::pick(std::span<const Candidate> candidates, uint64_t now) const noexcept {
  const auto window = static_cast<size_t>(static_cast<double>(candidates.size()) * window_);
  const size_t oldest = candidates.size() <= kFewCandidates ? 1 : std::max<size_t>(2, window);
  const uint64_t since = young_since(now);
  const auto given_up =
      std::find_if(candidates.begin(), candidates.end(), [&](const Candidate& c) { return c.goes_first(since); });
  if (given_up != candidates.end()) return static_cast<size_t>(given_up - candidates.begin());
  size_t best = 0;
  uint64_t fewest = UINT64_MAX;
  for (size_t i = 0; i < oldest && fewest > 0; ++i) {
    const uint64_t worth = candidates[i].pages_worth(since);
    if (worth < fewest) {
      fewest = worth;
      best = i;
    }
  }
  return best;
}

}  // namespace halfstep::store
