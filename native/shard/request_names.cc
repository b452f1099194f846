#include "shard/request_names.h"

#include <string>

#include "shard/client.h"
#include "shard/reply.h"
#include "shard/request_host.h"

namespace halfstep::shard {

using wire::Answer;
using wire::AnswerReason;
using wire::Opcode;
using wire::Reason;

namespace {

bool all_routed_here(const RequestHost& host, const wire::RequestView& view) {
  const wire::HelloServer& hello = host.hello();
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

}  // namespace

void answer_wrong_shard(Client& client, Opcode command, uint64_t id) {
  constexpr AnswerReason kStatus{Answer::Rejected, Reason::WrongShard};
  RequestHost& host = client.host();
  host.counts().answer(command, kStatus);
  Reply reply(client, id);
  reply.whole(kStatus, "a key of this request belongs to another shard; the map says where each is");
  client.write_shard_map(reply.frame());
  reply.send();
}

bool check_names(Client& client, Opcode command, uint64_t request_id, const wire::RequestView& view) {
  RequestHost& host = client.host();
  for (uint32_t s = 0; s < view.section_count; ++s) {
    const uint32_t handle = view.sections[s].head.layout;
    if (handle >= client.handles().size()) {
      answer_whole(client, command, request_id, {Answer::Rejected, Reason::UnknownLayout},
                   "section " + std::to_string(s) + ": layout=" + std::to_string(handle) +
                       " is no handle of this connection; register the layout first");
      return false;
    }
    Client::Handle& named = client.handles()[handle];
    const wire::Layout* layout = host.store().layout_of(named.scope);
    if (layout == nullptr) {  // one that was cleared has a new scope, and is as good as before
      named.scope = host.store().find_scope(client.name_space(), named.layout);
      layout = host.store().layout_of(named.scope);
    }
    if (layout == nullptr) {
      answer_whole(client, command, request_id, {Answer::Rejected, Reason::UnknownLayout},
                   "section " + std::to_string(s) +
                       ": its layout was given up for another, or its namespace deleted; register it again");
      return false;
    }
    const uint32_t group = wire::Component{view.sections[s].head.first_component}.group();
    if (group >= layout->groups().size()) {
      answer_whole(client, command, request_id, {Answer::Rejected, Reason::Malformed},
                   "section " + std::to_string(s) + ": group " + std::to_string(group) + ": its layout has " +
                       std::to_string(layout->groups().size()));
      return false;
    }
  }
  if (all_routed_here(host, view)) return true;
  answer_wrong_shard(client, command, request_id);
  return false;
}

}  // namespace halfstep::shard
