#include "store/holds.h"

#include <algorithm>

namespace halfstep::store {

Holds::Holds(uint64_t holds_max, uint64_t lease_us_max) noexcept
    : holds_max_(holds_max), lease_us_max_(lease_us_max), tick_us_(lease_us_max / (kTicks - 2) + 1) {
  wheel_.fill(kNone);
}

uint32_t Holds::find(const IndexKey& key, uint64_t owner) const noexcept {
  uint32_t node = head(by_key_, {key.low, key.high});
  while (node != kNone && nodes_[node].owner != owner) node = nodes_[node].same_key.next;
  return node;
}

bool Holds::held(const IndexKey& key) const noexcept { return head(by_key_, {key.low, key.high}) != kNone; }

bool Holds::take(const IndexKey& key, uint64_t owner, uint64_t now_us, uint64_t until_us) {
  if (size_ == 0) tick_ = now_us / tick_us_;
  until_us = std::min(until_us, now_us + lease_us_max_);
  uint32_t node = find(key, owner);
  if (node == kNone) {
    if (size_ >= holds_max_) return false;
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
    link(by_key_, {key.low, key.high}, node, &Node::same_key);
    link(by_owner_, owner_key(owner), node, &Node::same_owner);
  } else {
    unlink_due(node);
  }
  nodes_[node].until_us = until_us;
  link_due(node);
  return true;
}

void Holds::link_due(uint32_t node) noexcept {
  Node& n = nodes_[node];
  n.slot = static_cast<uint32_t>(std::max(n.until_us / tick_us_, tick_) % kTicks);
  n.due = {kNone, wheel_[n.slot]};
  if (n.due.next != kNone) nodes_[n.due.next].due.previous = node;
  wheel_[n.slot] = node;
}

void Holds::unlink_due(uint32_t node) noexcept {
  const Node& n = nodes_[node];
  if (n.due.previous != kNone) {
    nodes_[n.due.previous].due.next = n.due.next;
  } else {
    wheel_[n.slot] = n.due.next;
  }
  if (n.due.next != kNone) nodes_[n.due.next].due.previous = n.due.previous;
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
  const IndexKey key = nodes_[node].key;
  const bool last = unlink(by_key_, {key.low, key.high}, node, &Node::same_key);
  unlink(by_owner_, owner_key(nodes_[node].owner), node, &Node::same_owner);
  unlink_due(node);
  nodes_[node].due.next = free_;
  free_ = node;
  --size_;
  return last;
}

}  // namespace halfstep::store
