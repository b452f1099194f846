#include "store/segment/segment_loader.h"

#include <algorithm>

namespace halfstep::store {

SegmentLoader::SegmentLoader(const ShardMedia& media, const Catalog& catalog)
    : media_(media), catalog_(catalog), read_(media, io::IoClass::Prefetch), window_(kTouchWindowPages) {
  io_.op = io::Op::Read;
  io_.data = window_.bytes().data();
  io_.owner = this;
  io_.complete = [](io::Request& request) { static_cast<SegmentLoader*>(request.owner)->reading_ = false; };
}

void SegmentLoader::begin(uint32_t number, const format::PageHeader* tail) {
  number_ = number;
  const uint64_t generation = catalog_.segment(number).generation;
  tail != nullptr ? read_.begin_at_footer(number, generation, *tail, &scanned_) : read_.begin(number, generation, &scanned_);
  step_ = Step::Entries;
  touches_unread_ = false;
}

bool SegmentLoader::turn() {
  switch (step_) {
    case Step::Entries:
      if (read_.reading()) return false;
      if (read_.go_on()) return true;
      touch_pages_ = touches_.begin(scanned_.entries.size(), media_.places.touch_pages);
      touch_page_ = 0;
      io_.bytes = 0;
      step_ = Step::Touches;
      [[fallthrough]];
    case Step::Touches:
      if (reading_) return false;
      take_touches_read();
      if (!read_touches()) step_ = Step::Ready;
      return true;
    default: return false;
  }
}

void SegmentLoader::take_touches_read() {
  const uint32_t pages = io_.bytes / kPageBytes;
  if (pages > 0 && io_.error == 0) {
    take_touches(media_.places, media_.page_secret, catalog_.segment(number_), touch_page_, window_.bytes().first(io_.bytes),
                 &touches_);
  }
  touches_unread_ = touches_unread_ || (pages > 0 && io_.error != 0);
  touch_page_ += pages;
}

bool SegmentLoader::read_touches() {
  if (touch_page_ >= touch_pages_) return false;
  io_.offset = media_.places.touch_map(number_) + uint64_t{touch_page_} * kPageBytes;
  io_.bytes = std::min(touch_pages_ - touch_page_, kTouchWindowPages) * kPageBytes;
  reading_ = true;
  io_.io_class = io::IoClass::Prefetch;
  media_.engine.submit(io_);
  return true;
}

}  // namespace halfstep::store
