// holds.h — who keeps which key until when: (key, owner) pairs. The newest of a pair wins; there is no count
// (docs/store-rules.md, rule 11).
// A volatile hold (a lease) ends after `lease_us_max` at the latest and with the process. A persistent one (a pin) may last for
// ever; the record log brings it back (life_records.h), and its block counts against its namespace's pin budget, once however
// many owners pin it. A lease never weakens the pin of the same pair.
// Leases are in a budget of bytes as well (names.h), and of the table a namespace has at most what it leaves to others: whoever
// takes all it can is refused, and nobody else is.
// A wheel of lists by due time, so that renewing is O(1) and nothing piles up; a table of pairs, because every session there is
// may keep the key of one system prompt.
// Leases of a key and pins of it are in lists of their own: whoever asks about pins does not walk through the leases that every
// session has, nor the other way round.
// Invariants: a node is in the table of pairs, its key's list of its kind, one owner's list and, unless it has no end, one list
// of the wheel; at most `holds_max` nodes; the accounts of Names have the bytes of exactly those keys that have a persistent
// node, and of those that have another one. Thread: the shard's. Allocates only while growing to its largest size.
#pragma once

#include <algorithm>
#include <array>
#include <vector>

#include "base/status.h"
#include "index/table.h"
#include "store/catalog/names.h"
#include "store/format/block.h"
#include "store/format/format.h"

namespace halfstep::store {

class Holds {
 public:
  static constexpr uint64_t kNoEnd = UINT64_MAX;
  // A moment of store time on the monotonic clock.
  static uint64_t until_us_of(uint64_t until_s, uint64_t now_s, uint64_t now_us) noexcept {
    if (until_s == format::kHoldNoEnd) return kNoEnd;
    constexpr uint64_t kLongestS = uint64_t{1} << 40;
    return now_us + std::min(until_s - std::min(until_s, now_s), kLongestS) * 1'000'000;
  }
  // What a hold is taken on.
  struct Held {
    uint32_t scope = 0;
    uint64_t bytes = 0;
  };

  // `secret` spreads the owners, which are the clients' numbers, so that nobody can pile them up in one place.
  Holds(uint64_t holds_max, uint64_t lease_us_max, const HashKey& secret, Names& names) noexcept;

  // `until_us` beyond the longest lease is cut to it. Throttled (kThrottledHolds, kThrottledLeases): the namespace has as many
  // holds, or leases as many bytes, as it may.
  Status take(const IndexKey& key, uint64_t owner, uint64_t now_us, uint64_t until_us, const Held& on);
  // For good, or until `until_us` however far that is. The budgets were looked at by the caller. False: the table is full.
  bool pin(const IndexKey& key, uint64_t owner, uint64_t now_us, uint64_t until_us, const Held& on);
  // A hold of this pair takes no place of its namespace's that it does not have already.
  bool place_for(const IndexKey& key, uint64_t owner, uint32_t scope) const noexcept;
  // Holds of a namespace, those of its cleared layouts too.
  uint64_t of_namespace(uint32_t number) const noexcept { return number < by_namespace_.size() ? by_namespace_[number] : 0; }
  // Moves the end of an owner's leases. Returns how many there are.
  uint64_t renew(uint64_t owner, uint64_t now_us, uint64_t until_us) noexcept;

