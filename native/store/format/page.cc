#include "store/format/page.h"

#include "base/check.h"
#include "store/format/mutant.h"

namespace halfstep::store {
namespace {

uint64_t mac_of(const HashKey& secret, ConstBytes page) noexcept {
  return keyed_hash(secret, page.subspan(sizeof(format::PageHeader::mac))).low;
}

uint32_t entries_max(format::PageKind kind) noexcept {
  switch (kind) {
    case format::PageKind::FrameEntries:
    case format::PageKind::FooterEntries: return format::kEntriesPerPage;
    case format::PageKind::RecordLog: return format::kRecordsPerPage;
    case format::PageKind::FrameTable: return format::kPageBodyBytes;
    case format::PageKind::FooterKeys: return format::kPageBodyBytes / sizeof(format::FooterKey);
    case format::PageKind::TouchMap: return format::kTouchesPerPage;
    case format::PageKind::FooterTail: return 0;
  }
  return 0;
}

}  // namespace

void seal_page(const HashKey& secret, format::PageHeader header, Bytes page) noexcept {
  HALFSTEP_CHECK(page.size() == kPageBytes, page.size());
  HALFSTEP_CHECK(header.entries <= entries_max(static_cast<format::PageKind>(header.kind)), header.entries);
  header.mac = 0;
  store_le(page.data(), header);
  store_le(page.data(), mac_of(secret, page));
}

Status open_page_of_any_generation(const HashKey& secret, ConstBytes page, format::PageKind kind, PageAddress address,
                                   format::PageHeader* out) noexcept {
  if (page.size() != kPageBytes) return Code::Invalid;
  const auto header = load_le<format::PageHeader>(page.data());
  // The magic first: a walk looks at many pages of payload, and hashing them all would cost more than reading them.
  if (header.magic != format::kPageMagic) return Code::NotFound;
  if (header.mac != mac_of(secret, page) && !HALFSTEP_MUTANT(MacNotChecked)) return Code::Corrupt;
  if (header.version != format::kVersion || header.kind != static_cast<uint8_t>(kind)) return Code::Invalid;
  if (header.device != address.device || header.shard != address.shard || header.segment != address.segment ||
      header.place != address.place) {
    return Code::Invalid;
  }
  if (header.sequence >= format::kSequenceLimit || header.generation >= format::kSequenceLimit) return Code::Invalid;
  if (header.entries > entries_max(kind) || header.page >= header.page_count) return Code::Invalid;
  *out = header;
  return {};
}

Status open_page(const HashKey& secret, ConstBytes page, format::PageKind kind, const PageAddress& address,
                 format::PageHeader* out) noexcept {
  // Cheap rejection of what an earlier life of the segment left behind.
  if (page.size() != kPageBytes) return Code::Invalid;
  if (load_le<uint64_t>(page.data() + offsetof(format::PageHeader, generation)) != address.generation) return Code::NotFound;
  return open_page_of_any_generation(secret, page, kind, address, out);
}

}  // namespace halfstep::store
