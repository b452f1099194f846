// block.h — how a block is named: by its client, and in the index.
#pragma once

#include <cstdint>

#include "base/hash.h"
#include "base/status.h"
#include "wire/layout.h"

namespace halfstep::store {

struct IndexKey {
  uint64_t low = 0;
  uint64_t high = 0;
  bool operator==(const IndexKey&) const noexcept = default;
};

// It is a hash already.
inline Hash128 hash_of(const IndexKey& key) noexcept { return {key.low, key.high}; }

struct BlockName {
  uint32_t scope = 0;
  wire::Component component;
  ConstBytes engine_key;  // 1-255 bytes
};

// Parts of a block, one after the other; no count: all of them.
struct PartSpan {
  uint32_t first = 0;
  uint32_t count = 0;
};

}  // namespace halfstep::store
