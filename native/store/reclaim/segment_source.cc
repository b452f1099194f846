#include "store/reclaim/segment_source.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "base/check.h"
#include "store/format/mutant.h"
#include "store/reclaim/rewriter.h"
#include "store/reclaim/teller.h"
#include "store/write/streams.h"

namespace halfstep::store {
namespace {

// What the policy sees of a segment.
Candidate candidate_of(const Segment& segment) noexcept {
  return {segment.number, segment.live_pages, segment.held_pages, &segment.touched, segment.first_pages};
}

constexpr uint32_t kWriteErrorsMax = 3;         // moments at which it could not be written, and others could: it is logged bad
constexpr uint8_t kRetirementsMax = 3;          // then it is not tried again
constexpr uint64_t kTryAgainS = 3 * 24 * 3600;  // a segment that was logged bad, in the same process
constexpr uint64_t kLookAtBadUs = 60'000'000;
constexpr uint64_t kUnreadKeptUs = uint64_t{24} * 3'600'000'000;  // what the start could not read
constexpr uint64_t kUnreadPatienceUs = 10'000'000;                // of a reclaim, for blocks that cannot be read to be copied
constexpr uint64_t kRetryUs = 100'000;                            // after the log refused, or copies failed
constexpr uint64_t kLookAgainUs = 1000;                           // after nothing was found: everything is held or being read
constexpr uint64_t kLookForWornUs = 1'000'000;   // once something was unreadable: every look walks the segments
constexpr uint64_t kRetireAgainUs = 60'000'000;  // after what is held could not be copied off a worn segment
constexpr uint32_t kMediaErrorsMax = 3;          // then the segment is emptied and logged bad,
constexpr uint32_t kSegmentsKept = 8;            // as long as so many are left, and three quarters of all
constexpr size_t kYoungShare = 4;                // of the segments, those written last: no victim while there is another

}  // namespace

SegmentSource::SegmentSource(const Needs& needs, ReclaimPolicy& policy, Teller& teller, bool copies,
                             uint64_t discard_bytes_per_s)
    : engine_(needs.engine),
      places_(needs.places),
      log_(needs.log),
      catalog_(needs.catalog),
      writes_(needs.writes),
      evictor_(needs.evictor),
      sequence_(needs.sequence),
      clock_(needs.clock),
      store_time_(needs.store_time),
      counters_(needs.counters),
      policy_(policy),
      teller_(teller),
      copies_(copies),
      discarder_(engine_, clock_, places_, discard_bytes_per_s, counters_),
      opened_us_(clock_.now_us()),
      before_us_(opened_us_) {
  ready_.reserve(kReadyMax);
  candidates_.reserve(catalog_.segment_count());
  by_age_.reserve(catalog_.segment_count());
  probe_.op = io::Op::Write;
  probe_.owner = this;
  probe_.complete = [](io::Request& request) {
    auto* self = static_cast<SegmentSource*>(request.owner);
    Segment* probed = std::exchange(self->probed_, nullptr);
    if (self->probes_end_) --probed->frames_in_flight;
    if (request.error == 0) self->writes_.landed();
  };
}

// Nothing of a ready segment counts yet: its next frame begins where this page lies. Where none is ready, as in a full store
// most of the time, the last page of one that is open serves: it is its footer's, which comes after all frames.
void SegmentSource::probe() {
  if (probe_for_ == nullptr || probed_ != nullptr) return;
  const auto at = std::find_if(ready_.begin(), ready_.end(), [&](const Segment* s) { return !discarder_.has(*s); });
  probes_end_ = at == ready_.end();
  Segment* segment = probes_end_ ? open_to_probe() : *at;
  if (segment == nullptr) return;
  if (probes_end_) ++segment->frames_in_flight;  // no footer comes meanwhile
  probe_for_ = nullptr;
  probed_ = segment;
  probe_page_.clear();
  const uint64_t within = probes_end_ ? uint64_t{places_.segment_pages() - 1} * kPageBytes : 0;
  probe_.offset = places_.segment(segment->number) + within;
  probe_.data = probe_page_.bytes().data();
  probe_.bytes = kPageBytes;
  probe_.io_class = io::IoClass::Write;
  counters_.bytes_metadata += kPageBytes;
  engine_.submit(probe_);
}

// Rather another than the one whose frame fails.
Segment* SegmentSource::open_to_probe() noexcept {
  Segment* found = nullptr;
  for (Segment& segment : catalog_.segments()) {
    if (segment.state != SegmentState::Open || (found != nullptr && &segment == probe_for_)) continue;
    if (found == nullptr || found == probe_for_) found = &segment;
  }
  return found;
}

Segment* SegmentSource::take(bool for_copies) noexcept {
  if (!has_ready(for_copies)) return nullptr;
  // One that waits for its discard goes without, when there is no other; a part of it under way has to land first.
  auto at = std::find_if(ready_.rbegin(), ready_.rend(), [&](const Segment* s) { return s != probed_ && !discarder_.has(*s); });
  if (at == ready_.rend()) {
    at = std::find_if(ready_.rbegin(), ready_.rend(), [&](const Segment* s) { return s != probed_ && discarder_.let_go(*s); });
  }
  if (at == ready_.rend()) return nullptr;
  Segment* segment = *at;
  ready_.erase(std::next(at).base());
  if (for_copies) reserve_ = false;
  looked_early_ = false;
  segment->state = SegmentState::Open;
  return segment;
}

bool SegmentSource::at_rest(const Segment& segment, Streams& streams) noexcept {
  if (segment.state != SegmentState::Sealed && segment.state != SegmentState::Ended) return false;
  if (segment.frames_in_flight > 0) return false;
  if (segment.reads_in_flight > 0 && !HALFSTEP_MUTANT(ReuseUnderRead)) return false;
  SegmentWriter& writer = streams.of(segment);
  if (!writer.unflushed(segment)) return true;
  flush_asked_ = true;
  writer.want_flush();
  return false;
}

// ---- How many are needed ---------------------------------------------------------------------------------------------------

uint64_t SegmentSource::copy_room(const Streams& streams) const noexcept {
  return streams.copies().room_pages() + (ready_.empty() ? 0 : places_.segment_pages());
}

uint32_t SegmentSource::lacking(const Streams& streams, uint64_t ahead_pages) noexcept {
  const uint64_t need_pages = std::max<uint64_t>(2 * copied_pages_, places_.segment_pages() / 8);
  reserve_ = !hurried_ && copies_ && streams.copies().room_pages() < need_pages;
  const uint32_t for_puts = hurried_ ? (streams.starved() ? 1 : 0) : streams.segments_wanted(ahead_pages);
  const uint32_t wanted = std::min<uint32_t>(for_puts + (reserve_ ? 1 : 0), kReadyMax);
  return wanted - std::min<uint32_t>(wanted, static_cast<uint32_t>(ready_.size()));
}

bool SegmentSource::urgent(const Streams& streams) noexcept {
  return catalog_.index_crowded() || lacking(streams, ready_ahead_pages(places_.segment_pages())) > 0;
}

// What the start could not read may be there at the next one; but not for ever.
bool SegmentSource::left_unread(const Segment& segment) const noexcept {
  return segment.unread && clock_.now_us() - opened_us_ < kUnreadKeptUs;
}

// ---- Which one -------------------------------------------------------------------------------------------------------------

// What nothing is lost with: segments that were never used, then those without a living block; last what has just failed.
Segment* SegmentSource::pick_worthless(Streams& streams) noexcept {
  const uint64_t now_us = clock_.now_us();
  Segment* resting = nullptr;
  for (uint32_t i = 0; i < catalog_.segment_count(); ++i) {
    Segment& segment = catalog_.segment((next_free_ + i) % catalog_.segment_count());
    if (segment.state != SegmentState::Free) continue;
    if (segment.rests_until_us > now_us) {
      resting = &segment;
      continue;
    }
    next_free_ = (segment.number + 1) % catalog_.segment_count();
    return &segment;
  }
  const uint64_t now_s = store_time_.now_s();
  Segment* best = nullptr;
  for (Segment& segment : catalog_.segments()) {
    if ((segment.live_blocks > 0 && !segment.all_expired(now_s)) || left_unread(segment)) continue;
    const bool rests = segment.rests_until_us > now_us;
    Segment*& chosen = rests ? resting : best;
    if (chosen != nullptr && chosen->newest_frame <= segment.newest_frame) continue;
    if (at_rest(segment, streams)) chosen = &segment;
  }
  return best != nullptr ? best : resting;
}

Segment* SegmentSource::pick(uint64_t held_pages_max, Streams& streams) noexcept {
  by_age_.clear();
  for (Segment& segment : catalog_.segments()) {
    if ((segment.state != SegmentState::Sealed && segment.state != SegmentState::Ended) || left_unread(segment)) continue;
    by_age_.push_back(&segment);
  }
  std::sort(by_age_.begin(), by_age_.end(),
            [](const Segment* a, const Segment* b) { return a->newest_frame < b->newest_frame; });
  candidates_.clear();
  for (const Segment* segment : by_age_) {
    if (segment->held_pages > held_pages_max || !at_rest(*segment, streams)) continue;
    candidates_.push_back(candidate_of(*segment));
  }
  if (candidates_.empty()) return nullptr;
  const Candidate* chosen = &candidates_[policy_.pick(candidates_, catalog_.clock().now())];
  if (copy_room(streams) == 0 && pages_worth(*chosen) > 0) {
    // After a crash in the middle of a reclaim there may be no room for a single copy: then as little as can be is lost, but
    // nothing of what was written last, which nobody had the time to touch.
    const size_t young = by_age_.size() / kYoungShare;
    const uint64_t young_from = young > 0 ? by_age_[by_age_.size() - young]->newest_frame : UINT64_MAX;
    chosen = &*std::min_element(candidates_.begin(), candidates_.end(), [&](const Candidate& a, const Candidate& b) {
      const auto loss = [&](const Candidate& c) {
        return std::tuple(catalog_.segment(c.segment).newest_frame >= young_from, pages_worth(c), c.live_pages);
      };
      return loss(a) < loss(b);
    });
  }
  return &catalog_.segment(chosen->segment);
}

// A victim whose held blocks fill the room for copies would bring nothing.
uint64_t SegmentSource::held_pages_max(const Streams& streams) const noexcept {
  return std::min<uint64_t>(copy_room(streams), places_.segment_pages()) * 3 / 4;
}

// Only for what is to be copied: what is not stays of use until its room is needed.
Segment* SegmentSource::pick_early(Streams& streams) noexcept {
  Segment* segment = copy_room(streams) > 0 ? pick(held_pages_max(streams), streams) : nullptr;
  if (segment == nullptr) return nullptr;
  return pages_worth(candidate_of(*segment)) > 0 ? segment : nullptr;
}

uint64_t SegmentSource::pages_worth(const Candidate& candidate) const noexcept {
  return candidate.pages_worth(policy_.young_since(catalog_.clock().now()));
}

// Its media forget. A store that loses segment after segment is to say so and to go on: those beyond the bound stay in use,
// and every read of them is verified.
bool SegmentSource::worn(const Segment& segment) const noexcept {
  const bool errors = segment.write_errors >= kWriteErrorsMax || segment.media_errors >= kMediaErrorsMax;
  if (!errors) return false;
  const auto& all = catalog_.segments();
  const auto bad = std::count_if(all.begin(), all.end(), [](const Segment& s) { return s.state == SegmentState::Bad; });
  const auto left = static_cast<uint64_t>(static_cast<ptrdiff_t>(all.size()) - bad);
  return (left > kSegmentsKept && left * 4 > all.size() * 3) || HALFSTEP_MUTANT(ErrorEndsSegment);
}

// What failed before may have been the device, not the place. Each has three chances, the first after a start.
void SegmentSource::try_bad_again() noexcept {
  const uint64_t now_us = clock_.now_us();
  if (now_us < look_at_bad_us_ || hurried_ || HALFSTEP_MUTANT(BadForGood)) return;
  look_at_bad_us_ = now_us + kLookAtBadUs;
  const uint64_t now_s = store_time_.now_s();
  for (Segment& segment : catalog_.segments()) {
    if (segment.state != SegmentState::Bad || segment.retirements >= kRetirementsMax) continue;
    if (places_.cut_off(segment.number, engine_.device_bytes(0))) continue;  // it is not there
    if (segment.retired_s != 0 && now_s - std::min(now_s, segment.retired_s) < kTryAgainS) continue;
    segment.state = SegmentState::Free;
    segment.write_errors = segment.media_errors = 0;
    segment.error_us = segment.rests_until_us = 0;
    ++counters_.segments_tried_again;
  }
}

Segment* SegmentSource::pick_worn(Streams& streams) noexcept {
  if (!any_unreadable() || clock_.now_us() < retire_at_us_ || hurried_) return nullptr;
  retire_at_us_ = clock_.now_us() + kLookForWornUs;
  for (Segment& segment : catalog_.segments()) {
    if (segment.media_errors < kMediaErrorsMax || !worn(segment) || !at_rest(segment, streams)) continue;
    const bool room = copy_room(streams) > 0 || pages_worth(candidate_of(segment)) == 0;
    if (room) return &segment;
  }
  return nullptr;
}

// Tombstones die with the segments that hold what they bury: first those that hold nothing else, then the oldest, were it an
// open one.
Segment* SegmentSource::relieve_log(Streams& streams) {
  Segment* oldest = nullptr;
  for (Segment& segment : catalog_.segments()) {
    if (!segment.holds_frames()) continue;
    if (segment.live_blocks == 0 && !left_unread(segment) && at_rest(segment, streams)) return &segment;
    if (oldest == nullptr || segment.generation < oldest->generation) oldest = &segment;
  }
  if (oldest == nullptr) return nullptr;
  if (oldest->state == SegmentState::Open) streams.of(*oldest).close_open_segment();
  return at_rest(*oldest, streams) ? oldest : nullptr;
}

// ---- Reclaim ---------------------------------------------------------------------------------------------------------------

void SegmentSource::turn(Streams& streams, Rewriter& rewriter) {
  const uint64_t now_us = clock_.now_us();
  try_bad_again();
  probe();
  if (logging_ != nullptr || now_us < retry_at_us_) return;
  if (victim_) return go_on(streams, rewriter);
  flush_asked_ = false;
  const uint32_t lacks = lacking(streams, copy_ahead_pages(places_.segment_pages()));
  const bool needy = urgent(streams);
  if (log_.crowded() && (!needy || !ready_.empty())) {
    if (Segment* segment = relieve_log(streams); segment != nullptr) reclaim(*segment, false, lacks, streams, rewriter);
    return;
  }
  if (probe_for_ != nullptr && ready_.empty()) {
    if (Segment* segment = pick_worthless(streams); segment != nullptr) {
      return reclaim(*segment, false, lacks, streams, rewriter);
    }
  }
  if (Segment* segment = pick_worn(streams); segment != nullptr) return reclaim(*segment, false, lacks, streams, rewriter);
  // What is free all the same costs nothing to have ready, but every look costs a walk over the segments.
  const bool early = !needy && lacks > 0 && rewriter.enabled() && !looked_early_;
  if (!needy && !early && (!ready_.empty() || now_us < look_at_us_)) return;
  look_at_us_ = now_us + kRetryUs;
  const bool index_crowded = catalog_.index_crowded();
  Segment* segment = index_crowded && !ready_.empty() ? nullptr : pick_worthless(streams);
  if (segment == nullptr && early) {
    segment = pick_early(streams);
    looked_early_ = segment == nullptr;
  }
  if (segment == nullptr && needy) {
    segment = pick(rewriter.enabled() ? held_pages_max(streams) : 0, streams);
    if (segment == nullptr && log_.crowded()) segment = pick(UINT64_MAX, streams);
    // An index for less than one segment of each writer: what is open is all that there is.
    if (segment == nullptr && index_crowded && by_age_.empty()) streams.close_open_segments();
    exhausted_ = segment == nullptr && !flush_asked_;
    if (segment == nullptr && !hurried_) retry_at_us_ = now_us + kLookAgainUs;
  }
  if (segment == nullptr) return;
  exhausted_ = false;
  reclaim(*segment, early, lacks, streams, rewriter);
}

void SegmentSource::reclaim(Segment& segment, bool early, uint32_t lacks, Streams& streams, Rewriter& rewriter) {
  const Candidate candidate = candidate_of(segment);
  const bool expired = segment.all_expired(store_time_.now_s());
  if (segment.state == SegmentState::Free) {
    evict_all(segment);
    return log_generation(segment);
  }
  victim_.choose(segment, log_.crowded(), early, lacks);
  if (expired || pages_worth(candidate) == 0 || !rewriter.enabled()) {
    empty_victim({});
    return go_on(streams, rewriter);
  }
  const Keep keep = keep_of(candidate, policy_, catalog_.clock().now(), places_.segment_pages());
  victim_.begin_copies(keep.pages);
  rewriter.start(segment, keep, room_for(keep, streams), false);
}

void SegmentSource::go_on(Streams& streams, Rewriter& rewriter) {
  Segment& victim = victim_.segment();
  if (rewriter.active()) {
    rewriter.set_haste(hurried_ || victim_.forced() || log_.crowded() || catalog_.index_crowded());
    // Copies that wait for a segment of their own would wait for ever: this reclaim is what brings one.
    if (streams.copies().starved() && ready_.empty()) rewriter.give_up();
    return;
  }
  if (victim_.stage() == Victim::Stage::Copying) {
    if (waits_for_reads(rewriter)) {
      if (victim_.pause()) {
        retry_at_us_ = clock_.now_us() + kRetryUs;
        return;
      }
      return rewriter.start(victim, rewriter.asked(), room_for(rewriter.asked(), streams), false);
    }
    const bool again = victim_.has_passes_left() && (victim.held_blocks > 0 || rewriter.copies_failed()) && !rewriter.gave_up();
    if (again) {
      if (victim_.pause(!hurried_ && rewriter.copies_failed())) {
        retry_at_us_ = clock_.now_us() + kRetryUs;
        return;
      }
      const bool last = victim_.begin_pass();
      return rewriter.start(victim, rewriter.left(), room_for(rewriter.left(), streams), last);
    }
    if (may_wait(streams)) return;
    if (const Keep keep = touched_since(victim, streams, rewriter); keep.pages > 0) {
      victim_.be_late();
      const bool last = victim_.begin_pass();
      return rewriter.start(victim, keep, room_for(keep, streams), last);
    }
    if (victim.held_blocks > 0 && !victim_.forced()) {
      (void)rewriter.take_roll();
      let_stay();
      if (worn(victim)) retire_at_us_ = clock_.now_us() + kRetireAgainUs;
      return;
    }
    empty_victim(rewriter.take_roll());
  }
  if (victim_.stage() == Victim::Stage::Naming) {
    if (teller_.emptying()) return;
    // Meanwhile somebody may have taken a hold.
    const bool stays = victim.held_blocks > 0 && !victim_.forced() && !victim.all_expired(store_time_.now_s());
    if (stays && rewriter.enabled() && victim_.has_passes_left()) {
      const bool last = victim_.begin_pass();
      return rewriter.start(victim, rewriter.left(), room_for(rewriter.left(), streams), last);
    }
    if (stays) return let_stay();
    evict_all(victim);
    victim_.note_voided();
  }
  if (!at_rest(victim, streams)) return;
  victim_.end();
  log_generation(victim);
}

// Less what was copied.
void SegmentSource::let_stay() noexcept {
  victim_.end();
  retry_at_us_ = clock_.now_us() + kRetryUs;
}

// A device that cannot be read now costs no block that is worth a copy.
bool SegmentSource::waits_for_reads(const Rewriter& rewriter) noexcept {
  if (!rewriter.unread() || rewriter.gave_up() || hurried_ || victim_.forced()) return false;
  const uint64_t now_us = clock_.now_us();
  return now_us - victim_.note_unread(now_us) < kUnreadPatienceUs;
}

// What may be put until a pass is over, with a quarter to spare. A pass brings no more than what it does not keep, so that what
// keeps much is one of several before the writers have used what they have now: each has its share.
uint64_t SegmentSource::room_for(const Keep& keep, const Streams& streams) const noexcept {
  const uint64_t segment_pages = places_.segment_pages();
  const uint64_t brings = segment_pages - std::min(keep.pages, segment_pages * 7 / 8);
  return streams.room_pages() * 3 / 4 * brings / segment_pages / std::max(victim_.lacking(), 1U);
}

// What of an early victim was not copied is of use until its room is needed: at the moment from which a segment has to be made
// ready, and sooner when it brings little, because another one has to follow it.
bool SegmentSource::may_wait(const Streams& streams) noexcept {
  if (!victim_.early() || hurried_ || victim_.forced() || streams.starved() || log_.crowded() || urgent(streams)) return false;
  if (any_unreadable()) return false;  // a segment that is worn would wait for as long
  const uint64_t segment_pages = places_.segment_pages();
  const uint64_t ready_pages = ready_ahead_pages(segment_pages);
  const uint64_t early_pages = copy_ahead_pages(segment_pages) - ready_pages;
  return lacking(streams, ready_pages + early_pages * std::min(victim_.keep_pages(), segment_pages) / segment_pages) == 0;
}

// What came to be of use after an early victim was copied, as far as its share has not been used: one more look, if there is
// time for it.
Keep SegmentSource::touched_since(const Segment& victim, const Streams& streams, const Rewriter& rewriter) const noexcept {
  if (!victim_.early() || !victim_.has_passes_left() || hurried_ || victim_.forced() || streams.starved()) return {};
  if (rewriter.gave_up()) return {};
  const Candidate candidate{victim.number, victim.live_pages, victim.held_pages, &victim.touched, victim.first_pages};
  const uint64_t kept_pages = victim_.keep_pages() - std::min(victim_.keep_pages(), rewriter.left().pages);
  return keep_of(candidate, policy_, catalog_.clock().now(), places_.segment_pages(), kept_pages);
}

void SegmentSource::empty_victim(ScannedSegment roll) {
  victim_.begin_naming();
  teller_.empty(victim_.segment(), std::move(roll), victim_.forced());
}

void SegmentSource::evict_all(Segment& segment) {
  segment.records_missing = true;  // until its new generation is on media, a restart may find them again
  evictor_.evict_all(segment);
  teller_.voided(segment);
}

// Nothing of it is alive any more. Its new generation is on media before the segment may be written
// (docs/store-rules.md, rule 7).
void SegmentSource::log_generation(Segment& segment) {
  if (segment.state != SegmentState::Free) {
    if (segment.frames > 0) ++counters_.segments_reclaimed;
    const Counters& c = counters_;
    const uint64_t now_us = clock_.now_us();
    copied_pages_ = std::max((c.bytes_rewritten - rewritten_bytes_before_) / kPageBytes, copied_pages_ * 3 / 4);
    policy_.after_reclaim(
        {c.bytes_user - user_bytes_before_, c.bytes_rewritten - rewritten_bytes_before_, now_us - before_us_});
    user_bytes_before_ = c.bytes_user;
    rewritten_bytes_before_ = c.bytes_rewritten;
    before_us_ = now_us;
    segment.records_missing = true;  // its frames are there until the record is on media
  } else {
    segment.records_missing = false;
  }
  logging_ = &segment;
  const bool sound = segment.state == SegmentState::Sealed && segment.write_errors == 0 && segment.media_errors == 0;
  segment.state = SegmentState::Logging;
  catalog_.release(segment);
  RecordLog::Pending& pending = log_.take_pending();
  const bool bad = worn(segment) || places_.cut_off(segment.number, engine_.device_bytes(0));
  pending.record.kind = static_cast<uint8_t>(bad ? format::RecordKind::SegmentBad : format::RecordKind::Segment);
  pending.record.segment = segment.number;
  pending.record.value = bad ? segment.retirements + 1U : sound ? 0U : segment.retirements;
  pending.record.sequence = HALFSTEP_MUTANT(NoReuseCount) && segment.records_missing ? segment.generation : sequence_.draw();
  pending.owner = this;
  pending.done = [](RecordLog::Pending& done, Status status) {
    auto* self = static_cast<SegmentSource*>(done.owner);
    const format::Record record = done.record;
    self->log_.give_pending(done);
    self->logged(*self->logging_, record, status);
  };
  if (HALFSTEP_MUTANT(DiscardEarly)) discarder_.add(segment);
  HALFSTEP_MUTANT(ReuseBeforeLogged) ? pending.done(pending, {}) : log_.append(pending);
}

void SegmentSource::logged(Segment& segment, const format::Record& record, Status status) {
  logging_ = nullptr;
  if (!status.ok()) {
    writes_.failed(status.detail() != 0 ? status.detail() : -EIO, clock_.now_us());
    // Whether the record is on media is unknown. If not, the old frames are still there for a restart to find, so that the
    // tombstones of their blocks must stay: not Free, but first in line.
    segment.state = segment.generation == 0 ? SegmentState::Free : SegmentState::Ended;
    retry_at_us_ = clock_.now_us() + kRetryUs;
    return;
  }
  segment.generation = record.sequence;
  segment.records_missing = false;
  segment.retirements = static_cast<uint8_t>(record.value);
  if (record.kind == static_cast<uint8_t>(format::RecordKind::SegmentBad)) {
    segment.state = SegmentState::Bad;
    segment.retired_s = store_time_.now_s();
    ++counters_.segments_retired;
    ++counters_.segments_bad;
  } else if (ready_.size() >= kReadyMax) {
    segment.state = SegmentState::Free;  // made empty for the log's sake; it gets a newer generation before its use
  } else {
    segment.state = SegmentState::Ready;
    ready_.push_back(&segment);
    if (!hurried_) discarder_.add(segment);
  }
}

void SegmentSource::check_invariants(std::vector<uint32_t>& frames) const {
  if (probed_ != nullptr && probes_end_) ++frames[probed_->number];
  HALFSTEP_CHECK(ready_.size() <= kReadyMax, ready_.size());
  for (const Segment* segment : ready_) {
    HALFSTEP_CHECK(segment->state == SegmentState::Ready && segment->next_page == 0 && segment->reads_in_flight == 0,
                   segment->number, segment->state, segment->next_page, segment->reads_in_flight);
    HALFSTEP_CHECK(std::count(ready_.begin(), ready_.end(), segment) == 1, segment->number);
  }
  if (logging_ != nullptr) HALFSTEP_CHECK(logging_->reads_in_flight == 0, logging_->number, logging_->reads_in_flight);
  if (!victim_) return;
  const Segment& victim = victim_.segment();
  HALFSTEP_CHECK(victim.frames_in_flight == 0 && &victim != logging_, victim.number, victim.frames_in_flight);
  HALFSTEP_CHECK(victim_.stage() != Victim::Stage::Voided || victim.live_blocks == 0, victim.number, victim.live_blocks);
}

}  // namespace halfstep::store
