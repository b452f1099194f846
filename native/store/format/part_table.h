// part_table.h — the parts of one block. Most blocks of a cache have one, which stands in the table itself: a get of it looks
// at no further line of the cache. Invariants: what `data()` gives holds until reset(), which forgets all parts; memory once
// taken is kept for as many parts, and for half of them, so that a pooled table of like blocks allocates nothing in the steady
// state; one block of many parts leaves no memory behind in a table of small ones. Thread: its owner's.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>

#include "base/check.h"

namespace halfstep::store {

// In a set of codecs. Raw needs none; a number that no set can name needs all of them.
constexpr uint64_t codec_bit(uint8_t codec) noexcept {
  if (codec == 0) return 0;
  return codec < 64 ? uint64_t{1} << codec : UINT64_MAX;
}

// One part of a stored block, as the wire and the trailer know it. stored == raw, codec 0 for plain blocks.
struct PartInfo {
  // The offset of a part whose bytes are elsewhere: of a block with a trailer of which only some parts were read.
  static constexpr uint32_t kElsewhere = UINT32_MAX;

  uint32_t offset = 0;  // in the extent
  uint32_t stored_bytes = 0;
  uint32_t raw_bytes = 0;
  uint32_t stored_crc = 0;
  uint32_t raw_crc = 0;
  uint8_t codec = 0;

  // Whether its bytes are there: of a block without a trailer the other parts have none.
  bool is_there() const noexcept { return stored_bytes != 0 && offset != kElsewhere; }
};

class PartTable {
 public:
  PartTable() = default;
  PartTable(const PartTable&) = delete;
  PartTable& operator=(const PartTable&) = delete;

  size_t size() const noexcept { return count_; }
  bool empty() const noexcept { return count_ == 0; }
  PartInfo* data() noexcept { return count_ > 1 ? many_.get() : &one_; }
  const PartInfo* data() const noexcept { return count_ > 1 ? many_.get() : &one_; }
  PartInfo* begin() noexcept { return data(); }
  PartInfo* end() noexcept { return data() + count_; }
  const PartInfo* begin() const noexcept { return data(); }
  const PartInfo* end() const noexcept { return data() + count_; }
  PartInfo& operator[](size_t part) noexcept {
    HALFSTEP_CHECK(part < count_, part, count_);
    return data()[part];
  }
  const PartInfo& operator[](size_t part) const noexcept {
    HALFSTEP_DCHECK(part < count_, part, count_);  // writes nothing
    return data()[part];
  }

  // So many, of which nothing is known. What a much larger block needed is not kept for a small one.
  void reset(size_t count) {
    const size_t needed = count > 1 ? count : 0;
    if (needed > room_ || room_ > 2 * needed + kKept) {
      many_ = needed != 0 ? std::make_unique<PartInfo[]>(needed) : nullptr;
      room_ = static_cast<uint32_t>(needed);
    }
    count_ = static_cast<uint32_t>(count);
    std::fill(begin(), end(), PartInfo());
  }

  size_t heap_bytes() const noexcept { return room_ * sizeof(PartInfo); }

 private:
  static constexpr size_t kKept = 64;
  uint32_t count_ = 0;
  uint32_t room_ = 0;  // of many_
  std::unique_ptr<PartInfo[]> many_;
  PartInfo one_;
};

}  // namespace halfstep::store
