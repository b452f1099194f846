#include "store/segment_scan.h"

#include <algorithm>

namespace halfstep::store {
namespace {

ExtentShape shape_of(const format::Entry& entry) noexcept {
  return {entry.parts, entry.stored_bytes, (entry.flags & format::kEntryTrailer) != 0};
}

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
  found->key_at = static_cast<uint32_t>(out->keys.size());
  found->key_bytes = found->entry.engine_key_bytes;
  out->keys.insert(out->keys.end(), key.begin(), key.end());
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
  return shape_of(e).extent_bytes() <= uint64_t{segment_pages - e.page} * kPageBytes;
}

SegmentScanner::SegmentScanner(io::Engine& engine, const Places& places, const HashKey& secret, uint32_t shard)
    : io_(engine), places_(places), secret_(secret), shard_(shard), window_(kWindowPages), window_bad_(kWindowPages) {}

ConstBytes SegmentScanner::page_at(uint32_t place) {
  if (window_first_ == UINT32_MAX || place < window_first_ || place >= window_first_ + window_pages_) {
    window_first_ = place;
    window_pages_ = std::min(kWindowPages, places_.segment_pages() - place);
    const uint64_t offset = places_.segment(number_) + uint64_t{place} * kPageBytes;
    std::fill(window_bad_.begin(), window_bad_.end(), false);
    if (!io_.read(offset, window_.bytes().first(size_t{window_pages_} * kPageBytes)).ok()) {
      for (uint32_t p = 0; p < window_pages_; ++p) {
        window_bad_[p] = !io_.read(offset + uint64_t{p} * kPageBytes, window_.page(p)).ok();
        if (window_bad_[p]) ++out_->read_errors;
      }
    }
  }
  if (window_bad_[place - window_first_]) return {};
  return window_.page(place - window_first_);
}

void SegmentScanner::begin(uint32_t number, uint64_t generation, ScannedSegment* out) {
  number_ = number;
  generation_ = generation;
  window_first_ = UINT32_MAX;
  out_ = out;
  *out = {};
}

void SegmentScanner::scan(uint32_t number, uint64_t generation, ScannedSegment* out) {
  begin(number, generation, out);
  if (scan_footer()) return;
  // A damaged footer's watermark counts no more than it does: which of the entries below it were void may be lost.
  out->watermark = 0;
  walk();
}

void SegmentScanner::scan_frames(uint32_t number, uint64_t generation, ScannedSegment* out) {
  begin(number, generation, out);
  walk();
}

bool SegmentScanner::take_entries(const HashKey& secret, ConstBytes page, format::PageKind kind, const PageAddress& address,
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

bool SegmentScanner::take_footer_keys(const HashKey& secret, ConstBytes page, const PageAddress& address, ScannedSegment* out) {
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

// False when the frames have to be walked: there is no footer, or not all of it.
bool SegmentScanner::scan_footer() {
  const uint32_t pages = places_.segment_pages();
  format::PageHeader tail;
  const Status status = open_page(secret_, page_at(pages - 1), format::PageKind::FooterTail, address(pages - 1), &tail);
  if (status == Code::Corrupt) ++out_->pages_bad;
  if (!status.ok()) return false;
  const auto entry_pages = static_cast<uint32_t>(div_up(tail.total_entries, format::kEntriesPerPage));
  if (tail.page_count > pages || tail.total_entries > pages || entry_pages >= tail.page_count) return false;
  note(tail, out_);
  bool whole = true;
  const uint32_t first = pages - tail.page_count;
  for (uint32_t p = 0; p + 1 < tail.page_count; ++p) {
    const PageAddress at = address(first + p);
    const ConstBytes page = page_at(first + p);
    const bool good = p < entry_pages ? take_entries(secret_, page, format::PageKind::FooterEntries, at, pages, out_)
                                      : take_footer_keys(secret_, page, at, out_);
    if (good) continue;
    ++out_->pages_bad;
    whole = false;
  }
  out_->next_page = std::min(tail.frame_pages, first);
  out_->frames = tail.frame;
  out_->by_footer = whole;
  return whole;
}

bool SegmentScanner::frame_page(uint32_t place, format::PageHeader* header) {
  const ConstBytes page = page_at(place);
  if (page.empty()) return false;
  if (!open_page(secret_, page, format::PageKind::FrameEntries, address(place), header).ok() &&
      !open_page(secret_, page, format::PageKind::FrameTable, address(place), header).ok()) {
    return false;
  }
  return header->page_count <= format::kFrameHeaderPagesMax && header->page <= place &&
         header->frame_pages >= header->page_count && header->frame_pages <= places_.segment_pages() - (place - header->page);
}

void SegmentScanner::walk() {
  const uint32_t pages = places_.segment_pages();
  // The next header behind a bad one is at most a whole frame away.
  const uint64_t gap_max = format::kPagesBackMax + format::kFrameHeaderPagesMax +
                           div_up(places_.geometry.block_bytes_max + format::kBlockSlackBytes, kPageBytes);
  uint32_t last_good = 0;
  uint32_t skipped = 0;
  for (uint32_t place = 0; place < pages && place <= last_good + gap_max;) {
    format::PageHeader header;
    if (!frame_page(place, &header)) {
      ++place;
      ++skipped;
      continue;
    }
    if (skipped > 0) ++out_->pages_bad;  // a header was lost; the pages of its payload are not bad
    skipped = 0;
    place = last_good = take_frame(place, header);
    out_->next_page = std::max(out_->next_page, place);
  }
}

// All header pages of the frame that one of them was found of; returns where the next frame begins.
uint32_t SegmentScanner::take_frame(uint32_t place, const format::PageHeader& found) {
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
