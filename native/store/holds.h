// holds.h — volatile holds: (key, owner) until a time. The newest of a pair wins; there is no count (V1 section 3).
// A wheel of lists by due time, so that renewing is O(1) and nothing piles up.
// Invariants: a node is in one key's list, one owner's list and one list of the wheel; at most `holds_max` nodes.
// Thread: the shard's. Allocates only while growing to its largest size.
#pragma once

#include <array>
#include <vector>

#include "index/table.h"
#include "store/store.h"

namespace halfstep::store {

class Holds {
 public:
  Holds(uint64_t holds_max, uint64_t lease_us_max) noexcept;

  // False when the table is full. `until_us` beyond the longest lease is cut to it.
  bool take(const IndexKey& key, uint64_t owner, uint64_t now_us, uint64_t until_us);
  bool held(const IndexKey& key) const noexcept;
  size_t size() const noexcept { return size_; }

  // Each calls last(const IndexKey&) for a key whose last hold is gone with it.
  template <typename Last>
  void release(const IndexKey& key, uint64_t owner, Last&& last) {
    const uint32_t node = find(key, owner);
    if (node != kNone) drop(node, last);
  }
  template <typename Last>
  void release_all(uint64_t owner, Last&& last) {
    for (uint32_t node = head(by_owner_, owner_key(owner)); node != kNone; node = head(by_owner_, owner_key(owner)))
      drop(node, last);
  }
  template <typename Last>
  void expire(uint64_t now_us, Last&& last) {
    const uint64_t now_tick = now_us / tick_us_;
    if (now_tick - tick_ >= kTicks) tick_ = now_tick < kTicks ? 0 : now_tick - kTicks;  // a long pause: one whole round
    for (; tick_ < now_tick; ++tick_) {
      for (uint32_t node = wheel_[tick_ % kTicks]; node != kNone;) {
        const uint32_t next = nodes_[node].due.next;
        if (nodes_[node].until_us <= now_us) drop(node, last);
        node = next;
      }
    }
  }
  // When expire() could next have something to do; UINT64_MAX = never.
  uint64_t next_due_us() const noexcept { return size_ == 0 ? UINT64_MAX : (tick_ + 1) * tick_us_; }

 private:
  static constexpr uint32_t kNone = UINT32_MAX;
  static constexpr uint32_t kTicks = 256;
  struct Links {
    uint32_t previous = kNone;
    uint32_t next = kNone;
  };
  struct Node {
    IndexKey key;
    uint64_t owner = 0;
    uint64_t until_us = 0;
    Links same_key, same_owner, due;
    uint32_t slot = 0;  // of the wheel
  };

  static uint32_t head(const index::Table& table, const Hash128& key) noexcept {
    const uint64_t value = table.find(key);
    return value == index::Table::kNone ? kNone : static_cast<uint32_t>(value);
  }
  // Owners are the clients' numbers: spread, so that nobody can pile them up in one place.
  static Hash128 owner_key(uint64_t owner) noexcept { return {xxh3_64(object_bytes(owner)), owner}; }
  uint32_t find(const IndexKey& key, uint64_t owner) const noexcept;
  void link_due(uint32_t node) noexcept;
  void unlink_due(uint32_t node) noexcept;
  void link(index::Table& table, const Hash128& key, uint32_t node, Links Node::*links);
  // True when the list is empty afterwards.
  bool unlink(index::Table& table, const Hash128& key, uint32_t node, Links Node::*links);

  template <typename Last>
  void drop(uint32_t node, Last&& last) {
    const IndexKey key = nodes_[node].key;
    if (remove(node)) last(key);
  }
  bool remove(uint32_t node);

  uint64_t holds_max_;
  uint64_t lease_us_max_;
  uint64_t tick_us_;
  uint64_t tick_ = 0;
  size_t size_ = 0;
  std::vector<Node> nodes_;
  uint32_t free_ = kNone;
  index::Table by_key_;
  index::Table by_owner_;
  std::array<uint32_t, kTicks> wheel_;
};

}  // namespace halfstep::store
