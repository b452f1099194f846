#include "shard/credit.h"

#include "base/check.h"

namespace halfstep::shard {

uint64_t Credit::limit_bytes(uint64_t more) const noexcept {
  if (common_ == nullptr) return limit_bytes_;
  const uint64_t free_bytes = common_->memory_bytes - std::min(common_->memory_bytes, common_->out_bytes + more);
  return std::clamp(4 * free_bytes, floor_bytes_, limit_bytes_);
}

uint64_t Credit::whole_bytes() const noexcept {
  if (common_ == nullptr) return limit_bytes_;
  const uint64_t free_bytes = common_->memory_bytes - std::min(common_->memory_bytes, common_->out_bytes);
  return std::clamp(4 * free_bytes / 5, floor_bytes_, limit_bytes_);
}

bool Credit::take(const Waiter& by, uint64_t bytes) noexcept {
  if (!waiters_.empty() && waiters_.front() != &by) return false;
  if (used_bytes_ != 0 && used_bytes_ + bytes > limit_bytes(bytes)) return false;
  add(bytes);
  return true;
}

void Credit::add(uint64_t bytes) noexcept {
  used_bytes_ += bytes;
  *gauge_ += bytes;
  if (common_ != nullptr) common_->out_bytes += bytes;
}

void Credit::give(uint64_t bytes) noexcept {
  HALFSTEP_CHECK(bytes <= used_bytes_, bytes, used_bytes_);
  used_bytes_ -= bytes;
  HALFSTEP_CHECK(bytes <= *gauge_, bytes, *gauge_);
  *gauge_ -= bytes;
  if (common_ != nullptr) {
    HALFSTEP_CHECK(bytes <= common_->out_bytes, bytes, common_->out_bytes);
    common_->out_bytes -= bytes;
  }
}

bool Credit::leave(const Waiter& waiter) noexcept {
  const bool first = !waiters_.empty() && waiters_.front() == &waiter;
  std::erase(waiters_, &waiter);
  return first && !waiters_.empty();
}

void Credit::resume_waiters() {
  while (!waiters_.empty()) {
    Waiter* first = waiters_.front();
    first->resume();
    if (!waiters_.empty() && waiters_.front() == first) return;
  }
}

}  // namespace halfstep::shard
