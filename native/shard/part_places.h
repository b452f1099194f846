// part_places.h — which parts of a block a section selects, in the order in which it wants them.
// A place is the number of a part among those that are selected: place 0 is sent first. Without ranges all parts are, and
// places are the parts themselves.
// Invariant: ranges are as parse_request() lets them pass; what they select may lie beyond a block's end.
// Thread: any.
#pragma once

#include <cstdint>

#include "store/store.h"
#include "wire/layout.h"
#include "wire/records.h"

namespace halfstep::shard {

// How many places a section has; 0: as many as a block has parts.
uint32_t places_of(const wire::SectionView& section) noexcept;
// The part at this place.
uint64_t part_at(const wire::SectionView& section, uint32_t place) noexcept;
// The parts at the places first to end - 1, and what lies between them. All of a block: no span.
store::PartSpan span_of(const wire::SectionView& section, uint32_t first, uint32_t end) noexcept;
// The place after those from `first` on whose parts have about so many bytes, twice as many from the first to the last of
// them at the most. One at least, where there is one.
uint32_t end_of_round(const wire::SectionView& section, const wire::GroupShape& shape, uint32_t first, uint64_t bytes) noexcept;

}  // namespace halfstep::shard
