#include "store/read/part_sums.h"

namespace halfstep::store {

PartSums::PartSums(const Places& places, const HashKey& page_secret, const Segment& segment, const Extent& extent,
                   ConstBytes pages)
    : places_(places), page_secret_(page_secret), segment_(segment), first_page_(first_page_of(extent.block)), pages_(pages) {
  if (!open(0, format::PageKind::FrameEntries)) return;
  sequence_ = page_.sequence;
  entry_pages_ = static_cast<uint32_t>(div_up(page_.total_entries, format::kEntriesPerPage));
  known_ = find(extent);
}

bool PartSums::find(const Extent& extent) {
  const Block& block = extent.block;
  for (uint32_t p = 0; p < entry_pages_ && sees(p, format::PageKind::FrameEntries); ++p) {
    for (uint32_t i = 0; i < page_.entries; ++i) {
      const format::Entry entry = entry_at(page(p), i);
      if (entry.page != block.location.page) continue;
      const bool apart = entry.engine_key_bytes > format::kEngineKeyInline;
      sums_at_ = uint64_t{entry.table_offset} * format::kTableUnit +
                 (apart ? round_up(uint64_t{entry.engine_key_bytes}, format::kTableUnit) : 0);
      parts_ = entry.parts;
      const ExtentShape shape = shape_of(entry);
      return IndexKey{entry.key_low, entry.key_high} == extent.key && entry.checksum == block.checksum(extent.key) &&
             shape.extent_bytes() == block.extent_bytes() && !shape.trailer && parts_ == extent.parts().size();
    }
  }
  return false;
}

bool PartSums::fits(uint32_t part, uint32_t crc) {
  if (!known_ || part >= parts_) return false;
  const uint64_t at = sums_at_ + uint64_t{part} * sizeof crc;
  const uint64_t number = entry_pages_ + at / format::kPageBodyBytes;
  const uint64_t within = at % format::kPageBodyBytes;
  if (number > UINT32_MAX || !sees(static_cast<uint32_t>(number), format::PageKind::FrameTable)) return false;
  if (within + sizeof crc > page_.entries) return false;
  const auto wanted = load_le<uint32_t>(page_body(page(static_cast<uint32_t>(number))).data() + within);
  return crc == wanted || HALFSTEP_MUTANT(PartsUnverified);
}

// Each is opened once while it is looked at, and has to be of the same frame as the first.
bool PartSums::open(uint32_t number, format::PageKind kind) {
  const PageAddress address{0, places_.shard, segment_.number, first_page_ + number, segment_.generation};
  opened_ = open_page(page_secret_, page(number), kind, address, &page_).ok() && page_.page == number ? number : kNone;
  return opened_ == number;
}

bool PartSums::sees(uint32_t number, format::PageKind kind) {
  if (number >= pages_.size() / kPageBytes) return false;
  if (opened_ != number && !open(number, kind)) return false;
  return page_.sequence == sequence_;
}

}  // namespace halfstep::store
