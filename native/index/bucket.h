// bucket.h — five entries in two cache lines, and the word that says what is in them.
//
//   header | tag 0 … tag 4, 8 bits each | stray 0 … 4 | strays away 5 | version 14 |      least significant first
//   words  | entry 0 | entry 1 | entry 2 | entry 3 | entry 4 |                            three words each
//
// A tag of 0 is an empty slot. A *stray* is an entry whose home is its other bucket (block_index.h); `strays away` counts the
// entries whose home is this bucket and that live elsewhere: while it is 0, a miss ends here.
//
// One writer, any readers (a seqlock). The version is odd while entries are being written, and moves with every change.
//   - What only the header says, a removal or a count, is one store.
//   - write() stores an odd header, then the entry with release, then the even header with release. A reader loads the header,
//     the entry with acquire, and the header again: had it seen a word of a later write, it would have acquired the odd header
//     before it and find the header changed. On x86 all of these are plain moves, and there is no fence.
//   - 2^13 changes of one bucket bring its version back. A reader that sleeps through exactly so many, with the same tags
//     before and after, may see a mixed entry: its bytes then fail their checksum and read as a miss.
// Thread: `…_own` on the writer's; the rest on any.
#pragma once

#include <array>
#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>

#include "base/check.h"
#include "index/entry.h"

namespace halfstep::index {

inline constexpr unsigned kSlotsPerBucket = 5;

class Header {
 public:
  static constexpr unsigned kStraysAwayMax = 31;

  constexpr explicit Header(uint64_t bits) noexcept : bits_(bits) {}
  constexpr uint64_t bits() const noexcept { return bits_; }

  // A mask with bit 8 i + 7 set for every slot i whose tag is this one; exact, so that a match of 0 is a free slot.
  constexpr uint64_t matches(uint8_t tag) const noexcept {
    const uint64_t differs = bits_ ^ (kEachTag * tag);
    const uint64_t carries = (differs & kEachTag * 0x7F) + kEachTag * 0x7F;
    return ~(carries | differs) & kEachTag * 0x80;
  }
  static unsigned first(uint64_t matches) noexcept { return static_cast<unsigned>(std::countr_zero(matches)) / 8; }
  static constexpr uint64_t without_first(uint64_t matches) noexcept { return matches & (matches - 1); }

  constexpr uint8_t tag(unsigned slot) const noexcept { return static_cast<uint8_t>(bits_ >> (8 * slot)); }
  constexpr bool stray(unsigned slot) const noexcept { return (bits_ >> (kStrayShift + slot) & 1) != 0; }
  constexpr bool full() const noexcept { return matches(0) == 0; }
  constexpr unsigned strays_away() const noexcept { return static_cast<unsigned>(bits_ >> kAwayShift) & kStraysAwayMax; }
  constexpr bool open() const noexcept { return (bits_ >> kVersionShift & 1) != 0; }

  constexpr Header with(unsigned slot, uint8_t tag, bool stray) const noexcept {
    Header next = without(slot);
    next.bits_ |= uint64_t{tag} << (8 * slot) | uint64_t{stray} << (kStrayShift + slot);
    return next;
  }
  constexpr Header without(unsigned slot) const noexcept {
    return Header(bits_ & ~(uint64_t{0xFF} << (8 * slot)) & ~(uint64_t{1} << (kStrayShift + slot)));
  }
  constexpr Header with_strays_away(unsigned count) const noexcept {
    HALFSTEP_CHECK(count <= kStraysAwayMax, count);
    return Header((bits_ & ~(uint64_t{kStraysAwayMax} << kAwayShift)) | uint64_t{count} << kAwayShift);
  }
  // Wraps within its bits: the version is the topmost field.
  constexpr Header advanced(unsigned steps) const noexcept { return Header(bits_ + (uint64_t{steps} << kVersionShift)); }

 private:
  static constexpr uint64_t kEachTag = 0x01'01'01'01'01;
  static constexpr unsigned kStrayShift = 8 * kSlotsPerBucket;
  static constexpr unsigned kAwayShift = kStrayShift + kSlotsPerBucket;
  static constexpr unsigned kVersionShift = kAwayShift + 5;
  static_assert(kStraysAwayMax >> (kVersionShift - kAwayShift) == 0 && kVersionShift == 50);

  uint64_t bits_;
};

class alignas(128) Bucket {
 public:
  Header header_own() const noexcept { return Header(header_.load(std::memory_order_relaxed)); }
  Header header() const noexcept { return Header(header_.load(std::memory_order_acquire)); }
  // Nothing changed since `before` was loaded; to be asked after the words were.
  bool still(Header before) const noexcept { return header_.load(std::memory_order_relaxed) == before.bits(); }

  template <typename Field>
  uint64_t peek_own(unsigned slot) const noexcept {
    return word(slot, Field::kWord).load(std::memory_order_relaxed) >> Field::kShift & Field::kMax;
  }
  Entry entry_own(unsigned slot) const noexcept { return load<std::memory_order_relaxed>(slot); }
  Entry entry(unsigned slot) const noexcept { return load<std::memory_order_acquire>(slot); }

  // The entry and the header together. `next` is what the header is to be; its version is this bucket's matter.
  void write(unsigned slot, const Entry& entry, Header next) noexcept {
    HALFSTEP_DCHECK(!next.open());
    header_.store(header_own().advanced(1).bits(), std::memory_order_relaxed);
    for (size_t i = 0; i < 3; ++i) word(slot, i).store(entry.words()[i], std::memory_order_release);
    header_.store(next.advanced(2).bits(), std::memory_order_release);
  }
  void write(Header next) noexcept {
    HALFSTEP_DCHECK(!next.open());
    header_.store(next.advanced(2).bits(), std::memory_order_release);
  }

 private:
  using Word = std::atomic<uint64_t>;
  static_assert(Word::is_always_lock_free && sizeof(Word) == sizeof(uint64_t));

  Word& word(unsigned slot, size_t at) noexcept { return words_[3 * slot + at]; }
  const Word& word(unsigned slot, size_t at) const noexcept { return words_[3 * slot + at]; }
  template <std::memory_order kOrder>
  Entry load(unsigned slot) const noexcept {
    return Entry({word(slot, 0).load(kOrder), word(slot, 1).load(kOrder), word(slot, 2).load(kOrder)});
  }

  Word header_{0};
  std::array<Word, 3 * kSlotsPerBucket> words_{};
};
static_assert(sizeof(Bucket) == 128);

}  // namespace halfstep::index
