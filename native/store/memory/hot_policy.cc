#include "store/memory/hot_policy.h"

#include <algorithm>
#include <bit>

#include "base/check.h"

namespace halfstep::store {

HotPolicy::HotPolicy(uint64_t capacity_pages)
    : ghost_pages_max_(capacity_pages * kGhostShare), heads_(std::bit_ceil(std::max<uint64_t>(capacity_pages, 1)), kNone) {}

// ---- Blocks ----------------------------------------------------------------------------------------------------------------

uint32_t HotPolicy::insert(uint64_t tag, uint32_t pages, uint32_t owner, bool used) noexcept {
  HALFSTEP_CHECK(pages >= 1 && pages <= kPagesMax, pages);
  uint32_t number = head_of(tag);
  while (number != kNone && records_[number].tag != tag) number = records_[number].next;
  if (number != kNone) {
    unghost(number);
    if (used) count_use(records_[number]);
  } else {
    number = take_record();
    if (used) note_use();
    records_[number].used_at = uses_ & kUsesMask;
    records_[number].unused = used ? 0 : 1;
    records_[number].touch_class = 0;
  }
  Record& record = records_[number];
  record.tag = tag;
  record.where = InClass;
  record.busy = 1;
  record.pages_less_one = (pages - 1) & (kPagesMax - 1);
  record.owner = owner;
  link_newest(number);
  return number;
}

uint32_t HotPolicy::likely_next() const noexcept {
  const uint32_t oldest = by_class_[last_class_].oldest;
  return oldest == kNone ? kNone : records_[oldest].owner;
}

void HotPolicy::use(uint32_t number) noexcept {
  Record& record = records_[number];
  HALFSTEP_DCHECK(record.where != Ghost, record.where);
  if (record.where == InClass) unlink(number);
  record.where = InClass;
  count_use(record);
  link_newest(number);
}

void HotPolicy::count_use(Record& record) noexcept {
  if (record.unused != 0) {
    record.unused = 0;
    note_use();
    record.used_at = uses_ & kUsesMask;
    return;
  }
  if (age_of(record) < uses_in_moment_) return;
  note_use();
  model_.reused(static_cast<uint32_t>(record.touch_class), age_of(record));
  record.touch_class = std::min<uint64_t>(record.touch_class + 1, ReuseModel::kClasses - 1) & 3U;
  record.used_at = uses_ & kUsesMask;
}

void HotPolicy::note_use() noexcept {
  ++uses_in_moment_;
  if (++uses_ % ReuseModel::kRenewEvery == 0) model_.renew();
}

void HotPolicy::set_busy(uint32_t number, bool busy) noexcept {
  Record& record = records_[number];
  HALFSTEP_DCHECK(record.where != Ghost, record.where);
  record.busy = busy ? 1 : 0;
  if (busy || record.where != Parked) return;
  record.where = InClass;
  link_oldest(number);  // it was the oldest when it was parked
}

void HotPolicy::remove(uint32_t number) noexcept {
  HALFSTEP_DCHECK(records_[number].where != Ghost, records_[number].where);
  if (records_[number].where == InClass) unlink(number);
  give_record(number);
}

uint32_t HotPolicy::evict() noexcept {
  if (ghost_list_.oldest != kNone) prefetch_ghost(records_[ghost_list_.oldest].tag);
  uint32_t victim = kNone;
  double least = 0;
  for (List& list : by_class_) {
    while (list.oldest != kNone && records_[list.oldest].busy != 0) {
      const uint32_t parked = list.oldest;
      unlink(parked);
      records_[parked].where = Parked;
    }
    if (list.oldest == kNone) continue;
    const Record& oldest = records_[list.oldest];
    const double worth = model_.worth(static_cast<uint32_t>(oldest.touch_class), age_of(oldest));
    if (victim != kNone && worth >= least) continue;
    victim = list.oldest;
    least = worth;
  }
  if (victim == kNone) return kNone;
  const uint32_t owner = records_[victim].owner;
  last_class_ = records_[victim].touch_class;
  dismiss(victim);
  prefetch_leaving(by_class_[last_class_]);
  prefetch_leaving(ghost_list_);
  return owner;
}

// ---- Ghosts ----------------------------------------------------------------------------------------------------------------

void HotPolicy::dismiss(uint32_t number) noexcept {
  Record& record = records_[number];
  if (record.where == InClass) unlink(number);
  if (record.unused != 0) return give_record(number);  // nothing is known of its uses
  record.where = Ghost;
  record.next = head_of(record.tag);
  head_of(record.tag) = number;
  link_newest(number);
  ++ghosts_;
  ghost_pages_ += pages_of(record);
  while (ghost_pages_ > ghost_pages_max_) forget_ghost();
}

void HotPolicy::unghost(uint32_t number) noexcept {
  Record& record = records_[number];
  uint32_t* link = &head_of(record.tag);
  while (*link != number) link = &records_[*link].next;
  *link = record.next;
  unlink(number);
  --ghosts_;
  HALFSTEP_CHECK(pages_of(record) <= ghost_pages_, pages_of(record), ghost_pages_);
  ghost_pages_ -= pages_of(record);
}

void HotPolicy::forget_ghost() noexcept {
  const uint32_t number = ghost_list_.oldest;
  const Record& record = records_[number];
  model_.forgotten(static_cast<uint32_t>(record.touch_class), age_of(record));
  unghost(number);
  give_record(number);
}

// ---- Records and lists -----------------------------------------------------------------------------------------------------

uint32_t HotPolicy::take_record() noexcept {
  if (free_ == kNone) {
    records_.push_back({});
    return static_cast<uint32_t>(records_.size() - 1);
  }
  const uint32_t number = free_;
  free_ = records_[number].next;
  return number;
}

void HotPolicy::give_record(uint32_t number) noexcept {
  records_[number].next = free_;
  free_ = number;
}

void HotPolicy::link_newest(uint32_t number) noexcept {
  Record& record = records_[number];
  List& list = list_of(record);
  record.older = list.newest;
  record.newer = kNone;
  (list.newest != kNone ? records_[list.newest].newer : list.oldest) = number;
  list.newest = number;
}

void HotPolicy::link_oldest(uint32_t number) noexcept {
  Record& record = records_[number];
  List& list = list_of(record);
  record.newer = list.oldest;
  record.older = kNone;
  (list.oldest != kNone ? records_[list.oldest].older : list.newest) = number;
  list.oldest = number;
}

void HotPolicy::unlink(uint32_t number) noexcept {
  const Record& record = records_[number];
  List& list = list_of(record);
  (record.newer != kNone ? records_[record.newer].older : list.newest) = record.older;
  (record.older != kNone ? records_[record.older].newer : list.oldest) = record.newer;
}

}  // namespace halfstep::store
