// match.cc — many keys at once: what a lookup waits for is memory, so memory is asked for long before it is looked at.
// The home of a key is asked for kAhead keys before its turn. A key that may be a stray has its other bucket asked for when its
// home was looked at, and waits in a queue while the keys after it go on; so nothing is waited for one after the other.
// Measured and left: choosing the bucket without branches, and asking for the lines of a bucket one by one when its tags are
// known. Both do more work a key than mispredicted strays and unneeded lines cost.
#include <algorithm>
#include <array>

#include "base/check.h"
#include "index/block_index.h"

namespace halfstep::index {

template <bool kStopAtMiss>
size_t BlockIndex::match(std::span<const Hash128> keys, std::span<Found> out) const noexcept {
  HALFSTEP_CHECK(out.size() >= keys.size(), out.size(), keys.size());
  struct Waiting {
    uint64_t other;
    size_t at;
  };
  std::array<uint64_t, kAhead> homes;
  std::array<Waiting, kWaitingMax> waiting;
  size_t put = 0;
  size_t taken = 0;
  size_t end = keys.size();

  const auto ask = [&](size_t at) {
    homes[at % kAhead] = home_of(keys[at]);
    prefetch(homes[at % kAhead]);
  };
  const auto answer = [&](size_t at, uint64_t bucket, unsigned slot) {
    if (slot < kSlotsPerBucket) {
      out[at] = {buckets_[bucket].entry_own(slot), handle_of(bucket, slot)};
      return;
    }
    out[at] = {};
    if constexpr (kStopAtMiss) end = std::min(end, at);
  };
  const auto finish_oldest = [&] {
    const Waiting oldest = waiting[taken++ % kWaitingMax];
    const Bucket& bucket = buckets_[oldest.other];
    answer(oldest.at, oldest.other, slot_of(bucket, bucket.header_own(), probe_of(keys[oldest.at], 0), true));
  };

  for (size_t at = 0; at < std::min(kAhead, end); ++at) ask(at);
  for (size_t at = 0; at < end; ++at) {
    const Probe probe = probe_of(keys[at], homes[at % kAhead]);
    if (at + kAhead < keys.size()) ask(at + kAhead);
    const Bucket& home = buckets_[probe.home];
    const Header header = home.header_own();
    const unsigned slot = slot_of(home, header, probe, false);
    if (slot < kSlotsPerBucket || header.strays_away() == 0) {
      answer(at, probe.home, slot);
      continue;
    }
    if (put - taken == kWaitingMax) finish_oldest();
    const uint64_t other = other_of(probe.home, probe.fingerprint);
    prefetch(other);
    waiting[put++ % kWaitingMax] = {other, at};
  }
  while (taken < put) finish_oldest();
  return end;
}

void BlockIndex::find_many(std::span<const Hash128> keys, std::span<Found> out) const noexcept { match<false>(keys, out); }

size_t BlockIndex::longest_prefix(std::span<const Hash128> keys, std::span<Found> out) const noexcept {
  return match<true>(keys, out);
}

}  // namespace halfstep::index
