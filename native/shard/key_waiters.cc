#include "shard/key_waiters.h"

#include "base/check.h"

namespace halfstep::shard {

KeyWaiters::KeyWaiters() noexcept {
  for (Wait& ring : ready_) ring.before_ = ring.after_ = &ring;
}

// A key is a hash already.
KeyWaiters::Wait** KeyWaiters::find(const store::IndexKey& key) noexcept {
  Wait** at = &buckets_[key.low % kBuckets];
  while (*at != nullptr && (*at)->key != key) at = &(*at)->other_;
  return at;
}

void KeyWaiters::park(Wait& wait) {
  HALFSTEP_CHECK(wait.before_ == nullptr);
  if (buckets_.empty()) buckets_.assign(kBuckets, nullptr);
  ++counts_.waiting;
  wait.before_ = wait.after_ = &wait;
  wait.other_ = nullptr;
  if (stopped_) return append_ring(wait, Why::Stopping);
  Wait** const at = find(wait.key);
  if (*at == nullptr) {
    *at = &wait;
    return;
  }
  Wait& first = **at;
  wait.before_ = first.before_;
  wait.after_ = &first;
  first.before_->after_ = &wait;
  first.before_ = &wait;
}

void KeyWaiters::leave(Wait& wait) noexcept {
  if (wait.before_ == nullptr) return;
  // One that is ready stands behind a head of its own, which leads no chain.
  if (Wait** const at = find(wait.key); *at == &wait) {
    if (wait.after_ == &wait) {
      *at = wait.other_;
    } else {
      wait.after_->other_ = wait.other_;
      *at = wait.after_;
    }
  }
  wait.before_->after_ = wait.after_;
  wait.after_->before_ = wait.before_;
  wait.before_ = wait.after_ = wait.other_ = nullptr;
  HALFSTEP_CHECK(counts_.waiting > 0);
  --counts_.waiting;
}

void KeyWaiters::append_ring(Wait& first, Why why) noexcept {
  Wait& ring = ready_[static_cast<size_t>(why)];
  Wait* const last = first.before_;
  first.before_ = ring.before_;
  ring.before_->after_ = &first;
  last->after_ = &ring;
  ring.before_ = last;
}

void KeyWaiters::move_ring(const store::IndexKey& key, Why why) noexcept {
  if (counts_.waiting == 0) return;
  Wait** const at = find(key);
  Wait* const first = *at;
  if (first == nullptr) return;
  *at = first->other_;
  first->other_ = nullptr;
  append_ring(*first, why);
}

void KeyWaiters::move_all(Why why) noexcept {
  if (counts_.waiting == 0) return;
  for (Wait*& bucket : buckets_) {
    while (bucket != nullptr) {
      Wait* const first = bucket;
      bucket = first->other_;
      first->other_ = nullptr;
      append_ring(*first, why);
    }
  }
}

void KeyWaiters::stop() noexcept {
  stopped_ = true;
  move_all(Why::Stopping);
}

bool KeyWaiters::any_ready() const noexcept {
  for (const Wait& ring : ready_) {
    if (ring.after_ != &ring) return true;
  }
  return false;
}

void KeyWaiters::wake() {
  uint32_t lookups = 0;
  uint32_t wakes = 0;
  for (size_t why = 0; why < kWhys; ++why) {
    for (const Wait& ring = ready_[why]; ring.after_ != &ring; ++wakes) {
      if (wakes == kWakesMax || lookups >= kLookupsMax) return;
      Wait& wait = *ring.after_;
      leave(wait);
      const auto told = static_cast<Why>(why);
      counts_.stored += told == Why::Stored ? 1 : 0;
      counts_.deleted += told == Why::Deleted ? 1 : 0;
      counts_.ended += told == Why::Stopping ? 1 : 0;
      lookups += wait.owner->woken(wait, told);
    }
  }
}

const KeyWaiters::Wait* KeyWaiters::first_of(const store::IndexKey& key) const noexcept {
  if (counts_.waiting == 0) return nullptr;
  const Wait* first = buckets_[key.low % kBuckets];
  while (first != nullptr && first->key != key) first = first->other_;
  return first;
}

uint32_t KeyWaiters::waiting_for(const store::IndexKey& key, uint32_t most) const noexcept {
  const Wait* const first = first_of(key);
  if (first == nullptr) return 0;
  uint32_t count = 1;
  for (const Wait* wait = first->after_; wait != first && count < most; wait = wait->after_) ++count;
  return count;
}

}  // namespace halfstep::shard
