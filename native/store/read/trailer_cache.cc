#include "store/read/trailer_cache.h"

#include <algorithm>

#include "base/check.h"

namespace halfstep::store {

std::span<const PartInfo> TrailerCache::find(const IndexKey& key, const Block& block) const noexcept {
  const uint64_t at = by_key_.find(hash_of(key));
  if (at == index::Table::kNone) return {};
  const Entry& entry = entries_[at];
  if (!(entry.location == block.location) || entry.bound_checksum != block.bound_checksum) return {};
  return std::span(parts_).subspan(entry.first, entry.count);
}

void TrailerCache::keep(const IndexKey& key, const Block& block, std::span<const PartInfo> parts) {
  HALFSTEP_CHECK(!parts.empty() && parts.size() <= wire::kPartsMax, parts.size());
  if (parts_.empty()) {
    parts_.resize(kPartsMax);
    entries_.resize(kBlocksMax);
    by_key_ = index::Table(kBlocksMax);
  }
  const auto count = static_cast<uint32_t>(parts.size());
  const uint32_t first = make_room(count);
  std::copy(parts.begin(), parts.end(), parts_.begin() + first);
  next_part_ = first + count;
  const uint32_t at = (oldest_ + blocks_++) % kBlocksMax;
  entries_[at] = {key, block.location, block.bound_checksum, first, count};
  by_key_.put(hash_of(key), at);
}

void TrailerCache::drop_oldest() noexcept {
  (void)by_key_.erase(hash_of(entries_[oldest_].key), oldest_);  // unless a younger one has its key
  oldest_ = (oldest_ + 1) % kBlocksMax;
  --blocks_;
}

// Where so many parts go: behind the youngest, or at the ring's start where they do not fit there.
uint32_t TrailerCache::make_room(uint32_t count) noexcept {
  uint32_t first = next_part_;
  if (count > kPartsMax - first) {
    while (blocks_ > 0 && entries_[oldest_].first >= first) drop_oldest();  // they would come after the new one
    first = 0;
  }
  const auto in_the_way = [&](const Entry& entry) { return entry.first < first + count && first < entry.first + entry.count; };
  while (blocks_ > 0 && (blocks_ == kBlocksMax || in_the_way(entries_[oldest_]))) drop_oldest();
  return first;
}

}  // namespace halfstep::store
