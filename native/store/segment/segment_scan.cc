#include "store/segment/segment_scan.h"

#include <algorithm>

#include "index/entry.h"
#include "store/format/extent_layout.h"

namespace halfstep::store {
namespace {

void note(const format::PageHeader& header, ScannedSegment* out) noexcept {
  out->anything = true;
  out->sequence_max = std::max(out->sequence_max, header.sequence);
  out->created_max_s = std::max(out->created_max_s, header.created_s);
  out->watermark = std::max(out->watermark, header.watermark);
}

void keep_key(ConstBytes key, FoundEntry* found, ScannedSegment* out) {
  if (found->key_bytes != 0 || key.size() != found->entry.engine_key_bytes) return;
  if (key.size() > format::kEngineKeyInline) {
    const Sha256 digest = sha256(key);
    if (!std::equal(digest.begin(), digest.end(), found->entry.engine_key.begin())) return;
  }
  out->keep_key(key, found);
}

}  // namespace

bool entry_is_sane(const format::Entry& e, uint32_t segment_pages) noexcept {
  if (e.parts == 0 || e.parts > wire::kPartsMax || e.engine_key_bytes == 0 || e.raw_bytes == 0 || e.stored_bytes == 0)
    return false;
  if (e.birth >= format::kSequenceLimit) return false;
  if ((e.flags & ~format::kEntryFlags) != 0 || e.key_epoch != 0) return false;
  if ((e.flags & format::kEntryTrailer) == 0 && (e.stored_bytes % kPageBytes != 0 || e.stored_bytes != e.raw_bytes))
    return false;
  if (e.pages_back == 0 || e.pages_back > format::kPagesBackMax || e.pages_back > e.page || e.page >= segment_pages)
    return false;
  // No longer than the index can say, were the segment that large.
  const uint64_t pages_max = std::min(segment_pages - e.page, index::kExtentPagesMax);
  return shape_of(e).extent_bytes() <= pages_max * kPageBytes;
}

SegmentScan::SegmentScan(const Places& places, const HashKey& secret)
    : places_(places), secret_(secret), window_(kWindowPages), unreadable_(kWindowPages) {}

void SegmentScan::begin(uint32_t number, uint64_t generation, bool frames_alone, ScannedSegment* out) {
  number_ = number;
  generation_ = generation;
  step_ = frames_alone ? Step::Frames : Step::Tail;
  window_pages_ = 0;
  place_ = last_good_ = skipped_ = 0;
  again_ = kNowhere;
  out_ = out;
  std::vector<FoundEntry> entries = std::move(out->entries);  // for their memory
  entries.clear();
  *out = {};
  out->entries = std::move(entries);
}

void SegmentScan::begin_at_footer(uint32_t number, uint64_t generation, const format::PageHeader& tail, ScannedSegment* out) {
  begin(number, generation, false, out);
  take_tail(tail);
}

bool SegmentScan::next() {
  if (step_ == Step::Tail && !take_tail()) return true;
  if (step_ == Step::Footer && !take_footer()) return true;
  if (step_ == Step::Frames && !walk()) return true;
  step_ = Step::Done;
  return false;
}

bool SegmentScan::has(uint32_t first, uint32_t pages, uint32_t pages_max) noexcept {
  if (first >= window_first_ && first + pages <= window_first_ + window_pages_) return true;
  window_first_ = first;
  window_pages_ = std::min(pages_max, places_.segment_pages() - first);
  std::fill(unreadable_.begin(), unreadable_.end(), false);
  return false;
}

ConstBytes SegmentScan::page_at(uint32_t place) const noexcept {
  if (unreadable_[place - window_first_]) return {};
  return window_.page(place - window_first_);
}

void SegmentScan::unreadable(uint32_t page_of_window) noexcept {
  unreadable_[page_of_window] = true;
  ++out_->read_errors;
}

void SegmentScanner::run(uint32_t number, uint64_t generation, bool frames_alone, ScannedSegment* out) {
  scan_.begin(number, generation, frames_alone, out);
  while (scan_.next()) {
    const Bytes window = scan_.window();
    if (io_.read(scan_.device_offset(), window).ok()) continue;
    for (uint32_t p = 0; p < window.size() / kPageBytes; ++p) {
      const uint64_t at = uint64_t{p} * kPageBytes;
      if (!io_.read(scan_.device_offset() + at, window.subspan(at, kPageBytes)).ok()) scan_.unreadable(p);
    }
  }
}

bool SegmentScan::take_entries(const HashKey& secret, ConstBytes page, format::PageKind kind, const PageAddress& address,
                               uint32_t segment_pages, ScannedSegment* out) {
  format::PageHeader header;
  if (!open_page(secret, page, kind, address, &header).ok()) return false;
  // Every block takes a page at least: no ordinal is larger, and nothing is allocated by a number from flash alone.
  if (header.first_entry > segment_pages || header.entries > segment_pages - header.first_entry) return false;
  note(header, out);
  if (out->entries.size() < size_t{header.first_entry} + header.entries)
    out->entries.resize(header.first_entry + header.entries);
  for (uint32_t i = 0; i < header.entries; ++i) {
    const format::Entry entry = entry_at(page, i);
    FoundEntry& found = out->entries[header.first_entry + i];
    if (entry.birth < format::kSequenceLimit) out->sequence_max = std::max(out->sequence_max, entry.birth);
    if ((entry.flags & format::kEntryVoid) != 0) {
      found.gone = true;
      if (!found.present && entry_is_sane(entry, segment_pages)) found.entry = entry;
      continue;
    }
    if (found.present || !entry_is_sane(entry, segment_pages)) continue;
    found.entry = entry;
    found.present = true;
    if (entry.engine_key_bytes <= format::kEngineKeyInline) {
      keep_key(ConstBytes(entry.engine_key).first(entry.engine_key_bytes), &found, out);
    }
  }
  return true;
}

bool SegmentScan::take_footer_keys(const HashKey& secret, ConstBytes page, const PageAddress& address, ScannedSegment* out) {
  format::PageHeader header;
  if (!open_page(secret, page, format::PageKind::FooterKeys, address, &header).ok()) return false;
  Reader reader(page_body(page));
  for (uint32_t i = 0; i < header.entries; ++i) {
    const auto head = reader.take<format::FooterKey>();
    const ConstBytes key = reader.take_bytes(head.bytes);
    if (reader.failed()) return false;
    if (head.ordinal < out->entries.size() && out->entries[head.ordinal].present) {
      keep_key(key, &out->entries[head.ordinal], out);
    }
  }
  return true;
}

// These three return false when they have to see other pages first. Without a footer, or with less than all of it, the frames
// are walked.
bool SegmentScan::take_tail() {
  const uint32_t pages = places_.segment_pages();
  if (!has(pages - 1, 1, 1)) return false;
  step_ = Step::Frames;
  format::PageHeader tail;
  const Status status = open_page(secret_, page_at(pages - 1), format::PageKind::FooterTail, address(pages - 1), &tail);
  if (status == Code::Corrupt) ++out_->pages_bad;
  if (status.ok() && tail_fits(tail, pages)) take_tail(tail);
  return true;
}

bool SegmentScan::tail_fits(const format::PageHeader& tail, uint32_t segment_pages) noexcept {
  const uint64_t entry_pages = div_up(tail.total_entries, format::kEntriesPerPage);
  return tail.page_count <= segment_pages && tail.total_entries <= segment_pages && entry_pages < tail.page_count;
}

void SegmentScan::take_tail(const format::PageHeader& tail) {
  tail_ = tail;
  note(tail_, out_);
  out_->footer_tail = true;
  out_->entries.reserve(tail_.total_entries);
  step_ = Step::Footer;
  footer_page_ = 0;
  whole_ = true;
}

bool SegmentScan::take_footer() {
  const uint32_t pages = places_.segment_pages();
  const auto entry_pages = static_cast<uint32_t>(div_up(tail_.total_entries, format::kEntriesPerPage));
  const uint32_t first = pages - tail_.page_count;
  for (; footer_page_ + 1 < tail_.page_count; ++footer_page_) {
    const PageAddress at = address(first + footer_page_);
    if (!has(at.place, 1, std::min(kWindowPages, tail_.page_count - 1 - footer_page_))) return false;
    const ConstBytes page = page_at(at.place);
    const bool good = footer_page_ < entry_pages ? take_entries(secret_, page, format::PageKind::FooterEntries, at, pages, out_)
                                                 : take_footer_keys(secret_, page, at, out_);
    if (good) continue;
    ++out_->pages_bad;
    whole_ = false;
  }
  out_->next_page = std::min(tail_.frame_pages, first);
  out_->frames = tail_.frame;
  out_->by_footer = whole_;
  step_ = whole_ ? Step::Done : Step::Frames;
  // A damaged footer's watermark counts no more than it does: which of the entries below it were void may be lost.
  if (!whole_) out_->watermark = 0;
  return true;
}

bool SegmentScan::frame_page(uint32_t place, format::PageHeader* header) const {
  const ConstBytes page = page_at(place);
  if (page.empty()) return false;
  if (!open_page(secret_, page, format::PageKind::FrameEntries, address(place), header).ok() &&
      !open_page(secret_, page, format::PageKind::FrameTable, address(place), header).ok()) {
    return false;
  }
  return header->page_count <= format::kFrameHeaderPagesMax && header->page <= place &&
         header->frame_pages >= header->page_count && header->frame_pages <= places_.segment_pages() - (place - header->page);
}

bool SegmentScan::walk() {
  const uint32_t pages = places_.segment_pages();
  // The next header behind a bad one is at most a whole frame away.
  const uint64_t gap_max = format::kPagesBackMax + format::kFrameHeaderPagesMax +
                           div_up(places_.geometry.block_bytes_max + format::kBlockSlackBytes, kPageBytes);
  while (place_ < pages && place_ <= last_good_ + gap_max) {
    if (!has(place_, 1)) return false;
    format::PageHeader header;
    if (!frame_page(place_, &header)) {
      if (place_ == last_good_ && again_ != place_) {
        look_again(place_);
        continue;
      }
      ++place_;
      ++skipped_;
      continue;
    }
    const uint32_t start = place_ - header.page;
    if (!has(start, header.page_count)) return false;
    if (again_ != start && !header_whole(start, header.page_count)) {
      look_again(start);
      continue;
    }
    if (skipped_ > 0) ++out_->pages_bad;  // a header was lost; the pages of its payload are not bad
    skipped_ = 0;
    place_ = last_good_ = take_frame(place_, header);
    out_->next_page = std::max(out_->next_page, place_);
  }
  return true;
}

bool SegmentScan::header_whole(uint32_t start, uint32_t pages) const {
  format::PageHeader header;
  for (uint32_t p = 0; p < pages; ++p) {
    if (!frame_page(start + p, &header)) return false;
  }
  return true;
}

// What is in the window does not count.
void SegmentScan::look_again(uint32_t start) noexcept {
  again_ = start;
  out_->read_errors -= static_cast<uint32_t>(std::count(unreadable_.begin(), unreadable_.end(), true));
  std::fill(unreadable_.begin(), unreadable_.end(), false);
  window_pages_ = 0;
}

// All header pages of the frame that one of them was found of; returns where the next frame begins.
uint32_t SegmentScan::take_frame(uint32_t place, const format::PageHeader& found) {
  const uint32_t start = place - found.page;
  const uint32_t pages = places_.segment_pages();
  const auto entry_pages =
      std::min(found.page_count, static_cast<uint32_t>(div_up(found.total_entries, format::kEntriesPerPage)));
  note(found, out_);
  out_->frames = std::max(out_->frames, found.frame + 1);
  for (uint32_t p = 0; p < entry_pages; ++p) {
    const bool good =
        take_entries(secret_, page_at(start + p), format::PageKind::FrameEntries, address(start + p), pages, out_);
    if (!good && p > found.page) ++out_->pages_bad;  // those before were counted on the way
  }
  std::vector<std::byte> tables;
  std::vector<bool> table_good;
  for (uint32_t p = entry_pages; p < found.page_count; ++p) {
    format::PageHeader header;
    const ConstBytes page = page_at(start + p);
    table_good.push_back(open_page(secret_, page, format::PageKind::FrameTable, address(start + p), &header).ok());
    if (table_good.back()) {
      tables.insert(tables.end(), page_body(page).begin(), page_body(page).end());
    } else {
      tables.resize(tables.size() + format::kPageBodyBytes);
      if (p > found.page) ++out_->pages_bad;
    }
  }
  const uint32_t before = found.kind == static_cast<uint8_t>(format::PageKind::FrameEntries) ? found.page : 0;
  const uint64_t first = uint64_t{found.first_entry} - std::min(found.first_entry, before * format::kEntriesPerPage);
  for (uint64_t ordinal = first; ordinal < std::min<uint64_t>(first + found.total_entries, out_->entries.size()); ++ordinal) {
    FoundEntry& entry = out_->entries[ordinal];
    if (!entry.present || entry.key_bytes != 0 || entry.entry.page - entry.entry.pages_back != start) continue;
    const size_t at = size_t{entry.entry.table_offset} * format::kTableUnit;
    const size_t end = at + entry.entry.engine_key_bytes;
    if (end > tables.size()) continue;
    if (!table_good[at / format::kPageBodyBytes] || !table_good[(end - 1) / format::kPageBodyBytes]) continue;
    keep_key(ConstBytes(tables).subspan(at, entry.entry.engine_key_bytes), &entry, out_);
  }
  return start + found.frame_pages;
}

}  // namespace halfstep::store
