// Decoders of metadata pages over bytes that an attacker or a dying drive chose. The MAC would stop nearly every input at the
// door, so each is tried twice: as it is, and sealed with the right secret after the fuzzer has written what it likes.
#include <algorithm>
#include <cstdlib>

#include "store/format/extent_layout.h"
#include "store/format/page.h"
#include "store/segment/segment_scan.h"

namespace halfstep::store {
namespace {

constexpr HashKey kSecret{1, 2};
constexpr uint32_t kSegmentPages = 512;
constexpr PageAddress kAddress{0, 0, 3, 7, 99};

void decode(ConstBytes page) {
  for (uint8_t kind = 1; kind <= 7; ++kind) {
    format::PageHeader header;
    if (!open_page(kSecret, page, static_cast<format::PageKind>(kind), kAddress, &header).ok()) continue;
    if (header.kind != kind || header.page >= header.page_count || header.place != kAddress.place) std::abort();
  }
  ScannedSegment scanned;
  for (const auto kind : {format::PageKind::FrameEntries, format::PageKind::FooterEntries}) {
    (void)SegmentScan::take_entries(kSecret, page, kind, kAddress, kSegmentPages, &scanned);
  }
  (void)SegmentScan::take_footer_keys(kSecret, page, kAddress, &scanned);
  if (scanned.entries.size() > 2 * kSegmentPages) std::abort();
  for (const FoundEntry& found : scanned.entries) {
    if (!found.present) continue;
    const uint64_t end = found.entry.page + shape_of(found.entry).extent_bytes() / kPageBytes;
    if (end > kSegmentPages || found.entry.pages_back > found.entry.page) std::abort();
    if (found.key_bytes > format::kEngineKeyInline && size_t{found.key_at} + found.key_bytes > scanned.keys.size())
      std::abort();
  }
}

}  // namespace
}  // namespace halfstep::store

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace halfstep;
  using namespace halfstep::store;
  PageBuffer buffer(1);
  const Bytes page = buffer.page(0);
  std::memcpy(page.data(), data, std::min<size_t>(size, page.size()));
  decode(page);

  auto header = load_le<format::PageHeader>(page.data());
  header.magic = format::kPageMagic;
  header.version = format::kVersion;
  header.kind = static_cast<uint8_t>(header.kind % 8);
  header.generation = kAddress.generation;
  header.device = kAddress.device;
  header.shard = kAddress.shard;
  header.segment = kAddress.segment;
  header.place = kAddress.place;
  const uint32_t limit = header.kind == 2 ? format::kPageBodyBytes : header.kind == 4 ? 496 : header.kind == 6 ? 62 : 31;
  if (header.kind == 5 || header.kind == 0 || header.kind == 7) header.entries = 0;
  header.entries %= limit + 1;
  seal_page(kSecret, header, page);
  decode(page);
  return 0;
}
