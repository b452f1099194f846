// socket.h — addresses and sockets: TCP and unix, non-blocking, close-on-exec, with the options we want on both ends.
// Measured over loopback (docs/lab/congestion-control-on-loopback.md): cubic moves twice what bbr does there, so the congestion
// control is chosen per socket: cubic on loopback where the kernel has it, the system's choice elsewhere; facts report which.
#pragma once

#include <cstdint>
#include <string>

#include "base/status.h"

namespace halfstep::net {

// "127.0.0.1:7350", "[::1]:7350", "name:7350", "unix:/run/halfstep/halfstep.sock"
struct Address {
  bool is_unix = false;
  std::string host;  // or the path
  uint16_t port = 0;
  static Fault parse(const std::string& text, Address* out);
  std::string text() const;
  bool loopback() const;  // unix counts as such
};

// Where shard `shard` of a daemon listens whose first one listens on the unix socket `path`.
std::string unix_path_of_shard(const std::string& path, uint32_t shard);

// A listening socket. A busy port or path is named with its holder where that can be found; a stale unix socket (nobody
// accepts on it) is replaced. `bound` gets the real port when 0 was asked for.
Fault listen_on(const Address& address, int* descriptor, Address* bound);

bool is_unix_socket(int descriptor) noexcept;

// The file of a listening unix socket: nothing for TCP.
class SocketFile {
 public:
  explicit SocketFile(int descriptor);
  // Removes it if it is still this socket's. Call it while the socket is open: until then no other file has its number.
  void remove() noexcept;

 private:
  std::string path_;
  uint64_t device_ = 0;
  uint64_t inode_ = 0;
};

// Accepts one; Throttled when none waits; NoSpace when this process or the system is out of descriptors or memory: the caller
// stops watching the listener for a while, or epoll would call at once again. `peer_loopback` and `peer_uid` (unix:
// SO_PEERCRED, else -1) describe the caller.
struct Accepted {
  int descriptor = -1;
  bool is_unix = false;
  bool peer_loopback = false;
  int64_t peer_uid = -1;
  std::string peer;
};
Status accept_on(int listener, Accepted* out);

// Starts to connect; the caller waits for EPOLLOUT, then asks connect_result(). Resolving a name (not a number) may block.
Fault start_connect(const Address& address, int* descriptor);
Status connect_result(int descriptor) noexcept;

std::string congestion_control(int descriptor);

}  // namespace halfstep::net
