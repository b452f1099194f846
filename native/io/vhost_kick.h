// vhost_kick.h — tells a vhost-user target that its queue has something new: eight bytes through a socket pair, in place of the
// eventfd that the protocol's text has. Whoever reads eight bytes from an eventfd reads them from a socket, too.
// Of an eventfd the target would have the same open file: it could clear O_NONBLOCK and fill it, and a kick would wait for it.
// Invariants: of a pair each end has its own flags, and of this end nobody else has a descriptor; kick() never waits. What the
// target writes into its end is never read. Thread: one at a time.
#pragma once

#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>

namespace halfstep::io {

class VhostKick {
 public:
  VhostKick() = default;
  ~VhostKick() { close(); }
  VhostKick(const VhostKick&) = delete;
  VhostKick& operator=(const VhostKick&) = delete;

  // Anew: nothing of the pair before is used any more. 0 or an errno.
  int open() noexcept {
    close();
    int ends[2];
    if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) return errno;
    near_ = ends[0];
    far_ = ends[1];
    return 0;
  }
  void close() noexcept {
    if (near_ >= 0) ::close(near_);
    if (far_ >= 0) ::close(far_);
    near_ = far_ = -1;
  }
  // What the target gets.
  int far_end() const noexcept { return far_; }
  // A full socket holds kicks that the target has not read: it is told all the same. One that the target has shut down is its
  // loss: it looks at the queue by itself, or the session ends with it.
  void kick() noexcept {
    const uint64_t one = 1;
    (void)::send(near_, &one, sizeof(one), MSG_DONTWAIT | MSG_NOSIGNAL);
  }

 private:
  int near_ = -1;
  int far_ = -1;
};

}  // namespace halfstep::io
