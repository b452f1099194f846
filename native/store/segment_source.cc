#include "store/segment_source.h"

#include "store/segment_writer.h"

namespace halfstep::store {
namespace {

constexpr uint32_t kWriteErrorsMax = 3;  // then the segment is logged bad
constexpr uint64_t kRetryUs = 100'000;   // after the log refused

}  // namespace

Segment* SegmentSource::take() noexcept {
  Segment* segment = ready_;
  ready_ = nullptr;
  if (segment != nullptr) segment->state = SegmentState::Open;
  return segment;
}

bool SegmentSource::at_rest(const Segment& segment, SegmentWriter& writer) noexcept {
  if (segment.state != SegmentState::Sealed && segment.state != SegmentState::Ended) return false;
  if (segment.reads_in_flight > 0 || segment.frames_in_flight > 0) return false;
  if (!writer.unflushed(segment)) return true;
  flush_asked_ = true;
  writer.want_flush();
  return false;
}

Segment* SegmentSource::pick(bool despite_holds, SegmentWriter& writer) noexcept {
  for (uint32_t i = 0; i < core_.catalog.segment_count(); ++i) {
    Segment& segment = core_.catalog.segment((next_free_ + i) % core_.catalog.segment_count());
    if (segment.state != SegmentState::Free) continue;
    next_free_ = (segment.number + 1) % core_.catalog.segment_count();
    return &segment;
  }
  Segment* best = nullptr;
  const auto before = [](const Segment& a, const Segment& b) {
    if ((a.live_blocks == 0) != (b.live_blocks == 0)) return a.live_blocks == 0;
    return a.opened < b.opened;
  };
  for (uint32_t number = 0; number < core_.catalog.segment_count(); ++number) {
    Segment& segment = core_.catalog.segment(number);
    if (segment.held_blocks > 0 && !despite_holds) continue;
    if (best != nullptr && !before(segment, *best)) continue;
    if (at_rest(segment, writer)) best = &segment;
  }
  return best;
}

void SegmentSource::turn(SegmentWriter& writer) {
  if (logging_ != nullptr || core_.clock.now_us() < retry_at_us_) return;
  const bool crowded = core_.log.crowded();
  if (ready_ != nullptr) {
    if (crowded) relieve_log(writer);
    return;
  }
  flush_asked_ = false;
  Segment* segment = pick(crowded, writer);
  exhausted_ = segment == nullptr && !flush_asked_;
  if (segment != nullptr) begin(*segment);
}

// Tombstones die with the segments that hold what they bury: first those that hold nothing else, then the oldest, were it the
// open one.
void SegmentSource::relieve_log(SegmentWriter& writer) {
  Segment* oldest = nullptr;
  for (uint32_t number = 0; number < core_.catalog.segment_count(); ++number) {
    Segment& segment = core_.catalog.segment(number);
    if (!segment.holds_frames()) continue;
    if (segment.live_blocks == 0 && at_rest(segment, writer)) return begin(segment);
    if (oldest == nullptr || segment.generation < oldest->generation) oldest = &segment;
  }
  if (oldest == nullptr) return;
  if (oldest->state == SegmentState::Open) return writer.close_open_segment();
  if (at_rest(*oldest, writer)) begin(*oldest);
}

void SegmentSource::begin(Segment& segment) {
  const bool reclaimed = segment.state != SegmentState::Free;
  logging_ = &segment;
  segment.state = SegmentState::Logging;
  segment.records_missing = reclaimed;  // its frames are there until the record is on media
  if (reclaimed) ++core_.counters.segments_reclaimed;
  core_.catalog.empty(segment, [&](const Block& block) {
    ++core_.counters.blocks_evicted;
    Extent* extent = core_.memory.find(block.key);
    if (extent == nullptr || extent->location.segment != segment.number) return;
    core_.memory.unlist(*extent);
    core_.memory.settle(*extent);
  });
  RecordLog::Pending& pending = core_.take_pending();
  const bool bad = segment.write_errors >= kWriteErrorsMax;
  pending.record.kind = static_cast<uint8_t>(bad ? format::RecordKind::SegmentBad : format::RecordKind::Segment);
  pending.record.segment = segment.number;
  pending.record.sequence = core_.draw();
  pending.owner = this;
  pending.done = [](RecordLog::Pending& done, Status status) {
    auto* self = static_cast<SegmentSource*>(done.owner);
    const uint64_t generation = done.record.sequence;
    self->core_.give_pending(done);
    self->logged(*self->logging_, generation, status);
  };
  core_.log.append(pending);
}

void SegmentSource::logged(Segment& segment, uint64_t generation, Status status) {
  logging_ = nullptr;
  if (!status.ok()) {
    // Whether the record is on media is unknown. If not, the old frames are still there for a restart to find, so that the
    // tombstones of their blocks must stay: not Free, but first in line.
    segment.state = segment.generation == 0 ? SegmentState::Free : SegmentState::Ended;
    retry_at_us_ = core_.clock.now_us() + kRetryUs;
    return;
  }
  segment.generation = generation;
  segment.records_missing = false;
  if (segment.write_errors >= kWriteErrorsMax) {
    segment.state = SegmentState::Bad;
    ++core_.counters.segments_bad;
  } else if (ready_ != nullptr) {
    segment.state = SegmentState::Free;  // made empty for the log's sake; it gets a newer generation before its use
  } else {
    segment.state = SegmentState::Ready;
    ready_ = &segment;
  }
}

}  // namespace halfstep::store
