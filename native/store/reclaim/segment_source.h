// segment_source.h — empty segments for the writers: reclaims what gives way, logs its new generation, keeps one ready in time.
// Reclaim of a segment (docs/on-flash-format.md, *Order of durability*): blocks worth keeping are copied and flushed
// (rewriter.h); the rest leaves the index; when nobody reads from it any more its new generation is logged and flushed; then a
// device that takes discards is told that it is empty (discarder.h), unless a writer wants it sooner; only then may the first
// byte be written. First go segments without anything alive, or of which all has expired: those are free without being read.
// Then the policy chooses.
// A segment whose media forget is emptied the same way, and then logged bad instead. It is tried again: by the next start, and
// after days; what is retired for the third time stays so.
// Reclaim begins when a writer is in the last quarter of its segment, or when the index is crowded; one at a time. What is
// worth copying is copied sooner, from the second quarter on, so that it stands before the gets of a longer time and weighs
// less in each moment; the rest of the victim stays until then. Invariants: a segment that is being read or waits for a flush
// is not emptied; a held block is copied or stays, unless the record log is crowded, because deletes must not fail; nothing is
// written to a segment whose generation is not on media; new blocks leave the last ready segment to copies when these have
// little room left, so that reclaim can always end. Thread: the shard's.
#pragma once

#include <vector>

#include "base/clock.h"
#include "io/engine.h"
#include "store/account/evictor.h"
#include "store/catalog/catalog.h"
#include "store/catalog/device_health.h"
#include "store/durable/record_log.h"
#include "store/format/geometry.h"
#include "store/format/page.h"
#include "store/format/report.h"
#include "store/format/sequence.h"
#include "store/format/store_time.h"
#include "store/reclaim/discarder.h"
#include "store/reclaim/policy.h"
#include "store/reclaim/victim.h"
#include "store/segment/segment_scan.h"
#include "store/write/segment_supply.h"

namespace halfstep::store {

class Rewriter;
class Streams;
class Teller;

class SegmentSource final : public SegmentSupply {
 public:
  struct Needs {
    io::Engine& engine;
    const Places& places;
    RecordLog& log;
    Catalog& catalog;
    WriteHealth& writes;
    Evictor& evictor;
    Sequence& sequence;
    const Clock& clock;
    StoreTime& store_time;
    Counters& counters;
  };
  // `copies`: what is worth keeping can be copied. `discard_bytes_per_s`: discarder.h.
  SegmentSource(const Needs& needs, ReclaimPolicy& policy, Teller& teller, bool copies, uint64_t discard_bytes_per_s);

  Segment* take(bool for_copies) noexcept override;
  void turn(Streams& streams, Rewriter& rewriter);
  // After the writers, so that what one of them waits for goes there instead.
  void discard_turn() { discarder_.turn(); }
  bool exhausted() const noexcept override { return exhausted_; }
  uint64_t next_turn_us() const noexcept {
    return std::min(clock_.now_us() < retry_at_us_ ? retry_at_us_ : UINT64_MAX, discarder_.next_turn_us());
  }
  bool busy() const noexcept { return logging_ != nullptr || victim_ || probed_ != nullptr || discarder_.busy(); }
  bool has_ready(bool for_copies) const noexcept override { return ready_.size() > (leaves_one(for_copies) ? 1U : 0U); }
  void want_probe(const Segment& failing) noexcept override { probe_for_ = &failing; }
  bool discards() const noexcept { return discarder_.on(); }
  // The end is near: only what somebody waits for.
  void hurry() noexcept {
    hurried_ = true;
    discarder_.give_up();
    retry_at_us_ = 0;
  }

  // Ends the process where what is ready, logged or reclaimed is in no state for it. Adds what it writes to, by segment.
  void check_invariants(std::vector<uint32_t>& frames) const;

