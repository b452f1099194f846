// policy.h — which segment gives way, and which of its blocks are worth writing again. One small class a policy, one file each.
// A policy sees what a decision may cost to look at: per segment a few sums and a histogram, per block a class and an age.
// What is expired, dead or deleted never gets as far as this: it is worth nothing, whatever the policy. What is held is always
// kept, and counts as worth keeping.
// Ages and times are stamps of LogClock (touch.h).
// Thread: the shard's.
#pragma once

#include <algorithm>
#include <span>
#include <string_view>

#include "store/format/mutant.h"
#include "store/format/touch.h"

namespace halfstep::store {

// A segment at rest that could be reclaimed now.
struct Candidate {
  uint32_t segment = 0;
  uint64_t live_pages = 0;
  uint64_t held_pages = 0;
  const TouchHistogram* touched = nullptr;
  uint64_t first_pages = 0;  // of those that live: a hint says that they go first, and nobody has used them

  // Pages that would be written again if what was touched at `when` or later is kept.
  uint64_t pages_worth(uint64_t when) const noexcept { return std::min(live_pages, held_pages + touched->pages_since(when)); }
  // Somebody's hint has given it up: nothing of it would be lost that the hint does not speak of and that is not copied.
  bool goes_first(uint64_t when) const noexcept {
    if (HALFSTEP_MUTANT(HintIgnored)) return false;
    if (HALFSTEP_MUTANT(HintInverted)) return first_pages == 0 && held_pages == 0;
    return first_pages > 0 && held_pages == 0 && live_pages <= first_pages + touched->pages_since(when);
  }
};

// What is written again of a victim, besides what is held, if the policy finds it worth keeping: what was touched at
// `all_since` or later, and the first `some_pages` of what was touched between `some_since` and that. pages: about how many in
// all.
struct Keep {
  uint64_t all_since = 0;
  uint64_t some_since = 0;
  uint64_t some_pages = 0;
  uint64_t pages = 0;
};

struct ReclaimCost {
  uint64_t user_bytes = 0;  // written since the reclaim before
  uint64_t rewritten_bytes = 0;
  uint64_t elapsed_us = 0;
};

class ReclaimPolicy {
 public:
  virtual ~ReclaimPolicy() = default;

  virtual std::string_view name() const noexcept = 0;
  // The number of the victim in `candidates`, which is not empty and begins with the one that was written longest ago.
  virtual size_t pick(std::span<const Candidate> candidates, uint64_t now) const noexcept = 0;
  virtual bool worth_keeping(uint8_t touch_class, uint64_t age) const noexcept = 0;
  // Beyond this age nothing is worth keeping; in capacities of writes, for people.
  virtual double age_limit() const noexcept = 0;
  // The moment since which what was touched is young enough.
  uint64_t young_since(uint64_t now) const noexcept {
    return now - std::min(now, static_cast<uint64_t>(age_limit() * kStampsPerCapacity));
  }
  // No more than so many pages of the next victim are written again, held blocks aside.
  virtual uint64_t keep_pages_max(uint64_t segment_pages) const noexcept { return segment_pages; }
  virtual void after_reclaim(const ReclaimCost&) noexcept {}
};

struct PolicySetup {
  uint32_t segments = 0;
  double rewrite_share = 0;            // of the bytes that users write
  uint64_t rewrite_bytes_per_day = 0;  // of the device's endurance, users' writes included; 0 = the share alone
};

// The most recently touched first, as far as the policy's share reaches, less what of it was kept already.
Keep keep_of(const Candidate& candidate, const ReclaimPolicy& policy, uint64_t now, uint64_t segment_pages,
             uint64_t kept_pages = 0) noexcept;

}  // namespace halfstep::store
