// entry.h — what memory knows of a stored block: 24 bytes, and nothing that its frame entry could say instead (docs/adr/0004).
//
//   word 0 | fingerprint 40 | pages 16 | reuse 8 |
//   word 1 | page address 34 | touch class 2 | hint 3 | expiry 12 | pages back 10 | held 1 | sliding 1 | trailer 1 |
//   word 2 | checksum 32 | touch stamp 16 | scope slot 16 |
//
// Least significant first. A reader needs words 0 and 1 to find the extent and word 2 to verify it; a touch changes words 1, 2.
// Invariants: the fields fill the 192 bits and do not overlap (asserted below); a value fits its field, which is the caller's
// to see to: what came from disk or from a peer is bounded before it comes here. Thread: a plain value. Sharing it between
// threads is bucket.h's matter.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>

#include "base/check.h"

namespace halfstep::index {

namespace field {

template <size_t kWordAt, unsigned kShiftBy, unsigned kBitCount>
struct Bits {
  static constexpr size_t kWord = kWordAt;
  static constexpr unsigned kShift = kShiftBy;
  static constexpr unsigned kBits = kBitCount;
  static constexpr uint64_t kMax = (uint64_t{1} << kBitCount) - 1;
  static constexpr uint64_t kMask = kMax << kShiftBy;
  static constexpr uint64_t get(const std::array<uint64_t, 3>& words) noexcept { return (words[kWordAt] >> kShiftBy) & kMax; }
  static constexpr void set(std::array<uint64_t, 3>& words, uint64_t value) noexcept {
    HALFSTEP_DCHECK(value <= kMax);  // no neighbour is written: the mask sees to it
    words[kWordAt] = (words[kWordAt] & ~kMask) | (value << kShiftBy & kMask);
  }
};

using Fingerprint = Bits<0, 0, 40>;
using Pages = Bits<0, 40, 16>;  // minus one
using Reuse = Bits<0, 56, 8>;
using Page = Bits<1, 0, 34>;
using TouchClass = Bits<1, 34, 2>;
using Hint = Bits<1, 36, 3>;
using Expiry = Bits<1, 39, 12>;
using PagesBack = Bits<1, 51, 10>;
using Held = Bits<1, 61, 1>;
using Sliding = Bits<1, 62, 1>;
using Trailer = Bits<1, 63, 1>;
using Checksum = Bits<2, 0, 32>;
using TouchStamp = Bits<2, 32, 16>;
using ScopeSlot = Bits<2, 48, 16>;

// As many bits as three words have, and every one of them named: so none is named twice.
template <typename... Fields>
constexpr bool fill_three_words() noexcept {
  std::array<uint64_t, 3> named{};
  ((named[Fields::kWord] |= Fields::kMask), ...);
  return (Fields::kBits + ...) == 192 && named[0] == UINT64_MAX && named[1] == UINT64_MAX && named[2] == UINT64_MAX;
}
static_assert(fill_three_words<Fingerprint, Pages, Reuse, Page, TouchClass, Hint, Expiry, PagesBack, Held, Sliding, Trailer,
                               Checksum, TouchStamp, ScopeSlot>());

}  // namespace field

// Where an extent begins: its page over all devices of the shard, and which use of its segment wrote it (modulo 256, in memory
// only: what names an earlier use is stale). Two blocks of one shard never share it while both are indexed.
struct Location {
  uint64_t page = 0;
  uint8_t reuse = 0;
  constexpr bool operator==(const Location&) const noexcept = default;
};

inline constexpr uint64_t kPageAddressLimit = field::Page::kMax + 1;  // 64 TiB a shard
inline constexpr uint32_t kExtentPagesMax = field::Pages::kMax + 1;   // 256 MiB
inline constexpr uint32_t kFramePagesBackMax = field::PagesBack::kMax;
inline constexpr uint8_t kTouchClassMax = field::TouchClass::kMax;
inline constexpr uint8_t kHintMax = field::Hint::kMax;

class Entry {
 public:
  constexpr Entry() noexcept = default;
  constexpr explicit Entry(const std::array<uint64_t, 3>& words) noexcept : words_(words) {}
  constexpr const std::array<uint64_t, 3>& words() const noexcept { return words_; }
  constexpr bool operator==(const Entry&) const noexcept = default;

