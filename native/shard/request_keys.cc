#include "shard/request_keys.h"

#include <algorithm>
#include <array>
#include <span>
#include <string>

#include "shard/connection.h"
#include "shard/reply.h"
#include "shard/section_items.h"
#include "shard/shard.h"
#include "shard/tlvs.h"

namespace halfstep::shard {

using wire::Answer;
using wire::AnswerReason;
using wire::Opcode;
using wire::Reason;
using wire::Tlv;

namespace {

bool all_routed_here(const Shard& shard, const wire::RequestView& view) {
  const wire::HelloServer& hello = shard.hello();
  if (hello.shards == 1) return true;
  for (uint32_t s = 0; s < view.section_count; ++s) {
    wire::KeyCursor keys(view.sections[s].keys);
    ConstBytes key;
    while (keys.next(&key)) {
      if (wire::route(key, hello.shards) != hello.shard) return false;
    }
  }
  return true;
}

// When a lease of so many milliseconds from now ends.
uint64_t lease_until_us(Shard& shard, uint64_t hold_ms) {
  return shard.loop().now_us() + std::min<uint64_t>(hold_ms, shard.hello().lease_ms_max) * 1000;
}

bool is_budget(int32_t detail) noexcept {
  return detail == store::kThrottledPins || detail == store::kThrottledLeases || detail == store::kThrottledHolds;
}

// For people.
const char* budget_sentence(int32_t detail) noexcept {
  switch (detail) {
    case store::kThrottledLeases:
      return "this namespace leases as many bytes as it may: half of its quota, and what others leave of three quarters of the "
             "store; release leases, or let them end";
    case store::kThrottledHolds:
      return "this namespace has as many holds as others leave of the table (holds_max): release some, or let them end";
    case store::kThrottledPins: return "the pin budget of this namespace is used up: release pins, or have it raised";
    default: return "";
  }
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
    default: return {Answer::Unavailable, Reason::Media};
  }
}

// What a match says of one section.
struct Matched {
  std::vector<std::byte> bits;
  std::vector<uint32_t> lengths;
  std::vector<std::pair<uint32_t, AnswerReason>> unheld;  // there, but the hold that was asked for was refused
  uint32_t keys = 0;
  int32_t why_unheld = 0;  // of the last one
};

Matched match_section(Connection& connection, const wire::Batch& batch, const wire::SectionView& section, uint64_t until_us) {
  Shard& shard = connection.shard();
  store::Store& store = shard.store();
  const uint32_t scope = connection.handles()[section.head.layout].scope;
  Matched out;
  out.bits.assign((section.head.key_count + 7) / 8, std::byte{0});
  out.lengths.assign(section.item_count(), 0);
  const bool stops = (section.head.flags & wire::kSectionStopAtMiss) != 0;
  const uint32_t cells = section.head.component_count;
  uint32_t present = 0;
  const uint64_t owner = batch.hold_owner != 0 ? connection.owner_of(batch.hold_owner) : 0;
  const bool decodable = (batch.flags & wire::kBatchDecodable) != 0;
  const uint64_t codecs = decodable ? connection.codecs() : store::kAllCodecs;
  const auto take = [&](uint32_t item, const store::Sought& sought, const store::Found& found) {
    if (item % cells == 0) present = 0;
    if (found.present) {
      ++present;
      out.lengths[item] = found.block_bytes;
      const Status held = batch.hold_owner != 0 ? store.hold(sought.key, owner, until_us) : Status();
      if (!held.ok()) {
        out.unheld.emplace_back(item, AnswerReason{Answer::Throttled, Reason::Budget});
        out.why_unheld = held.detail();
      }
    }
    if (item % cells != cells - 1) return true;
    const uint32_t k = item / cells;
    if (present == cells) {
      out.bits[k / 8] |= std::byte{1} << (k % 8);
      ++out.keys;
    }
    return !stops || present == cells;
  };
  // Many at once: the index waits for memory, not for one key after the other.
  std::array<store::Sought, kItemsAtOnce> sought;
  std::array<store::Found, kItemsAtOnce> found;
  uint32_t taken = 0;
  for_items(store, scope, section, [&](auto names, auto index_keys) {
    for (size_t i = 0; i < names.size(); ++i) {
      sought[i] = {index_keys[i], names[i].component};
      sought[i].codecs = codecs;
    }
    store.find_many(std::span(sought).first(names.size()), std::span(found).first(names.size()));
    for (size_t i = 0; i < names.size(); ++i) {
      if (!take(taken++, sought[i], found[i])) return false;
    }
    return true;
  });
  return out;
}

void write_matched(Reply& reply, uint16_t s, const wire::SectionView& section, const wire::Batch& batch,
                   const Matched& matched) {
  Writer& out = reply.frame().value();
  reply.frame().open_tlv(Tlv::MatchBits);
  out.put(s);
  out.put(uint16_t{0});
  out.put(section.head.key_count);
  out.put_bytes(matched.bits);
  reply.frame().close_tlv();
  if ((batch.flags & wire::kBatchLengths) != 0) {
    reply.frame().open_tlv(Tlv::Lengths);
    out.put(s);
    out.put(uint16_t{0});
    out.put(uint32_t{0});
    out.put(static_cast<uint32_t>(matched.lengths.size()));
    out.put(uint32_t{0});
    out.put_all(std::span<const uint32_t>(matched.lengths));
    reply.frame().close_tlv();
  }
  if (matched.unheld.empty()) return;
  wire::StatusWriter statuses(reply.frame(), s, 0);
  for (const auto& [item, status] : matched.unheld) statuses.add(item, status);
  statuses.close();
}

}  // namespace

