// pool.h — objects that are used again instead of being freed, so that the steady state allocates nothing.
// Invariants: addresses never change; what is taken is given back before the pool goes; give() never allocates.
// Thread: the shard's.
#pragma once

#include <cassert>
#include <memory>
#include <utility>
#include <vector>

namespace halfstep::shard {

template <typename T>
class Pool {
 public:
  template <typename... Args>
  T* take(Args&&... args) {
    if (free_.empty()) {
      free_.reserve(all_.size() + 1);
      all_.push_back(std::make_unique<T>(std::forward<Args>(args)...));
      return all_.back().get();
    }
    T* object = free_.back();
    free_.pop_back();
    return object;
  }
  void give(T* object) noexcept {
    assert(free_.size() < all_.size());
    free_.push_back(object);
  }
  size_t taken() const noexcept { return all_.size() - free_.size(); }

 private:
  std::vector<std::unique_ptr<T>> all_;
  std::vector<T*> free_;
};

}  // namespace halfstep::shard
