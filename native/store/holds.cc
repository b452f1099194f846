#include "store/holds.h"

#include <algorithm>

namespace halfstep::store {

Holds::Holds(uint64_t holds_max, uint64_t lease_us_max, const HashKey& secret, Names& names) noexcept
    : holds_max_(holds_max),
      lease_us_max_(lease_us_max),
      secret_(secret),
      names_(names),
      tick_us_(lease_us_max / (kTicks - 2) + 1) {
  wheel_.fill(kNone);
}

bool Holds::held(const IndexKey& key) const noexcept { return head(by_key_, {key.low, key.high}) != kNone; }

uint32_t Holds::first_pin(const IndexKey& key) const noexcept {
  uint32_t node = head(by_key_, {key.low, key.high});
  while (node != kNone && !nodes_[node].persistent) node = nodes_[node].same_key.next;
  return node;
}

bool Holds::pinned(const IndexKey& key) const noexcept { return first_pin(key) != kNone; }

bool Holds::pinned_by(const IndexKey& key, uint64_t owner) const noexcept {
  const uint32_t node = find(key, owner);
  return node != kNone && nodes_[node].persistent;
}

bool Holds::any_pinned_by(uint64_t owner) const noexcept {
  uint32_t node = head(by_owner_, owner_key(owner));
  while (node != kNone && !nodes_[node].persistent) node = nodes_[node].same_owner.next;
  return node != kNone;
}

uint32_t Holds::find_or_add(const IndexKey& key, uint64_t owner) {
  uint32_t node = find(key, owner);
  if (node != kNone || size_ >= holds_max_) return node;
  if (free_ != kNone) {
    node = free_;
    free_ = nodes_[node].due.next;
    nodes_[node] = {};
  } else {
    node = static_cast<uint32_t>(nodes_.size());
    nodes_.emplace_back();
  }
  ++size_;
  nodes_[node].key = key;
  nodes_[node].owner = owner;
  nodes_[node].until_us = kNoEnd;
  by_pair_.put(pair_key(key, owner), node);
  link(by_key_, {key.low, key.high}, node, &Node::same_key);
  link(by_owner_, owner_key(owner), node, &Node::same_owner);
  return node;
}

bool Holds::take(const IndexKey& key, uint64_t owner, uint64_t now_us, uint64_t until_us) {
  if (due_ == 0) tick_ = now_us / tick_us_;
  const uint32_t node = find_or_add(key, owner);
  if (node == kNone) return false;
  if (!nodes_[node].persistent) set_until(node, std::min(until_us, now_us + lease_us_max_));
  return true;
}

bool Holds::pin(const IndexKey& key, uint64_t owner, uint64_t now_us, uint64_t until_us, const Pinned& pinned_on) {
  if (due_ == 0) tick_ = now_us / tick_us_;
  const uint32_t before = first_pin(key);
  const uint32_t node = find_or_add(key, owner);
  if (node == kNone) return false;
  Node& n = nodes_[node];
  if (!n.persistent) {
    n.persistent = true;
    ++pins_;
    // What is given back with the last pin of a key is what was counted with the first.
    n.scope = before != kNone ? nodes_[before].scope : pinned_on.scope;
    n.pinned_bytes = before != kNone ? nodes_[before].pinned_bytes : pinned_on.bytes;
    if (before == kNone) names_.add_pinned_bytes(n.scope, static_cast<int64_t>(n.pinned_bytes));
  }
  set_until(node, until_us);
  return true;
}

uint64_t Holds::renew(uint64_t owner, uint64_t now_us, uint64_t until_us) noexcept {
  until_us = std::min(until_us, now_us + lease_us_max_);
  uint64_t renewed = 0;
  for (uint32_t node = head(by_owner_, owner_key(owner)); node != kNone; node = nodes_[node].same_owner.next) {
    if (nodes_[node].persistent) continue;
    set_until(node, until_us);
    ++renewed;
  }
  return renewed;
}

void Holds::set_until(uint32_t node, uint64_t until_us) noexcept {
  unlink_due(node);
  nodes_[node].until_us = until_us;
  if (until_us != kNoEnd) link_due(node);
}

void Holds::link_due(uint32_t node) noexcept {
  Node& n = nodes_[node];
  n.slot = static_cast<uint32_t>(std::max(n.until_us / tick_us_, tick_) % kTicks);
  n.due = {kNone, wheel_[n.slot]};
  if (n.due.next != kNone) nodes_[n.due.next].due.previous = node;
  wheel_[n.slot] = node;
  ++due_;
}

void Holds::unlink_due(uint32_t node) noexcept {
  Node& n = nodes_[node];
  if (n.slot == kNone) return;
  if (n.due.previous != kNone) {
    nodes_[n.due.previous].due.next = n.due.next;
  } else {
    wheel_[n.slot] = n.due.next;
  }
  if (n.due.next != kNone) nodes_[n.due.next].due.previous = n.due.previous;
  n.slot = kNone;
  --due_;
}

void Holds::link(index::Table& table, const Hash128& key, uint32_t node, Links Node::*links) {
  const uint32_t first = head(table, key);
  nodes_[node].*links = {kNone, first};
  if (first != kNone) (nodes_[first].*links).previous = node;
  table.put(key, node);
}

bool Holds::unlink(index::Table& table, const Hash128& key, uint32_t node, Links Node::*links) {
  const Links& l = nodes_[node].*links;
  if (l.next != kNone) (nodes_[l.next].*links).previous = l.previous;
  if (l.previous != kNone) {
    (nodes_[l.previous].*links).next = l.next;
    return false;
  }
  if (l.next != kNone) {
    table.put(key, l.next);
    return false;
  }
  table.erase(key);
  return true;
}

bool Holds::remove(uint32_t node) {
  const Node gone = nodes_[node];
  by_pair_.erase(pair_key(gone.key, gone.owner));
  const bool last = unlink(by_key_, {gone.key.low, gone.key.high}, node, &Node::same_key);
  unlink(by_owner_, owner_key(gone.owner), node, &Node::same_owner);
  unlink_due(node);
  nodes_[node].persistent = false;
  nodes_[node].due.next = free_;
  free_ = node;
  --size_;
  if (gone.persistent) {
    --pins_;
    if (!pinned(gone.key)) names_.add_pinned_bytes(gone.scope, -static_cast<int64_t>(gone.pinned_bytes));
  }
  return last;
}

}  // namespace halfstep::store
