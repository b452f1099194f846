// sequence.h — the order of everything that one shard writes down: births of blocks, frames, footers, records.
// Invariants: it only grows, and starts above everything that was ever on flash. Thread: the shard's.
#pragma once

#include <algorithm>
#include <cstdint>

namespace halfstep::store {

class Sequence {
 public:
  uint64_t draw() noexcept { return ++last_; }
  // The newest that was drawn.
  uint64_t last() const noexcept { return last_; }
  // Something on flash may have this one.
  void raise_to(uint64_t sequence) noexcept { last_ = std::max(last_, sequence); }

 private:
  uint64_t last_ = 0;
};

}  // namespace halfstep::store
