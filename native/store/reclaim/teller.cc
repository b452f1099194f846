#include "store/reclaim/teller.h"

namespace halfstep::store {

Teller::Teller(Core& core, RollReader& rolls) : core_(core), rolls_(rolls) {
  request_.owner = this;
  request_.done = [](RollRequest& request) { static_cast<Teller*>(request.owner)->rolled_ = true; };
}

void Teller::empty(Segment& segment, ScannedSegment roll, bool held_too) {
  if (asleep() || (segment.live_blocks == 0 && !owes(segment))) return;
  victim_ = &segment;
  victim_roll_ = std::move(roll);
  held_too_ = held_too;
}

void Teller::voided(const Segment& segment) {
  note_unnamed(std::erase_if(places_, [&](const Place& place) { return place.segment == segment.number; }));
}

void Teller::dropped(const Block& block) {
  if (asleep() || !core_.names.alive(block.scope)) return;
  if (places_.size() == core_.options.events_max) {
    ++too_many_;
    return;
  }
  if (places_.empty()) due_us_ = core_.clock.now_us() + kPauseUs;
  places_.push_back({block.location.segment, block.location.page});
}

uint64_t Teller::next_turn_us() const noexcept {
  if (request_.busy) return UINT64_MAX;
  if (victim_ != nullptr || segment_ != nullptr || too_many_ > 0) return 0;
  return places_.empty() || asleep() ? UINT64_MAX : due_us_;
}

void Teller::turn() {
  if (too_many_ > 0) note_unnamed(std::exchange(too_many_, 0));
  if (request_.busy) return;
  if (segment_ == nullptr && victim_ != nullptr) {
    begin(*victim_);
    request_.scanned = std::exchange(victim_roll_, {});
    rolled_ = !request_.scanned.entries.empty();
  } else if (segment_ == nullptr && !places_.empty() && !asleep() && core_.clock.now_us() >= due_us_) {
    begin(core_.catalog.segment(places_.front().segment));
  }
  if (segment_ != nullptr) tell_some();
}

bool Teller::owes(const Segment& segment) const noexcept {
  return std::any_of(places_.begin(), places_.end(), [&](const Place& place) { return place.segment == segment.number; });
}

void Teller::begin(Segment& segment) {
  segment_ = &segment;
  generation_ = segment.generation;
  ordinal_ = told_ = 0;
  rolled_ = false;
  pages_.clear();
  std::erase_if(places_, [&](const Place& place) {
    if (place.segment != segment.number) return false;
    pages_.push_back(place.page);
    return true;
  });
  std::sort(pages_.begin(), pages_.end());
}

// Null: it has been asked for.
const Roll* Teller::roll() noexcept {
  if (rolled_) return &request_.scanned;
  if (segment_->roll != nullptr) return segment_->roll.get();
  request_.segment = segment_->number;
  rolls_.read(request_);
  return nullptr;
}

void Teller::tell_some() {
  for (uint32_t left = kEntriesPerTurn; left > 0; --left) {
    // One that was open is another by now.
    if (!rolled_ && segment_->generation != generation_) return end();
    const Roll* roll = this->roll();
    if (roll == nullptr) return;
    if (ordinal_ == roll->entries.size()) return end();
    const FoundEntry& found = roll->entries[ordinal_++];
    if (found.present) tell(*roll, found);
  }
}

void Teller::tell(const Roll& roll, const FoundEntry& found) {
  const EventOf name = Core::about(found.entry, roll.key_of(found));
  const Block block = core_.catalog.find(name.key);
  if (std::binary_search(pages_.begin(), pages_.end(), found.entry.page)) {
    ++told_;
    const Extent* again = core_.memory.find_dirty(name.key);
    if (!block && again == nullptr) core_.note_removed(name, EventReason::Expired);
    return;
  }
  if (segment_ != victim_ || !(block.location == core_.catalog.location_of(*segment_, found.entry))) return;
  if (!block.held || held_too_ || core_.expired(block.expiry_s)) core_.evict(name, block, Eviction::Age);
}

void Teller::end() {
  note_unnamed(pages_.size() - std::min(told_, pages_.size()));
  if (segment_ == victim_) victim_ = nullptr;
  segment_ = nullptr;
  request_.scanned = {};
  pages_.clear();
  due_us_ = core_.clock.now_us() + kPauseUs;
}

void Teller::note_unnamed(uint64_t blocks) {
  if (blocks > 0) core_.events.note_unnamed(blocks, core_.store_time_s());
}

}  // namespace halfstep::store
