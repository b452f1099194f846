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

Segment* SegmentSource::pick(bool despite_holds) noexcept {
  for (uint32_t i = 0; i < core_.catalog.segment_count(); ++i) {
    Segment& segment = core_.catalog.segment((next_free_ + i) % core_.catalog.segment_count());
    if (segment.state != SegmentState::Free) continue;
    next_free_ = (segment.number + 1) % core_.catalog.segment_count();
    return &segment;
  }
  Segment* oldest = nullptr;
  for (uint32_t number = 0; number < core_.catalog.segment_count(); ++number) {
    Segment& segment = core_.catalog.segment(number);
    if (segment.state != SegmentState::Sealed && segment.state != SegmentState::Ended) continue;
    if (segment.reads_in_flight > 0 || segment.frames_in_flight > 0) continue;
    if (segment.held_blocks > 0 && !despite_holds) continue;
    if (oldest == nullptr || segment.opened < oldest->opened) oldest = &segment;
  }
  return oldest;
}

void SegmentSource::turn(SegmentWriter& writer) {
  if (logging_ != nullptr || core_.clock.now_us() < retry_at_us_) return;
  const bool crowded = core_.log.crowded();
  if (ready_ != nullptr && !crowded) return;
  if (ready_ != nullptr) {
    // Tombstones die only when every segment older than they are is gone: the open one too.
    const uint64_t oldest = core_.catalog.oldest_generation(UINT64_MAX);
    if (oldest == UINT64_MAX) return;
    for (uint32_t number = 0; number < core_.catalog.segment_count(); ++number) {
      Segment& segment = core_.catalog.segment(number);
      if (segment.generation != oldest || !segment.holds_frames()) continue;
      if (segment.state == SegmentState::Open) return writer.close_open_segment();
      const bool at_rest = segment.state == SegmentState::Sealed || segment.state == SegmentState::Ended;
      if (at_rest && segment.reads_in_flight == 0 && segment.frames_in_flight == 0) begin(segment);
      return;
    }
    return;
  }
  Segment* segment = pick(crowded);
  exhausted_ = segment == nullptr;
  if (segment != nullptr) begin(*segment);
}

void SegmentSource::begin(Segment& segment) {
  const bool reclaimed = segment.state != SegmentState::Free;
  logging_ = &segment;
  segment.state = SegmentState::Logging;
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
