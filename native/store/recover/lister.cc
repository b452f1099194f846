#include "store/recover/lister.h"

#include <algorithm>

namespace halfstep::store {

Lister::Lister(const Needs& needs, RollReader& rolls)
    : header_(needs.header),
      log_(needs.log),
      catalog_(needs.catalog),
      memory_(needs.memory),
      names_(needs.names),
      clock_(needs.clock),
      store_time_(needs.store_time),
      rolls_(rolls) {
  request_.owner = this;
  request_.done = [](RollRequest& request) {
    auto& self = *static_cast<Lister*>(request.owner);
    self.generation_ = self.catalog_.segment(request.segment).generation;
    self.kept_since_us_ = self.clock_.now_us();
    self.walked_since_us_ = self.kept_since_us_;
    self.go_on();
    self.walked_since_us_ = UINT64_MAX;
  };
}

void Lister::list(Listing& listing) {
  listing.next = 0;
  listing.listed = 0;
  listing.later_us = 0;
  listing.store_next = nullptr;
  *tail_ = &listing;
  tail_ = &listing.store_next;
  if (head_ == &listing) go_on();
}

void Lister::turn() {
  if (generation_ == 0 || head_ != nullptr || clock_.now_us() - kept_since_us_ < kKeepRollUs) return;
  generation_ = 0;
  request_.scanned = {};
}

void Lister::go_on() {
  while (head_ != nullptr && !request_.busy) {
    Listing& listing = *head_;
    const StoredNamespace* space = header_.find_namespace(listing.name_space);
    if (space == nullptr) {
      end(0);
      continue;
    }
    number_ = space->record.number;
    const uint64_t at = listing.cursor == 0 ? 0 : listing.cursor - 1;
    const auto number = static_cast<uint32_t>(at >> 32);
    const auto ordinal = static_cast<uint32_t>(at);
    if (number >= catalog_.segment_count()) {
      if (list_memory(listing, ordinal)) end(0);
      continue;
    }
    const Segment& segment = catalog_.segment(number);
    const bool any = std::any_of(segment.shares.begin(), segment.shares.end(), [this](const Share& share) {
      return names_.namespace_of(catalog_.scope_of(share)) == number_;
    });
    if (any && segment.roll == nullptr && !(generation_ == segment.generation && request_.segment == number)) {
      request_.segment = number;
      note_time(listing);
      return rolls_.read(request_);
    }
    if (any && !list_roll(listing, segment, segment.roll != nullptr ? *segment.roll : request_.scanned, ordinal)) continue;
    listing.cursor = cursor_of(number + 1, 0);
  }
}

bool Lister::list_roll(Listing& listing, const Segment& segment, const Roll& roll, uint32_t ordinal) {
  for (; ordinal < roll.entries.size(); ++ordinal) {
    const FoundEntry& found = roll.entries[ordinal];
    if (!found.present || found.key_bytes == 0 || names_.namespace_of(found.entry.scope) != number_) continue;
    const Block block = catalog_.find({found.entry.key_low, found.entry.key_high});
    if (!(block.location == catalog_.location_of(segment, found.entry)) || store_time_.expired(block.expiry_s)) continue;
    if (listing.listed == listing.limit) {
      end(cursor_of(segment.number, ordinal));
      return false;
    }
    visit(listing, found.entry, roll.key_of(found), catalog_.exact_expiry_s(block, log_.life().expiry_s(found.entry)));
  }
  return true;
}

bool Lister::list_memory(Listing& listing, uint32_t from) {
  const std::deque<Extent>& extents = memory_.extents();
  for (; from < extents.size(); ++from) {
    const Extent& extent = extents[from];
    if (extent.state != ExtentState::Dirty || !extent.listed || extent.in_frame) continue;
    if (names_.namespace_of(extent.entry.scope) != number_ || store_time_.expired(extent.entry.expiry_s)) continue;
    if (listing.listed == listing.limit) {
      end(cursor_of(catalog_.segment_count(), from));
      return false;
    }
    visit(listing, extent.entry, extent.engine_key_bytes(), extent.entry.expiry_s);
  }
  return true;
}

void Lister::visit(Listing& listing, const format::Entry& entry, ConstBytes engine_key, uint32_t expiry_s) {
  ++listing.listed;
  Listed listed;
  listed.layout = names_.layout(entry.scope)->id();
  listed.component = {entry.component};
  listed.engine_key = engine_key;
  listed.block_bytes = entry.raw_bytes;
  listed.parts = entry.parts;
  listed.created_s = entry.created_s;
  listed.expiry_s = expiry_s;
  listing.visit(listing, listed);
}

// What is walked within list() is its caller's time anyway.
void Lister::note_time(Listing& listing) noexcept {
  if (walked_since_us_ == UINT64_MAX) return;
  const uint64_t now_us = clock_.now_us();
  listing.later_us += now_us - walked_since_us_;
  walked_since_us_ = now_us;
}

void Lister::end(uint64_t next) {
  Listing& listing = *head_;
  note_time(listing);
  listing.next = next;
  head_ = listing.store_next;
  if (head_ == nullptr) tail_ = &head_;
  listing.done(listing);
}

}  // namespace halfstep::store
