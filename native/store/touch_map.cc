#include "store/touch_map.h"

#include <cassert>

namespace halfstep::store {
namespace {

constexpr uint64_t kBudgetShare = 100;  // one of so many bytes
constexpr uint64_t kPagesPerPassMin = 16;
constexpr uint64_t kDayUs = 86'400'000'000;

PageAddress address_of(const Segment& segment, uint32_t page) noexcept {
  return {0, 0, segment.number, page, segment.generation};
}

}  // namespace

TouchMap::TouchMap(Core& core) : core_(core), buffer_(kRunPages), next_pass_us_(core.clock.now_us() + kPassEveryUs) {
  request_.op = io::Op::Write;
  request_.owner = this;
  request_.complete = [](io::Request& request) { static_cast<TouchMap*>(request.owner)->written(); };
}

void TouchMap::hurry() noexcept {
  hurried_ = true;
  in_pass_ = false;
}

void TouchMap::begin_pass() noexcept {
  in_pass_ = true;
  segments_left_ = core_.catalog.segment_count() + 1;  // the first one twice: the cursor may stand in its middle
  const uint64_t written = core_.catalog.clock().bytes();
  const uint64_t daily = core_.options.rewrite_bytes_per_day / (kDayUs / kPassEveryUs);
  const uint64_t budget = std::max(written - written_bytes_before_, daily) / kBudgetShare;
  written_bytes_before_ = written;
  pages_left_ = hurried_ ? UINT64_MAX : std::max(budget / kPageBytes, kPagesPerPassMin);
}

void TouchMap::end_pass() noexcept {
  in_pass_ = hurried_ = false;
  next_pass_us_ = core_.clock.now_us() + kPassEveryUs;
}

bool TouchMap::find_run(uint32_t* pages) noexcept {
  for (; segments_left_ > 0 && pages_left_ > 0; --segments_left_) {
    Segment& segment = core_.catalog.segment(segment_);
    std::vector<bool>& changed = segment.touch_pages_changed;
    for (; segment.holds_frames() && page_ < changed.size(); ++page_) {
      if (!changed[page_]) continue;
      const uint64_t most = std::min<uint64_t>({kRunPages, pages_left_, changed.size() - page_});
      for (*pages = 0; *pages < most && changed[page_ + *pages]; ++*pages) changed[page_ + *pages] = false;
      pages_left_ -= *pages;
      return true;
    }
    segment_ = (segment_ + 1) % core_.catalog.segment_count();
    page_ = 0;
  }
  return false;
}

void TouchMap::turn() {
  if (writing_) return;
  if (!in_pass_) {
    if (!hurried_ && core_.clock.now_us() < next_pass_us_) return;
    begin_pass();
  }
  if (!find_run(&run_pages_)) return end_pass();
  const Segment& segment = core_.catalog.segment(segment_);
  for (uint32_t p = 0; p < run_pages_; ++p) build(segment, page_ + p, buffer_.page(p));
  request_.offset = core_.places.touch_map(segment.number) + uint64_t{page_} * kPageBytes;
  request_.data = buffer_.bytes().data();
  request_.bytes = run_pages_ * kPageBytes;
  core_.counters.touch_pages += run_pages_;
  core_.counters.bytes_metadata += request_.bytes;
  page_ += run_pages_;
  writing_ = true;
  core_.engine.submit(request_);
}

// A write that failed is not tried again: the page says untouched, or what it said before.
void TouchMap::written() { writing_ = false; }

void TouchMap::build(const Segment& segment, uint32_t page, Bytes out) const {
  assert(page < core_.places.touch_pages);
  format::PageHeader header;
  header.kind = static_cast<uint8_t>(format::PageKind::TouchMap);
  header.generation = segment.generation;
  header.sequence = core_.sequence;
  header.segment = segment.number;
  header.place = header.page = page;
  header.page_count = core_.places.touch_pages;
  header.frame = static_cast<uint32_t>(core_.catalog.clock().now());
  header.first_entry = page * format::kTouchesPerPage;
  header.entries =
      std::min<uint32_t>(format::kTouchesPerPage, static_cast<uint32_t>(segment.blocks.size()) - header.first_entry);
  std::memset(out.data(), 0, out.size());
  std::byte* at = page_body(out).data();
  for (uint32_t i = 0; i < header.entries; ++i, at += format::kTouchBytes) {
    const Block& block = segment.blocks[header.first_entry + i];
    store_le(at, block.touch_stamp);
    at[2] = static_cast<std::byte>(block.touch_class);
  }
  seal_page(core_.page_secret, header, out);
}

uint64_t restore_touches(Core& core, BlockingIo& io, const Segment& segment) {
  constexpr uint32_t kChunkPages = 64;
  const auto pages = static_cast<uint32_t>(
      std::min<uint64_t>(div_up(segment.blocks.size(), format::kTouchesPerPage), core.places.touch_pages));
  PageBuffer buffer(std::min(std::max(pages, 1U), kChunkPages));
  uint64_t newest = 0;
  for (uint32_t first = 0; first < pages; first += buffer.pages()) {
    const uint32_t count = std::min(buffer.pages(), pages - first);
    const uint64_t place = core.places.touch_map(segment.number) + uint64_t{first} * kPageBytes;
    if (!io.read(place, buffer.bytes().first(size_t{count} * kPageBytes)).ok()) continue;
    for (uint32_t p = 0; p < count; ++p) {
      format::PageHeader header;
      const ConstBytes page = buffer.page(p);
      const PageAddress address = address_of(segment, first + p);
      if (!open_page(core.page_secret, page, format::PageKind::TouchMap, address, &header).ok()) continue;
      newest = std::max<uint64_t>(newest, header.frame);
      const std::byte* at = page_body(page).data();
      const uint32_t first_entry = (first + p) * format::kTouchesPerPage;
      for (uint32_t i = 0; i < header.entries && first_entry + i < segment.blocks.size(); ++i, at += format::kTouchBytes) {
        core.catalog.restore_touch({segment.number, first_entry + i}, load_le<uint16_t>(at), static_cast<uint8_t>(at[2]));
      }
    }
  }
  return newest;
}

}  // namespace halfstep::store
