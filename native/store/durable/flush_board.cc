#include "store/durable/flush_board.h"

#include <algorithm>
#include <utility>

namespace halfstep::store {

bool FlushBoard::settled_locked(const Place& place) const noexcept {
  return std::none_of(places_.begin(), places_.end(), [&place](const Place* other) {
    return other != &place && other->under_way_ != 0 && other->under_way_ <= place.waits_for_;
  });
}

// Under the lock: once it is given back a place may be left, and what its wake refers to be gone.
void FlushBoard::call_waiting() {
  for (Place* place : places_) {
    if (place->to_be_woken_ && settled_locked(*place)) {
      place->to_be_woken_ = false;
      if (place->wake_) place->wake_();
    }
  }
  changed_.notify_all();
}

FlushBoard::Place::Place(FlushBoard& board, std::function<void()> wake) : board_(board), wake_(std::move(wake)) {
  const std::lock_guard lock(board_.mutex_);
  board_.places_.push_back(this);
}

FlushBoard::Place::~Place() {
  const std::lock_guard lock(board_.mutex_);
  std::erase(board_.places_, this);
  board_.call_waiting();
}

void FlushBoard::Place::began() {
  const std::lock_guard lock(board_.mutex_);
  under_way_ = ++board_.last_;
}

void FlushBoard::Place::ended(bool failed) {
  const std::lock_guard lock(board_.mutex_);
  under_way_ = 0;
  waits_for_ = board_.last_;
  if (failed) board_.note_failure();
  board_.call_waiting();
}

bool FlushBoard::Place::settled() {
  const std::lock_guard lock(board_.mutex_);
  to_be_woken_ = !board_.settled_locked(*this);
  return !to_be_woken_;
}

void FlushBoard::Place::wait_settled() {
  std::unique_lock lock(board_.mutex_);
  board_.changed_.wait(lock, [this] { return board_.settled_locked(*this); });
}

}  // namespace halfstep::store
