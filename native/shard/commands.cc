#include "shard/commands.h"

#include "shard/client.h"
#include "shard/placement.h"
#include "shard/reply.h"
#include "shard/request_host.h"

namespace halfstep::shard {

using wire::Opcode;

bool RequestPools::trim() {
  bool freed = false;
  const auto each = [&freed](auto&... pools) { ((freed = pools.trim() || freed), ...); };
  each(gets.requests, gets.items, gets.chunks, puts.requests, puts.items, matches, prefetches, changes, store_calls, asked);
  return freed;
}

bool RequestPools::idle() const noexcept {
  const auto none = [](const auto&... pools) { return (pools.taken() + ...) == 0; };
  return none(gets.requests, gets.items, gets.chunks, puts.requests, puts.items, matches, prefetches, changes, store_calls,
              asked);
}

void begin_command(RequestPools& pools, Client& client, Opcode opcode, uint64_t id, ConstBytes body) {
  if (pools.elsewhere == nullptr) return begin_known_command(pools, client, opcode, id, body);
  switch (opcode) {
    case Opcode::Match:
    case Opcode::Get:
    case Opcode::Prefetch:
    case Opcode::Touch:
    case Opcode::Hold: return pools.asked.take(pools)->start(*pools.elsewhere, client, opcode, id, body);
    case Opcode::List:
    case Opcode::Namespace:
      return answer_whole(client, opcode, id, {wire::Answer::Rejected, wire::Reason::Unsupported},
                          "a mount does not pass this command on: ask the daemon behind it");
    default: return begin_known_command(pools, client, opcode, id, body);
  }
}

void begin_known_command(RequestPools& pools, Client& client, Opcode opcode, uint64_t id, ConstBytes body) {
  switch (opcode) {
    case Opcode::Get: return pools.gets.requests.take(pools.gets)->start(client, id, body);
    case Opcode::Match: return answer_match(client, pools.matches, id, body);
    case Opcode::Prefetch: return pools.prefetches.take(pools.prefetches)->start(client, id, body);
    case Opcode::Put: return pools.puts.requests.take(pools.puts)->start(client, id, body);
    case Opcode::Delete:
    case Opcode::Hold:
    case Opcode::Release:
    case Opcode::Expire: return pools.changes.take(pools.changes)->start(client, opcode, id, body);
    case Opcode::RegisterLayout: return register_layout(client, pools.store_calls, id, body);
    case Opcode::Namespace: return change_namespace(client, pools.store_calls, id, body);
    case Opcode::Clear: return clear_layout(client, pools.store_calls, id, body);
    default: break;
  }
  net::Loop& loop = client.host().loop();
  const uint64_t began_us = loop.now_us();
  switch (opcode) {
    case Opcode::Touch: answer_touch(client, id, body); break;
    case Opcode::Renew: answer_renew(client, id, body); break;
    case Opcode::Cancel: answer_cancel(client, id, body); break;
    case Opcode::List: answer_list(client, pools.store_calls, id, body); break;
    case Opcode::Stat: answer_stat(client, id, body); break;
    case Opcode::LayoutOf: answer_layout_of(client, id, body); break;
    case Opcode::RegisterRegion: register_region(client, id, body); break;
    case Opcode::RegisterTemplate: register_template(client, id, body); break;
    default:
      answer_whole(client, opcode, id, {wire::Answer::Rejected, wire::Reason::Unsupported},
                   "this server does not have this command");
      break;
  }
  client.host().counts().latency(opcode, loop.now_us() - began_us);
}

}  // namespace halfstep::shard
