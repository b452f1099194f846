// scope_use.h — which scopes have blocks, on any shard: a layout without a block may give its place in the header up.
// Invariants: a scope counts as empty only once every shard has said all that its flash has, and none could not read some of
// it; a shard's own count is the sum of its live and unwritten bytes (names.h), so that a put which has a slot is seen. In a
// scope that is being retired for being empty nobody begins a put, until its end is known. Thread: any.
#pragma once

#include <cstdint>
#include <mutex>
#include <unordered_map>
#include <unordered_set>

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
  // A put begins where its shard has nothing of the scope: as enter(), unless the scope is closed.
  bool begin(uint32_t scope) {
    const std::lock_guard lock(mutex_);
    if (closed_.contains(scope)) return false;
    ++shards_of_[scope];
    return true;
  }
  // False: it has blocks, or is closed already. From now on it gets none.
  bool close_if_empty(uint32_t scope, uint32_t shards) {
    const std::lock_guard lock(mutex_);
    return recovered_ >= shards && !shards_of_.contains(scope) && closed_.insert(scope).second;
  }
  // Its layout keeps its place, or every shard knows that it has gone.
  void reopen(uint32_t scope) {
    const std::lock_guard lock(mutex_);
    closed_.erase(scope);
  }

 private:
  mutable std::mutex mutex_;
  std::unordered_map<uint32_t, uint32_t> shards_of_;  // how many have blocks of it
  std::unordered_set<uint32_t> closed_;
  uint32_t recovered_ = 0;
};

}  // namespace halfstep::store
