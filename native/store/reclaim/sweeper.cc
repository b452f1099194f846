#include "store/reclaim/sweeper.h"

#include <algorithm>

#include "store/memory/staleness.h"

namespace halfstep::store {

Sweeper::Sweeper(const Needs& needs, RollReader& rolls, Teller& teller)
    : catalog_(needs.catalog),
      memory_(needs.memory),
      names_(needs.names),
      holds_(needs.holds),
      evictor_(needs.evictor),
      clock_(needs.clock),
      store_time_(needs.store_time),
      rolls_(rolls),
      teller_(teller) {
  request_.owner = this;
  request_.done = [](RollRequest& request) { static_cast<Sweeper*>(request.owner)->rolled_ = true; };
}

void Sweeper::turn() {
  if (!lap_ && !quota_) look_for_work();
  if (lap_) go_on_with_lap();
  if (quota_) go_on_with_quota();
}

void Sweeper::look_for_work() noexcept {
  const uint64_t now_us = clock_.now_us();
  const uint64_t now_s = store_time_.now_s();
  const uint64_t left_s = next_expiry_s_ - std::min<uint64_t>(next_expiry_s_, now_s);
  const uint64_t expiry_us = next_expiry_s_ == UINT32_MAX ? UINT64_MAX : now_us + left_s * 1'000'000;
  const bool at_once = wanted_ || catalog_.wants_sweep();
  const uint64_t lap_due_us = at_once ? now_us : std::max(expiry_us, lap_not_before_us_);
  const uint64_t quota_due_us = names_.any_wants_sweep() ? std::max(now_us, quota_not_before_us_) : UINT64_MAX;
  due_us_ = std::min(lap_due_us, quota_due_us);
  if (lap_due_us <= now_us) begin_lap();
  if (quota_due_us <= now_us) begin_quota();
}

// ---- A lap over the index --------------------------------------------------------------------------------------------------

void Sweeper::begin_lap() {
  lap_ = true;
  lap_dropped_ = wanted_ = false;
  next_expiry_s_ = UINT32_MAX;  // found anew, together with what is committed meanwhile
  for (const Extent& extent : memory_.extents()) {
    if (extent.state == ExtentState::Dirty) note_expiry(extent.entry.expiry_s);
  }
}

void Sweeper::go_on_with_lap() {
  const bool ended = catalog_.sweep(kBucketsPerTurn, [this](const Block& block) {
    if (names_.alive(block.scope) && !store_time_.expired(block.expiry_s)) {
      note_expiry(block.expiry_s);
      return false;
    }
    evictor_.count(block, Eviction::Expired);
    teller_.dropped(block);
    return lap_dropped_ = true;
  });
  if (!ended) return;
  lap_ = false;
  lap_not_before_us_ = clock_.now_us() + kPassGapUs;
  due_us_ = 0;  // look_for_work() says it, in the next turn
  if (!lap_dropped_) return;
  const auto there = [this](const IndexKey& key) { return resident(catalog_, memory_, key) != nullptr || catalog_.find(key); };
  holds_.unpin_dead(there, [](const IndexKey&) {});
}

// ---- Quotas ----------------------------------------------------------------------------------------------------------------

void Sweeper::begin_quota() {
  quota_ = true;
  names_.begin_sweep();
  order_.clear();
  at_ = 0;
  ordinal_ = 0;
  rolled_ = false;
  for (const Segment& segment : catalog_.segments()) {
    if (segment.holds_frames() && has_what_sweeps(segment)) order_.push_back({segment.number, segment.generation});
  }
  std::sort(order_.begin(), order_.end(), [](const Place& a, const Place& b) { return a.generation < b.generation; });
}

bool Sweeper::has_what_sweeps(const Segment& segment) const noexcept {
  return std::any_of(segment.shares.begin(), segment.shares.end(),
                     [this](const Share& share) { return names_.sweeps(catalog_.scope_of(share)); });
}

// Null: it has been asked for.
const Roll* Sweeper::roll_of(const Segment& segment) noexcept {
  if (rolled_) return &request_.scanned;
  if (segment.roll != nullptr) return segment.roll.get();
  request_.segment = segment.number;
  rolls_.read(request_);
  return nullptr;
}

void Sweeper::go_on_with_quota() {
  if (request_.busy) return;
  for (uint32_t left = kEntriesPerTurn; left > 0; --left) {
    if (at_ == order_.size() || !names_.any_sweeps()) return end_quota();
    const Segment& segment = catalog_.segment(order_[at_].segment);
    // A segment that was reclaimed meanwhile has other blocks, and they are young.
    const bool same = segment.generation == order_[at_].generation && has_what_sweeps(segment);
    const Roll* roll = same ? roll_of(segment) : nullptr;
    if (same && roll == nullptr) return;
    if (!same || ordinal_ >= roll->entries.size()) {
      ++at_;
      ordinal_ = 0;
      rolled_ = false;
      continue;
    }
    const FoundEntry& found = roll->entries[ordinal_++];
    if (!found.present || !names_.sweeps(found.entry.scope)) continue;
    const IndexKey key{found.entry.key_low, found.entry.key_high};
    const Block block = catalog_.find(key);
    if (!(block.location == catalog_.location_of(segment, found.entry)) || block.held) continue;
    evictor_.evict(event_of(found.entry, roll->key_of(found)), block, Eviction::Quota);
    holds_.unpin_all(key, [](const IndexKey&) {});
  }
}

void Sweeper::end_quota() noexcept {
  if (names_.any_sweeps()) quota_not_before_us_ = clock_.now_us() + kPassGapUs;
  names_.end_sweep();
  quota_ = false;
  request_.scanned = {};
  rolled_ = false;
  due_us_ = 0;
}

}  // namespace halfstep::store
