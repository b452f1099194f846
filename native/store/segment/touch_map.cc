#include "store/segment/touch_map.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace halfstep::store {
namespace {

constexpr uint64_t kBudgetShare = 100;  // one of so many bytes
constexpr uint64_t kPagesPerPassMin = 16;
constexpr uint64_t kDayUs = 86'400'000'000;

PageAddress address_of(const Places& places, const Segment& segment, uint32_t page) noexcept {
  return {0, places.shard, segment.number, page, segment.generation};
}

}  // namespace

TouchMap::TouchMap(const Needs& needs, RollReader& rolls, uint64_t bytes_per_day)
    : media_(needs.media),
      catalog_(needs.catalog),
      names_(needs.names),
      sequence_(needs.sequence),
      clock_(needs.clock),
      store_time_(needs.store_time),
      counters_(needs.counters),
      rolls_(rolls),
      bytes_per_day_(bytes_per_day),
      buffer_(kRunPages),
      next_pass_us_(clock_.now_us() + kPassEveryUs) {
  request_.owner = this;
  request_.done = [](RollRequest& request) {
    static_cast<TouchMap*>(request.owner)->take_roll(request.scanned);
    request.scanned = {};
  };
  // A write that failed is not tried again: the page says untouched, or what it said before.
  io_.op = io::Op::Write;
  io_.owner = this;
  io_.complete = [](io::Request& request) { static_cast<TouchMap*>(request.owner)->writing_ = false; };
}

void TouchMap::hurry() noexcept {
  hurried_ = true;
  in_pass_ = false;
}

void TouchMap::begin_pass() noexcept {
  in_pass_ = true;
  segments_left_ = catalog_.segment_count() + 1;  // the first one twice: the cursor may stand in its middle
  const uint64_t written = catalog_.clock().bytes();
  const uint64_t daily = bytes_per_day_ / (kDayUs / kPassEveryUs);
  const uint64_t budget = std::max(written - written_bytes_before_, daily) / kBudgetShare;
  written_bytes_before_ = written;
  pages_left_ = hurried_ ? UINT64_MAX : std::max(budget / kPageBytes, kPagesPerPassMin);
}

void TouchMap::end_pass() noexcept {
  in_pass_ = hurried_ = false;
  next_pass_us_ = clock_.now_us() + kPassEveryUs;
}

bool TouchMap::find_segment() {
  for (; segments_left_ > 0 && pages_left_ > 0; --segments_left_) {
    const Segment& segment = catalog_.segment(segment_);
    if (segment.holds_frames() && segment.touched_regions != 0) {
      if (segment.roll != nullptr) {
        take_roll(*segment.roll);
      } else {
        request_.segment = segment_;
        rolls_.read(request_);
      }
      return true;
    }
    segment_ = (segment_ + 1) % catalog_.segment_count();
  }
  return false;
}

void TouchMap::take_roll(const Roll& roll) {
  Segment& segment = catalog_.segment(segment_);
  const uint64_t regions = std::exchange(segment.touched_regions, 0);
  const size_t entries = std::min<size_t>(roll.entries.size(), size_t{media_.places.touch_pages} * format::kTouchesPerPage);
  generation_ = segment.generation;
  touched_s_ = store_time_.now_s();
  page_ = 0;
  touches_.assign(entries, {});
  changed_.assign(div_up(entries, format::kTouchesPerPage), false);
  for (size_t ordinal = 0; ordinal < entries; ++ordinal) {
    const FoundEntry& found = roll.entries[ordinal];
    if (!found.present) continue;
    const uint64_t region = uint64_t{found.entry.page} * Segment::kRegions / media_.places.segment_pages();
    if ((regions >> region & 1) != 0) changed_[ordinal / format::kTouchesPerPage] = true;
    const Block block = catalog_.find({found.entry.key_low, found.entry.key_high});
    if (block.location == catalog_.location_of(segment, found.entry)) {
      touches_[ordinal] = {block.touch_stamp, block.touch_class, life_left(block)};
    }
  }
}

uint8_t TouchMap::life_left(const Block& block) noexcept {
  const uint64_t ttl_s = names_.sliding_ttl_s(block.scope);
  const uint64_t now_s = store_time_.now_s();
  if (!block.sliding || block.touch_class == kUntouched || ttl_s == 0 || block.expiry_s <= now_s) return 0;
  return static_cast<uint8_t>(
      std::min<uint64_t>((block.expiry_s - now_s) * format::kTouchLifeMax / ttl_s, format::kTouchLifeMax));
}

