// report.h — what a store says of itself: the last start, counters, gauges.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "wire/prefetch_kind.h"

namespace halfstep::store {

// What a start found; while it goes on, so far.
struct RecoveryReport {
  uint64_t blocks = 0, bytes = 0, micros = 0;
  uint64_t first_answer_micros = 0;  // of them, before anything was answered
  uint64_t segments_left = 0;
  uint64_t segments_by_footer = 0, segments_by_frames = 0, segments_empty = 0, segments_bad = 0;
  // Looked at once more because the device did not answer; never to be read, and left for the next start.
  uint64_t segments_read_again = 0, segments_unread = 0;
  uint64_t blocks_dropped_deleted = 0, blocks_dropped_expired = 0, blocks_dropped_corrupt = 0, blocks_dropped_dead_scope = 0,
           blocks_dropped_index_full = 0, blocks_unread = 0;  // unread: left on flash for the next start
  uint64_t pages_bad = 0, tombstones = 0, pins = 0;
  std::vector<std::string> notes;  // one sentence for each thing that an operator should know
};

// Monotonic, since start. Names become metric names.
struct Counters {
  uint64_t hits_memory = 0, hits_flash = 0;
  uint64_t part_reads = 0, part_reads_failed = 0;  // of some parts of a block; the failed ones were done again, of the whole
  // Blocks of which parts were handed out before the rest had landed; the failed ones were read again.
  uint64_t early_reads = 0, early_reads_failed = 0;
  uint64_t misses_absent = 0, misses_corrupt = 0, misses_collision = 0, misses_expired = 0, misses_io = 0, misses_memory = 0;
  uint64_t writes_committed = 0, writes_aborted = 0, writes_present = 0, writes_throttled = 0, writes_failed = 0;
  // Refused at once, or answered at once while they waited for media, because the device took nothing.
  uint64_t writes_refused = 0;
  uint64_t bytes_user = 0, bytes_padding = 0, bytes_metadata = 0, bytes_rewritten = 0;
  // Written once more at their place, because the device had failed; the frames and footers that they are of.
  uint64_t bytes_repeated = 0, frames_repeated = 0;
  uint64_t blocks_rewritten = 0;
  // By why they left the index; their sum is blocks_evicted. Deleted: by a client's wish, with a tombstone.
  uint64_t blocks_evicted_age = 0, blocks_evicted_expired = 0, blocks_evicted_dead_scope = 0, blocks_evicted_quota = 0,
           blocks_evicted_deleted = 0, blocks_evicted_unreadable = 0;
  uint64_t touches = 0, touch_pages = 0;
  // Blocks that were brought into memory ahead of their first read; then either read there, or asked for while they still came,
  // or kept in vain. Of these ends, those of blocks that were in memory already are counted, too.
  uint64_t staged = 0, staged_bytes = 0, staged_used = 0, staged_late = 0, staged_unused = 0;
  // The same in bytes of memory, by what they were brought for.
  struct StagedOfKind {
    uint64_t bytes = 0, used_bytes = 0, late_bytes = 0, unused_bytes = 0;
  };
  std::array<StagedOfKind, wire::kPrefetchKinds> staged_kinds{};
  uint64_t blocks_given_up = 0;  // of those unreadable: by the device's errors at several moments; their bytes were never seen
  // Bad: found so by the start, or logged bad since. Tried again: of those, taken into use once more.
  uint64_t removes = 0, blocks_evicted = 0, segments_reclaimed = 0, segments_sealed = 0, segments_bad = 0;
  uint64_t segments_tried_again = 0;
  // On their way to being written again; skipped: wanted before all of it was discarded.
  uint64_t segments_discarded = 0, bytes_discarded = 0, discards_skipped = 0, discards_failed = 0;
  uint64_t flushes = 0, record_pages = 0, holds_taken = 0, holds_refused = 0;
  uint64_t throttled_recovering = 0;  // writes and changes of blocks, because the store was still recovering
  uint64_t pending_walks = 0;         // over what waits for a frame; told nobody but tests
  uint64_t index_full = 0;            // blocks that were not taken in, or were evicted at once, because the index had no room
  // What the scrub read, found good, dropped for its bytes or for the device's errors; pages of footers that were not good.
  uint64_t scrub_bytes = 0, scrub_blocks = 0, scrub_dropped_corrupt = 0, scrub_dropped_io = 0, scrub_pages_bad = 0;
  uint64_t scrub_unread = 0;  // blocks and pages of footers that the device did not give: left for the next pass
  uint64_t scrub_passes = 0, segments_retired = 0;
};
struct Gauges {
  uint64_t blocks = 0, bytes_live = 0, segments_free = 0, segments_open = 0, segments_sealed = 0, holds = 0, pins = 0;
  int64_t clock_ahead_s = 0;  // of the store's time (store_time.h); below 0: behind it
  // Out of use: logged bad, and what the start could not read (of the sealed ones).
  uint64_t segments_bad = 0, segments_unread = 0;
  bool writes_out = false;  // the device takes nothing just now
  uint64_t memory_resident_bytes = 0, memory_pinned_bytes = 0, memory_capacity_bytes = 0, index_bytes = 0;
  uint64_t staged_bytes = 0;                        // kept for their first read, or on their way
  uint64_t scrub_bytes_per_s = 0, scrub_age_s = 0;  // older than this is nothing that the scrub has still to look at
  uint64_t catalog_bytes = 0;                       // the index and what the segments take beside it
  bool discards = false;                            // a device takes them, and they have not failed too often
  double age_limit = 0;  // of the policy: younger than so many capacities of writes is kept when it was touched
};

}  // namespace halfstep::store
