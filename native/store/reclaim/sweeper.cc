#include "store/reclaim/sweeper.h"

namespace halfstep::store {

Sweeper::Sweeper(Core& core, RollReader& rolls, Teller& teller) : core_(core), rolls_(rolls), teller_(teller) {
  request_.owner = this;
  request_.done = [](RollRequest& request) { static_cast<Sweeper*>(request.owner)->rolled_ = true; };
}

void Sweeper::turn() {
  if (!lap_ && !quota_) look_for_work();
  if (lap_) go_on_with_lap();
  if (quota_) go_on_with_quota();
}

void Sweeper::look_for_work() noexcept {
  const uint64_t now_us = core_.clock.now_us();
  const uint64_t now_s = core_.store_time_s();
  const uint64_t left_s = next_expiry_s_ - std::min<uint64_t>(next_expiry_s_, now_s);
  const uint64_t expiry_us = next_expiry_s_ == UINT32_MAX ? UINT64_MAX : now_us + left_s * 1'000'000;
  const bool at_once = wanted_ || core_.catalog.wants_sweep();
  const uint64_t lap_due_us = at_once ? now_us : std::max(expiry_us, lap_not_before_us_);
  const uint64_t quota_due_us = core_.names.any_wants_sweep() ? std::max(now_us, quota_not_before_us_) : UINT64_MAX;
  due_us_ = std::min(lap_due_us, quota_due_us);
  if (lap_due_us <= now_us) begin_lap();
  if (quota_due_us <= now_us) begin_quota();
}

// ---- A lap over the index --------------------------------------------------------------------------------------------------

void Sweeper::begin_lap() {
  lap_ = true;
  lap_dropped_ = wanted_ = false;
  next_expiry_s_ = UINT32_MAX;  // found anew, together with what is committed meanwhile
  for (const Extent& extent : core_.memory.extents()) {
    if (extent.state == ExtentState::Dirty) note_expiry(extent.entry.expiry_s);
  }
}

void Sweeper::go_on_with_lap() {
  const bool ended = core_.catalog.sweep(kBucketsPerTurn, [this](const Block& block) {
    if (core_.names.alive(block.scope) && !core_.expired(block.expiry_s)) {
      note_expiry(block.expiry_s);
      return false;
    }
    core_.count_eviction(block, Eviction::Expired);
    teller_.dropped(block);
    return lap_dropped_ = true;
  });
  if (!ended) return;
  lap_ = false;
  lap_not_before_us_ = core_.clock.now_us() + kPassGapUs;
  due_us_ = 0;  // look_for_work() says it, in the next turn
  if (!lap_dropped_) return;
  const auto there = [this](const IndexKey& key) { return core_.resident(key) != nullptr || core_.catalog.find(key); };
  core_.holds.unpin_dead(there, [](const IndexKey&) {});
}

// ---- Quotas ----------------------------------------------------------------------------------------------------------------

void Sweeper::begin_quota() {
  quota_ = true;
  core_.names.begin_sweep();
  order_.clear();
  at_ = 0;
  ordinal_ = 0;
  rolled_ = false;
  for (const Segment& segment : core_.catalog.segments()) {
    if (segment.holds_frames() && has_what_sweeps(segment)) order_.push_back({segment.number, segment.generation});
  }
  std::sort(order_.begin(), order_.end(), [](const Place& a, const Place& b) { return a.generation < b.generation; });
}

bool Sweeper::has_what_sweeps(const Segment& segment) const noexcept {
  return std::any_of(segment.shares.begin(), segment.shares.end(),
                     [this](const Share& share) { return core_.names.sweeps(core_.catalog.scope_of(share)); });
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
    if (at_ == order_.size() || !core_.names.any_sweeps()) return end_quota();
    const Segment& segment = core_.catalog.segment(order_[at_].segment);
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
    if (!found.present || !core_.names.sweeps(found.entry.scope)) continue;
    const IndexKey key{found.entry.key_low, found.entry.key_high};
    const Block block = core_.catalog.find(key);
    if (!(block.location == core_.catalog.location_of(segment, found.entry)) || block.held) continue;
    core_.evict(Core::about(found.entry, roll->key_of(found)), block, Eviction::Quota);
    core_.holds.unpin_all(key, [](const IndexKey&) {});
  }
}

void Sweeper::end_quota() noexcept {
  if (core_.names.any_sweeps()) quota_not_before_us_ = core_.clock.now_us() + kPassGapUs;
  core_.names.end_sweep();
  quota_ = false;
  request_.scanned = {};
  rolled_ = false;
  due_us_ = 0;
}

}  // namespace halfstep::store
