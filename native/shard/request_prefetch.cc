#include "shard/request_prefetch.h"

#include <algorithm>
#include <string>

#include "shard/client.h"
#include "shard/reply.h"
#include "shard/request_host.h"
#include "shard/section_items.h"
#include "shard/unanswered.h"
#include "wire/prefetch_kind.h"

namespace halfstep::shard {

using wire::Answer;
using wire::AnswerReason;
using wire::Opcode;
using wire::Reason;

namespace {

AnswerReason answer_of(const store::Stage& stage) noexcept {
  switch (stage.status.code()) {
    case Code::Ok: return {Answer::Ok, stage.was_there ? Reason::Present : Reason::None};
    case Code::NotFound: return {Answer::Miss, Reason::Absent};
    case Code::Corrupt: return {Answer::Miss, Reason::Corrupt};
    case Code::Throttled: return {Answer::Throttled, Reason::Budget};
    case Code::TooLarge: return {Answer::Rejected, Reason::TooLarge};
    case Code::IoError: return answer_of_io_error(stage.status);
    default: return {Answer::Unavailable, Reason::Media};
  }
}

}  // namespace

void PrefetchRequest::start(Client& client, uint64_t id, ConstBytes body) {
  wire::RequestView& view = client.host().request_view();
  if (!admit_parsed(client, Opcode::Prefetch, id, body, sizeof(store::Stage) + sizeof(AnswerReason), &view, kDeadlineUsDefault))
    return;
  const uint32_t items = answers_.open(view);
  uint64_t& all_open = host().counts().stages_open;
  if (all_open + items > kStagesMax) {
    answer_whole(client, Opcode::Prefetch, id, {Answer::Throttled, Reason::Load},
                 std::to_string(all_open) + " blocks wait to be brought into memory; at most " + std::to_string(kStagesMax) +
                     ": ask again when some have come");
    finish();
    return;
  }
  all_open += items;
  stages_.assign(items, {});
  open_ = items;
  retain(items);
  const uint64_t keep_ms = std::min<uint64_t>(view.until.hold_ms, host().hello().lease_ms_max);
  uint32_t number = 0;
  for (uint32_t s = 0; s < view.section_count; ++s) {
    const wire::SectionView& section = view.sections[s];
    const uint32_t scope = client.handles()[section.head.layout].scope;
    for_items(host().store(), scope, section, [&](auto names, auto index_keys) {
      for (size_t i = 0; i < names.size(); ++i) {
        store::Stage& stage = stages_[number];
        stage.component = names[i].component;
        stage.key = index_keys[i];
        stage.priority = view.batch.priority;
        stage.kind = wire::prefetch_kind_of(view.until);
        stage.follow = (view.batch.flags & wire::kBatchFollow) != 0;
        stage.keep_us = keep_ms * 1000;
        stage.done = &PrefetchRequest::on_staged;
        stage.owner = this;
        stage.tag = number++;
        host().store().stage(stage);
      }
      return true;
    });
  }
}

void PrefetchRequest::on_staged(store::Stage& stage) {
  auto& request = *static_cast<PrefetchRequest*>(stage.owner);
  AnswerReason& answer = request.answers_[stage.tag];
  --request.host().counts().stages_open;
  --request.open_;
  if (answer.answer == Answer::Pending) answer = answer_of(stage);
  if (request.open_ == 0 && !request.finished()) request.end(answer);
  request.let_go();
}

// May recycle the request, unless its caller holds it.
void PrefetchRequest::withdraw() {
  retain();
  for (store::Stage& stage : stages_) {
    if (!host().store().withdraw(stage)) continue;
    --host().counts().stages_open;
    --open_;
    let_go();
  }
  let_go();
}

void PrefetchRequest::end(AnswerReason with) {
  retain();
  withdraw();
  answers_.fill(with);
  Reply reply(*client(), id());
  answers_.write(reply, host().counts(), Opcode::Prefetch);
  reply.send();
  finish();
  let_go();
}

void PrefetchRequest::recycle() {
  answers_.clear();
  stages_.clear();
  if (stages_.capacity() > kStagesKept) std::vector<store::Stage>().swap(stages_);
  pool_.give(this);
}

}  // namespace halfstep::shard
