#include "shard/get_step.h"

#include "base/check.h"

namespace halfstep::shard {

void GetStep::clear() noexcept {
  items_.clear();
  at_ = 0;
  bytes_ = 0;
  has_credit_ = false;
}

Status GetStep::begin_some(store::Store& store, GetSender& sender, std::vector<store::Read*>& reads) {
  HALFSTEP_DCHECK(has_credit_ && !is_begun());
  const std::span<GetItem* const> items = not_begun().first(std::min(items_.size() - at_, bound_));
  reads.clear();
  for (GetItem* item : items) reads.push_back(&item->read);
  // What is resident completes inside the call: the items stand in the window before.
  sender.add(items);
  const Status status = store.begin_reads(reads);
  any_begun_ = true;
  if (status.ok()) {
    at_ += items.size();
    return {};
  }
  sender.take_back(items.size());
  if (status != Code::TooLarge || items.size() == 1) return status;
  bound_ = items.size() / 2;
  return {};
}

}  // namespace halfstep::shard
