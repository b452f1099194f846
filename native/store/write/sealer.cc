#include "store/write/sealer.h"

#include <algorithm>

#include "base/check.h"
#include "store/write/streams.h"

namespace halfstep::store {

Sealer::Sealer(const Needs& needs)
    : media_(needs.media),
      catalog_(needs.catalog),
      writes_(needs.writes),
      sequence_(needs.sequence),
      clock_(needs.clock),
      store_time_(needs.store_time),
      counters_(needs.counters),
      buffer_(kChunkPages) {
  request_.op = io::Op::Write;
  request_.owner = this;
  request_.complete = [](io::Request& request) {
    auto* self = static_cast<Sealer*>(request.owner);
    if (request.error != 0) return self->failed(request.error);
    self->writes_.landed();
    if (self->builder_->finished()) return self->finish(SegmentState::Sealed);
    self->write_next();
  };
}

// Written again until it lands, or until it is this place that fails and not the device. Without a footer the segment's frames
// say the same.
void Sealer::failed(int32_t error) {
  // Nobody waits for a footer: one whose place cannot be written says nothing of puts, which would be refused for it.
  const uint64_t now_us = clock_.now_us();
  ++tries_;
  if (failing_since_us_ == 0) failing_since_us_ = now_us;
  const bool witnessed = witnessed_ >= kWitnessedMax;
  const bool of_this_place = witnessed && !is_passing(error, failing_since_us_, now_us);
  if (HALFSTEP_MUTANT(ErrorEndsSegment) || of_this_place || (hurried_ && tries_ >= kTriesMax)) {
    note_write_error(*segment_, error, now_us);
    return finish(SegmentState::Ended);
  }
  again_at_us_ = now_us + (witnessed ? std::min(backed_off_us(tries_), kPassingPauseUs) : backed_off_us(tries_));
}

uint64_t Sealer::next_turn_us() const noexcept { return again_at_us_ == 0 ? UINT64_MAX : again_at_us_; }

void Sealer::turn(Streams& streams) {
  if (segment_ != nullptr) {
    const bool others = witnessed_ < kWitnessedMax && writes_.places_landed() != others_seen_;
    if (again_at_us_ == 0 || (!hurried_ && !others && clock_.now_us() < again_at_us_)) return;
    witnessed_ += others ? 1 : 0;
    counters_.bytes_repeated += request_.bytes;
    ++counters_.frames_repeated;
    return submit();
  }
  for (uint32_t number = 0; number < catalog_.segment_count(); ++number) {
    Segment& segment = catalog_.segment(number);
    if (segment.state == SegmentState::Ended && segment.settled()) segment.roll.reset();  // its frames say it all
    if (segment.state != SegmentState::Sealing || segment.frames_in_flight > 0) continue;
    SegmentWriter& writer = streams.of(segment);
    if (!writer.durable(segment)) {
      writer.want_durable(segment);
      continue;
    }
    segment_ = &segment;
    builder_.emplace(media_.page_secret, media_.places.shard, catalog_, segment, media_.places.segment_pages(),
                     sequence_.draw(), store_time_.now_s());
    return write_next();
  }
}

void Sealer::write_next() {
  const uint32_t place = builder_->first_place() + builder_->next_page();
  uint32_t pages = 0;
  while (pages < kChunkPages && !builder_->finished()) builder_->build(buffer_.page(pages++));
  request_.offset = media_.places.segment(segment_->number) + uint64_t{place} * kPageBytes;
  request_.placement = segment_->stream;
  request_.data = buffer_.bytes().data();
  request_.bytes = pages * kPageBytes;
  counters_.bytes_metadata += request_.bytes;
  request_.io_class = io::IoClass::Write;
  tries_ = witnessed_ = 0;
  failing_since_us_ = 0;
  submit();
}

void Sealer::submit() {
  again_at_us_ = 0;
  others_seen_ = writes_.places_landed();
  HALFSTEP_CHECK(media_.places.in_segment(segment_->number, request_.offset, request_.bytes), segment_->number, request_.offset,
                 request_.bytes);
  media_.engine.submit(request_);
}

void Sealer::finish(SegmentState state) {
  segment_->state = state;
  if (state == SegmentState::Sealed) {
    ++counters_.segments_sealed;
    segment_->write_errors = 0;
    segment_->roll.reset();
    segment_->lengths.shrink();
  }
  segment_ = nullptr;
  builder_.reset();
}

}  // namespace halfstep::store
