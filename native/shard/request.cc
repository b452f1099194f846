#include "shard/request.h"

#include <algorithm>
#include <string>

#include "base/check.h"
#include "shard/client.h"
#include "shard/credit.h"
#include "shard/reply.h"
#include "shard/request_host.h"
#include "shard/request_names.h"

namespace halfstep::shard {

void Request::admit(Client& client, wire::Opcode opcode, uint64_t id, uint32_t deadline_us, uint8_t priority) {
  HALFSTEP_CHECK(finished_ && outstanding_ == 0 && waits_ == Waits::Nothing && !dirty_, outstanding_, waits_);
  host_ = &client.host();
  client_ = &client;
  opcode_ = opcode;
  id_ = id;
  priority_ = priority;
  started_us_ = host_->loop().now_us();
  deadline_us_ = deadline_us == 0 ? kNoDeadline : started_us_ + deadline_us;
  finished_ = false;
  if (deadline_us_ != kNoDeadline) host_->loop().arm(deadline_timer_, deadline_us_);
  client.enrol(*this);
}

bool Request::admit_parsed(Client& client, wire::Opcode opcode, uint64_t id, ConstBytes body, size_t item_bytes,
                           wire::RequestView* view, uint32_t deadline_us_default, uint32_t deadline_us_max) {
  const Status parsed = wire::parse_request(opcode, body, view);
  const uint32_t asked_us = view->batch.deadline_us;
  admit(client, opcode, id, asked_us == 0 ? deadline_us_default : std::min(asked_us, deadline_us_max), view->batch.priority);
  if (!parsed.ok()) {
    answer_unparsed(client, opcode, id, parsed, body);
  } else if (check_names(client, opcode, id, *view)) {
    uint64_t items = 0;
    for (uint32_t s = 0; s < view->section_count; ++s) items += view->sections[s].item_count();
    if (charge(kOwnBytes + body.size() + items * (item_bytes + more_item_bytes(*view)))) return true;
  }
  finish();
  return false;
}

bool Request::charge(uint64_t bytes) {
  if (take_memory(bytes)) return true;
  answer_whole(*client_, opcode_, id_, {wire::Answer::Throttled, wire::Reason::Budget},
               "requests under way have " + std::to_string(host_->request_memory().bytes()) + " of " +
                   std::to_string(host_->request_memory().bytes_max()) +
                   " bytes of this shard's memory for them: ask again when some have ended");
  return false;
}

bool Request::take_memory(uint64_t bytes) noexcept {
  if (!host_->request_memory().take(client_->request_bytes(), bytes)) return false;
  client_->request_bytes() += bytes;
  memory_bytes_ = bytes;
  return true;
}

bool Request::charge_wait() {
  if (wait_bytes_ != 0) return true;
  if (!host_->wait_memory().take(client_->wait_bytes(), memory_bytes_)) return false;
  wait_bytes_ = memory_bytes_;
  client_->wait_bytes() += wait_bytes_;
  ++host_->counts().requests_waiting;
  return true;
}

// It has finished.
void Request::end_wait() noexcept {
  if (wait_bytes_ != 0) --host_->counts().requests_waiting;
}

// Nothing refers to it any more.
void Request::retire() {
  host_->request_memory().give(memory_bytes_);
  host_->wait_memory().give(wait_bytes_);
  if (client_ != nullptr) {
    HALFSTEP_CHECK(memory_bytes_ <= client_->request_bytes(), memory_bytes_, client_->request_bytes());
    client_->request_bytes() -= memory_bytes_;
    HALFSTEP_CHECK(wait_bytes_ <= client_->wait_bytes(), wait_bytes_, client_->wait_bytes());
    client_->wait_bytes() -= wait_bytes_;
    client_->strike(*this);
  }
  memory_bytes_ = wait_bytes_ = 0;
  client_ = nullptr;
  recycle();
}

void Request::finish() {
  HALFSTEP_DCHECK(!finished_);
  finished_ = true;
  leave_lists();
  if (client_ != nullptr) client_->request_finished(*this);
  end_wait();
  host_->request_finished(opcode_, host_->loop().now_us() - started_us_, wait_bytes_ != 0);
  if (outstanding_ == 0) retire();
}

void Request::drop() {
  const bool was_finished = finished_;
  finished_ = true;
  leave_lists();
  retain();  // whatever on_drop() gives back, the request stays until here
  on_drop();
  if (!was_finished) {
    end_wait();
    host_->request_dropped();
  }
  client_ = nullptr;
  if (--outstanding_ == 0) retire();
}

void Request::let_go() {
  HALFSTEP_CHECK(outstanding_ > 0, outstanding_);
  if (--outstanding_ == 0 && finished_) retire();
}

void Request::leave_lists() {
  host_->loop().disarm(deadline_timer_);
  set_waits(Waits::Nothing);
  if (dirty_) host_->forget_dirty(*this);
  dirty_ = false;
}

void Request::set_waits(Waits waits, Credit* credit) {
  if (waits == waits_ && credit == waits_for_) return;
  if (waits_ == Waits::Credit && waits_for_->leave(*this)) client_->credit_returned();
  if (waits_ == Waits::Memory) host_->leave_memory(*this);
  waits_ = waits;
  waits_for_ = credit;
  if (waits == Waits::Credit) credit->join(*this);
  if (waits == Waits::Memory) host_->join_memory(*this);
}

void Request::mark_dirty() {
  if (dirty_) return;
  dirty_ = true;
  host_->add_dirty(*this);
}

void Request::forget_body(std::vector<std::byte>& kept) {
  kept.clear();
  if (kept.capacity() > kBodyBytesKept) std::vector<std::byte>().swap(kept);
}

void Request::on_deadline(void* self) { static_cast<Request*>(self)->end({wire::Answer::Late, wire::Reason::None}); }

}  // namespace halfstep::shard
