#include "sim/placements.h"

#include <algorithm>

#include "base/crc.h"
#include "store/format/extent_layout.h"
#include "store/format/page.h"

namespace halfstep::sim {

using store::format::PageKind;

Placements::Placements(const store::Places& places)
    : places_(places), segments_(places.geometry.segments), logs_(places.geometry.shards) {}

void Placements::wrote(uint64_t offset, ConstBytes bytes) {
  const uint64_t first = places_.segment(0);
  const uint64_t segment_bytes = places_.geometry.segment_bytes;
  if (offset < first || offset >= places_.segment(places_.geometry.segments)) {
    if (offset == 0) header_pages_ = static_cast<uint32_t>(bytes.size() / kPageBytes);
    for (size_t at = 0; at < bytes.size(); at += kPageBytes) wrote_log(offset + at, bytes.subspan(at, kPageBytes));
    return;
  }
  Segment& segment = segments_[(offset - first) / segment_bytes];
  const uint64_t start = first + (offset - first) / segment_bytes * segment_bytes;
  for (size_t at = 0; at < bytes.size(); at += kPageBytes) {
    const ConstBytes page = bytes.subspan(at, kPageBytes);
    const auto header = load_le<store::format::PageHeader>(page.data());
    // Payload of ours never begins like this.
    if (header.magic != store::format::kPageMagic || start + uint64_t{header.place} * kPageBytes != offset + at) return;
    const auto kind = static_cast<PageKind>(header.kind);
    if (kind == PageKind::FooterEntries || kind == PageKind::FooterKeys || kind == PageKind::FooterTail) {
      if (header.generation != segment.generation) return;
      const uint64_t footer_bytes = uint64_t{header.page_count} * kPageBytes;
      segment.footer = Range{start + segment_bytes - footer_bytes, footer_bytes};
      segment.footer_pages[offset + at] = crc32c(page);
      for (uint32_t i = 0; kind == PageKind::FooterEntries && i < header.entries; ++i) {
        const store::format::Entry entry = store::entry_at(page, i);
        const size_t ordinal = size_t{header.first_entry} + i;
        if (ordinal >= segment.copies.size() || entry.key_low != segment.copies[ordinal].key.low) continue;
        segment.copies[ordinal].in_footer = Range{offset + at, kPageBytes};
      }
      continue;
    }
    if (header.generation != segment.generation) segment = {header.generation, {}, {}, {}, {}};
    if (kind != PageKind::FrameEntries) continue;
    const Range described{start + uint64_t{header.place} * kPageBytes, kPageBytes};
    for (uint32_t i = 0; i < header.entries; ++i) {
      const store::format::Entry entry = store::entry_at(page, i);
      const store::ExtentShape shape{entry.parts, entry.stored_bytes, (entry.flags & store::format::kEntryTrailer) != 0};
      segment.copies.push_back(
          {{entry.key_low, entry.key_high}, {start + uint64_t{entry.page} * kPageBytes, shape.extent_bytes()}, described, {}});
    }
  }
}

void Placements::wrote_log(uint64_t offset, ConstBytes page) {
  const auto header = load_le<store::format::PageHeader>(page.data());
  if (header.magic != store::format::kPageMagic || header.kind != static_cast<uint8_t>(PageKind::RecordLog)) return;
  for (uint32_t shard = 0; shard < logs_.size(); ++shard) {
    const Range page_range{offset, kPageBytes};
    if (!page_range.touches(log_range(0, shard)) && !page_range.touches(log_range(1, shard))) continue;
    Log& log = logs_[shard];
    if (header.generation > log.epoch) log.records.clear();
    log.epoch = std::max(log.epoch, header.generation);
    if (header.entries > 0) log.records.push_back({offset + sizeof header, header.entries * sizeof(store::format::Record)});
  }
}

void Placements::hit(const Range& range) {
  ++hits_;
  for (uint32_t number = 0; number < segments_.size(); ++number) {
    if (range.touches({places_.segment(number), places_.geometry.segment_bytes})) segments_[number].hits.push_back(range);
  }
  for (uint32_t copy = 0; copy < 2; ++copy) {
    if (range.touches({places_.header(copy), store::format::kHeaderReserveBytes})) header_hit_[copy].now = true;
  }
  hit_logs(range);
}

void Placements::hit_logs(const Range& range) noexcept {
  for (uint32_t shard = 0; shard < logs_.size(); ++shard) {
    for (uint32_t copy = 0; copy < 2; ++copy) {
      if (range.touches(log_range(copy, shard))) logs_[shard].hit[copy].now = true;
    }
  }
}

void Placements::forget_footer(Segment& segment) noexcept {
  segment.footer.reset();
  segment.footer_pages.clear();
  for (Copy& copy : segment.copies) copy.in_footer.reset();
}

void Placements::process_ended(const std::function<void(uint64_t offset, Bytes page)>& read) {
  std::vector<std::byte> page(kPageBytes);
  for (Segment& segment : segments_) {
    const bool there = std::all_of(segment.footer_pages.begin(), segment.footer_pages.end(), [&](const auto& written) {
      const auto& [offset, crc] = written;
      if (hit_in(segment, {offset, kPageBytes})) return true;  // excused by its hit
      read(offset, page);
      return crc32c(page) == crc;
    });
    if (!there) forget_footer(segment);
  }
}

void Placements::unwritten(const Range& range) noexcept {
  unwritten_footer(range);
  hit_logs(range);
}

void Placements::unwritten_footer(const Range& range) noexcept {
  for (Segment& segment : segments_) {
    if (!segment.footer.has_value() || !segment.footer->touches(range)) continue;
    forget_footer(segment);
  }
}

bool Placements::hit_in(const Segment& segment, const Range& range) const noexcept {
  return std::any_of(segment.hits.begin(), segment.hits.end(), [&](const Range& hit) { return hit.touches(range); });
}

bool Placements::excuses(const store::IndexKey& key) const {
  for (const Segment& segment : segments_) {
    if (segment.hits.empty()) continue;
    // Without the tail of a footer, nobody finds its other pages.
    const bool tail_whole = segment.footer.has_value() &&
                            !hit_in(segment, {segment.footer->offset + segment.footer->bytes - kPageBytes, kPageBytes});
    for (const Copy& copy : segment.copies) {
      if (!(copy.key == key)) continue;
      const bool in_footer = tail_whole && copy.in_footer.has_value() && !hit_in(segment, *copy.in_footer);
      if (hit_in(segment, copy.extent) || (hit_in(segment, copy.header) && !in_footer)) return true;
    }
  }
  return false;
}

void Placements::opening() noexcept {
  for (Wound& wound : header_hit_) wound = {wound.any(), false};
  for (Log& log : logs_) {
    for (Wound& wound : log.hit) wound = {wound.any(), false};
  }
}

void Placements::opened() noexcept {
  for (Wound& wound : header_hit_) wound.before = false;
  for (Log& log : logs_) {
    for (Wound& wound : log.hit) wound.before = false;
  }
}

std::vector<Range> Placements::blocks_of_one_segment(Prng& prng, size_t count) const {
  std::vector<const Segment*> full;
  for (const Segment& segment : segments_) {
    if (segment.copies.size() >= count && segment.footer.has_value()) full.push_back(&segment);
  }
  if (full.empty()) return {};
  const Segment& segment = *full[prng.below(full.size())];
  std::vector<Range> blocks;
  for (size_t at = segment.copies.size(); at-- > 0 && blocks.size() < count;) blocks.push_back(segment.copies[at].extent);
  return blocks;
}

std::optional<Range> Placements::target(Prng& prng) const {
  const uint64_t what = prng.below(100);
  if (what < 10) {
    const auto copy = static_cast<uint32_t>(prng.below(2));
    if (header_hit_[1 - copy].any()) return {};
    return Range{places_.header(copy), uint64_t{header_pages_} * kPageBytes};
  }
  if (what < 30) {
    std::vector<Range> records;
    for (const Log& log : logs_) records.insert(records.end(), log.records.begin(), log.records.end());
    if (records.empty()) return {};
    return records[prng.below(records.size())];
  }
  std::vector<const Segment*> written;
  for (const Segment& segment : segments_) {
    if (!segment.copies.empty()) written.push_back(&segment);
  }
  if (written.empty()) return {};
  const Segment& segment = *written[prng.below(written.size())];
  const Copy& copy = segment.copies[prng.below(segment.copies.size())];
  if (what < 45) return segment.footer;
  return what < 65 ? copy.header : copy.extent;
}

}  // namespace halfstep::sim
