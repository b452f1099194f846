#include "store/catalog/footer.h"

#include <cstring>

#include "base/check.h"

namespace halfstep::store {
namespace {

// Fills `body` with keys from ordinal `from` on; returns the ordinal where it stopped, and how many keys and which was first.
uint32_t pack_keys(const Roll& roll, uint32_t from, Bytes body, uint32_t* count, uint32_t* first) {
  size_t at = 0;
  *count = 0;
  *first = from;
  uint32_t ordinal = from;
  for (; ordinal < roll.entries.size(); ++ordinal) {
    const FoundEntry& found = roll.entries[ordinal];
    if (found.key_bytes <= format::kEngineKeyInline) continue;
    if (at + sizeof(format::FooterKey) + found.key_bytes > body.size()) break;
    if (*count == 0) *first = ordinal;
    format::FooterKey head;
    head.ordinal = ordinal;
    head.bytes = found.key_bytes;
    store_le(body.data() + at, head);
    std::memcpy(body.data() + at + sizeof(head), roll.key_of(found).data(), found.key_bytes);
    at += sizeof(head) + found.key_bytes;
    ++*count;
  }
  return ordinal;
}

}  // namespace

FooterBuilder::FooterBuilder(const HashKey& secret, uint32_t shard, const Catalog& catalog, const Segment& segment,
                             uint32_t segment_pages, uint64_t sequence, uint64_t store_time_s)
    : secret_(secret), catalog_(catalog), segment_(segment), segment_pages_(segment_pages) {
  const Roll& roll = *segment.roll;
  entry_pages_ = static_cast<uint32_t>(div_up(roll.entries.size(), format::kEntriesPerPage));
  uint32_t key_pages = 0;
  PageBuffer trial(1);
  for (uint32_t from = 0, count = 0, first = 0;;) {
    from = pack_keys(roll, from, page_body(trial.page(0)), &count, &first);
    if (count == 0) break;
    ++key_pages;
  }
  pages_ = entry_pages_ + key_pages + 1;
  HALFSTEP_CHECK(pages_ <= footer_pages(roll.entries.size(), segment.long_key_bytes), pages_,
                 footer_pages(roll.entries.size(), segment.long_key_bytes));
  header_.generation = segment.generation;
  header_.sequence = sequence;
  header_.created_s = store_time_s;
  header_.shard = shard;
  header_.segment = segment.number;
  header_.frame = segment.frames;
  header_.page_count = pages_;
  header_.frame_pages = segment.next_page;
  header_.watermark = segment.durable_page;
  header_.total_entries = static_cast<uint32_t>(roll.entries.size());
}

void FooterBuilder::build(Bytes page) {
  HALFSTEP_DCHECK(!finished());
  std::memset(page.data(), 0, page.size());
  format::PageHeader header = header_;
  header.page = next_page_;
  header.place = first_place() + next_page_;
  if (next_page_ < entry_pages_) {
    header.kind = static_cast<uint8_t>(format::PageKind::FooterEntries);
    header.first_entry = next_page_ * format::kEntriesPerPage;
    header.entries = std::min<uint32_t>(format::kEntriesPerPage, header.total_entries - header.first_entry);
    for (uint32_t i = 0; i < header.entries; ++i) {
      format::Entry entry = segment_.roll->entries[header.first_entry + i].entry;
      const bool live = catalog_.live({entry.key_low, entry.key_high}, catalog_.location_of(segment_, entry));
      if (!live) entry.flags |= format::kEntryVoid;
      store_le(page_body(page).data() + i * sizeof(entry), entry);
    }
  } else if (next_page_ + 1 < pages_) {
    header.kind = static_cast<uint8_t>(format::PageKind::FooterKeys);
    next_key_ = pack_keys(*segment_.roll, next_key_, page_body(page), &header.entries, &header.first_entry);
  } else {
    header.kind = static_cast<uint8_t>(format::PageKind::FooterTail);
  }
  seal_page(secret_, header, page);
  ++next_page_;
}

}  // namespace halfstep::store
