// pool.h — objects that are used again instead of being freed, so that the steady state allocates nothing; trim() frees what a
// burst has left. Invariants: addresses never change; what is taken is given back before the pool goes; give() never allocates.
// Thread: the shard's.
#pragma once

#include <algorithm>
#include <cstddef>
#include <memory>
#include <unordered_set>
#include <utility>
#include <vector>

#include "base/check.h"

namespace halfstep::shard {

template <typename T>
class Pool {
 public:
  template <typename... Args>
  T* take(Args&&... args) {
    if (free_.empty()) {
      if (free_.capacity() <= all_.size()) free_.reserve(2 * all_.size() + 1);
      all_.push_back(std::make_unique<T>(std::forward<Args>(args)...));
      return all_.back().get();
    }
    T* object = free_.back();
    free_.pop_back();
    return object;
  }
  void give(T* object) noexcept {
    HALFSTEP_CHECK(free_.size() < all_.size(), free_.size(), all_.size());
    free_.push_back(object);
  }
  // After a burst: keeps as many as are taken, kKeptMin at least, and frees the others. Never while one that was given back is
  // still in a call. Returns whether any was freed.
  bool trim() {
    const size_t kept = std::max(taken(), kKeptMin);
    if (free_.size() <= 2 * kept) return false;
    const std::unordered_set<T*> surplus(free_.begin() + static_cast<ptrdiff_t>(kept), free_.end());
    free_.resize(kept);
    std::erase_if(all_, [&](const auto& object) { return surplus.count(object.get()) != 0; });
    return true;
  }
  size_t taken() const noexcept { return all_.size() - free_.size(); }

 private:
  static constexpr size_t kKeptMin = 64;
  std::vector<std::unique_ptr<T>> all_;
  std::vector<T*> free_;
};

}  // namespace halfstep::shard
