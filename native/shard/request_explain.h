// request_explain.h — a stat that asks about one key: what the store knows of it, as a JSON text for people and their tools.
// A text, not a structure: what is known of a block grows with the store, and no client decides anything by it.
// docs/wire-protocol.md has its fields.
// Thread: the shard's.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "shard/key_waiters.h"
#include "store/account/explain.h"

namespace halfstep::shard {

class Client;

// `question`: the value of the request's KeyQuestion.
void answer_explain(Client& client, uint64_t id, ConstBytes question);

// A block that is not there, and requests that wait for it: some of them, and how many there are.
struct Awaited {
  wire::LayoutId layout{};
  wire::Component component;
  uint32_t waiting = 0;
  std::vector<KeyWaiters::Waiter> waiters;
};

// now_us: on the shard's clock, as the waiters' times are.
std::string json_of(const store::Explanation& explanation, std::span<const Awaited> awaited, uint64_t now_us);

}  // namespace halfstep::shard