  constexpr Location location() const noexcept { return {get<field::Page>(), narrow<uint8_t, field::Reuse>()}; }
  constexpr void set_location(Location to) noexcept {
    set<field::Page>(to.page);
    set<field::Reuse>(to.reuse);
  }
  // Of the whole extent, padding and trailer included: 1 to kExtentPagesMax.
  constexpr uint32_t pages() const noexcept { return narrow<uint32_t, field::Pages>() + 1; }
  constexpr void set_pages(uint32_t pages) noexcept { set<field::Pages>(pages - 1); }
  // From the extent's first page back to that of its frame, where the frame entry says everything else.
  constexpr uint32_t pages_back() const noexcept { return narrow<uint32_t, field::PagesBack>(); }
  constexpr void set_pages_back(uint32_t pages) noexcept { set<field::PagesBack>(pages); }
  constexpr bool trailer() const noexcept { return get<field::Trailer>() != 0; }
  constexpr void set_trailer(bool trailer) noexcept { set<field::Trailer>(trailer); }

  // CRC32C of the extent xored with checksum_bits(key): the caller's both ways.
  constexpr uint32_t checksum() const noexcept { return narrow<uint32_t, field::Checksum>(); }
  constexpr void set_checksum(uint32_t bound) noexcept { set<field::Checksum>(bound); }

  constexpr uint16_t touch_stamp() const noexcept { return narrow<uint16_t, field::TouchStamp>(); }
  constexpr uint8_t touch_class() const noexcept { return narrow<uint8_t, field::TouchClass>(); }
  constexpr void set_touch(uint16_t stamp, uint8_t touch_class) noexcept {
    set<field::TouchStamp>(stamp);
    set<field::TouchClass>(touch_class);
  }
  constexpr bool held() const noexcept { return get<field::Held>() != 0; }
  constexpr void set_held(bool held) noexcept { set<field::Held>(held); }
  constexpr uint8_t hint() const noexcept { return narrow<uint8_t, field::Hint>(); }
  constexpr void set_hint(uint8_t hint) noexcept { set<field::Hint>(hint); }
  constexpr uint16_t scope_slot() const noexcept { return narrow<uint16_t, field::ScopeSlot>(); }
  constexpr void set_scope_slot(uint16_t slot) noexcept { set<field::ScopeSlot>(slot); }

  // expiry.h; sliding: a touch moves it.
  constexpr uint16_t expiry_code() const noexcept { return narrow<uint16_t, field::Expiry>(); }
  constexpr bool sliding() const noexcept { return get<field::Sliding>() != 0; }
  constexpr void set_expiry(uint16_t code, bool sliding) noexcept {
    set<field::Expiry>(code);
    set<field::Sliding>(sliding);
  }

  // The index's own, from the key.
  constexpr uint64_t fingerprint() const noexcept { return get<field::Fingerprint>(); }
  constexpr void set_fingerprint(uint64_t fingerprint) noexcept { set<field::Fingerprint>(fingerprint); }

 private:
  template <typename Field>
  constexpr uint64_t get() const noexcept {
    return Field::get(words_);
  }
  template <typename Narrow, typename Field>
  constexpr Narrow narrow() const noexcept {
    static_assert(Field::kMax <= Narrow(-1));
    return static_cast<Narrow>(Field::get(words_));
  }
  template <typename Field>
  constexpr void set(uint64_t value) noexcept {
    Field::set(words_, value);
  }

  std::array<uint64_t, 3> words_{};
};
static_assert(sizeof(Entry) == 24);

}  // namespace halfstep::index
