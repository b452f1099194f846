#include "store/sealer.h"

#include "store/streams.h"

namespace halfstep::store {

Sealer::Sealer(Core& core) : core_(core), buffer_(kChunkPages) {
  request_.op = io::Op::Write;
  request_.owner = this;
  request_.complete = [](io::Request& request) {
    auto* self = static_cast<Sealer*>(request.owner);
    if (request.error != 0) {
      ++self->segment_->write_errors;
      return self->finish(SegmentState::Ended);
    }
    if (self->builder_->finished()) return self->finish(SegmentState::Sealed);
    self->write_next();
  };
}

void Sealer::turn(Streams& streams) {
  if (segment_ != nullptr) return;
  for (uint32_t number = 0; number < core_.catalog.segment_count(); ++number) {
    Segment& segment = core_.catalog.segment(number);
    if (segment.state == SegmentState::Ended && segment.settled()) segment.roll.reset();  // its frames say it all
    if (segment.state != SegmentState::Sealing || segment.frames_in_flight > 0) continue;
    SegmentWriter& writer = streams.of(segment);
    if (!writer.durable(segment)) {
      writer.want_durable(segment);
      continue;
    }
    segment_ = &segment;
    builder_.emplace(core_.page_secret, core_.places.shard, core_.catalog, segment, core_.places.segment_pages(), core_.draw(),
                     core_.store_time_s());
    return write_next();
  }
}

void Sealer::write_next() {
  const uint32_t place = builder_->first_place() + builder_->next_page();
  uint32_t pages = 0;
  while (pages < kChunkPages && !builder_->finished()) builder_->build(buffer_.page(pages++));
  request_.offset = core_.places.segment(segment_->number) + uint64_t{place} * kPageBytes;
  request_.placement = segment_->stream;
  request_.data = buffer_.bytes().data();
  request_.bytes = pages * kPageBytes;
  core_.counters.bytes_metadata += request_.bytes;
  request_.io_class = io::IoClass::Write;
  core_.engine.submit(request_);
}

void Sealer::finish(SegmentState state) {
  segment_->state = state;
  if (state == SegmentState::Sealed) {
    ++core_.counters.segments_sealed;
    segment_->write_errors = 0;
    segment_->roll.reset();
    segment_->lengths.shrink();
  }
  segment_ = nullptr;
  builder_.reset();
}

}  // namespace halfstep::store
