#include "shard/request_keys.h"

#include <algorithm>
#include <array>
#include <span>
#include <string>

#include "shard/client.h"
#include "shard/lease_bounds.h"
#include "shard/reply.h"
#include "shard/request_host.h"
#include "shard/request_names.h"
#include "shard/section_items.h"
#include "shard/tlvs.h"
#include "shard/unanswered.h"

namespace halfstep::shard {

using wire::Answer;
using wire::AnswerReason;
using wire::Opcode;
using wire::Reason;
using wire::Tlv;

namespace {

bool is_budget(int32_t detail) noexcept {
  return detail == store::kThrottledPins || detail == store::kThrottledLeases || detail == store::kThrottledHolds;
}

AnswerReason answer_of(Status status) noexcept {
  switch (status.code()) {
    case Code::Ok: return {Answer::Ok, Reason::None};
    case Code::NotFound: return {Answer::Miss, Reason::Absent};
    case Code::Throttled:
      if (is_budget(status.detail())) return {Answer::Throttled, Reason::Budget};
      if (status.detail() == store::kThrottledLog || status.detail() == store::kThrottledRecovery)
        return {Answer::Throttled, Reason::Load};
      return {Answer::Throttled, Reason::Full};
    case Code::Closed: return {Answer::Unavailable, Reason::Stopping};
    case Code::IoError: return answer_of_io_error(status);
    default: return {Answer::Unavailable, Reason::Media};
  }
}

}  // namespace

// ---- touch, renew, cancel ------------------------------------------------------------------------------------------------

void answer_touch(Client& client, uint64_t id, ConstBytes body) {
  RequestHost& host = client.host();
  wire::RequestView& view = host.request_view();
  if (const Status parsed = wire::parse_request(Opcode::Touch, body, &view); !parsed.ok()) {
    answer_unparsed(client, Opcode::Touch, id, parsed, body);
    return;
  }
  if (!check_names(client, Opcode::Touch, id, view)) return;
  std::array<store::Sought, kItemsAtOnce> sought;
  std::array<store::Found, kItemsAtOnce> found;
  std::vector<store::IndexKey> there;
  Reply reply(client, id);
  for (uint32_t s = 0; s < view.section_count; ++s) {
    const uint32_t scope = client.handles()[view.sections[s].head.layout].scope;
    wire::StatusWriter statuses(reply.frame(), static_cast<uint16_t>(s), 0);
    uint32_t item = 0;
    for_items(host.store(), scope, view.sections[s], [&](auto names, auto index_keys) {
      std::copy(index_keys.begin(), index_keys.end(), sought.begin());
      host.store().find_many(std::span(sought).first(names.size()), std::span(found).first(names.size()));
      for (size_t i = 0; i < names.size(); ++i) {
        if (found[i].present) there.push_back(index_keys[i]);
        const AnswerReason status = found[i].present ? AnswerReason{Answer::Ok, Reason::Present}
                                                     : answer_of_absent(elsewhere_of(host.store()), index_keys[i]);
        host.counts().answer(Opcode::Touch, status);
        statuses.add(item++, status);
      }
      return true;
    });
    statuses.close();
  }
  host.store().touch(there);
  reply.send();
}

void answer_renew(Client& client, uint64_t id, ConstBytes body) {
  RequestHost& host = client.host();
  wire::RequestView& view = host.request_view();
  if (const Status parsed = wire::parse_request(Opcode::Renew, body, &view); !parsed.ok()) {
    answer_unparsed(client, Opcode::Renew, id, parsed, body);
    return;
  }
  const uint64_t renewed = host.store().renew(client.owner_of(view.owner.owner), lease_until_us(host, view.until.hold_ms));
  answer_whole(client, Opcode::Renew, id,
               renewed > 0 ? AnswerReason{Answer::Ok, Reason::None} : AnswerReason{Answer::Miss, Reason::Absent});
}

// The target's own Final says what became of it; it comes before this one's.
void answer_cancel(Client& client, uint64_t id, ConstBytes body) {
  TlvSlot slots[] = {{Tlv::CancelTarget}};
  if (!take_tlvs(client, Opcode::Cancel, id, body, slots)) return;
  wire::CancelRecord cancel;
  if (!wire::parse_cancel(slots[0].value, &cancel).ok()) {
    answer_whole(client, Opcode::Cancel, id, {Answer::Rejected, Reason::Malformed},
                 "cancel: CancelTarget is missing or malformed");
    return;
  }
  Request* target = client.find(cancel.request_id);
  if (target != nullptr) target->end({Answer::Cancelled, Reason::None});
  answer_whole(client, Opcode::Cancel, id,
               target != nullptr ? AnswerReason{Answer::Ok, Reason::None} : AnswerReason{Answer::Miss, Reason::Absent});
}

// ---- delete, hold, release, expire -----------------------------------------------------------------------------------------

void ChangeRequest::start(Client& client, Opcode opcode, uint64_t id, ConstBytes body) {
  keep_body(body_, body);
  if (!admit_parsed(client, opcode, id, body_, sizeof(store::Change) + sizeof(AnswerReason), &view_, 0)) return;
  const uint32_t items = answers_.open(view_);
  lease_until_us_ = lease_until_us(host(), view_.until.hold_ms);
  refused_ = 0;
  changes_.assign(items, {});  // they stay where they are until the last is done
  const uint64_t holder = client.owner_of(view_.owner.owner);
  for (uint32_t number = 0; number < items; ++number) {
    store::Change& change = changes_[number];
    change.done = &ChangeRequest::on_changed;
    change.owner = this;
    change.tag = number;
    change.holder = holder;
  }
  open_ = items;
  begun_ = 0;
  retain(items);
  if (view_.section_count == 0) {
    begun_ = 1;
    return host().store().release_all(changes_[0]);
  }
  walk_.begin(view_);
  if (go_on()) client.leave_work(*this);
}

// May recycle the request: then nothing of it was left.
bool ChangeRequest::go_on() {
  const auto scope_of = [this](uint32_t s) { return client()->handles()[view_.sections[s].head.layout].scope; };
  if (!walk_.next(host().store(), view_, scope_of)) return false;
  const auto items = static_cast<uint32_t>(walk_.names().size());
  const bool more = begun_ + items < changes_.size();
  retain();
  for (uint32_t i = 0; i < items; ++i) {
    store::Change& change = changes_[begun_++];
    change.key = walk_.index_keys()[i];
    change.engine_key = walk_.names()[i].engine_key;
    change.component = walk_.names()[i].component;
    begin(change);
    change.engine_key = {};  // the request's body does not live as long
  }
  let_go();
  return more;
}

// What was not begun will not be.
void ChangeRequest::give_up_rest() {
  for (; begun_ < changes_.size(); ++begun_) let_go();
}

void ChangeRequest::begin(store::Change& change) {
  store::Store& store = host().store();
  switch (opcode()) {
    case Opcode::Delete: host().key_waiters().deleted(change.key); return store.remove(change);
    case Opcode::Release: return store.release(change);
    case Opcode::Expire: change.for_s = view_.expiry.ttl_s; return store.expire(change);
    default: break;
  }
  if ((view_.until.flags & wire::kHoldPersistent) != 0) {
    change.for_s = view_.until.hold_ms / 1000 + (view_.until.hold_ms % 1000 != 0 ? 1 : 0);
    return store.hold(change);
  }
  change.status = store.hold(change.key, change.holder, lease_until_us_);
  on_changed(change);
}

void ChangeRequest::on_changed(store::Change& change) {
  auto& request = *static_cast<ChangeRequest*>(change.owner);
  const AnswerReason status = answer_of(change.status);
  request.answers_[change.tag] = status;
  if (change.status == Code::Throttled && is_budget(change.status.detail())) request.refused_ = change.status.detail();
  if (--request.open_ == 0 && !request.finished()) request.end(status);
  request.let_go();
}

void ChangeRequest::end(AnswerReason with) {
  retain();
  give_up_rest();
  answers_.fill(with);
  Reply reply(*client(), id());
  if (opcode() == Opcode::Release) {  // holds that were not there are no failure: what is told is the first real one
    const auto failed = std::find_if(answers_.begin(), answers_.end(), [](AnswerReason a) { return a.answer != Answer::Ok; });
    const AnswerReason status = failed == answers_.end() ? AnswerReason{Answer::Ok, Reason::None} : *failed;
    host().counts().answer(Opcode::Release, status);
    reply.whole(status);
  } else {
    answers_.write(reply, host().counts(), opcode());
    if (refused_ != 0) reply.frame().tlv_bytes(Tlv::Reason, as_bytes(budget_sentence(refused_)));
  }
  reply.send();
  finish();
  let_go();
}

void ChangeRequest::recycle() {
  forget_body(body_);
  answers_.clear();
  changes_.clear();
  if (changes_.capacity() > kChangesKept) std::vector<store::Change>().swap(changes_);
  pool_.give(this);
}

}  // namespace halfstep::shard
