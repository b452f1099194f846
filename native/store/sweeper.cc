#include "store/sweeper.h"

namespace halfstep::store {

Sweeper::Pass Sweeper::due() noexcept {
  if (wanted_) return Pass::Full;
  const uint64_t now_us = core_.clock.now_us();
  const uint64_t now_s = core_.store_time_s();
  const uint64_t left_s = next_expiry_s_ - std::min<uint64_t>(next_expiry_s_, now_s);
  const uint64_t full_us = next_expiry_s_ == UINT32_MAX ? UINT64_MAX : now_us + left_s * 1'000'000;
  const uint64_t full_due_us = std::max(full_us, full_not_before_us_);
  const uint64_t quota_due_us = core_.names.any_wants_sweep() ? std::max(now_us, quota_not_before_us_) : UINT64_MAX;
  due_us_ = std::min(full_due_us, quota_due_us);
  if (due_us_ > now_us) return Pass::None;
  return full_due_us <= now_us ? Pass::Full : Pass::Quota;
}

void Sweeper::turn() {
  if (pass_ == Pass::None) {
    const Pass pass = due();
    if (pass == Pass::None) return;
    begin(pass);
  }
  for (uint32_t left = kRecordsPerTurn; left > 0; --left) {
    if (at_ == order_.size()) return finish();
    const Segment& segment = core_.catalog.segment(order_[at_].segment);
    // A segment that was reclaimed meanwhile has other blocks, and they are young.
    if (segment.generation != order_[at_].generation || ordinal_ >= segment.blocks.size()) {
      ++at_;
      ordinal_ = 0;
      continue;
    }
    visit({segment.number, ordinal_++});
  }
  if (pass_ == Pass::Quota && !core_.names.any_sweeps()) finish();
}

void Sweeper::begin(Pass pass) {
  pass_ = pass;
  core_.names.begin_sweep();
  if (pass == Pass::Full) {
    wanted_ = false;
    next_expiry_s_ = UINT32_MAX;  // found anew, together with what is committed meanwhile
    for (const Extent& extent : core_.memory.extents()) {
      if (extent.state == ExtentState::Dirty) note_expiry(extent.entry.expiry_s);
    }
  }
  order_.clear();
  at_ = 0;
  ordinal_ = 0;
  for (const Segment& segment : core_.catalog.segments()) {
    if (segment.holds_frames()) order_.push_back({segment.number, segment.generation});
  }
  std::sort(order_.begin(), order_.end(), [](const Place& a, const Place& b) { return a.generation < b.generation; });
}

void Sweeper::finish() noexcept {
  const uint64_t later_us = core_.clock.now_us() + kPassGapUs;
  if (pass_ == Pass::Full) full_not_before_us_ = later_us;
  if (core_.names.any_sweeps()) quota_not_before_us_ = later_us;
  core_.names.end_sweep();
  pass_ = Pass::None;
  due_us_ = 0;  // due() says it, in the next turn
}

void Sweeper::visit(Location location) {
  const Block& block = core_.catalog.at(location);
  if (!block.live) return;
  const IndexKey key = block.key;
  const bool over = !core_.names.alive(block.scope) || core_.expired(block.expiry_s);
  if (!over && (!core_.names.sweeps(block.scope) || block.held)) return note_expiry(block.expiry_s);
  core_.evict(location, Eviction::Quota);  // or for a better reason
  core_.holds.unpin_all(key, [](const IndexKey&) {});
}

}  // namespace halfstep::store