void TouchMap::turn() {
  if (writing_ || request_.busy) return;
  if (!in_pass_) {
    if (!hurried_ && clock_.now_us() < next_pass_us_) return;
    begin_pass();
  }
  if (generation_ != 0 && write_run()) return;
  if (generation_ == 0 && !find_segment()) end_pass();
}

bool TouchMap::write_run() {
  const Segment& segment = catalog_.segment(segment_);
  const bool same = segment.generation == generation_ && segment.holds_frames();
  while (same && page_ < changed_.size() && !changed_[page_]) ++page_;
  if (!same || page_ >= changed_.size()) {
    generation_ = 0;
    return false;
  }
  uint32_t pages = 0;
  while (pages < kRunPages && page_ + pages < changed_.size() && changed_[page_ + pages]) {
    build(segment, page_ + pages, buffer_.page(pages));
    ++pages;
  }
  pages_left_ -= std::min<uint64_t>(pages_left_, pages);
  io_.offset = media_.places.touch_map(segment.number) + uint64_t{page_} * kPageBytes;
  io_.data = buffer_.bytes().data();
  io_.bytes = pages * kPageBytes;
  HALFSTEP_CHECK(pages <= media_.places.touch_pages && page_ <= media_.places.touch_pages - pages, page_, pages);
  counters_.touch_pages += pages;
  counters_.bytes_metadata += io_.bytes;
  page_ += pages;
  writing_ = true;
  io_.io_class = io::IoClass::Reclaim;
  media_.engine.submit(io_);
  return true;
}

void TouchMap::build(const Segment& segment, uint32_t page, Bytes out) const {
  HALFSTEP_CHECK(page < media_.places.touch_pages, page, media_.places.touch_pages);
  format::PageHeader header;
  header.kind = static_cast<uint8_t>(format::PageKind::TouchMap);
  header.generation = segment.generation;
  header.sequence = sequence_.last();
  header.created_s = touched_s_;
  header.shard = media_.places.shard;
  header.segment = segment.number;
  header.place = header.page = page;
  header.page_count = media_.places.touch_pages;
  header.frame = static_cast<uint32_t>(catalog_.clock().now());
  header.first_entry = page * format::kTouchesPerPage;
  header.entries = std::min<uint32_t>(format::kTouchesPerPage, static_cast<uint32_t>(touches_.size()) - header.first_entry);
  std::memset(out.data(), 0, out.size());
  std::byte* at = page_body(out).data();
  for (uint32_t i = 0; i < header.entries; ++i, at += format::kTouchBytes) {
    const Touch& touch = touches_[header.first_entry + i];
    store_le(at, touch.stamp);
    at[2] = static_cast<std::byte>(touch.touch_class | touch.life_left << format::kTouchLifeShift);
  }
  seal_page(media_.page_secret, header, out);
}

void take_touches(const Places& places, const HashKey& page_secret, const Segment& segment, uint32_t first, ConstBytes pages,
                  ReadTouches* out) {
  constexpr uint8_t kTouchClassMask = (1U << format::kTouchLifeShift) - 1;
  for (uint32_t p = 0; p < pages.size() / kPageBytes; ++p) {
    format::PageHeader header;
    const ConstBytes page = pages.subspan(size_t{p} * kPageBytes, kPageBytes);
    const PageAddress address = address_of(places, segment, first + p);
    if (!open_page(page_secret, page, format::PageKind::TouchMap, address, &header).ok()) continue;
    out->newest = std::max<uint64_t>(out->newest, header.frame);
    out->written_s[first + p] = header.created_s;
    const std::byte* at = page_body(page).data();
    const size_t first_entry = size_t{first + p} * format::kTouchesPerPage;
    for (uint32_t i = 0; i < header.entries && first_entry + i < out->touches.size(); ++i, at += format::kTouchBytes) {
      const auto marks = static_cast<uint8_t>(at[2]);
      out->touches[first_entry + i] = {load_le<uint16_t>(at), static_cast<uint8_t>(marks & kTouchClassMask),
                                       static_cast<uint8_t>(marks >> format::kTouchLifeShift)};
    }
  }
}

}  // namespace halfstep::store
