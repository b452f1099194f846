// stage_queue.h — stages that wait for their turn: the lowest priority number first, first come first served within one.
// Each of its steps takes the same time however many wait. Invariants: bit p of `there_` is set while list p holds a stage; a
// stage's priority stays as it is while it waits. Thread: the shard's.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <limits>

#include "store/format/requests.h"

namespace halfstep::store {

class StageQueue {
 public:
  bool empty() const noexcept { return first() == nullptr; }
  Stage* first() const noexcept {
    for (size_t w = 0; w < there_.size(); ++w) {
      if (there_[w] != 0) return lists_[w * kWordBits + static_cast<size_t>(std::countr_zero(there_[w]))].first;
    }
    return nullptr;
  }
  // Behind all of its priority.
  void push_back(Stage& stage) noexcept { insert_after(lists_[stage.priority].last, stage); }
  // Before them: it had its turn, and could not use it.
  void push_front(Stage& stage) noexcept { insert_after(nullptr, stage); }
  void erase(Stage& stage) noexcept {
    List& list = lists_[stage.priority];
    (stage.store_before != nullptr ? stage.store_before->store_next : list.first) = stage.store_next;
    (stage.store_next != nullptr ? stage.store_next->store_before : list.last) = stage.store_before;
    stage.store_before = stage.store_next = nullptr;
    if (list.first == nullptr) word(stage) &= ~bit(stage);
  }

 private:
  struct List {
    Stage* first = nullptr;
    Stage* last = nullptr;
  };
  static constexpr size_t kPriorities = size_t{std::numeric_limits<decltype(Stage::priority)>::max()} + 1;
  static constexpr size_t kWordBits = 64;
  static_assert(kPriorities % kWordBits == 0);

  uint64_t& word(const Stage& stage) noexcept { return there_[stage.priority / kWordBits]; }
  static uint64_t bit(const Stage& stage) noexcept { return uint64_t{1} << stage.priority % kWordBits; }
  // At the head of its list when `before` is null.
  void insert_after(Stage* before, Stage& stage) noexcept {
    List& list = lists_[stage.priority];
    stage.store_before = before;
    stage.store_next = before != nullptr ? before->store_next : list.first;
    (stage.store_next != nullptr ? stage.store_next->store_before : list.last) = &stage;
    (before != nullptr ? before->store_next : list.first) = &stage;
    word(stage) |= bit(stage);
  }

  std::array<List, kPriorities> lists_;
  std::array<uint64_t, kPriorities / kWordBits> there_{};
};

}  // namespace halfstep::store