  bool held(const IndexKey& key) const noexcept;
  bool pinned(const IndexKey& key) const noexcept;
  bool pinned_by(const IndexKey& key, uint64_t owner) const noexcept;
  bool any_pinned_by(uint64_t owner) const noexcept;
  size_t size() const noexcept { return size_; }
  size_t pins() const noexcept { return pins_; }

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
  // The block of this key is gone for good: what pinned it has nothing to keep.
  template <typename Last>
  void unpin_all(const IndexKey& key, Last&& last) {
    for (uint32_t node = first_of(key, true); node != kNone;) {
      const uint32_t next = nodes_[node].same_key.next;
      drop(node, last);
      node = next;
    }
  }
  // The same for every key of which alive(const IndexKey&) says no. Walks all nodes.
  template <typename Alive, typename Last>
  void unpin_dead(Alive&& alive, Last&& last) {
    for (uint32_t node = 0; node < nodes_.size(); ++node) {
      if (nodes_[node].persistent && !alive(nodes_[node].key)) drop(node, last);
    }
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
  // Leases end with the process; pins do not.
  template <typename Last>
  void end_leases(Last&& last) {
    for (uint32_t first : wheel_) {
      for (uint32_t node = first; node != kNone;) {
        const uint32_t next = nodes_[node].due.next;
        if (!nodes_[node].persistent) drop(node, last);
        node = next;
      }
    }
  }
  // visit(persistent, until_us) -> bool for each hold of the key, in no order, until it says false; until_us kNoEnd: without
  // end.
  template <typename Visit>
  void for_each_of(const IndexKey& key, Visit&& visit) const {
    for (const bool persistent : {true, false}) {
      for (uint32_t node = first_of(key, persistent); node != kNone; node = nodes_[node].same_key.next) {
        if (!visit(persistent, nodes_[node].until_us)) return;
      }
    }
  }
  // When expire() could next have something to do; UINT64_MAX = never.
  uint64_t next_due_us() const noexcept { return due_ == 0 ? UINT64_MAX : (tick_ + 1) * tick_us_; }

  // visit(const IndexKey&) for each key that has a hold.
  template <typename Visit>
  void for_each_key(Visit&& visit) const {
    for (const bool persistent : {true, false}) {
      by_key_[persistent ? 1 : 0].for_each([&](const Hash128&, uint64_t node) {
        if (persistent || !pinned(nodes_[node].key)) visit(nodes_[node].key);
      });
    }
  }
  // Ends the process where a node is not in its lists, or a number is not what a walk of the lists says. Adds what the accounts
  // of Names have to say of holds, by scope.
  void check_invariants(std::vector<Names::Account>& accounts) const;

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
    uint64_t bytes = 0;  // what is given back with the key's last hold of the kind is what was counted with the first
    Links same_key, same_owner, due;
    uint32_t slot = kNone;  // of the wheel; kNone: it has no end
    uint32_t scope = 0;
    uint32_t name_space = 0;
    bool persistent = false;
  };

  static uint32_t head(const index::Table& table, const Hash128& key) noexcept {
    const uint64_t value = table.find(key);
    return value == index::Table::kNone ? kNone : static_cast<uint32_t>(value);
  }
  Hash128 owner_key(uint64_t owner) const noexcept { return keyed_hash(secret_, object_bytes(owner)); }
  Hash128 pair_key(const IndexKey& key, uint64_t owner) const noexcept {
    const Hash128 hash = owner_key(owner);  // both halves are keyed hashes, and so is what becomes of them
    return {key.low ^ hash.low, key.high ^ hash.high};
  }
  uint32_t find(const IndexKey& key, uint64_t owner) const noexcept { return head(by_pair_, pair_key(key, owner)); }
  uint32_t first_of(const IndexKey& key, bool persistent) const noexcept {
    return head(by_key_[persistent ? 1 : 0], {key.low, key.high});
  }
  // Of its kind.
  index::Table& by_key(const Node& node) noexcept { return by_key_[node.persistent ? 1 : 0]; }
  // Into and out of its key's list of its kind. Counts the key's bytes when the node is the first there, and takes them back
  // when it was the last.
  void enter_key(uint32_t node);
  void leave_key(uint32_t node);
  // kNone: the table is full.
  uint32_t add(const IndexKey& key, uint64_t owner, const Held& on);
  void set_until(uint32_t node, uint64_t until_us) noexcept;
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
  HashKey secret_;
  Names& names_;
  uint64_t tick_us_;
  uint64_t tick_ = 0;
  size_t size_ = 0;
  size_t pins_ = 0;                     // persistent nodes
  size_t due_ = 0;                      // nodes in the wheel
  std::vector<uint64_t> by_namespace_;  // how many, by number
  std::vector<Node> nodes_;
  uint32_t free_ = kNone;
  index::Table by_pair_;
  std::array<index::Table, 2> by_key_;  // leases, pins
  index::Table by_owner_;
  std::array<uint32_t, kTicks> wheel_;
};

}  // namespace halfstep::store
