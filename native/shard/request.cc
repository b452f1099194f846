#include "shard/request.h"

#include <algorithm>
#include <string>

#include "base/check.h"
#include "shard/connection.h"
#include "shard/reply.h"
#include "shard/request_keys.h"
#include "shard/shard.h"

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

bool Credit::take(const Request& by, uint64_t bytes) noexcept {
  if (!waiters_.empty() && waiters_.front() != &by) return false;
  if (used_bytes_ != 0 && used_bytes_ + bytes > limit_bytes(bytes)) return false;
  used_bytes_ += bytes;
  *gauge_ += bytes;
  if (common_ != nullptr) common_->out_bytes += bytes;
  return true;
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

bool Credit::leave(const Request& waiter) noexcept {
  const bool first = !waiters_.empty() && waiters_.front() == &waiter;
  std::erase(waiters_, &waiter);
  return first && !waiters_.empty();
}

void Credit::resume_waiters() {
  while (!waiters_.empty()) {
    Request* first = waiters_.front();
    first->resume();
    if (!waiters_.empty() && waiters_.front() == first) return;
  }
}

void Request::admit(Connection& connection, wire::Opcode opcode, uint64_t id, uint32_t deadline_us, uint8_t priority) {
  HALFSTEP_CHECK(finished_ && outstanding_ == 0 && waits_ == Waits::Nothing && !dirty_, outstanding_, waits_);
  shard_ = &connection.shard();
  connection_ = &connection;
  opcode_ = opcode;
  id_ = id;
  priority_ = priority;
  started_us_ = shard_->loop().now_us();
  deadline_us_ = deadline_us == 0 ? kNoDeadline : started_us_ + deadline_us;
  finished_ = false;
  if (deadline_us_ != kNoDeadline) shard_->loop().arm(deadline_timer_, deadline_us_);
  connection.enrol(*this);
}

bool Request::admit_parsed(Connection& connection, wire::Opcode opcode, uint64_t id, ConstBytes body, size_t item_bytes,
                           wire::RequestView* view, uint32_t deadline_us_default, uint32_t deadline_us_max) {
  const Status parsed = wire::parse_request(opcode, body, view);
  const uint32_t asked_us = view->batch.deadline_us;
  admit(connection, opcode, id, asked_us == 0 ? deadline_us_default : std::min(asked_us, deadline_us_max),
        view->batch.priority);
  if (!parsed.ok()) {
    answer_unparsed(connection, opcode, id, parsed, body);
  } else if (check_names(connection, opcode, id, *view)) {
    uint64_t items = 0;
    for (uint32_t s = 0; s < view->section_count; ++s) items += view->sections[s].item_count();
    if (take_memory(kOwnBytes + body.size() + items * (item_bytes + more_item_bytes(*view)))) return true;
    answer_whole(connection, opcode, id, {wire::Answer::Throttled, wire::Reason::Budget},
                 "requests under way have " + std::to_string(shard_->request_memory().bytes()) + " of " +
                     std::to_string(shard_->request_memory().bytes_max()) +
                     " bytes of this shard's memory for them: ask again when some have ended");
  }
  finish();
  return false;
}

bool Request::take_memory(uint64_t bytes) noexcept {
  if (!shard_->request_memory().take(connection_->request_bytes(), bytes)) return false;
  connection_->request_bytes() += bytes;
  memory_bytes_ = bytes;
  return true;
}

// Nothing refers to it any more.
void Request::retire() {
  shard_->request_memory().give(memory_bytes_);
  if (connection_ != nullptr) {
    HALFSTEP_CHECK(memory_bytes_ <= connection_->request_bytes(), memory_bytes_, connection_->request_bytes());
    connection_->request_bytes() -= memory_bytes_;
    connection_->strike(*this);
  }
  memory_bytes_ = 0;
  connection_ = nullptr;
  recycle();
}

void Request::finish() {
  HALFSTEP_DCHECK(!finished_);
  finished_ = true;
  leave_lists();
  if (connection_ != nullptr) connection_->request_finished(*this);
  shard_->request_finished(opcode_, shard_->loop().now_us() - started_us_);
  if (outstanding_ == 0) retire();
}

void Request::drop() {
  const bool was_finished = finished_;
  finished_ = true;
  leave_lists();
  retain();  // whatever on_drop() gives back, the request stays until here
  on_drop();
  if (!was_finished) shard_->request_dropped();
  connection_ = nullptr;
  if (--outstanding_ == 0) retire();
}

void Request::let_go() {
  HALFSTEP_CHECK(outstanding_ > 0, outstanding_);
  if (--outstanding_ == 0 && finished_) retire();
}

void Request::leave_lists() {
  shard_->loop().disarm(deadline_timer_);
  set_waits(Waits::Nothing);
  if (dirty_) shard_->forget_dirty(*this);
  dirty_ = false;
}

void Request::set_waits(Waits waits, Credit* credit) {
  if (waits == waits_ && credit == waits_for_) return;
  if (waits_ == Waits::Credit && waits_for_->leave(*this)) connection_->credit_returned();
  if (waits_ == Waits::Memory) shard_->leave_memory(*this);
  waits_ = waits;
  waits_for_ = credit;
  if (waits == Waits::Credit) credit->join(*this);
  if (waits == Waits::Memory) shard_->join_memory(*this);
}

void Request::mark_dirty() {
  if (dirty_) return;
  dirty_ = true;
  shard_->add_dirty(*this);
}

void Request::forget_body(std::vector<std::byte>& kept) {
  kept.clear();
  if (kept.capacity() > kBodyBytesKept) std::vector<std::byte>().swap(kept);
}

void Request::on_deadline(void* self) { static_cast<Request*>(self)->end({wire::Answer::Late, wire::Reason::None}); }

}  // namespace halfstep::shard
