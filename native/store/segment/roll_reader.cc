#include "store/segment/roll_reader.h"

#include "base/check.h"

namespace halfstep::store {

RollReader::RollReader(const ShardMedia& media, Catalog& catalog) : catalog_(catalog), read_(media, io::IoClass::Reclaim) {}

void RollReader::read(RollRequest& request) {
  HALFSTEP_CHECK(!request.busy);
  ++catalog_.segment(request.segment).reads_in_flight;
  request.busy = true;
  request.next = nullptr;
  *tail_ = &request;
  tail_ = &request.next;
}

void RollReader::turn() {
  if (idle() || read_.reading()) return;
  RollRequest& request = *head_;
  Segment& segment = catalog_.segment(request.segment);
  if (!begun_) {
    begun_ = true;
    // As the start read it. One that ended without a footer may have the pages of one all the same: they could not be read, or
    // not be finished. What the index knows comes from the frames, and the footer may call it void.
    const bool frames_alone = segment.state == SegmentState::Ended && !segment.footer_read;
    read_.begin(request.segment, segment.generation, &request.scanned, frames_alone);
  }
  if (read_.go_on()) return;
  begun_ = false;
  head_ = request.next;
  if (head_ == nullptr) tail_ = &head_;
  --segment.reads_in_flight;
  request.busy = false;
  request.done(request);
}

}  // namespace halfstep::store
