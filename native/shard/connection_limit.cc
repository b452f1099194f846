#include "shard/connection_limit.h"

#include <string_view>
#include <unordered_map>

#include "shard/connection.h"

namespace halfstep::shard {

std::string peer_of(const net::Accepted& accepted) {
  if (accepted.is_unix) return "unix uid " + std::to_string(accepted.peer_uid);
  return accepted.peer.substr(0, accepted.peer.rfind(':'));
}

Connection* who_gives_way(std::span<const std::unique_ptr<Connection>> connections, const Connection& newcomer,
                          uint64_t now_us) {
  std::unordered_map<std::string_view, uint32_t> counts;
  for (const auto& connection : connections) {
    if (connection->stream().descriptor() >= 0) ++counts[connection->peer()];
  }
  Connection* out = nullptr;
  uint32_t most = 0;
  for (const auto& connection : connections) {
    if (connection.get() == &newcomer || !connection->idle()) continue;
    if (connection->asked() && connection->heard_us() + kIdleUsMin > now_us) continue;
    const uint32_t count = counts[connection->peer()];
    if (out != nullptr && (count < most || (count == most && connection->heard_us() >= out->heard_us()))) continue;
    out = connection.get();
    most = count;
  }
  return out;
}

}  // namespace halfstep::shard
