// options.h — what a store is told when it is opened, and why it throttles.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>

namespace halfstep::store {

inline constexpr uint64_t kScrubAuto = UINT64_MAX;

struct Options {
  uint64_t lease_ms_max = 60'000;
  // Of the store, what one namespace alone may lease. All together never lease one and a half times as much.
  double lease_share = 0.5;
  uint64_t holds_max = 1'000'000;
  // The index is sized once. 0: for blocks of 256 KiB on average, but never less than 16 MiB where smaller blocks would fill
  // that.
  uint64_t index_bytes = 0;
  bool large_pages = true;  // for the index, where they are to be had
  // Of the slots, what writes may hold at once. The rest is for reads; of it what is staged takes half at most, and never the
  // room for one largest block.
  double write_share = 0.5;
  // Eviction (policy.h): what reclaim may write again, as a share of what users write and, when that leaves more, in bytes a
  // day of users' writes and its own together (0 = the share alone).
  std::string policy = "seg-adapt10";
  double rewrite_share = 0.10;
  uint64_t rewrite_bytes_per_day = 0;
  // open() reads the record log and the open segments, and goes on with the sealed ones for so long; turn() takes the rest.
  uint64_t recover_before_us = UINT64_MAX;
  // A block device is told what is empty, at most so fast (0 = never): reads may be slower meanwhile.
  uint64_t discard_bytes_per_s = uint64_t{1} << 30;
  // Background verification (scrubber.h): what it may read. 0 = none; kScrubAuto: so that a pass takes two weeks at most.
  uint64_t scrub_bytes_per_s = 0;
  uint32_t events_max = 65'536;  // that are remembered (events.h), about 112 bytes each
};

// What one of several shards gets of what the whole store is allowed; never 0, which means something else, of more than 0.
constexpr uint64_t share_of(uint64_t whole, uint32_t shards) noexcept {
  return whole == 0 ? 0 : std::max<uint64_t>(whole / std::max(shards, 1U), 1);
}
// Rates, budgets and memory.
Options share_of(Options whole, uint32_t shards) noexcept;

// Detail of Throttled from begin_write() and of changes.
inline constexpr int32_t kThrottledPending = 1;   // another writer holds the key
inline constexpr int32_t kThrottledMemory = 2;    // no slot now
inline constexpr int32_t kThrottledSpace = 3;     // no segment can be reclaimed now: everything is held or being read
inline constexpr int32_t kThrottledQuota = 4;     // the sweep makes room
inline constexpr int32_t kThrottledPins = 5;      // the pin budget is used up
inline constexpr int32_t kThrottledLog = 6;       // the record log has no room for holds and expiry changes now
inline constexpr int32_t kThrottledRecovery = 7;  // until all that is on flash is known
inline constexpr int32_t kThrottledLeases = 8;    // the namespace leases as many bytes as it may
inline constexpr int32_t kThrottledHolds = 9;     // it has as many holds as it may
// Of Unsupported.
inline constexpr int32_t kBelowFloor = 1;  // lossier than the namespace allows

}  // namespace halfstep::store
