#include "store/roll_reader.h"

#include <cassert>

namespace halfstep::store {

RollReader::RollReader(Core& core) : core_(core), scan_(core.places, core.page_secret, 0) {
  io_.op = io::Op::Read;
  io_.owner = this;
  io_.complete = [](io::Request& request) { static_cast<RollReader*>(request.owner)->landed(); };
}

void RollReader::read(RollRequest& request) {
  assert(!request.busy);
  ++core_.catalog.segment(request.segment).reads_in_flight;
  request.busy = true;
  request.next = nullptr;
  *tail_ = &request;
  tail_ = &request.next;
}

void RollReader::turn() {
  if (!idle() && !reading_) go_on();
}

void RollReader::go_on() {
  RollRequest& request = *head_;
  Segment& segment = core_.catalog.segment(request.segment);
  if (!begun_) {
    begun_ = true;
    scan_.begin(request.segment, segment.generation, false, &request.scanned);
  }
  if (scan_.next()) return submit(kWholeWindow);
  begun_ = false;
  head_ = request.next;
  if (head_ == nullptr) tail_ = &head_;
  --segment.reads_in_flight;
  request.busy = false;
  request.done(request);
}

void RollReader::submit(uint32_t page) {
  page_ = page;
  const Bytes window = scan_.window();
  const uint64_t at = page == kWholeWindow ? 0 : uint64_t{page} * kPageBytes;
  const Bytes wanted = page == kWholeWindow ? window : window.subspan(at, kPageBytes);
  io_.offset = scan_.device_offset() + at;
  io_.data = wanted.data();
  io_.bytes = static_cast<uint32_t>(wanted.size());
  reading_ = true;
  core_.engine.submit(io_);
}

// What cannot be read as a whole is read page by page.
void RollReader::landed() {
  reading_ = false;
  const auto pages = static_cast<uint32_t>(scan_.window().size() / kPageBytes);
  if (page_ == kWholeWindow) {
    if (io_.error != 0) submit(0);
    return;
  }
  if (io_.error != 0) scan_.unreadable(page_);
  if (page_ + 1 < pages) submit(page_ + 1);
}

}  // namespace halfstep::store
