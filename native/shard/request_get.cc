#include "shard/request_get.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/units.h"
#include "compress/codec.h"
#include "shard/client.h"
#include "shard/reply.h"
#include "shard/request_host.h"
#include "shard/unanswered.h"

namespace halfstep::shard {

using wire::Answer;
using wire::AnswerReason;
using wire::Opcode;
using wire::Reason;

namespace {

constexpr uint64_t kStepBytesMax = 4 * MiB;
constexpr size_t kStepItemsMax = 1024;
// In layer order, of a block that is read whole: as much of each is read before more of any.
constexpr uint32_t kLayerPieceBytes = 128 * KiB;

AnswerReason answer_of_read(Status status) noexcept {
  switch (status.code()) {
    case Code::NotFound: return {Answer::Miss, Reason::Absent};
    case Code::Corrupt: return {Answer::Miss, Reason::Corrupt};
    case Code::IoError: return answer_of_io_error(status);
    case Code::Throttled: return {Answer::Throttled, Reason::Load};
    default: return {Answer::Unavailable, Reason::None};
  }
}

}  // namespace

void GetRequest::start(Client& client, uint64_t id, ConstBytes body) {
  keep_body(body_, body);
  if (!admit_parsed(client, Opcode::Get, id, body_, GetOutcomes::kItemBytes, &view_, kDeadlineUsDefault)) return;
  if (!outcomes_.begin(view_).ok()) {
    answer_whole(client, Opcode::Get, id, {Answer::Rejected, Reason::Limit},
                 "items x selected parts: at most 1048576 in one request; ask in several");
    return finish();
  }
  if (const Fault fault = places_.begin(view_, placement_for(client, view_)); !fault.ok()) {
    answer_whole(client, Opcode::Get, id, {Answer::Rejected, Reason::Malformed}, fault.what);
    return finish();
  }
  planner_.begin(view_, client.handles(), host().store());
  sender_.begin(view_, client.codecs());
  planned_all_ = false;
  moment_ = {};
  advance();
}

// ---- Reading -------------------------------------------------------------------------------------------------------------

// Goes on until the credit is in use, memory is short, or everything is under way.
void GetRequest::advance() {
  while (!finished() && sender_.takes_more(planner_.begun_again())) {
    if (step_.is_begun() && (planned_all_ || !plan_step())) break;
    if (!begin_reads()) return;
  }
  if (finished()) return;
  set_waits(Waits::Nothing);
  // Also when nothing was found: Final follows when it is this request's turn.
  client()->offer_chunks(*this);
}

// Gathers the next step. False: no item is left, or none of those left is there.
bool GetRequest::plan_step() {
  step_.clear();
  const size_t items_max = step_items_max();
  uint64_t bytes_max = step_bytes(planner_.begun_again());
  for (;;) {
    while (planner_.next(outcomes_)) {
      if (!planner_.is_there()) {
        await();
      } else if (step_.fits(planner_.memory_bytes(), bytes_max, items_max)) {
        add_to_step();
      } else if (begin_again()) {
        bytes_max = step_bytes(true);
      } else {
        return true;
      }
    }
    // Nothing of the next round stands in a window of this one.
    if (!step_.empty() && !planner_.is_last_round()) return true;
    if (!planner_.next_round()) break;
  }
  if (!plan_awaited()) return true;
  planned_all_ = true;
  return !step_.empty();
}

void GetRequest::add_to_step() {
  GetItem* item = pools_.items.take();
  *item = {};
  planner_.take(*item, outcomes_);
  add_to_step(*item);
}

void GetRequest::add_to_step(GetItem& item) {
  if (sender_.layer_major()) {
    item.read.piece_bytes = kLayerPieceBytes;
    item.read.landed = &GetRequest::on_landed;
  }
  item.read.complete = &GetRequest::on_read;
  item.read.owner = &item;
  item.read.moment = &moment_;
  item.request = this;
  step_.add(item);
  retain();
}

size_t GetRequest::step_items_max() const noexcept { return sender_.layer_major() ? wire::kItemsMax : kStepItemsMax; }

// Of which a step may take memory at most.
uint64_t GetRequest::step_bytes(bool two_windows) const noexcept {
  const uint64_t credit = client()->get_credit().whole_bytes();
  if (sender_.layer_major()) return two_windows ? std::max<uint64_t>(credit / 2, 1) : credit;
  return std::min(std::max<uint64_t>(credit / 4, 1), kStepBytesMax);
}

// Instead of a first step that is full, and of which nothing has begun: while one window is sent, the next is read. False: the
// step is as good as any.
bool GetRequest::begin_again() {
  if (!sender_.layer_major() || planner_.begun_again() || step_.any_begun()) return false;
  awaited_.clear(host().key_waiters());
  planner_.begin_again(step_.not_begun(), step_bytes(true), outcomes_.items());
  for (GetItem* item : step_.not_begun()) {
    item->credit_bytes = 0;
    release(*item);
  }
  step_.clear();
  return true;
}

// False: the request waits for credit or memory.
bool GetRequest::begin_reads() {
  if (!step_.has_credit()) {
    Credit& credit = client()->get_credit();
    if (!step_.take_credit(*this, credit)) {
      set_waits(Waits::Credit, &credit);
      return false;
    }
    set_waits(Waits::Nothing);
  }
  const Status status = step_.begin_some(host().store(), sender_, pools_.reads);
  if (status.ok()) return true;
  if (status == Code::Throttled) {
    set_waits(Waits::Memory);
    return false;
  }
  // One block that will never fit, or a store that has ended.
  GetItem& item = step_.take_first();
  const bool large = status == Code::TooLarge;
  outcomes_.miss(item.section, item.index,
                 {large ? Answer::Rejected : Answer::Unavailable, large ? Reason::TooLarge : Reason::Media});
  release(item);
  return true;
}

void GetRequest::on_read(store::Read& read) {
  auto* item = static_cast<GetItem*>(read.owner);
  GetRequest& request = *item->request;
  item->reading = false;
  if (item->left_window) {
    if (item->unused()) request.release(*item);
    return;
  }
  if (!read.status.ok()) {
    item->state = GetItem::State::Dead;
    request.outcomes_.miss(item->section, item->index, answer_of_read(read.status));
  } else if (item->state == GetItem::State::Reading) {
    request.sender_.accept(*item);
  } else if (read.resident != read.early && !request.sender_.accept_again(*item, *read.resident)) {
    request.host().store().unpin(std::exchange(read.resident, nullptr));
    item->state = GetItem::State::Dead;
    request.outcomes_.miss(item->section, item->index, {Answer::Miss, Reason::Absent});
  }
  request.begin_decodes();
}

void GetRequest::on_landed(store::Read& read) {
  auto* item = static_cast<GetItem*>(read.owner);
  if (item->left_window) return;
  GetRequest& request = *item->request;
  if (item->state == GetItem::State::Reading) request.sender_.accept(*item);
  request.client()->offer_chunks(request);
}

// ---- Decoding ------------------------------------------------------------------------------------------------------------

// What is lossy is given to nobody whose layout does not name its codec.
bool GetRequest::decodes(const GetItem& item) const {
  if (host().decoder() == nullptr) return false;
  for (const store::PartInfo& part : item.resident().parts()) {
    const compress::Codec* codec = compress::find_codec(uint32_t{part.codec});
    if (codec == nullptr) return false;
    if (codec->lossy && !planner_.names_codec(item.section, codec->name)) return false;
  }
  return true;
}

Status GetRequest::decode(GetItem& item, std::span<const uint32_t> parts) {
  const Status status = host().decoder()->begin(*item.read.resident, parts, &GetRequest::on_decoded, &item, &item.decoded);
  item.decoding = status.ok();
  if (status == Code::Throttled && sender_.layer_major()) ++host().decoder()->counts().throttled;
  return status;
}

void GetRequest::on_decoded(void* of) {
  auto* item = static_cast<GetItem*>(of);
  GetRequest& request = *item->request;
  item->decoding = false;
  if (item->left_window) {
    if (item->unused()) request.release(*item);
    return;
  }
  request.sender_.accept_decoded(*item, item->decoded->status());
  request.client()->offer_chunks(request);
}

// What is read may have to be decoded; then, or at once, it may be sent.
void GetRequest::begin_decodes() {
  if (finished()) return;
  if (sender_.begin_decodes()) host().decoder()->wait(*this);
  client()->offer_chunks(*this);
}

// ---- Sending -------------------------------------------------------------------------------------------------------------

bool GetRequest::send_chunk() {
  if (host().loop().now_us() >= deadline_us()) {
    end({Answer::Late, Reason::None});
    return false;
  }
  ChunkBuilder& chunk = pools_.builder;
  chunk.place_by(places_.any() ? &places_ : nullptr);
  const bool full = sender_.fill(chunk);
  const bool sent = !chunk.empty();
  queued_bytes_ += chunk.payload_bytes();
  if (sent) {
    chunk.send(*client(), id(), *pools_.chunks.take(), &GetRequest::chunk_left, reinterpret_cast<uintptr_t>(&pools_));
  }
  if (!sender_.window_is_over()) return sent && full;
  if (sender_.has_next_window()) {
    sender_.begin_next_window();
    client()->offer_chunks(*this);
  } else if (planned_all_ && step_.is_begun()) {
    if (awaited_.none()) end({Answer::Unavailable, Reason::None});
    return false;
  }
  if (waits() == Waits::Nothing) advance();  // asks for another turn
  return false;
}

// What has not been looked up yet counts as much as what has, and ranges as whole blocks.
uint64_t GetRequest::bytes_to_send() const noexcept {
  const uint64_t bytes = planner_.block_bytes_mean() * outcomes_.items();
  return bytes - std::min(bytes, queued_bytes_);
}

// ---- Waiting -------------------------------------------------------------------------------------------------------------

// The item that is planned next is not there.
void GetRequest::await() {
  GetAwaited::Item& item = awaited_.add(outcomes_.items());
  planner_.take_awaited(item);
  item.owner = this;
  // Its layout went while the request waited for memory or credit: nobody would wake it.
  if (planner_.is_hopeless(item)) return outcomes_.miss(item.section, item.index, {Answer::Miss, Reason::Absent});
  if (charge_wait()) return awaited_.park(host().key_waiters(), item);
  outcomes_.miss(item.section, item.index, {Answer::Throttled, Reason::Budget});
  ++host().key_waiters().counts().refused;
}

uint32_t GetRequest::woken(KeyWaiters::Wait& wait, KeyWaiters::Why why) {
  auto& item = static_cast<GetAwaited::Item&>(wait);
  AnswerReason over{Answer::Miss, Reason::Absent};
  switch (why) {
    case KeyWaiters::Why::Stored: over = {}; break;
    case KeyWaiters::Why::Deleted: break;
    case KeyWaiters::Why::LookAgain:
      if (!planner_.find_awaited(item).present && !planner_.is_hopeless(item)) {
        host().key_waiters().park(item);
        return 1;
      }
      if (!planner_.is_hopeless(item)) over = {};
      break;
    case KeyWaiters::Why::Stopping: over = {Answer::Unavailable, Reason::Stopping}; break;
  }
  if (over.answer == Answer::Pending) {
    awaited_.note_there(item);
    planned_all_ = false;
  } else {
    awaited_.end(item);
    outcomes_.miss(item.section, item.index, over);
  }
  mark_dirty();
  return 1;
}

// Some of what it waited for has come, or will not.
void GetRequest::flush() {
  if (waits() == Waits::Nothing) advance();
}

// Plans what has come. False: the step is full.
bool GetRequest::plan_awaited() {
  while (awaited_.any_there()) {
    const GetAwaited::Item& awaited = awaited_.first_there();
    const store::Found found = planner_.find_awaited(awaited);
    if (!found.present) {
      outcomes_.miss(awaited.section, awaited.index, {Answer::Miss, Reason::Absent});
    } else if (step_.fits(found.memory_bytes, step_bytes(planner_.begun_again()), step_items_max())) {
      GetItem* item = pools_.items.take();
      *item = {};
      planner_.take(*item, awaited, found, outcomes_);
      add_to_step(*item);
    } else {
      return false;
    }
    awaited_.take_first();
  }
  return true;
}

void GetRequest::end_waits(bool expired) noexcept {
  KeyWaiters& waiters = host().key_waiters();
  (expired ? waiters.counts().expired : waiters.counts().ended) += awaited_.parked();
  awaited_.clear(waiters);
}

// ---- Giving back ---------------------------------------------------------------------------------------------------------

// May recycle the request.
void GetRequest::release(GetItem& item) {
  HALFSTEP_CHECK(item.references == 0, item.references);
  if (item.read.resident != nullptr) host().store().unpin(item.read.resident);
  if (item.read.early != nullptr) host().store().unpin(item.read.early);
  if (item.decoded != nullptr) {
    item.decoded.reset();
    host().decoder()->note_freed();
  }
  Client* of = client();
  if (of != nullptr && item.credit_bytes != 0) {
    of->get_credit().give(item.credit_bytes);
    of->credit_returned();
  }
  pools_.items.give(&item);
  let_go();
}

void GetRequest::chunk_left(void* sent_chunk, uint64_t pools_address) {
  auto* chunk = static_cast<SentChunk*>(sent_chunk);
  auto& pools = *reinterpret_cast<GetPools*>(static_cast<uintptr_t>(pools_address));
  for (GetItem* item : chunk->items) {
    HALFSTEP_CHECK(item->references > 0, item->references);
    if (--item->references == 0 && item->left_window && item->unused()) item->request->release(*item);
  }
  chunk->items.clear();
  pools.chunks.give(chunk);
}

// ---- The end -------------------------------------------------------------------------------------------------------------

void GetRequest::end(AnswerReason with) {
  // What nobody has stored by then is not late: it is not there.
  const bool expired = with.answer == Answer::Late;
  if (expired) {
    awaited_.for_parked([this](const GetAwaited::Item& item) {
      outcomes_.miss(item.section, item.index, {Answer::Miss, Reason::Absent});
    });
  }
  end_waits(expired);
  Reply reply(*client(), id());
  outcomes_.write(reply, host().counts(), with);
  reply.send();
  retain();  // until all below is given back
  on_drop();
  finish();
  let_go();
}

// Gives back what nobody else refers to; reads under way and queued Chunks give back the rest as they end.
void GetRequest::on_drop() {
  end_waits(false);
  if (host().decoder() != nullptr) host().decoder()->leave(*this);
  sender_.drop();
  for (GetItem* item : step_.not_begun()) {
    if (!step_.has_credit()) item->credit_bytes = 0;
    release(*item);
  }
  step_.clear();
  planned_all_ = true;
}

void GetRequest::recycle() {
  forget_body(body_);
  outcomes_.clear();
  planner_.clear();
  places_.clear();
  sender_.drop();
  step_.reset();
  queued_bytes_ = 0;
  pools_.requests.give(this);
}

}  // namespace halfstep::shard
