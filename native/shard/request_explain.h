// request_explain.h — a stat that asks about one key: what the store knows of it, as a JSON text for people and their tools.
// A text, not a structure: what is known of a block grows with the store, and no client decides anything by it.
// docs/wire-protocol.md has its fields.
// Thread: the shard's.
#pragma once

#include <string>

#include "base/bytes.h"
#include "store/account/explain.h"

namespace halfstep::shard {

class Client;

// `question`: the value of the request's KeyQuestion.
void answer_explain(Client& client, uint64_t id, ConstBytes question);

std::string json_of(const store::Explanation& explanation);

}  // namespace halfstep::shard
