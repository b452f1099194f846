// What became of frames: written again until they land, given up, covered by a flush; and who is told of it.

#include <algorithm>

#include "store/format/mutant.h"
#include "store/format/options.h"
#include "store/memory/staleness.h"
#include "store/write/segment_writer.h"

namespace halfstep::store {
namespace {

constexpr uint8_t kAttemptsMax = 3;          // of a copy, and of any block when the end is near
constexpr uint8_t kAttemptsOfBlockMax = 16;  // each in another segment
constexpr uint32_t kWitnessedMax = 3;        // then it is the place that fails, not the device
constexpr uint32_t kTriesBeforeProbe = 3;    // when nothing else is written that could tell

}  // namespace

void SegmentWriter::on_transfer(io::Request& request) {
  auto& frame = *static_cast<Frame*>(request.owner);
  SegmentWriter& self = *frame.writer;
  if (request.error != 0) frame.error = request.error;
  self.transfers_.give(Transfer::of(request));
  if (--frame.outstanding > 0) return;
  if (frame.error == 0) {
    self.writes_.landed();
  } else if (!HALFSTEP_MUTANT(WriteErrorIgnored)) {
    const uint64_t now_us = self.clock_.now_us();
    self.writes_.failed(frame.error, now_us);
    if (frame.failing_since_us == 0) frame.failing_since_us = now_us;
    ++frame.tries;
    if (self.may_be_tried_again(frame)) return self.put_off(frame);
  }
  frame.landed = true;
  self.frames_landed();
}

// ---- What the device did not take ------------------------------------------------------------------------------------------

// A segment that has ended, by a flush that failed, takes nothing more.
bool SegmentWriter::may_be_tried_again(const Frame& frame) const noexcept {
  if (HALFSTEP_MUTANT(ErrorEndsSegment)) return false;
  const SegmentState state = frame.segment->state;
  if (state != SegmentState::Open && state != SegmentState::Sealing) return false;
  if (hurried_) return frame.tries < kAttemptsMax;
  return frame.witnessed < kWitnessedMax || is_passing(frame.error, frame.failing_since_us, clock_.now_us());
}

void SegmentWriter::put_off(Frame& frame) noexcept {
  frame.failed = true;
  if (failing_since_us_ == 0) failing_since_us_ = clock_.now_us();
  const uint64_t pause_us = backed_off_us(frame.tries);
  again_at_us_ = clock_.now_us() + (frame.witnessed < kWitnessedMax ? pause_us : std::min(pause_us, kPassingPauseUs));
  ++frames_failed_;
}

// The same bytes at the same place: whatever of them is there already stays what it is.
void SegmentWriter::try_again() {
  const bool due = hurried_ || clock_.now_us() >= again_at_us_;
  for (uint32_t i = 0; i < frames_out_; ++i) {
    Frame& frame = frames_[(frame_first_ + i) % kFramesInFlightMax];
    // Something else has landed: so may this.
    const bool others = frame.witnessed < kWitnessedMax && writes_.places_landed() != frame.others_seen;
    if (!frame.failed || (!due && !others)) continue;
    frame.failed = false;
    --frames_failed_;
    if (!may_be_tried_again(frame)) {
      frame.landed = true;
      continue;
    }
    if (writes_.places_landed() != frame.others_seen) ++frame.witnessed;
    if (frame.tries >= kTriesBeforeProbe) supply_.want_probe(*frame.segment);
    counters_.bytes_repeated += uint64_t{frame.pages} * kPageBytes;
    ++counters_.frames_repeated;
    submit_transfers(frame);
  }
  frames_landed();
}

void SegmentWriter::hurry() noexcept {
  hurried_ = true;
  for (Frame& frame : frames_) frame.tries = 0;
}

// Who waits for media hears at once that they take nothing, or that there is no segment to be had. What was put stays in
// memory, and is written when it can be.
void SegmentWriter::tell_of_outage() {
  const bool out = writes_.out(clock_.now_us()) && !HALFSTEP_MUTANT(PutsWaitInOutage);
  const bool begins = out && !told_of_outage_;
  told_of_outage_ = out;
  const bool no_segment =
      starved_ && supply_.exhausted() && starved_since_us_ != 0 && clock_.now_us() - starved_since_us_ >= kStarvedPatienceUs;
  if (!begins && !no_segment) return;
  if (no_segment) starved_since_us_ = clock_.now_us();
  const Status why = begins ? Status(Code::IoError, writes_.error()) : Status(Code::Throttled, kThrottledSpace);
  const auto tell = [&](Extent* extent) {
    for (; extent != nullptr; extent = extent->next_pending) {
      if (extent->write == nullptr) continue;
      ++counters_.writes_refused;
      answer(*extent->write, why);
      extent->write = nullptr;
    }
  };
  tell(pending_);
  for (uint32_t i = 0; begins && i < frames_out_; ++i) tell(frames_[(frame_first_ + i) % kFramesInFlightMax].first);
}

// After a flush that failed every frame might be lost to the next one: none is written before one has succeeded.
bool SegmentWriter::waits_for_flush() noexcept {
  if (!flush_in_doubt_ || hurried_ || pending_ == nullptr) return false;
  if (clock_.now_us() >= flush_again_us_) flusher_.want(flush_);
  return true;
}

// ---- What landed -----------------------------------------------------------------------------------------------------------

void SegmentWriter::frames_landed() {
  while (frames_out_ > 0 && frames_[frame_first_].landed) {
    Frame& frame = frames_[frame_first_];
    frame.landed = false;
    frame_done(frame);
    frame_first_ = (frame_first_ + 1) % kFramesInFlightMax;
    --frames_out_;
  }
}

void SegmentWriter::frame_done(Frame& frame) {
  Segment& segment = *frame.segment;
  frame_headers_.push_back(std::move(frame.header));
  --segment.frames_in_flight;
  if (frame.error != 0 && !HALFSTEP_MUTANT(WriteErrorIgnored)) {
    note_write_error(segment, frame.error, clock_.now_us());
    failing_since_us_ = 0;
    if (segment.state != SegmentState::Ended) next_frame_at_us_ = clock_.now_us() + backed_off_us(++failures_in_a_row_);
    end_segment(segment);
  }
  const bool good = segment.state == SegmentState::Open || segment.state == SegmentState::Sealing;
  if (good) {
    failures_in_a_row_ = 0;
    failing_since_us_ = 0;
    segment.written_page = frame.start_page + frame.pages;
    if (unflushed_bytes_ == 0) unflushed_since_us_ = clock_.now_us();
    unflushed_bytes_ += uint64_t{frame.pages} * kPageBytes;
  }
  for (Extent* extent = frame.first; extent != nullptr;) {
    Extent* next = extent->next_pending;
    extent->next_pending = nullptr;
    extent->in_frame = false;
    if (good) {
      extent_landed(frame, *extent);
    } else {
      retry(*extent);
    }
    extent = next;
  }
  frame.first = nullptr;
}

void SegmentWriter::extent_landed(Frame& frame, Extent& extent) {
  if (extent.is_copy()) return extent.as_copy.owner->landed(extent, frame.start_page + frame.pages);
  if (extent.write != nullptr) {
    persists_.push_back(
        {extent.write, frame.segment->number, frame.segment->generation, frame.start_page + frame.pages, extent.location()});
    extent.write = nullptr;
  }
  memory_.set_state(extent, ExtentState::Clean);
  round_expiry(catalog_, extent);
  memory_.settle(extent);
}

// Its frame may be whole on flash or not: it is written again elsewhere, with the same birth, before it is acknowledged.
void SegmentWriter::retry(Extent& extent) {
  if (!extent.is_copy()) (void)catalog_.drop(extent.key, extent.location());
  extent.set_location({});
  const bool there = extent.is_copy() ? catalog_.live(extent.key, extent.as_copy.original) : extent.listed;
  if (there && ++extent.attempts < (extent.is_copy() || hurried_ ? kAttemptsMax : kAttemptsOfBlockMax)) {
    *pending_tail_ = &extent;
    pending_tail_ = &extent.next_pending;
    pending_bytes_ += extent.shape.extent_bytes();
    if (!extent.is_copy()) {
      names_.add_unwritten_bytes(extent.entry.scope, static_cast<int64_t>(extent.shape.extent_bytes()));
    }
    return;
  }
  if (extent.is_copy()) return extent.as_copy.owner->failed(extent);
  ++counters_.writes_failed;
  if (extent.write != nullptr) answer(*extent.write, there ? Status(Code::IoError) : Status());
  extent.write = nullptr;
  if (there) {
    events_.removed(extent, EventReason::Io);
    tombstones_.bury(extent.key);
  }
  memory_.unlist(extent);
  memory_.set_state(extent, ExtentState::Clean);
  memory_.settle(extent);
}

// ---- Flush -----------------------------------------------------------------------------------------------------------------

bool SegmentWriter::unflushed(const Segment& segment) const noexcept {
  if (segment.durable_page >= segment.written_page) return false;
  return std::any_of(unflushed_.begin(), unflushed_.end(),
                     [&](const Unflushed& u) { return u.segment == &segment && u.generation == segment.generation; });
}

bool SegmentWriter::may_become_durable(Location location) const noexcept {
  const Segment& segment = catalog_.segment(location.segment);
  return std::any_of(unflushed_.begin(), unflushed_.end(),
                     [&](const Unflushed& u) { return u.segment == &segment && u.generation == segment.generation; });
}

void SegmentWriter::flush_starting() {
  flush_wanted_ = false;
  std::erase_if(unflushed_, [](const Unflushed& u) {
    const SegmentState state = u.segment->state;
    return u.segment->generation != u.generation || state == SegmentState::Sealed ||
           (state == SegmentState::Ended && u.segment->frames_in_flight == 0 &&
            u.segment->durable_page == u.segment->written_page);
  });
  for (Unflushed& u : unflushed_) {
    u.covered_page = HALFSTEP_MUTANT(NoWatermark) ? u.segment->next_page : u.segment->written_page;
  }
  unflushed_bytes_ = 0;
  unflushed_since_us_ = UINT64_MAX;
}

void SegmentWriter::flush_done(Status status) {
  notice_flush_failure();
  writes_.flushed(status.ok(), clock_.now_us());
  flush_in_doubt_ = !status.ok();
  flushes_failed_ = status.ok() ? 0 : flushes_failed_ + 1;
  if (!status.ok()) {
    flush_again_us_ = clock_.now_us() + backed_off_us(flushes_failed_);
    return;
  }
  for (const Unflushed& u : unflushed_) {
    // One that was reclaimed meanwhile keeps its generation until the next one is logged, and has no pages any more.
    if (u.segment->generation != u.generation || !u.segment->holds_frames()) continue;
    u.segment->durable_page = std::max(u.segment->durable_page, u.covered_page);
  }
  std::erase_if(persists_, [&](const Persist& p) {
    const Segment& segment = catalog_.segment(p.segment);
    if (segment.generation != p.generation || segment.durable_page < p.end_page) return false;
    answer(*p.write, names_uncertain_ ? Status(Code::IoError) : Status());
    return true;
  });
}

// A flush failed, ours or another's: frames that have landed since the watermark may be lost, and of frames in flight the
// part that had landed.
void SegmentWriter::notice_flush_failure() {
  if (flusher_.failures() == failures_seen_) return;
  failures_seen_ = flusher_.failures();
  flush_in_doubt_ = true;
  for (Unflushed& u : unflushed_) {
    u.covered_page = 0;
    const Segment& segment = *u.segment;
    const bool at_risk = segment.written_page > segment.durable_page || segment.frames_in_flight > 0;
    if (segment.generation == u.generation && at_risk) flush_failed(*u.segment);
  }
}

// Nobody can say what of the unflushed frames is on media, now or ever: their blocks leave the index, and who waited for
// them is told.
void SegmentWriter::flush_failed(Segment& segment) {
  end_segment(segment);
  std::erase_if(persists_, [&](const Persist& p) {
    if (p.segment != segment.number || p.generation != segment.generation || p.end_page <= segment.durable_page) return false;
    ++counters_.writes_failed;
    answer(*p.write, catalog_.live(p.write->key, p.location) ? Status(Code::IoError) : Status());
    return true;
  });
  for (const FoundEntry& found : segment.roll->entries) {
    // Those in frames still in flight are written again when these land.
    if (found.entry.page < segment.durable_page || found.entry.page >= segment.written_page) continue;
    const IndexKey key{found.entry.key_low, found.entry.key_high};
    const Location location = catalog_.location_of(segment, found.entry);
    if (!catalog_.live(key, location)) continue;
    events_.removed(event_of(found.entry, segment.roll->key_of(found)), EventReason::Io);
    forget(catalog_, memory_, key, location);
    tombstones_.bury(key);
  }
  segment.written_page = segment.durable_page;
}

}  // namespace halfstep::store
