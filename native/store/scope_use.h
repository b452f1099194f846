// scope_use.h — which scopes have blocks, on any shard: a layout without a block may give its place in the header up.
// Invariants: a scope counts as empty only once every shard has said all that its flash has, and none could not read some of
// it; a shard's own count is the sum of its live and unwritten bytes (names.h), so that a put which has a slot is seen. Whoever
// begins a put on another shard at the very moment may find its scope retired, as beside a clear. Thread: any.
#pragma once

#include <cstdint>
#include <mutex>
#include <unordered_map>

namespace halfstep::store {

class ScopeUse {
 public:
  // A shard has its first block of the scope, or has lost its last.
  void enter(uint32_t scope) {
    const std::lock_guard lock(mutex_);
    ++shards_of_[scope];
  }
  void leave(uint32_t scope) {
    const std::lock_guard lock(mutex_);
    if (const auto at = shards_of_.find(scope); at != shards_of_.end() && --at->second == 0) shards_of_.erase(at);
  }
  // A shard knows all that is on its flash.
  void recovered() {
    const std::lock_guard lock(mutex_);
    ++recovered_;
  }
  bool empty(uint32_t scope, uint32_t shards) const {
    const std::lock_guard lock(mutex_);
    return recovered_ >= shards && shards_of_.count(scope) == 0;
  }

 private:
  mutable std::mutex mutex_;
  std::unordered_map<uint32_t, uint32_t> shards_of_;  // how many have blocks of it
  uint32_t recovered_ = 0;
};

}  // namespace halfstep::store