void answer_wrong_shard(Connection& connection, Opcode command, uint64_t id) {
  constexpr AnswerReason kStatus{Answer::Rejected, Reason::WrongShard};
  Shard& shard = connection.shard();
  shard.counts().answer(command, kStatus);
  Reply reply(connection, id);
  reply.whole(kStatus, "a key of this request belongs to another shard; the map says where each is");
  connection.write_shard_map(reply.frame());
  reply.send();
}

bool check_names(Connection& connection, Opcode command, uint64_t request_id, const wire::RequestView& view) {
  Shard& shard = connection.shard();
  for (uint32_t s = 0; s < view.section_count; ++s) {
    const uint32_t handle = view.sections[s].head.layout;
    if (handle >= connection.handles().size()) {
      answer_whole(connection, command, request_id, {Answer::Rejected, Reason::UnknownLayout},
                   "section " + std::to_string(s) + ": layout=" + std::to_string(handle) +
                       " is no handle of this connection; register the layout first");
      return false;
    }
    Connection::Handle& named = connection.handles()[handle];
    const wire::Layout* layout = shard.store().layout_of(named.scope);
    if (layout == nullptr) {  // one that was cleared has a new scope, and is as good as before
      named.scope = shard.store().find_scope(connection.name_space(), named.layout);
      layout = shard.store().layout_of(named.scope);
    }
    if (layout == nullptr) {
      answer_whole(connection, command, request_id, {Answer::Rejected, Reason::UnknownLayout},
                   "section " + std::to_string(s) +
                       ": its layout was given up for another, or its namespace deleted; register it again");
      return false;
    }
    const uint32_t group = wire::Component{view.sections[s].head.first_component}.group();
    if (group >= layout->groups().size()) {
      answer_whole(connection, command, request_id, {Answer::Rejected, Reason::Malformed},
                   "section " + std::to_string(s) + ": group " + std::to_string(group) + ": its layout has " +
                       std::to_string(layout->groups().size()));
      return false;
    }
  }
  if (all_routed_here(shard, view)) return true;
  answer_wrong_shard(connection, command, request_id);
  return false;
}

// ---- match ---------------------------------------------------------------------------------------------------------------

void answer_match(Connection& connection, uint64_t id, ConstBytes body) {
  Shard& shard = connection.shard();
  wire::RequestView& view = shard.request_view();
  if (const Status parsed = wire::parse_request(Opcode::Match, body, &view); !parsed.ok()) {
    answer_unparsed(connection, Opcode::Match, id, parsed, body);
    return;
  }
  if (!check_names(connection, Opcode::Match, id, view)) return;
  const uint64_t until_us = lease_until_us(shard, view.batch.hold_ms);
  Reply reply(connection, id);
  int32_t why_unheld = 0;
  for (uint32_t s = 0; s < view.section_count; ++s) {
    const wire::SectionView& section = view.sections[s];
    const Matched matched = match_section(connection, view.batch, section, until_us);
    shard.counts().answer(Opcode::Match, {Answer::Ok, Reason::Present}, matched.keys);
    shard.counts().answer(Opcode::Match, {Answer::Miss, Reason::Absent}, section.head.key_count - matched.keys);
    write_matched(reply, static_cast<uint16_t>(s), section, view.batch, matched);
    if (!matched.unheld.empty()) why_unheld = matched.why_unheld;
  }
  if (why_unheld != 0) reply.frame().tlv_bytes(Tlv::Reason, as_bytes(budget_sentence(why_unheld)));
  reply.send();
}

// ---- touch, renew, cancel ------------------------------------------------------------------------------------------------

