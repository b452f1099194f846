// unanswered.h — what a request says of a block that the store could not give, and of one about which a store whose blocks are
// elsewhere (asks_first.h) was told nothing. Thread: the shard's.
#pragma once

#include "base/status.h"
#include "shard/asks_first.h"
#include "store/store.h"
#include "wire/names.h"
#include "wire/records.h"

namespace halfstep::shard {

// The store, where its blocks are not its own; else null.
inline const AsksFirst* elsewhere_of(const store::Store& store) noexcept { return dynamic_cast<const AsksFirst*>(&store); }

// Of one that find() does not find.
inline wire::AnswerReason answer_of_absent(const AsksFirst* elsewhere, const store::IndexKey& key) noexcept {
  if (elsewhere != nullptr && elsewhere->unanswered(key)) return {wire::Answer::Unavailable, wire::Reason::Upstream};
  return {wire::Answer::Miss, wire::Reason::Absent};
}

// Of a Code::IoError.
inline wire::AnswerReason answer_of_io_error(Status status) noexcept {
  return {wire::Answer::Unavailable, status.detail() == kNoAnswer ? wire::Reason::Upstream : wire::Reason::Media};
}

}  // namespace halfstep::shard
