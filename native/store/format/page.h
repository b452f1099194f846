// page.h — sealing and opening metadata pages: the MAC that a tenant's payload cannot imitate
// (docs/on-flash-format.md, *Metadata pages*).
// Invariants: open_page() succeeds only for bytes that seal_page() made with this store's secret, of this kind, at this place;
// what it returns is within the page's bounds, so that callers need not check counts again.
// Thread: any; no state.
#pragma once

#include <cstdlib>
#include <memory>
#include <new>

#include "base/bytes.h"
#include "base/hash.h"
#include "base/status.h"
#include "store/format/format.h"

namespace halfstep::store {

// Page-aligned memory of our own for metadata that is written or read outside the data path.
class PageBuffer {
 public:
  explicit PageBuffer(uint32_t pages)
      : bytes_(static_cast<std::byte*>(std::aligned_alloc(kPageBytes, uint64_t{pages} * kPageBytes)), &std::free),
        pages_(pages) {
    if (bytes_ == nullptr) throw std::bad_alloc();  // as a vector would
    clear();
  }
  Bytes page(uint32_t number) const noexcept { return {bytes_.get() + uint64_t{number} * kPageBytes, kPageBytes}; }
  Bytes bytes() const noexcept { return {bytes_.get(), uint64_t{pages_} * kPageBytes}; }
  uint32_t pages() const noexcept { return pages_; }
  void clear() noexcept { std::memset(bytes_.get(), 0, uint64_t{pages_} * kPageBytes); }

 private:
  std::unique_ptr<std::byte, decltype(&std::free)> bytes_;
  uint32_t pages_;
};

// What a page has to say to be taken for the one that is looked for.
struct PageAddress {
  uint32_t device = 0;
  uint32_t shard = 0;
  uint32_t segment = 0;
  uint32_t place = 0;
  uint64_t generation = 0;
};

// Puts `header` and the MAC into the page; the body is the caller's, bytes that mean nothing are zero.
void seal_page(const HashKey& secret, format::PageHeader header, Bytes page) noexcept;

// NotFound: no metadata page of this store. Corrupt: it has the magic but its MAC fails. Invalid: genuine, but of another
// kind, place or generation, or from a version that put in more than we know.
Status open_page(const HashKey& secret, ConstBytes page, format::PageKind kind, const PageAddress& address,
                 format::PageHeader* out) noexcept;
// The same without asking for a generation: for record pages, whose epoch is to be found out.
Status open_page_of_any_generation(const HashKey& secret, ConstBytes page, format::PageKind kind, PageAddress address,
                                   format::PageHeader* out) noexcept;

inline ConstBytes page_body(ConstBytes page) noexcept { return page.subspan(sizeof(format::PageHeader)); }
inline Bytes page_body(Bytes page) noexcept { return page.subspan(sizeof(format::PageHeader)); }

inline format::Entry entry_at(ConstBytes page, uint32_t number) noexcept {
  return load_le<format::Entry>(page_body(page).data() + number * sizeof(format::Entry));
}
inline format::Record record_at(ConstBytes page, uint32_t number) noexcept {
  return load_le<format::Record>(page_body(page).data() + number * sizeof(format::Record));
}

}  // namespace halfstep::store
