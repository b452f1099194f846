// footer.h — how many pages a segment's footer takes, and what is in them. Written by sealer.h, read by segment_scan.h.
#pragma once

#include <vector>

#include "store/catalog/catalog.h"
#include "store/format/page.h"

namespace halfstep::store {

// Pages of the footer with its tail; never less than it will really be.
constexpr uint32_t footer_pages(uint64_t entries, uint64_t long_key_bytes) noexcept {
  // A page of keys may stay unused at its end by less than one key.
  constexpr uint64_t kUsable = format::kPageBodyBytes - sizeof(format::FooterKey) - format::kEngineKeyBytesMax;
  return static_cast<uint32_t>(div_up(entries, format::kEntriesPerPage) + div_up(long_key_bytes, kUsable) + 1);
}

constexpr uint64_t footer_key_bytes(uint64_t engine_key_bytes) noexcept {
  return engine_key_bytes > format::kEngineKeyInline ? sizeof(format::FooterKey) + engine_key_bytes : 0;
}

// Writes the footer of a segment page by page, in order: entries, keys, tail. Of its roll's entries those that the catalog
// does not name at their place are void.
class FooterBuilder {
 public:
  FooterBuilder(const HashKey& secret, uint32_t shard, const Catalog& catalog, const Segment& segment, uint32_t segment_pages,
                uint64_t sequence, uint64_t store_time_s);
  uint32_t pages() const noexcept { return pages_; }
  uint32_t first_place() const noexcept { return segment_pages_ - pages_; }
  uint32_t next_page() const noexcept { return next_page_; }
  bool finished() const noexcept { return next_page_ == pages_; }
  void build(Bytes page);

 private:
  const HashKey& secret_;
  const Catalog& catalog_;
  const Segment& segment_;
  format::PageHeader header_;
  uint32_t segment_pages_;
  uint32_t entry_pages_;
  uint32_t pages_;
  uint32_t next_page_ = 0;
  uint32_t next_key_ = 0;  // ordinal from which long keys have still to be written
};

}  // namespace halfstep::store
