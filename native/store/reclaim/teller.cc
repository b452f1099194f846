#include "store/reclaim/teller.h"

namespace halfstep::store {

Teller::Teller(const Needs& needs, RollReader& rolls, size_t places_max)
    : catalog_(needs.catalog),
      memory_(needs.memory),
      names_(needs.names),
      events_(needs.events),
      evictor_(needs.evictor),
      clock_(needs.clock),
      store_time_(needs.store_time),
      rolls_(rolls),
      places_max_(places_max) {
  request_.owner = this;
  request_.done = [](RollRequest& request) { static_cast<Teller*>(request.owner)->rolled_ = true; };
}

void Teller::empty(const Segment& segment, ScannedSegment roll, bool held_too) {
  if (asleep() || (segment.live_blocks == 0 && !owes(segment))) return;
  victim_ = &segment;
  victim_roll_ = std::move(roll);
  held_too_ = held_too;
}

void Teller::voided(const Segment& segment) {
  events_.removed_unnamed(std::erase_if(places_, [&](const Place& place) { return place.segment == segment.number; }));
}

void Teller::dropped(const Block& block) {
  if (asleep() || !names_.alive(block.scope)) return;
  if (places_.size() == places_max_) {
    ++too_many_;
    return;
  }
  if (places_.empty()) due_us_ = clock_.now_us() + kPauseUs;
  places_.push_back({block.location.segment, block.location.page});
}

uint64_t Teller::next_turn_us() const noexcept {
  if (request_.busy) return UINT64_MAX;
  if (victim_ != nullptr || segment_ != nullptr || too_many_ > 0) return 0;
  return places_.empty() || asleep() ? UINT64_MAX : due_us_;
}

void Teller::turn() {
  if (too_many_ > 0) events_.removed_unnamed(std::exchange(too_many_, 0));
  if (request_.busy) return;
  if (segment_ == nullptr && victim_ != nullptr) {
    begin(*victim_);
    request_.scanned = std::exchange(victim_roll_, {});
    rolled_ = !request_.scanned.entries.empty();
  } else if (segment_ == nullptr && !places_.empty() && !asleep() && clock_.now_us() >= due_us_) {
    begin(catalog_.segment(places_.front().segment));
  }
  if (segment_ != nullptr) tell_some();
}

bool Teller::owes(const Segment& segment) const noexcept {
  return std::any_of(places_.begin(), places_.end(), [&](const Place& place) { return place.segment == segment.number; });
}

void Teller::begin(const Segment& segment) {
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
  const EventOf name = event_of(found.entry, roll.key_of(found));
  const Block block = catalog_.find(name.key);
  if (std::binary_search(pages_.begin(), pages_.end(), found.entry.page)) {
    ++told_;
    const Extent* again = memory_.find_dirty(name.key);
    if (!block && again == nullptr) events_.removed(name, EventReason::Expired);
    return;
  }
  if (segment_ != victim_ || !(block.location == catalog_.location_of(*segment_, found.entry))) return;
  if (!block.held || held_too_ || store_time_.expired(block.expiry_s)) evictor_.evict(name, block, Eviction::Age);
}

void Teller::end() {
  events_.removed_unnamed(pages_.size() - std::min(told_, pages_.size()));
  if (segment_ == victim_) victim_ = nullptr;
  segment_ = nullptr;
  request_.scanned = {};
  pages_.clear();
  due_us_ = clock_.now_us() + kPauseUs;
}

}  // namespace halfstep::store
