#include "store/reclaim/pruner.h"

#include <algorithm>

namespace halfstep::store {

Pruner::Pruner(RecordLog& log, const Catalog& catalog, RollReader& rolls) : log_(log), catalog_(catalog), rolls_(rolls) {
  request_.owner = this;
  request_.done = [](RollRequest& request) {
    auto& self = *static_cast<Pruner*>(request.owner);
    const Segment& segment = self.catalog_.segment(request.segment);
    const ScannedSegment& scanned = request.scanned;
    // A bad page may hide an entry.
    if (!scanned.anything || scanned.pages_bad > 0 || scanned.read_errors > 0) {
      self.keep_above_ = std::min(self.keep_above_, segment.generation);
    }
    self.take(scanned);
    request.scanned = {};
    self.read_next();
  };
}

void Pruner::turn() {
  if (state_ == State::Ending) end();
  if (state_ == State::Idle && log_.wants_prune()) begin();
}

void Pruner::begin() {
  state_ = State::Walking;
  log_.begin_prune();
  keep_above_ = catalog_.oldest_generation_unknown(UINT64_MAX);
  newest_ = index::Table(log_.tombstone_count());
  needed_ = index::Table();
  for (const Tombstone& t : log_.tombstones()) newest_.put(hash_of(t.key), t.sequence);
  order_.clear();
  for (const Segment& segment : catalog_.segments()) {
    if (!segment.holds_frames()) continue;
    if (segment.roll != nullptr) {
      take(*segment.roll);
    } else {
      order_.push_back({segment.number, segment.generation});
    }
  }
  read_next();
}

void Pruner::read_next() {
  while (!order_.empty()) {
    const Place place = order_.back();
    order_.pop_back();
    const Segment& segment = catalog_.segment(place.segment);
    if (segment.generation != place.generation || !segment.holds_frames()) continue;  // its entries are gone
    request_.segment = place.segment;
    return rolls_.read(request_);
  }
  state_ = State::Ending;
}

void Pruner::take(const Roll& roll) {
  for (const FoundEntry& found : roll.entries) {
    if (!found.present && !found.gone) continue;
    const Hash128 key{found.entry.key_low, found.entry.key_high};
    const uint64_t sequence = newest_.find(key);
    if (sequence != index::Table::kNone && found.entry.birth < sequence) needed_.put(key, sequence);
  }
}

void Pruner::end() {
  const uint64_t keep_above = std::min(keep_above_, catalog_.oldest_generation_unknown(UINT64_MAX));
  const bool ended = log_.end_prune([&](const Tombstone& t) {
    const uint64_t newest = newest_.find(hash_of(t.key));
    if (newest == index::Table::kNone || t.sequence > newest) return false;  // it came later
    return t.sequence < newest || (t.sequence <= keep_above && needed_.find(hash_of(t.key)) == index::Table::kNone);
  });
  if (!ended) return;
  state_ = State::Idle;
  newest_ = needed_ = index::Table();
}

}  // namespace halfstep::store
