#include "shard/request_match.h"

#include <algorithm>
#include <array>
#include <span>
#include <utility>

#include "shard/client.h"
#include "shard/lease_bounds.h"
#include "shard/reply.h"
#include "shard/request_host.h"
#include "shard/request_names.h"
#include "shard/unanswered.h"

namespace halfstep::shard {

using wire::Answer;
using wire::AnswerReason;
using wire::Opcode;
using wire::Reason;
using wire::Tlv;

namespace {

// What a match says of one section.
struct Matched {
  std::vector<std::byte> bits;
  std::vector<uint32_t> lengths;
  // Items that are there, but the hold that was asked for was refused; and those about which nobody could be asked.
  std::vector<std::pair<uint32_t, AnswerReason>> said;
  uint32_t keys = 0;
  uint32_t keys_unanswered = 0;
  int32_t why_unheld = 0;  // of the last one
};

Matched match_section(Client& client, const wire::Batch& batch, const wire::SectionView& section, uint64_t until_us) {
  RequestHost& host = client.host();
  store::Store& store = host.store();
  const AsksFirst* const elsewhere = elsewhere_of(store);
  const uint32_t scope = client.handles()[section.head.layout].scope;
  Matched out;
  out.bits.assign((section.head.key_count + 7) / 8, std::byte{0});
  out.lengths.assign(section.item_count(), 0);
  const bool stops = (section.head.flags & wire::kSectionStopAtMiss) != 0;
  const uint32_t cells = section.head.component_count;
  uint32_t present = 0;
  bool unanswered = false;
  const uint64_t owner = batch.hold_owner != 0 ? client.owner_of(batch.hold_owner) : 0;
  const bool decodable = (batch.flags & wire::kBatchDecodable) != 0;
  const uint64_t codecs = decodable ? host.readable_codecs(client.codecs()) : store::kAllCodecs;
  const auto take = [&](uint32_t item, const store::Sought& sought, const store::Found& found) {
    if (item % cells == 0) {
      present = 0;
      unanswered = false;
    }
    if (found.present) {
      ++present;
      out.lengths[item] = found.block_bytes;
      const Status held = batch.hold_owner != 0 ? store.hold(sought.key, owner, until_us) : Status();
      if (!held.ok()) {
        out.said.emplace_back(item, AnswerReason{Answer::Throttled, Reason::Budget});
        out.why_unheld = held.detail();
      }
    } else if (elsewhere != nullptr && elsewhere->unanswered(sought.key)) {
      unanswered = true;
      out.said.emplace_back(item, answer_of_absent(elsewhere, sought.key));
    }
    if (item % cells != cells - 1) return true;
    const uint32_t k = item / cells;
    if (present == cells) {
      out.bits[k / 8] |= std::byte{1} << (k % 8);
      ++out.keys;
    } else if (unanswered) {
      ++out.keys_unanswered;
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
  if (matched.said.empty()) return;
  wire::StatusWriter statuses(reply.frame(), s, 0);
  for (const auto& [item, status] : matched.said) statuses.add(item, status);
  statuses.close();
}

void say_matched(Client& client, uint64_t id, const wire::RequestView& view) {
  RequestHost& host = client.host();
  const uint64_t until_us = lease_until_us(host, view.batch.hold_ms);
  Reply reply(client, id);
  int32_t why_unheld = 0;
  for (uint32_t s = 0; s < view.section_count; ++s) {
    const wire::SectionView& section = view.sections[s];
    const Matched matched = match_section(client, view.batch, section, until_us);
    host.counts().answer(Opcode::Match, {Answer::Ok, Reason::Present}, matched.keys);
    const uint32_t absent = section.head.key_count - matched.keys - matched.keys_unanswered;
    host.counts().answer(Opcode::Match, {Answer::Miss, Reason::Absent}, absent);
    host.counts().answer(Opcode::Match, {Answer::Unavailable, wire::Reason::Upstream}, matched.keys_unanswered);
    write_matched(reply, static_cast<uint16_t>(s), section, view.batch, matched);
    if (matched.why_unheld != 0) why_unheld = matched.why_unheld;
  }
  if (why_unheld != 0) reply.frame().tlv_bytes(Tlv::Reason, as_bytes(budget_sentence(why_unheld)));
  reply.send();
}

}  // namespace

void answer_match(Client& client, Pool<MatchRequest>& pool, uint64_t id, ConstBytes body) {
  RequestHost& host = client.host();
  const uint64_t began_us = host.loop().now_us();
  wire::RequestView& view = host.request_view();
  if (const Status parsed = wire::parse_request(Opcode::Match, body, &view); !parsed.ok()) {
    answer_unparsed(client, Opcode::Match, id, parsed, body);
  } else if ((view.batch.flags & wire::kBatchWait) != 0) {
    return pool.take(pool)->start(client, id, body);
  } else if (check_names(client, Opcode::Match, id, view)) {
    say_matched(client, id, view);
  }
  host.counts().latency(Opcode::Match, host.loop().now_us() - began_us);
}

// ---- One that waits ------------------------------------------------------------------------------------------------------

void MatchRequest::start(Client& client, uint64_t id, ConstBytes body) {
  keep_body(body_, body);
  // What an answer says of each is made when it is made.
  if (!admit_parsed(client, Opcode::Match, id, body_, sizeof(uint32_t), &view_, kDeadlineUsDefault)) return;
  scopes_.clear();
  for (uint32_t s = 0; s < view_.section_count; ++s) {
    scopes_.push_back(client.handles()[view_.sections[s].head.layout].scope);
  }
  walk_.begin(view_);
  at_ = 0;
  wait_.owner = this;
  // The first names are gathered by look().
  (void)walk_.next(host().store(), view_, [this](uint32_t s) { return scopes_[s]; });
  (void)look();
}

uint32_t MatchRequest::look() {
  store::Store& store = host().store();
  std::array<store::Sought, kItemsAtOnce> sought;
  std::array<store::Found, kItemsAtOnce> found;
  const bool decodable = (view_.batch.flags & wire::kBatchDecodable) != 0;
  uint32_t looked = 0;
  for (;;) {
    const size_t count = walk_.names().size() - at_;
    for (size_t i = 0; i < count; ++i) {
      sought[i] = {walk_.index_keys()[at_ + i], walk_.names()[at_ + i].component};
      sought[i].codecs = decodable ? host().readable_codecs(client()->codecs()) : store::kAllCodecs;
    }
    store.find_many(std::span(sought).first(count), std::span(found).first(count));
    looked += static_cast<uint32_t>(count);
    const auto absent = std::find_if(found.begin(), found.begin() + static_cast<ptrdiff_t>(count),
                                     [](const store::Found& one) { return !one.present; });
    at_ += static_cast<size_t>(absent - found.begin());
    if (at_ != walk_.names().size()) {
      if (is_hopeless()) break;  // this layout may have gone while it waited for a block of another
      wait_.key = walk_.index_keys()[at_];
      if (charge_wait()) {
        host().key_waiters().park(wait_);
      } else {
        ++host().key_waiters().counts().refused;
        answer_whole_and_finish({Answer::Throttled, Reason::Budget},
                                "requests that wait for blocks have as much of this shard's memory as this connection leaves "
                                "others: ask again when some have ended, or do not wait");
      }
      return looked;
    }
    at_ = 0;
    if (!walk_.next(store, view_, [this](uint32_t s) { return scopes_[s]; })) break;
  }
  answer();
  return 2 * looked;
}

// Its layout was cleared, or its namespace deleted: what it waits for will never be there.
bool MatchRequest::is_hopeless() const noexcept { return host().store().layout_of(scopes_[walk_.section()]) == nullptr; }

uint32_t MatchRequest::woken(KeyWaiters::Wait&, KeyWaiters::Why why) {
  const uint64_t began_us = host().loop().now_us();
  Client& of = *client();
  RequestHost& shard = host();
  uint32_t looked = 1;
  const bool there = why != KeyWaiters::Why::Deleted && shard.store().find(wait_.key).present;
  if (why == KeyWaiters::Why::Stopping) {
    answer_whole_and_finish({Answer::Unavailable, Reason::Stopping}, "the daemon is stopping");
  } else if (there || (why == KeyWaiters::Why::LookAgain && !is_hopeless())) {
    looked = look();
  } else {
    answer();
  }
  of.charge(shard.loop().now_us() - began_us);
  return looked;
}

// What is there now.
void MatchRequest::answer() {
  say_matched(*client(), id(), view_);
  finish();
}

void MatchRequest::end(AnswerReason with) {
  KeyWaiters& waiters = host().key_waiters();
  const bool late = with.answer == Answer::Late;
  ++(late ? waiters.counts().expired : waiters.counts().ended);
  waiters.leave(wait_);
  if (late) return answer();
  answer_whole_and_finish(with, {});
}

void MatchRequest::answer_whole_and_finish(AnswerReason with, std::string_view reason) {
  answer_whole(*client(), Opcode::Match, id(), with, reason);
  finish();
}

void MatchRequest::on_drop() {
  ++host().key_waiters().counts().ended;
  host().key_waiters().leave(wait_);
}

void MatchRequest::recycle() {
  forget_body(body_);
  scopes_.clear();
  pool_.give(this);
}

}  // namespace halfstep::shard
