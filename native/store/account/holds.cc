#include "store/account/holds.h"

#include <algorithm>

#include "base/check.h"
#include "store/format/options.h"

namespace halfstep::store {

Holds::Holds(uint64_t holds_max, uint64_t lease_us_max, const HashKey& secret, Names& names) noexcept
    : holds_max_(holds_max),
      lease_us_max_(lease_us_max),
      secret_(secret),
      names_(names),
      tick_us_(lease_us_max / (kTicks - 2) + 1) {
  wheel_.fill(kNone);
}

bool Holds::held(const IndexKey& key) const noexcept { return first_of(key, false) != kNone || pinned(key); }

bool Holds::pinned(const IndexKey& key) const noexcept { return first_of(key, true) != kNone; }

bool Holds::pinned_by(const IndexKey& key, uint64_t owner) const noexcept {
  const uint32_t node = find(key, owner);
  return node != kNone && nodes_[node].persistent;
}

bool Holds::any_pinned_by(uint64_t owner) const noexcept {
  uint32_t node = head(by_owner_, owner_key(owner));
  while (node != kNone && !nodes_[node].persistent) node = nodes_[node].same_owner.next;
  return node != kNone;
}

bool Holds::place_for(const IndexKey& key, uint64_t owner, uint32_t scope) const noexcept {
  return find(key, owner) != kNone || (size_ < holds_max_ && of_namespace(names_.namespace_of(scope)) < holds_max_ - size_);
}

uint32_t Holds::add(const IndexKey& key, uint64_t owner, const Held& on) {
  if (size_ >= holds_max_) return kNone;
  uint32_t node = free_;
  if (node != kNone) {
    free_ = nodes_[node].due.next;
    nodes_[node] = {};
  } else {
    node = static_cast<uint32_t>(nodes_.size());
    nodes_.emplace_back();
  }
  ++size_;
  Node& n = nodes_[node];
  n.key = key;
  n.owner = owner;
  n.until_us = kNoEnd;
  n.scope = on.scope;
  n.bytes = on.bytes;
  n.name_space = names_.namespace_of(on.scope);
  if (by_namespace_.size() <= n.name_space) by_namespace_.resize(n.name_space + 1);
  ++by_namespace_[n.name_space];
  by_pair_.put(pair_key(key, owner), node);
  link(by_owner_, owner_key(owner), node, &Node::same_owner);
  return node;
}

void Holds::enter_key(uint32_t node) {
  Node& n = nodes_[node];
  const uint32_t before = first_of(n.key, n.persistent);
  if (before != kNone) {
    n.scope = nodes_[before].scope;
    n.bytes = nodes_[before].bytes;
  } else if (n.persistent) {
    names_.add_pinned_bytes(n.scope, static_cast<int64_t>(n.bytes));
  } else {
    names_.add_leased_bytes(n.scope, static_cast<int64_t>(n.bytes));
  }
  link(by_key(n), {n.key.low, n.key.high}, node, &Node::same_key);
}

void Holds::leave_key(uint32_t node) {
  const Node& n = nodes_[node];
  if (!unlink(by_key(n), {n.key.low, n.key.high}, node, &Node::same_key)) return;
  if (n.persistent) {
    names_.add_pinned_bytes(n.scope, -static_cast<int64_t>(n.bytes));
  } else {
    names_.add_leased_bytes(n.scope, -static_cast<int64_t>(n.bytes));
  }
}

Status Holds::take(const IndexKey& key, uint64_t owner, uint64_t now_us, uint64_t until_us, const Held& on) {
  if (due_ == 0) tick_ = now_us / tick_us_;
  uint32_t node = find(key, owner);
  if (node == kNone) {
    if (!place_for(key, owner, on.scope)) return {Code::Throttled, kThrottledHolds};
    if (first_of(key, false) == kNone && !names_.lease_fits(on.scope, on.bytes)) return {Code::Throttled, kThrottledLeases};
    node = add(key, owner, on);
    enter_key(node);
  }
  if (!nodes_[node].persistent) set_until(node, std::min(until_us, now_us + lease_us_max_));
  return {};
}

bool Holds::pin(const IndexKey& key, uint64_t owner, uint64_t now_us, uint64_t until_us, const Held& on) {
  if (due_ == 0) tick_ = now_us / tick_us_;
  uint32_t node = find(key, owner);
  if (node == kNone || !nodes_[node].persistent) {
    if (node == kNone) {
      node = add(key, owner, on);
      if (node == kNone) return false;
      nodes_[node].persistent = true;
    } else {
      leave_key(node);
      nodes_[node].persistent = true;
      nodes_[node].scope = on.scope;
      nodes_[node].bytes = on.bytes;
    }
    ++pins_;
    enter_key(node);
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
  leave_key(node);
  const Node gone = nodes_[node];
  by_pair_.erase(pair_key(gone.key, gone.owner));
  unlink(by_owner_, owner_key(gone.owner), node, &Node::same_owner);
  unlink_due(node);
  nodes_[node].persistent = false;
  nodes_[node].due.next = free_;
  free_ = node;
  --size_;
  --by_namespace_[gone.name_space];
  HALFSTEP_CHECK(!gone.persistent || pins_ > 0, pins_);
  pins_ -= gone.persistent ? 1 : 0;
  return !held(gone.key);
}

// ---- Invariants ------------------------------------------------------------------------------------------------------------

void Holds::check_invariants(std::vector<Names::Account>& accounts) const {
  size_t unused = 0;
  for (uint32_t node = free_; node != kNone; node = nodes_[node].due.next) ++unused;
  HALFSTEP_CHECK(size_ + unused == nodes_.size() && size_ <= holds_max_, size_, unused, nodes_.size());
  HALFSTEP_CHECK(by_pair_.size() == size_, by_pair_.size(), size_);

  size_t listed = 0, pins = 0, due = 0;
  std::vector<uint64_t> by_namespace(by_namespace_.size());
  const auto check_list = [&](const Hash128&, uint64_t first) {
    uint32_t before = kNone;
    for (auto node = static_cast<uint32_t>(first); node != kNone; node = nodes_[node].same_key.next) {
      const Node& n = nodes_[node];
      HALFSTEP_CHECK(n.same_key.previous == before && n.key == nodes_[first].key, node, before);
      HALFSTEP_CHECK(n.persistent == nodes_[first].persistent && first_of(n.key, n.persistent) == first, node, first);
      HALFSTEP_CHECK(find(n.key, n.owner) == node, node);
      HALFSTEP_CHECK((n.slot == kNone) == (n.until_us == kNoEnd), n.slot, n.until_us);
      ++listed;
      pins += n.persistent ? 1 : 0;
      due += n.slot != kNone ? 1 : 0;
      ++by_namespace[n.name_space];
      // Once for the key, however many owners there are.
      if (before == kNone) {
        if (accounts.size() <= n.scope) accounts.resize(n.scope + 1);
        (n.persistent ? accounts[n.scope].pinned : accounts[n.scope].leased) += n.bytes;
      }
      before = node;
    }
  };
  for (const index::Table& table : by_key_) table.for_each(check_list);
  HALFSTEP_CHECK(listed == size_ && pins == pins_ && due == due_, listed, size_, pins, pins_, due, due_);
  HALFSTEP_CHECK(by_namespace == by_namespace_);

  size_t of_owners = 0;
  by_owner_.for_each([&](const Hash128&, uint64_t first) {
    for (auto node = static_cast<uint32_t>(first); node != kNone; node = nodes_[node].same_owner.next) ++of_owners;
  });
  HALFSTEP_CHECK(of_owners == size_, of_owners, size_);
  size_t in_wheel = 0;
  for (uint32_t slot = 0; slot < kTicks; ++slot) {
    for (uint32_t node = wheel_[slot]; node != kNone; node = nodes_[node].due.next) {
      HALFSTEP_CHECK(nodes_[node].slot == slot, nodes_[node].slot, slot);
      ++in_wheel;
    }
  }
  HALFSTEP_CHECK(in_wheel == due_, in_wheel, due_);
}

}  // namespace halfstep::store
