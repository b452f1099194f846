// match.cc — many keys at once: what a lookup waits for is memory, so memory is asked for long before it is looked at.
// The home of a key is asked for kAhead keys before its turn. A key that may be a stray has its other bucket asked for when its
// home was looked at, and waits in a queue while the keys after it go on; so nothing is waited for one after the other.
#include <algorithm>
#include <array>
#include <cassert>

#include "index/block_index.h"

namespace halfstep::index {

template <bool kStopAtMiss>
size_t BlockIndex::match(std::span<const Hash128> keys, std::span<Found> out) const noexcept {
  assert(out.size() >= keys.size());
  constexpr size_t kWaitingMax = 8;
  struct Waiting {
    Probe probe;
    size_t at;
  };
  std::array<Waiting, kWaitingMax> waiting;
  size_t taken = 0;
  size_t put = 0;
  size_t end = keys.size();

  const auto miss = [&](size_t at) {
    out[at] = {};
    if constexpr (kStopAtMiss) end = std::min(end, at);
  };
  const auto resolve_oldest = [&] {
    const Waiting& oldest = waiting[taken++ % kWaitingMax];
    out[oldest.at] = find_stray(oldest.probe);
    if (!out[oldest.at]) miss(oldest.at);
  };

  for (size_t at = 0; at < std::min(kAhead, end); ++at) prefetch(keys[at]);
  for (size_t at = 0; at < end; ++at) {
    if (at + kAhead < keys.size()) prefetch(keys[at + kAhead]);
    const Probe probe = probe_of(keys[at]);
    const Bucket& home = buckets_[probe.home];
    const Header header = home.header_own();
    if (const unsigned slot = slot_of(home, header, probe, false); slot < kSlotsPerBucket) {
      out[at] = {home.entry_own(slot), handle_of(probe.home, slot)};
    } else if (header.strays_away() == 0) {
      miss(at);
    } else {
      if (put - taken == kWaitingMax) resolve_oldest();
      prefetch(other_of(probe.home, probe.fingerprint));
      waiting[put++ % kWaitingMax] = {probe, at};
    }
  }
  while (taken < put) resolve_oldest();
  return end;
}

void BlockIndex::find_many(std::span<const Hash128> keys, std::span<Found> out) const noexcept { match<false>(keys, out); }

size_t BlockIndex::longest_prefix(std::span<const Hash128> keys, std::span<Found> out) const noexcept {
  return match<true>(keys, out);
}

}  // namespace halfstep::index
