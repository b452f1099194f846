// expiry_marks.h — from when on the expiry codes of a segment's blocks count (index/expiry.h).
// A code has steps of a 128th of what it says. Counted from the segment's creation alone, a minute to live would be less than a
// step in a segment that has been open for three hours, and the block would be gone at once. So frames set marks: a block's
// expiry counts from the last mark before it, and is rounded down by at most (its life + kStepS) / 128.
// Invariants: there is one for page 0; marks ascend by page and by time; a block's mark does not change while its segment keeps
// its generation. Thread: the shard's.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "index/expiry.h"

namespace halfstep::store {

class ExpiryMarks {
 public:
  static constexpr uint32_t kStepS = 64;  // with it, lives of up to a minute are kept to the second

  // The segment is written from its first page on, or was recovered, now.
  void begin(uint64_t now_s) { marks_.assign(1, {0, static_cast<uint32_t>(now_s)}); }
  // From this page on, now. For a block that has an end; frames come in the order of their pages.
  void pass(uint32_t page, uint64_t now_s) {
    if (now_s >= uint64_t{marks_.back().from_s} + kStepS) marks_.push_back({page, static_cast<uint32_t>(now_s)});
  }
  uint16_t code(uint32_t page, uint32_t expiry_s) const noexcept {
    if (expiry_s == 0) return index::kExpiryNever;
    const uint32_t from_s = from(page);
    return index::expiry_code(expiry_s - std::min(expiry_s, from_s));
  }
  // 0: never.
  uint32_t expiry_s(uint32_t page, uint16_t code) const noexcept {
    if (code == index::kExpiryNever) return 0;
    return static_cast<uint32_t>(std::min<uint64_t>(from(page) + index::expiry_seconds(code), UINT32_MAX));
  }
  uint64_t memory_bytes() const noexcept { return marks_.capacity() * sizeof(Mark); }

 private:
  struct Mark {
    uint32_t page;
    uint32_t from_s;
  };
  uint32_t from(uint32_t page) const noexcept {
    return (std::upper_bound(marks_.begin() + 1, marks_.end(), page, [](uint32_t p, const Mark& m) { return p < m.page; }) - 1)
        ->from_s;
  }

  std::vector<Mark> marks_{{0, 0}};
};

}  // namespace halfstep::store
