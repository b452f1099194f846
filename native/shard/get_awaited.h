// get_awaited.h — the items of a get that are not there and that it waits for (kBatchWait): parked by their keys, then there,
// in any order, then read. Of those that are there the first in the order of the request is read first. Invariants: an item is
// parked, there, or over; none of them moves until clear(). Thread: the shard's.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "shard/key_waiters.h"
#include "wire/layout.h"

namespace halfstep::shard {

class GetAwaited {
 public:
  enum class State : uint8_t { Parked, There, Over };
  struct Item : KeyWaiters::Wait {
    wire::Component component;
    uint32_t section = 0;
    uint32_t index = 0;  // within the section
    uint32_t name_number = 0;
    uint32_t place = 0;  // in the order of the request
    State state = State::Over;
  };
  // Of memory, for each item that may have to wait.
  static constexpr size_t kItemBytes = sizeof(Item) + sizeof(uint32_t);

  // Of `items_max` items any may have to wait: none is added beyond.
  Item& add(size_t items_max) {
    items_.reserve(items_max);
    Item& item = items_.emplace_back();
    item.place = static_cast<uint32_t>(items_.size() - 1);
    return item;
  }
  void park(KeyWaiters& waiters, Item& item) {
    item.state = State::Parked;
    ++parked_;
    waiters.park(item);
  }
  // One that was parked and is not any more.
  void note_there(Item& item) {
    end(item);
    item.state = State::There;
    there_.push_back(item.place);
    std::push_heap(there_.begin(), there_.end(), std::greater<>());
  }
  void end(Item& item) noexcept {
    item.state = State::Over;
    --parked_;
  }

  size_t parked() const noexcept { return parked_; }
  bool any_there() const noexcept { return !there_.empty(); }
  Item& first_there() noexcept { return items_[there_.front()]; }
  void take_first() noexcept {
    first_there().state = State::Over;
    std::pop_heap(there_.begin(), there_.end(), std::greater<>());
    there_.pop_back();
  }
  bool none() const noexcept { return parked_ == 0 && there_.empty(); }

  template <typename Visit>
  void for_parked(Visit&& visit) {
    for (Item& item : items_) {
      if (item.state == State::Parked) visit(item);
    }
  }
  // Nobody waits any more.
  void clear(KeyWaiters& waiters) noexcept {
    for_parked([&](Item& item) { waiters.leave(item); });
    items_.clear();
    there_.clear();
    parked_ = 0;
    if (items_.capacity() > kItemsKept) std::vector<Item>().swap(items_);
  }

 private:
  static constexpr size_t kItemsKept = 256;

  std::vector<Item> items_;
  std::vector<uint32_t> there_;  // a heap of places, the first in front
  size_t parked_ = 0;
};

}  // namespace halfstep::shard
