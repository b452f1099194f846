#include "shard/request_asked.h"

#include <algorithm>
#include <utility>

#include "shard/client.h"
#include "shard/commands.h"
#include "shard/reply.h"
#include "shard/request_host.h"
#include "shard/section_items.h"

namespace halfstep::shard {
namespace {

// Of the time that is left, what the answer may take: the rest is for what follows it. Without a deadline, so long.
constexpr uint64_t kMarginShare = 8;
constexpr uint64_t kWaitUsMax = 2'000'000;

// A new value for what the body's Batch says, which parse_request() has found.
void set_deadline(Bytes body, uint32_t deadline_us) noexcept {
  wire::TlvReader reader(body);
  wire::TlvView tlv;
  while (reader.next(&tlv)) {
    if (static_cast<wire::Tlv>(tlv.kind) != wire::Tlv::Batch) continue;
    store_le(body.data() + (tlv.value.data() - body.data()), deadline_us);
    return;
  }
}

}  // namespace

void AskedRequest::start(AsksFirst& store, Client& client, wire::Opcode opcode, uint64_t id, ConstBytes body) {
  keep_body(body_, body);
  constexpr size_t kItemBytes = sizeof(store::BlockName) + sizeof(store::IndexKey);
  if (!admit_parsed(client, opcode, id, body_, kItemBytes, &view_, kDeadlineUsDefault)) return;
  for (uint32_t s = 0; s < view_.section_count; ++s) {
    const uint32_t scope = client.handles()[view_.sections[s].head.layout].scope;
    for_items(host().store(), scope, view_.sections[s], [this](auto names, auto keys) {
      names_.insert(names_.end(), names.begin(), names.end());
      keys_.insert(keys_.end(), keys.begin(), keys.end());
      return true;
    });
  }
  const uint64_t left_us = std::min(deadline_us() - started_us(), kWaitUsMax);
  question_ = {.names = names_,
               .keys = keys_,
               .until_us = started_us() + left_us - left_us / kMarginShare,
               .done = &AskedRequest::on_answered,
               .owner = this};
  retain();
  if (store.ask(question_)) {
    store_ = &store;
  } else {
    begin_command();
    let_go();
  }
}

void AskedRequest::on_answered(Question& question) {
  auto& request = *static_cast<AskedRequest*>(question.owner);
  request.store_ = nullptr;
  request.begin_command();
  request.let_go();
}

// Under the same id: this one is not found by it any more.
void AskedRequest::begin_command() {
  Client& client = *this->client();
  const std::vector<std::byte> body = [this] {
    const uint64_t now_us = host().loop().now_us();
    const uint64_t left_us = deadline_us() > now_us ? deadline_us() - now_us : 1;
    if (view_.batch.deadline_us != 0) set_deadline(body_, static_cast<uint32_t>(left_us));
    return std::exchange(body_, {});
  }();
  finish();
  begin_known_command(pools_, client, opcode(), id(), body);
}

void AskedRequest::end(wire::AnswerReason with) {
  answer_whole(*client(), opcode(), id(), with);
  retain();
  forget();
  finish();
  let_go();
}

void AskedRequest::forget() noexcept {
  if (store_ == nullptr) return;
  std::exchange(store_, nullptr)->forget(question_);
  let_go();
}

void AskedRequest::recycle() {
  forget_body(body_);
  names_.clear();
  keys_.clear();
  pools_.asked.give(this);
}

}  // namespace halfstep::shard