 private:
  // Nothing reads it, writes to it or waits for it; when somebody waits for a flush of it, that is asked for.
  bool at_rest(const Segment& segment, Streams& streams) noexcept;
  // Pages that copies could take now.
  uint64_t copy_room(const Streams& streams) const noexcept;
  // How many more have to be ready, or will once the writers have used all but so many pages of what they have.
  uint32_t lacking(const Streams& streams, uint64_t ahead_pages) noexcept;
  bool urgent(const Streams& streams) noexcept;
  // Anything, since the start.
  bool any_unreadable() const noexcept { return counters_.blocks_evicted_unreadable + counters_.scrub_pages_bad > 0; }
  bool leaves_one(bool for_copies) const noexcept {
    return !for_copies && (reserve_ || victim_.stage() == Victim::Stage::Copying);
  }
  void probe();
  Segment* open_to_probe() noexcept;
  void try_bad_again() noexcept;
  bool left_unread(const Segment& segment) const noexcept;
  bool waits_for_reads(const Rewriter& rewriter) noexcept;
  bool worn(const Segment& segment) const noexcept;
  Segment* pick_worn(Streams& streams) noexcept;
  Segment* pick_worthless(Streams& streams) noexcept;
  Segment* pick(uint64_t held_pages_max, Streams& streams) noexcept;
  Segment* pick_early(Streams& streams) noexcept;
  uint64_t held_pages_max(const Streams& streams) const noexcept;
  uint64_t pages_worth(const Candidate& candidate) const noexcept;
  Segment* relieve_log(Streams& streams);
  void go_on(Streams& streams, Rewriter& rewriter);
  // `early`: before its room is needed. lacks: so many ready segments.
  void reclaim(Segment& segment, bool early, uint32_t lacks, Streams& streams, Rewriter& rewriter);
  void let_stay() noexcept;
  uint64_t room_for(const Keep& keep, const Streams& streams) const noexcept;
  bool may_wait(const Streams& streams) noexcept;
  Keep touched_since(const Segment& victim, const Streams& streams, const Rewriter& rewriter) const noexcept;
  void empty_victim(ScannedSegment roll);
  void evict_all(Segment& segment);
  void log_generation(Segment& segment);
  void logged(Segment& segment, const format::Record& record, Status status);

  static constexpr size_t kReadyMax = 4;  // as many as writers

  io::Engine& engine_;
  const Places& places_;
  RecordLog& log_;
  Catalog& catalog_;
  WriteHealth& writes_;
  Evictor& evictor_;
  Sequence& sequence_;
  const Clock& clock_;
  StoreTime& store_time_;
  Counters& counters_;
  ReclaimPolicy& policy_;
  Teller& teller_;
  const bool copies_;
  Discarder discarder_;
  std::vector<Segment*> ready_;  // some of them with the discarder
  Victim victim_;
  bool looked_early_ = false;  // for a victim, since a segment was last taken
  Segment* logging_ = nullptr;
  const Segment* probe_for_ = nullptr;  // whose frame fails while nothing else is written
  Segment* probed_ = nullptr;           // a ready one, not to be taken meanwhile, or
  bool probes_end_ = false;             // the last page of an open one
  io::Request probe_;
  PageBuffer probe_page_{1};
  uint64_t look_at_bad_us_ = 0;  // at those that may be tried again
  uint32_t next_free_ = 0;
  bool reserve_ = false;  // the last ready one is for copies
  bool exhausted_ = false;
  bool hurried_ = false;
  bool flush_asked_ = false;  // so that a segment comes to rest
  uint64_t retry_at_us_ = 0;
  uint64_t look_at_us_ = 0;    // for what is free all the same
  uint64_t retire_at_us_ = 0;  // no segment before that
  uint64_t copied_pages_ = 0;  // of the reclaims before: what the next one may need
  std::vector<Candidate> candidates_;
  std::vector<Segment*> by_age_;
  const uint64_t opened_us_;
  // At the last reclaim that cost anything: what the policy is told are differences.
  uint64_t user_bytes_before_ = 0;
  uint64_t rewritten_bytes_before_ = 0;
  uint64_t before_us_ = 0;
};

}  // namespace halfstep::store
