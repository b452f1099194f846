#include "store/segment/segment_read.h"

namespace halfstep::store {

SegmentRead::SegmentRead(const ShardMedia& media, io::IoClass io_class)
    : engine_(media.engine), scan_(media.places, media.page_secret) {
  io_.op = io::Op::Read;
  io_.io_class = io_class;
  io_.owner = this;
  io_.complete = [](io::Request& request) { static_cast<SegmentRead*>(request.owner)->landed(); };
}

bool SegmentRead::go_on() {
  if (!scan_.next()) return false;
  submit(kWholeWindow);
  return true;
}

void SegmentRead::submit(uint32_t page) {
  page_ = page;
  const Bytes window = scan_.window();
  const uint64_t at = page == kWholeWindow ? 0 : uint64_t{page} * kPageBytes;
  const Bytes wanted = page == kWholeWindow ? window : window.subspan(at, kPageBytes);
  io_.offset = scan_.device_offset() + at;
  io_.data = wanted.data();
  io_.bytes = static_cast<uint32_t>(wanted.size());
  reading_ = true;
  engine_.submit(io_);
}

void SegmentRead::landed() {
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
