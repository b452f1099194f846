#include "net/transport.h"

#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <utility>

#include "base/units.h"
#include "net/socket_transport.h"

namespace halfstep::net {
namespace {

constexpr size_t kDrainBytesMax = 1 * MiB;

}  // namespace

SocketTransport::~SocketTransport() {
  SocketTransport::stop();
  if (descriptor_ >= 0) ::close(descriptor_);
}

int SocketTransport::give_descriptor() noexcept { return std::exchange(descriptor_, -1); }

Status SocketTransport::start(Loop& loop, Watch* watch) {
  watched_ = EPOLLIN;
  const Status status = loop.add(descriptor_, watched_, watch);
  if (!status.ok()) return status;
  loop_ = &loop;
  watch_ = watch;
  return {};
}

void SocketTransport::stop() noexcept {
  if (loop_ != nullptr) loop_->remove(descriptor_, watch_);
  loop_ = nullptr;
}

Status SocketTransport::want(bool to_receive, bool to_send) {
  const uint32_t wanted = (to_receive ? uint32_t{EPOLLIN} : 0U) | (to_send ? uint32_t{EPOLLOUT} : 0U);
  if (loop_ == nullptr || wanted == watched_) return {};
  const Status status = loop_->change(descriptor_, wanted, watch_);
  if (status.ok()) watched_ = wanted;
  return status;
}

ssize_t SocketTransport::receive(const iovec* vectors, size_t count) noexcept {
  msghdr message{};
  message.msg_iov = const_cast<iovec*>(vectors);
  message.msg_iovlen = count;
  ssize_t got = 0;
  do {
    got = ::recvmsg(descriptor_, &message, MSG_DONTWAIT);
  } while (got < 0 && errno == EINTR);
  return got < 0 ? -errno : got;
}

ssize_t SocketTransport::send(const iovec* vectors, size_t count, bool more) noexcept {
  return send_with(vectors, count, more ? MSG_MORE : 0);
}

ssize_t SocketTransport::send_with(const iovec* vectors, size_t count, int flags) noexcept {
  msghdr message{};
  message.msg_iov = const_cast<iovec*>(vectors);
  message.msg_iovlen = count;
  ssize_t sent = 0;
  do {
    sent = ::sendmsg(descriptor_, &message, MSG_DONTWAIT | MSG_NOSIGNAL | flags);
  } while (sent < 0 && errno == EINTR);
  return sent < 0 ? -errno : sent;
}

// Closing a TCP socket with unread bytes resets the connection, and a reset may overtake the Abort frame in the peer's socket.
void SocketTransport::finish_sending() noexcept {
  (void)::shutdown(descriptor_, SHUT_WR);
  std::array<std::byte, 16 * KiB> dropped;
  for (size_t total = 0; total < kDrainBytesMax;) {
    const ssize_t got = ::recv(descriptor_, dropped.data(), dropped.size(), MSG_DONTWAIT);
    if (got <= 0) return;
    total += static_cast<size_t>(got);
  }
}

std::unique_ptr<Transport> socket_transport(int descriptor) { return std::make_unique<SocketTransport>(descriptor); }

}  // namespace halfstep::net
