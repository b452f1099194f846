#include "shard/request_put.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "base/slots.h"
#include "shard/client.h"
#include "shard/reply.h"
#include "shard/request_host.h"
#include "shard/unanswered.h"

namespace halfstep::shard {

using wire::Answer;
using wire::AnswerReason;
using wire::Opcode;
using wire::Reason;
using wire::Tlv;

namespace {

// How long a put may wait for memory, or for its client to send so much of what was granted, or all of it: at least once, at
// most twice this. 64 KiB/s.
constexpr uint64_t kIdleUsMax = 5'000'000;
constexpr uint64_t kHeadwayBytesMin = 320 * KiB;

AnswerReason answer_of_throttle(int32_t why) noexcept {
  switch (why) {
    case store::kThrottledPending: return {Answer::Throttled, Reason::Pending};
    case store::kThrottledSpace: return {Answer::Throttled, Reason::Full};
    case store::kThrottledQuota: return {Answer::Throttled, Reason::Budget};
    default: return {Answer::Throttled, Reason::Load};
  }
}

AnswerReason answer_of_write(Status status) noexcept {
  switch (status.code()) {
    case Code::Ok: return {Answer::Ok, Reason::Stored};
    case Code::Present: return {Answer::Ok, Reason::Present};
    case Code::Throttled: return answer_of_throttle(status.detail());
    case Code::TooLarge: return {Answer::Rejected, Reason::TooLarge};
    case Code::Invalid: return {Answer::Rejected, Reason::Malformed};
    case Code::Unsupported:
      return {Answer::Rejected, status.detail() == store::kBelowFloor ? Reason::Policy : Reason::Unsupported};
    case Code::NotFound: return {Answer::Rejected, Reason::UnknownLayout};
    case Code::Corrupt: return {Answer::Rejected, Reason::Checksum};
    case Code::Closed: return {Answer::Unavailable, Reason::Stopping};
    case Code::IoError: return answer_of_io_error(status);
    default: return {Answer::Unavailable, Reason::Media};
  }
}

}  // namespace

void PutRequest::start(Client& client, uint64_t id, ConstBytes body) {
  keep_body(body_, body);
  if (!admit_parsed(client, Opcode::Put, id, body_, kItemBytes, &view_, kDeadlineUsDefault, kDeadlineUsDefault)) return;
  plans_.clear();
  offered_bytes_ = received_bytes_ = early_bytes_ = early_held_ = 0;
  wanted_ = false;
  uint32_t items = 0;
  uint32_t keys = 0;
  for (uint32_t s = 0; s < view_.section_count; ++s) {
    const wire::SectionView& section = view_.sections[s];
    const Client::Handle& handle = client.handles()[section.head.layout];
    plans_.push_back({handle.scope, handle.layout, items, keys});
    items += section.item_count();
    keys += section.head.key_count;
    if (!section.choices.empty()) host().coding_tally().note(client.name_space(), section.choices);
    for (uint32_t i = 0; i < section.item_count(); ++i) offered_bytes_ += section.offer(i).stored_bytes;
  }
  if (const Fault fault = places_.begin(view_, placement_for(client, view_)); !fault.ok()) {
    answer_whole(client, Opcode::Put, id, {Answer::Rejected, Reason::Malformed}, fault.what);
    return finish();
  }
  items_.assign(items, {});
  open_ = items;
  next_ = section_ = index_ = table_at_ = 0;
  keys_ = wire::KeyCursor(view_.sections[0].keys);
  key_bytes_ = {};
  reserve();
  if (open_ != 0) watch_headway();
}

// ---- Slots ---------------------------------------------------------------------------------------------------------------

void PutRequest::reserve() {
  while (!finished() && next_ < items_.size()) {
    if (!reserve_next()) return;
  }
  if (!finished()) set_waits(Waits::Nothing);
}

// Moves section_ and key_bytes_ to where the item next_ is.
bool PutRequest::step_to_next_key() {
  while (index_ == view_.sections[section_].item_count()) {
    if (++section_ == view_.section_count) return false;
    index_ = 0;
    key_bytes_ = {};
    keys_ = wire::KeyCursor(view_.sections[section_].keys);
  }
  const uint32_t cells = view_.sections[section_].head.component_count;
  return index_ % cells != 0 || !key_bytes_.empty() || keys_.next(&key_bytes_);
}

// False: the request waits for credit or memory.
bool PutRequest::reserve_next() {
  if (!step_to_next_key()) {
    next_ = static_cast<uint32_t>(items_.size());
    return true;
  }
  const wire::SectionView& section = view_.sections[section_];
  const wire::Offer offer = section.offer(index_);
  PutItem* item = nullptr;
  AnswerReason refused = items_[next_].answer;
  if (refused.answer == Answer::Pending) {
    const uint64_t bytes = SlotPool::held_bytes(offer.stored_bytes);
    Credit& credit = client()->put_credit();
    const bool large = offer.stored_bytes > host().hello().block_bytes_max;
    if (large) {
      refused = {Answer::Rejected, Reason::TooLarge};
    } else if (!codecs_known()) {
      refused = {Answer::Rejected, Reason::Unsupported};
    } else if (!host().write_waiters().may_pass(*this, bytes)) {
      wanted_bytes_ = bytes;
      set_waits(Waits::Memory);
      return false;
    } else if (!credit.take(*this, bytes)) {
      set_waits(Waits::Credit, &credit);
      return false;
    } else {
      item = pools_.items.take();
      item->credit_bytes = bytes;
      item->request = this;
      item->number = next_;
      const Status status = describe(*item, offer, &refused);
      if (status == Code::Throttled && status.detail() == store::kThrottledMemory) {
        give_credit(*item);
        pools_.items.give(item);
        wanted_bytes_ = bytes;
        set_waits(Waits::Memory);
        return false;
      }
      host().write_waiters().note_passed(*this, bytes);
      if (!status.ok()) {
        give_credit(*item);
        pools_.items.give(item);
        item = nullptr;
      } else if (const uint64_t held = item->write.slot->held_bytes(); held > item->credit_bytes) {
        credit.add(held - item->credit_bytes);  // its part table lies in the slot, too
        item->credit_bytes = held;
      }
    }
  }
  const uint32_t number = next_++;
  if ((offer.flags & wire::kOfferCoded) != 0) ++table_at_;
  if (++index_ % section.head.component_count == 0) key_bytes_ = {};
  if (item != nullptr) {
    items_[number].open = item;
    grant(*item);
  } else if (items_[number].answer.answer == Answer::Pending) {
    answer(number, refused);
  }
  return true;
}

// Fills in what the store wants to know and asks it for a slot. Not ok: `refused` is the item's answer.
Status PutRequest::describe(PutItem& item, const wire::Offer& offer, AnswerReason* refused) {
  const SectionPlan& plan = plans_[section_];
  const wire::SectionHead& head = view_.sections[section_].head;
  const wire::Component component{head.first_component + index_ % head.component_count};
  store::Write& write = item.write;
  write = {};
  write.name = {plan.scope, component, key_bytes_};
  write.key = host().store().key_of(write.name);
  write.block_bytes = offer.block_bytes;
  write.ttl_s = offer.ttl_s;
  write.depth = offer.depth;
  write.hint = offer.hint;
  write.persist = view_.batch.durability == wire::Durability::Persist;
  if ((view_.batch.flags & wire::kBatchDecodable) != 0) write.codecs = host().readable_codecs(client()->codecs());
  write.done = &PutRequest::on_written;
  write.owner = &item;
  set_parent(write, offer);
  item.table.clear();
  if ((offer.flags & wire::kOfferCoded) != 0) take_table(item);
  write.coded_parts = item.table;
  const Status status = host().store().begin_write(write);
  *refused = answer_of_write(status);
  if (!status.ok()) return status;
  write.name.engine_key = {};
  item.name_number = wire::name_number(plan.layout, component, key_bytes_);
  item.state = PutItem::State::Open;
  item.landing_runs = item.pulled_runs = item.landed_bytes = 0;
  item.parts_left = static_cast<uint32_t>(write.parts.size());
  item.claimed.assign(write.parts.size(), {});
  for (store::PartInfo& part : write.parts) part.stored_crc = 0;
  return {};
}

// Of the next item. Codecs are the clients' affair, but their numbers must fit the mask in Hello.
bool PutRequest::codecs_known() const noexcept {
  if ((view_.sections[section_].offer(index_).flags & wire::kOfferCoded) == 0) return true;
  const auto& records = view_.part_tables[table_at_].records;
  for (uint32_t p = 0; p < records.size(); ++p) {
    if (records[p].codec >= kCodecs) return false;
  }
  return true;
}

void PutRequest::take_table(PutItem& item) {
  const wire::PartTableView& table = view_.part_tables[table_at_];
  for (uint32_t p = 0; p < table.records.size(); ++p) {
    const wire::PartRecord record = table.records[p];
    store::PartInfo part;
    part.codec = record.codec;
    part.stored_bytes = record.stored_bytes;
    part.raw_bytes = record.raw_bytes;
    part.raw_crc = record.raw_crc;
    item.table.push_back(part);
  }
}

void PutRequest::set_parent(store::Write& write, const wire::Offer& offer) {
  switch (offer.parent_kind) {
    case wire::kParentRoot: write.parent_kind = store::Parent::Root; return;
    case wire::kParentKnown:
      write.parent_kind = store::Parent::Known;
      write.parent = offer.parent;
      return;
    case wire::kParentInBatch: {
      const ConstBytes key = key_at(offer.parent);
      const size_t taken = std::min(key.size(), sizeof(write.parent));
      std::memcpy(&write.parent, key.data() + (key.size() - taken), taken);
      write.parent_kind = store::Parent::Known;
      return;
    }
    default: write.parent_kind = store::Parent::Unknown; return;
  }
}

// A key by its ordinal in the batch. All are found at the first question.
ConstBytes PutRequest::key_at(uint64_t ordinal) {
  if (batch_keys_.empty()) {
    for (uint32_t s = 0; s < view_.section_count; ++s) {
      wire::KeyCursor keys(view_.sections[s].keys);
      ConstBytes key;
      while (keys.next(&key)) batch_keys_.push_back(key);
    }
  }
  return batch_keys_[ordinal];  // parse_request has seen that there are so many
}

void PutRequest::grant(PutItem& item) {
  retain();  // until the store has said its last word on it
  ++slots_granted_;
  items_[item.number].granted = true;
  granted_bytes_ += item.write.stored_bytes;
  const uint32_t index = item.number - plans_[section_of(item.number)].first_number;
  const auto section = static_cast<uint16_t>(section_of(item.number));
  if (!grants_.empty() && grants_.back().section == section && grants_.back().first + grants_.back().count == index) {
    ++grants_.back().count;
  } else {
    grants_.push_back({.section = section, .first = index, .count = 1});
  }
  mark_dirty();
}

// ---- Bytes ---------------------------------------------------------------------------------------------------------------

Status PutRequest::claim(const wire::Run& run, bool pulled, PutItem** item) {
  *item = nullptr;
  if (run.section >= view_.section_count || run.item >= view_.sections[run.section].item_count()) return Code::Invalid;
  const uint32_t number = plans_[run.section].first_number + run.item;
  ItemState& state = items_[number];
  received_bytes_ += run.bytes;
  if (!take_early(run.bytes)) return Code::Throttled;
  if (!state.granted) {
    early_bytes_ += run.bytes;
    // Its turn for a slot has not come: the bytes are lost, and so is the item.
    if (state.answer.answer == Answer::Pending) answer(number, {Answer::Throttled, Reason::Budget});
  }
  if (early_bytes_ > wire::kEarlyCreditBytes || received_bytes_ > offered_bytes_ + wire::kEarlyCreditBytes) {
    return Code::Throttled;
  }
  PutItem* open = state.open;
  if (open == nullptr || open->state != PutItem::State::Open) return {};
  if ((run.flags & wire::kRunAborted) != 0) {
    doom(*open, {Answer::Cancelled, Reason::None});
    return {};
  }
  if (!fits(*open, run, pulled)) {
    doom(*open, {Answer::Rejected, Reason::Malformed});
    return {};
  }
  const auto parts = std::span(open->write.parts).subspan(run.part, run.part_count);
  if (run.part_count == 1) {
    open->claimed[run.part] = {run.offset + run.bytes, pulled};
  } else {
    for (uint32_t p = 0; p < run.part_count; ++p) open->claimed[run.part + p] = {parts[p].stored_bytes, pulled};
  }
  *item = open;
  return {};
}

// The client knows of no Want before the first was sent: until then all that it sends is out of the connection's early credit.
bool PutRequest::take_early(uint64_t bytes) noexcept {
  if (wanted_) return true;
  early_held_ += bytes;
  client()->early_bytes() += bytes;
  return client()->early_bytes() <= wire::kEarlyCreditBytes;
}

void PutRequest::give_early() noexcept {
  HALFSTEP_CHECK(early_held_ <= client()->early_bytes(), early_held_, client()->early_bytes());
  client()->early_bytes() -= early_held_;
  early_held_ = 0;
}

// A part comes once, from its start to its end without a gap and in one way, since its sum is made as it lands, and what is
// read lands later than the Chunks behind it; several at once come whole.
bool PutRequest::fits(const PutItem& item, const wire::Run& run, bool pulled) const noexcept {
  const auto& parts = item.write.parts;
  if (run.block_bytes != item.write.block_bytes || uint64_t{run.part} + run.part_count > parts.size()) return false;
  if (((run.flags & wire::kRunCoded) != 0) != !item.table.empty()) return false;
  if (run.part_count == 1) {
    const uint64_t end = uint64_t{run.offset} + run.bytes;
    const uint32_t stored_bytes = parts[run.part].stored_bytes;
    const PutClaim& before = item.claimed[run.part];
    if (run.offset != before.bytes || end > stored_bytes || run.bytes == 0) return false;
    if (before.bytes != 0 && before.pulled != pulled) return false;
    return run.check_count == (end == stored_bytes ? 1U : 0U);
  }
  uint64_t bytes = 0;
  for (uint32_t p = run.part; p < run.part + run.part_count; ++p) {
    if (item.claimed[p].bytes != 0) return false;
    bytes += parts[p].stored_bytes;
  }
  return run.offset == 0 && bytes == run.bytes && run.check_count == run.part_count;
}

void PutRequest::note_landed(PutItem& item, uint32_t bytes) noexcept {
  item.landed_bytes += bytes;
  landed_bytes_ += bytes;
  client()->note_landed(bytes);
}

void PutRequest::part_landed(PutItem& item, uint32_t part, uint32_t check) {
  if (item.state != PutItem::State::Open) return;
  if (wire::wire_check(item.write.parts[part].stored_crc, item.name_number, part) != check) {
    ++host().counts().put_checks_failed;
    doom(item, {Answer::Rejected, Reason::Checksum});
    return;
  }
  HALFSTEP_CHECK(item.parts_left > 0, item.parts_left);
  --item.parts_left;
}

void PutRequest::run_landed(PutItem& item) {
  if (item.state == PutItem::State::Doomed) {
    if (item.landing_runs == 0) free(item);
  } else if (item.parts_left == 0 && item.landing_runs == 0) {
    commit(item);
  }
}

void PutRequest::doom(PutItem& item, AnswerReason with) {
  HALFSTEP_CHECK(item.state == PutItem::State::Open, item.state);
  item.state = PutItem::State::Doomed;
  answer(item.number, with);
  if (item.landing_runs == 0) free(item);
}

void PutRequest::commit(PutItem& item) {
  HALFSTEP_CHECK(item.landing_runs == 0, item.landing_runs);
  item.state = PutItem::State::Committed;
  items_[item.number].open = nullptr;
  give_credit(item);
  RequestHost& shard = host();
  const store::IndexKey key = item.write.key;  // the item may be over when the store returns
  shard.store().commit_write(item.write);
  shard.key_waiters().stored(key);
}

void PutRequest::on_written(store::Write& write) {
  auto& item = *static_cast<PutItem*>(write.owner);
  PutRequest& request = *item.request;
  // One that has ended may still be waiting for its pulls.
  const bool open = !request.finished() && request.items_[item.number].answer.answer == Answer::Pending;
  if (open) request.answer(item.number, answer_of_write(write.status));
  request.pools_.items.give(&item);
  request.let_go();
}

void PutRequest::give_credit(PutItem& item) {
  if (client() == nullptr || item.credit_bytes == 0) return;
  client()->put_credit().give(item.credit_bytes);
  client()->credit_returned();
  item.credit_bytes = 0;
}

// Gives back the slot of an item that will not be stored. May recycle the request.
void PutRequest::free(PutItem& item) {
  items_[item.number].open = nullptr;
  give_credit(item);
  host().store().abort_write(item.write);
  pools_.items.give(&item);
  let_go();
}

// ---- Pulls ---------------------------------------------------------------------------------------------------------------

bool PutRequest::find_places(const wire::Run& run, size_t runs_max, std::vector<net::RemoteRun>& out) const {
  const PutItem* item = items_[plans_[run.section].first_number + run.item].open;
  if (item == nullptr || !item->table.empty() || !places_.placed(run.section)) return false;
  const auto& parts = item->write.parts;
  for (uint32_t p = run.part; p < run.part + run.part_count; ++p) {
    const uint32_t bytes = run.part_count == 1 ? run.bytes : parts[p].stored_bytes;
    // Of what is not coded the slot has the item's own bytes, back to back.
    const uint32_t at = parts[p].offset - parts[0].offset;
    if (!places_.find(run.section, run.item, p, at, run.offset, bytes, runs_max, out)) return false;
  }
  return true;
}

void PutRequest::pull_begun() noexcept {
  retain();
  ++pulls_;
}

void PutRequest::pull_ended() {
  HALFSTEP_CHECK(pulls_ > 0, pulls_);
  if (--pulls_ == 0 && open_ == 0 && !finished()) mark_dirty();
  let_go();
}

// Its slot goes back when no device writes into it any more.
void PutRequest::leave_to_pull(PutItem& item) {
  item.state = PutItem::State::Doomed;
  items_[item.number].open = nullptr;
}

// ---- Headway -------------------------------------------------------------------------------------------------------------

uint64_t PutRequest::awaited_bytes() const noexcept {
  uint64_t bytes = 0;
  for (const ItemState& state : items_) {
    if (state.open != nullptr) bytes += state.open->write.stored_bytes - state.open->landed_bytes;
  }
  return bytes;
}

void PutRequest::watch_headway() {
  slots_mark_ = slots_granted_;
  landed_mark_ = landed_bytes_;
  awaited_mark_ = awaited_bytes();
  host().loop().arm(idle_timer_, host().loop().now_us() + kIdleUsMax);
}

void PutRequest::on_idle(void* self) {
  auto& put = *static_cast<PutRequest*>(self);
  if (put.finished()) return;
  const bool filled = put.landed_bytes_ - put.landed_mark_ >= std::min(put.awaited_mark_, kHeadwayBytesMin);
  // Who awaits nothing waits for memory or for the store, and a new slot has not been awaited for so long.
  if (put.slots_granted_ == put.slots_mark_ && (!filled || put.awaited_mark_ == 0)) put.expire();
  put.watch_headway();
}

// Others wait for memory that nobody fills: slots that await parts go back, and who waits for memory waits no longer. What is
// complete is the store's and gets its answer. Who waits for credit waits for another put of its connection, which ends.
void PutRequest::expire() {
  constexpr AnswerReason kBudget{Answer::Throttled, Reason::Budget};
  client()->divert_landing(*this);
  retain();
  const bool starved = waits() == Waits::Memory;
  for (uint32_t number = 0; number < items_.size(); ++number) {
    const ItemState& state = items_[number];
    if (state.answer.answer != Answer::Pending) {
      // Answered while bytes for it were coming, which are diverted now: nothing else gives its slot back.
      if (state.open != nullptr && state.open->state == PutItem::State::Doomed && state.open->landing_runs == 0) {
        free(*state.open);
      }
      continue;
    }
    if (state.open != nullptr) {
      doom(*state.open, kBudget);
    } else if (starved && !state.granted) {
      answer(number, kBudget);
    }
  }
  if (starved) {
    next_ = static_cast<uint32_t>(items_.size());
    set_waits(Waits::Nothing);
  }
  let_go();
}

// ---- Answers -------------------------------------------------------------------------------------------------------------

void PutRequest::answer(uint32_t number, AnswerReason with) {
  ItemState& state = items_[number];
  HALFSTEP_CHECK(state.answer.answer == Answer::Pending && open_ > 0, state.answer.answer, open_);
  state.answer = with;
  host().counts().answer(Opcode::Put, with);
  fresh_.push_back(number);
  --open_;
  mark_dirty();
}

uint32_t PutRequest::section_of(uint32_t number) const noexcept {
  uint32_t s = 0;
  while (s + 1 < plans_.size() && plans_[s + 1].first_number <= number) ++s;
  return s;
}

void PutRequest::write_answers(wire::FrameWriter& frame) {
  std::sort(fresh_.begin(), fresh_.end());
  for (size_t at = 0; at < fresh_.size();) {
    const uint32_t section = section_of(fresh_[at]);
    const uint32_t first = plans_[section].first_number;
    const uint32_t end = first + view_.sections[section].item_count();
    wire::StatusWriter statuses(frame, static_cast<uint16_t>(section), 0);
    for (; at < fresh_.size() && fresh_[at] < end; ++at) statuses.add(fresh_[at] - first, items_[fresh_[at]].answer);
    statuses.close();
  }
  fresh_.clear();
}

void PutRequest::flush() {
  if (!grants_.empty() && open_ != 0) {
    Reply reply(*client(), id(), Opcode::Want);
    reply.frame().open_tlv(Tlv::Grant);
    Writer& out = reply.frame().value();
    out.put(wire::GrantHead{.credit_bytes = granted_bytes_, .range_count = static_cast<uint32_t>(grants_.size())});
    out.put_all(std::span<const wire::ItemRange>(grants_));
    reply.frame().close_tlv();
    reply.send();
    wanted_ = true;
    give_early();
  }
  grants_.clear();
  granted_bytes_ = 0;
  if (open_ == 0 && pulls_ == 0) {
    client()->divert_landing(*this);
    retain();
    on_drop();
    Reply reply(*client(), id());
    write_answers(reply.frame());
    reply.send();
    give_early();
    finish();
    let_go();
  } else if (!fresh_.empty()) {
    Reply reply(*client(), id(), Opcode::Answers);
    write_answers(reply.frame());
    reply.send();
  }
}

void PutRequest::end(AnswerReason with) {
  retain();
  client()->divert_landing(*this);
  on_drop();
  for (uint32_t number = 0; number < items_.size() && open_ != 0; ++number) {
    if (items_[number].answer.answer == Answer::Pending) answer(number, with);
  }
  flush();
  let_go();
}

// Gives back every slot that is not the store's. What was committed stays, and is done with when the store says so.
void PutRequest::on_drop() {
  for (ItemState& state : items_) {
    if (state.open == nullptr) continue;
    if (state.open->pulled_runs != 0) {
      leave_to_pull(*state.open);
    } else {
      free(*state.open);
    }
  }
  next_ = static_cast<uint32_t>(items_.size());
}

void PutRequest::recycle() {
  host().loop().disarm(idle_timer_);
  forget_body(body_);
  plans_.clear();
  items_.clear();
  if (items_.capacity() > kItemsKept) std::vector<ItemState>().swap(items_);
  grants_.clear();
  fresh_.clear();
  batch_keys_.clear();
  places_.clear();
  granted_bytes_ = 0;
  open_ = 0;
  pools_.requests.give(this);
}

}  // namespace halfstep::shard
