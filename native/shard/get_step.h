// get_step.h — the blocks that a get reads next: planned, and not begun. Their reads begin together, as many at once as the
// store has memory for.
// Invariants: credit for a step is taken all at once or not at all; reads begin in the order in which they were planned.
// Thread: the shard's.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/status.h"
#include "shard/credit.h"
#include "shard/get_item.h"
#include "shard/get_sender.h"
#include "store/store.h"

namespace halfstep::shard {

class GetStep {
 public:
  void clear() noexcept;
  bool empty() const noexcept { return items_.empty(); }
  // Every read of it has begun.
  bool is_begun() const noexcept { return at_ == items_.size(); }
  // Some read of this get has, of this step or one before it.
  bool any_begun() const noexcept { return any_begun_; }
  uint64_t bytes() const noexcept { return bytes_; }
  // One block larger than all of a step is a step.
  bool fits(uint64_t bytes, uint64_t bytes_max, size_t items_max) const noexcept {
    return items_.empty() || (bytes_ + bytes <= bytes_max && items_.size() < items_max);
  }
  void add(GetItem& item) {
    items_.push_back(&item);
    bytes_ += item.credit_bytes;
  }
  std::span<GetItem* const> not_begun() const noexcept { return std::span(items_).subspan(at_); }

  bool has_credit() const noexcept { return has_credit_; }
  bool take_credit(const Waiter& by, Credit& credit) noexcept {
    has_credit_ = credit.take(by, bytes_);
    return has_credit_;
  }
  // Begins some reads, which then stand in the sender's window. Throttled: there is no memory now; anything else that is not
  // ok: the store will never read the first of not_begun(). `reads` is used within the call.
  Status begin_some(store::Store& store, GetSender& sender, std::vector<store::Read*>& reads);
  // The first that was not begun will not be.
  GetItem& take_first() noexcept { return *items_[at_++]; }

  // For another get.
  void reset() noexcept {
    clear();
    bound_ = SIZE_MAX;
    any_begun_ = false;
  }

 private:
  std::vector<GetItem*> items_;  // from at_ on not yet being read
  size_t at_ = 0;
  size_t bound_ = SIZE_MAX;  // reads to begin at once, less after a window was too large for memory
  uint64_t bytes_ = 0;
  bool has_credit_ = false;
  bool any_begun_ = false;
};

}  // namespace halfstep::shard
