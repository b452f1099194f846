// rewriter_fixture.h — for tests of reclaim: blocks by number, used or not, and puts until a segment is reclaimed.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "store/store_fixture.h"

namespace halfstep::store {

inline constexpr uint32_t kSegments = 16;
inline constexpr uint64_t kCapacityBlocks = kSegments * StoreBed::kSegmentBytes / 16384;

inline std::string name_of(uint64_t number) { return "block " + std::to_string(number); }
// Longer than an entry's field.
inline std::string long_name_of(uint64_t number) {
  return "a block whose key is longer than thirty-two bytes " + std::to_string(number);
}

inline void touch(StoreBed& bed, const std::vector<std::string>& names, uint32_t group = kGroupPlain) {
  std::vector<IndexKey> keys;
  for (const std::string& name : names) keys.push_back(bed.key(name, group));
  bed.store->touch(keys);
}

// Other blocks, of which so many are used that no segment of theirs is the cheapest to reclaim.
inline void churn(StoreBed& bed, uint64_t first, uint64_t count) {
  for (uint64_t i = first; i < first + count; ++i) {
    ASSERT_EQ(bed.put("churn " + name_of(i)), Code::Ok) << i;
    if (i % 5 == 0) touch(bed, {"churn " + name_of(i)});
  }
}

// The rest of the segment that is open: blocks that nobody uses, so that it will be the cheapest one.
inline void fill_segment(StoreBed& bed) {
  for (uint64_t i = 0; bed.store->gauges().segments_sealed == 0; ++i) {
    ASSERT_EQ(bed.put("filler " + name_of(i)), Code::Ok);
    bed.settle();
  }
}

// Until this block, which nobody uses, is gone, and with it the segment that it is in.
inline void reclaim_first_segment(StoreBed& bed, const std::string& unused = "filler " + name_of(0)) {
  const IndexKey key = bed.key(unused);
  ASSERT_TRUE(bed.store->find(key).present);
  for (uint64_t i = 0; bed.store->find(key).present; ++i) {
    ASSERT_LT(i, 2 * kCapacityBlocks);
    churn(bed, i, 1);
  }
}

}  // namespace halfstep::store
