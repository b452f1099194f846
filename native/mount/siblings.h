// siblings.h — how the stores of a mount's shards speak to each other: calls that each takes on its own thread.
// Invariants: a call that post() has taken is run exactly once, by take() or by whoever leaves; none comes after leave(), and
// `wake` is not called after it. Thread: any.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

namespace halfstep::mount {

class MountStore;

class Siblings {
 public:
  using Call = std::function<void(MountStore&)>;

  explicit Siblings(uint32_t shards) {
    for (uint32_t shard = 0; shard < shards; ++shard) places_.push_back(std::make_unique<Place>());
  }

  uint32_t count() const noexcept { return static_cast<uint32_t>(places_.size()); }
  // From here on it can be posted to. `wake` makes it turn, soon.
  void join(uint32_t shard, std::function<void()> wake) {
    Place& place = *places_[shard];
    const std::lock_guard lock(place.mutex);
    place.wake = std::move(wake);
    place.there = true;
  }
  // What was posted and not taken is the caller's to run.
  std::vector<Call> leave(uint32_t shard) {
    Place& place = *places_[shard];
    const std::lock_guard lock(place.mutex);
    place.there = false;
    place.wake = {};
    return std::exchange(place.calls, {});
  }
  // False: it has not joined, or has left. Nothing is run then.
  bool post(uint32_t shard, Call call) {
    Place& place = *places_[shard];
    const std::lock_guard lock(place.mutex);
    if (!place.there) return false;
    place.calls.push_back(std::move(call));
    place.news.store(true, std::memory_order_release);
    if (place.wake) place.wake();
    return true;
  }
  // Without a lock where nothing has come.
  std::vector<Call> take(uint32_t shard) {
    Place& place = *places_[shard];
    if (!place.news.load(std::memory_order_acquire)) return {};
    const std::lock_guard lock(place.mutex);
    place.news.store(false, std::memory_order_relaxed);
    return std::exchange(place.calls, {});
  }

 private:
  struct Place {
    std::mutex mutex;
    std::atomic<bool> news = false;
    std::function<void()> wake;  // these are guarded by the mutex
    std::vector<Call> calls;
    bool there = false;
  };
  std::vector<std::unique_ptr<Place>> places_;
};

}  // namespace halfstep::mount
