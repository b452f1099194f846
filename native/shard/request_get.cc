#include "shard/request_get.h"

#include <algorithm>

#include "base/check.h"
#include "shard/connection.h"
#include "shard/part_places.h"
#include "shard/reply.h"
#include "shard/request_keys.h"
#include "shard/shard.h"

namespace halfstep::shard {

using wire::Answer;
using wire::AnswerReason;
using wire::Opcode;
using wire::Reason;

namespace {

// Statuses are told per selected part: this many of a request, or answering it would hold up the others.
constexpr uint64_t kSelectedPartsMax = uint64_t{1} << 20;

}  // namespace

void GetRequest::start(Connection& connection, uint64_t id, ConstBytes body) {
  keep_body(body_, body);
  if (!admit_parsed(connection, Opcode::Get, id, body_, sizeof(Outcome), &view_, kDeadlineUsDefault)) return;
  if (!plan_sections()) {
    finish();
    return;
  }
  advance();
}

// Resolves layouts and counts what was asked for. False: the request was answered as a whole.
bool GetRequest::plan_sections() {
  Connection& connection = *this->connection();
  plans_.clear();
  uint32_t items = 0;
  uint64_t selected = 0;
  for (uint32_t s = 0; s < view_.section_count; ++s) {
    const wire::SectionView& section = view_.sections[s];
    const Connection::Handle& handle = connection.handles()[section.head.layout];
    const SectionPlan plan{.scope = handle.scope,
                           .layout = handle.layout,
                           .first_number = items,
                           .parts_per_item = places_of(section),
                           .parts = span_of(section, 0, UINT32_MAX)};
    items += section.item_count();
    selected += uint64_t{section.item_count()} * plan.parts_per_item;
    plans_.push_back(plan);
  }
  if (selected > kSelectedPartsMax) {
    answer_whole(connection, Opcode::Get, id(), {Answer::Rejected, Reason::Limit},
                 "items x selected parts: at most 1048576 in one request; ask in several");
    return false;
  }
  outcomes_.assign(items, {});
  round_first_ = 0;
  round_end_ = UINT32_MAX;
  exceeds_credit_ = rounds_ = step_begun_ = false;
  begin_pass();
  moment_ = {};
  return true;
}

// ---- Sending -------------------------------------------------------------------------------------------------------------

bool GetRequest::skipped(const GetItem& item) const noexcept {
  const uint32_t key = item.index / view_.sections[item.section].head.component_count;
  return key > plans_[item.section].first_missed_key;
}

uint32_t GetRequest::part_of(const GetItem& item) const noexcept {
  return static_cast<uint32_t>(part_at(view_.sections[item.section], item.ordinal));
}

// False: the Chunk is full.
bool GetRequest::add_part(GetItem& item) {
  if (!shard().chunk_builder().add(item, part_of(item))) return false;
  if (item.part_offset != 0) return true;
  ++item.ordinal;
  Outcome& outcome = outcomes_[item.number];
  outcome.parts = item.ordinal;
  if (item.ordinal == item.selected && outcome.status.answer == Answer::Pending) outcome.status = {Answer::Ok, Reason::None};
  return true;
}

bool GetRequest::send_chunk() {
  if (shard().loop().now_us() >= deadline_us()) {
    end({Answer::Late, Reason::None});
    return false;
  }
  ChunkBuilder& chunk = shard().chunk_builder();
  HALFSTEP_DCHECK(chunk.empty());
  const bool full = layer_major() ? fill_layer_major() : fill_key_major();
  const bool sent = !chunk.empty();
  queued_bytes_ += chunk.payload_bytes();
  if (sent) chunk.send(*connection(), id());
  close_window();
  if (window_.empty() && ahead_.empty() && reading_done()) {
    send_final({Answer::Unavailable, Reason::None});
    return false;
  }
  if (window_.empty()) {
    if (!ahead_.empty()) begin_ahead();
    if (waits() == Waits::Nothing) advance();  // asks for another turn
    return false;
  }
  return sent && full;
}

// What has not been looked up yet counts as much as what has, and ranges as whole blocks.
uint64_t GetRequest::bytes_to_send() const noexcept {
  if (planned_items_ == 0) return 0;
  const uint64_t bytes = planned_bytes_ / planned_items_ * outcomes_.size();
  return bytes - std::min(bytes, queued_bytes_);
}

// True: more may be ready.
bool GetRequest::fill_key_major() {
  for (; window_at_ < window_.size(); ++window_at_) {
    GetItem& item = *window_[window_at_];
    if (item.state == GetItem::State::Reading) return false;
    if (item.state == GetItem::State::Ready && skipped(item)) {
      outcomes_[item.number].status = {Answer::Miss, Reason::Skipped};
      item.state = GetItem::State::Dead;
    }
    while (item.state == GetItem::State::Ready && item.ordinal < item.selected) {
      if (!add_part(item)) return true;
    }
    leave_window(item);
  }
  return false;
}

// True: more may be ready.
bool GetRequest::fill_layer_major() {
  while (!window_.empty()) {
    for (; window_at_ < window_.size(); ++window_at_) {
      GetItem& item = *window_[window_at_];
      if (item.state == GetItem::State::Reading) return false;
      if (item.ordinal == window_first_ && item.part_offset == 0) look_over(item);
      // A part that was begun is sent whole, though the read of the others has failed meanwhile.
      if (item.state == GetItem::State::Dead && item.part_offset == 0) continue;
      while (item.ordinal == pass_ && item.ordinal < item.end) {
        if (item.reading && part_of(item) >= item.read.parts_landed) return false;
        if (!add_part(item)) return true;
      }
    }
    end_pass();
  }
  return false;
}

// Before the first of an item's parts in this window: whether any of them is to be sent.
void GetRequest::look_over(GetItem& item) {
  Outcome& outcome = outcomes_[item.number];
  const bool missed = outcome.status.answer != Answer::Pending;  // by another round
  if (item.state != GetItem::State::Ready || (!missed && !skipped(item))) return;
  if (!missed) outcome.status = {Answer::Miss, Reason::Skipped};
  item.state = GetItem::State::Dead;
}

void GetRequest::begin_ahead() {
  window_.swap(ahead_);
  window_at_ = 0;
  pass_ = window_first_ = window_.front()->ordinal;
  connection()->offer_chunks(*this);
}

// Keeps the items that have parts left.
void GetRequest::end_pass() {
  size_t kept = 0;
  for (GetItem* item : window_) {
    if (item->state == GetItem::State::Ready && item->ordinal < item->end) {
      window_[kept++] = item;
    } else {
      leave_window(*item);
    }
  }
  window_.resize(kept);
  window_at_ = 0;
  ++pass_;
}

// Cuts off what fill_key_major() is done with. Each item is moved once at most.
void GetRequest::close_window() {
  if (layer_major() || window_at_ * 2 < window_.size()) return;
  window_.erase(window_.begin(), window_.begin() + static_cast<ptrdiff_t>(window_at_));
  window_at_ = 0;
}

void GetRequest::leave_window(GetItem& item) {
  item.left_window = true;
  release_unused(item);
}

// Once it has left the window.
void GetRequest::release_unused(GetItem& item) {
  if (!item.reading && item.references == 0 && !item.in_chunk) release(item);
}

// May recycle the request.
void GetRequest::release(GetItem& item) {
  HALFSTEP_CHECK(item.references == 0, item.references);
  if (item.read.resident != nullptr) shard().store().unpin(item.read.resident);
  if (item.read.early != nullptr) shard().store().unpin(item.read.early);
  Connection* connection = this->connection();
  if (connection != nullptr && item.credit_bytes != 0) {
    connection->get_credit().give(item.credit_bytes);
    connection->credit_returned();
  }
  shard().get_items().give(&item);
  let_go();
}

void GetRequest::chunk_left(void* sent_chunk, uint64_t shard_address) {
  auto* chunk = static_cast<SentChunk*>(sent_chunk);
  auto& shard = *reinterpret_cast<Shard*>(static_cast<uintptr_t>(shard_address));
  for (GetItem* item : chunk->items) {
    HALFSTEP_CHECK(item->references > 0, item->references);
    if (--item->references == 0 && item->left_window) item->request->release_unused(*item);
  }
  chunk->items.clear();
  shard.sent_chunks().give(chunk);
}

// ---- The end -------------------------------------------------------------------------------------------------------------

void GetRequest::end(AnswerReason with) { send_final(with); }

void GetRequest::send_final(AnswerReason rest) {
  Connection& connection = *this->connection();
  Counts& counts = shard().counts();
  Reply reply(connection, id());
  for (uint32_t s = 0; s < view_.section_count; ++s) {
    const SectionPlan& plan = plans_[s];
    wire::StatusWriter statuses(reply.frame(), static_cast<uint16_t>(s), plan.parts_per_item != 0 ? wire::kStatusPerPart : 0);
    for (uint32_t i = 0; i < view_.sections[s].item_count(); ++i) {
      const Outcome& outcome = outcomes_[plan.first_number + i];
      const AnswerReason status = outcome.status.answer == Answer::Pending ? rest : outcome.status;
      counts.answer(Opcode::Get, status);
      if (plan.parts_per_item == 0) statuses.add(i, status);
      for (uint32_t p = 0; p < plan.parts_per_item; ++p) {
        statuses.add(i * plan.parts_per_item + p, p < outcome.parts ? AnswerReason{Answer::Ok, Reason::None} : status);
      }
    }
    statuses.close();
  }
  reply.send();
  retain();  // until all below is given back
  on_drop();
  finish();
  let_go();
}

// Gives back what nobody else refers to; reads under way and queued Chunks give back the rest as they end.
void GetRequest::on_drop() {
  for (size_t i = layer_major() ? 0 : window_at_; i < window_.size(); ++i) leave_window(*window_[i]);
  for (GetItem* item : ahead_) leave_window(*item);
  window_.clear();
  ahead_.clear();
  window_at_ = 0;
  for (size_t i = step_at_; i < step_.size(); ++i) {
    if (!step_has_credit_) step_[i]->credit_bytes = 0;
    release(*step_[i]);
  }
  step_.clear();
  step_at_ = 0;
  planned_all_ = true;
}

void GetRequest::recycle() {
  forget_body(body_);
  plans_.clear();
  outcomes_.clear();
  window_.clear();
  ahead_.clear();
  step_.clear();
  window_at_ = step_at_ = 0;
  step_bound_ = SIZE_MAX;
  planned_items_ = 0;
  planned_bytes_ = queued_bytes_ = 0;
  pass_ = window_first_ = 0;
  key_bytes_ = {};
  shard().gets().give(this);
}

}  // namespace halfstep::shard