void answer_touch(Connection& connection, uint64_t id, ConstBytes body) {
  Shard& shard = connection.shard();
  wire::RequestView& view = shard.request_view();
  if (const Status parsed = wire::parse_request(Opcode::Touch, body, &view); !parsed.ok()) {
    answer_unparsed(connection, Opcode::Touch, id, parsed, body);
    return;
  }
  if (!check_names(connection, Opcode::Touch, id, view)) return;
  std::array<store::Sought, kItemsAtOnce> sought;
  std::array<store::Found, kItemsAtOnce> found;
  std::vector<store::IndexKey> there;
  Reply reply(connection, id);
  for (uint32_t s = 0; s < view.section_count; ++s) {
    const uint32_t scope = connection.handles()[view.sections[s].head.layout].scope;
    wire::StatusWriter statuses(reply.frame(), static_cast<uint16_t>(s), 0);
    uint32_t item = 0;
    for_items(shard.store(), scope, view.sections[s], [&](auto names, auto index_keys) {
      std::copy(index_keys.begin(), index_keys.end(), sought.begin());
      shard.store().find_many(std::span(sought).first(names.size()), std::span(found).first(names.size()));
      for (size_t i = 0; i < names.size(); ++i) {
        if (found[i].present) there.push_back(index_keys[i]);
        const AnswerReason status =
            found[i].present ? AnswerReason{Answer::Ok, Reason::Present} : AnswerReason{Answer::Miss, Reason::Absent};
        shard.counts().answer(Opcode::Touch, status);
        statuses.add(item++, status);
      }
      return true;
    });
    statuses.close();
  }
  shard.store().touch(there);
  reply.send();
}

void answer_renew(Connection& connection, uint64_t id, ConstBytes body) {
  Shard& shard = connection.shard();
  wire::RequestView& view = shard.request_view();
  if (const Status parsed = wire::parse_request(Opcode::Renew, body, &view); !parsed.ok()) {
    answer_unparsed(connection, Opcode::Renew, id, parsed, body);
    return;
  }
  const uint64_t renewed =
      shard.store().renew(connection.owner_of(view.owner.owner), lease_until_us(shard, view.until.hold_ms));
  answer_whole(connection, Opcode::Renew, id,
               renewed > 0 ? AnswerReason{Answer::Ok, Reason::None} : AnswerReason{Answer::Miss, Reason::Absent});
}

// The target's own Final says what became of it; it comes before this one's.
void answer_cancel(Connection& connection, uint64_t id, ConstBytes body) {
  TlvSlot slots[] = {{Tlv::CancelTarget}};
  if (!take_tlvs(connection, Opcode::Cancel, id, body, slots)) return;
  wire::CancelRecord cancel;
  if (!wire::parse_cancel(slots[0].value, &cancel).ok()) {
    answer_whole(connection, Opcode::Cancel, id, {Answer::Rejected, Reason::Malformed},
                 "cancel: CancelTarget is missing or malformed");
    return;
  }
  Request* target = connection.find(cancel.request_id);
  if (target != nullptr) target->end({Answer::Cancelled, Reason::None});
  answer_whole(connection, Opcode::Cancel, id,
               target != nullptr ? AnswerReason{Answer::Ok, Reason::None} : AnswerReason{Answer::Miss, Reason::Absent});
}

// ---- delete, hold, release, expire -----------------------------------------------------------------------------------------

void ChangeRequest::start(Connection& connection, Opcode opcode, uint64_t id, ConstBytes body) {
  keep_body(body_, body);
  if (!admit_parsed(connection, opcode, id, body_, sizeof(store::Change) + sizeof(AnswerReason), &view_, 0)) return;
  const uint32_t items = answers_.open(view_);
  lease_until_us_ = lease_until_us(shard(), view_.until.hold_ms);
  refused_ = 0;
  changes_.assign(items, {});  // they stay where they are until the last is done
  const uint64_t holder = connection.owner_of(view_.owner.owner);
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
    return shard().store().release_all(changes_[0]);
  }
  walk_.begin(view_);
  if (go_on()) connection.leave_work(*this);
}

// May recycle the request: then nothing of it was left.
bool ChangeRequest::go_on() {
  const auto scope_of = [this](uint32_t s) { return connection()->handles()[view_.sections[s].head.layout].scope; };
  if (!walk_.next(shard().store(), view_, scope_of)) return false;
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
  store::Store& store = shard().store();
  switch (opcode()) {
    case Opcode::Delete: return store.remove(change);
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
  Reply reply(*connection(), id());
  if (opcode() == Opcode::Release) {  // holds that were not there are no failure: what is told is the first real one
    const auto failed = std::find_if(answers_.begin(), answers_.end(), [](AnswerReason a) { return a.answer != Answer::Ok; });
    const AnswerReason status = failed == answers_.end() ? AnswerReason{Answer::Ok, Reason::None} : *failed;
    shard().counts().answer(Opcode::Release, status);
    reply.whole(status);
  } else {
    answers_.write(reply, shard().counts(), opcode());
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
  shard().changes().give(this);
}

}  // namespace halfstep::shard
