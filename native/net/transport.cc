#include "net/transport.h"

#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cerrno>

#include "base/units.h"

namespace halfstep::net {
namespace {

constexpr size_t kDrainBytesMax = 1 * MiB;

class SocketTransport final : public Transport {
 public:
  explicit SocketTransport(int descriptor) noexcept : descriptor_(descriptor) {}
  ~SocketTransport() override {
    stop();
    ::close(descriptor_);
  }

  Status start(Loop& loop, Watch* watch) override {
    watched_ = EPOLLIN;
    const Status status = loop.add(descriptor_, watched_, watch);
    if (!status.ok()) return status;
    loop_ = &loop;
    watch_ = watch;
    return {};
  }

  void stop() noexcept override {
    if (loop_ != nullptr) loop_->remove(descriptor_, watch_);
    loop_ = nullptr;
  }

  Status want(bool to_receive, bool to_send) override {
    const uint32_t wanted = (to_receive ? uint32_t{EPOLLIN} : 0U) | (to_send ? uint32_t{EPOLLOUT} : 0U);
    if (loop_ == nullptr || wanted == watched_) return {};
    const Status status = loop_->change(descriptor_, wanted, watch_);
    if (status.ok()) watched_ = wanted;
    return status;
  }

  void heard(uint32_t) noexcept override {}

  ssize_t receive(const iovec* vectors, size_t count) noexcept override {
    msghdr message{};
    message.msg_iov = const_cast<iovec*>(vectors);
    message.msg_iovlen = count;
    ssize_t got = 0;
    do {
      got = ::recvmsg(descriptor_, &message, MSG_DONTWAIT);
    } while (got < 0 && errno == EINTR);
    return got < 0 ? -errno : got;
  }

  ssize_t send(const iovec* vectors, size_t count, bool more) noexcept override {
    msghdr message{};
    message.msg_iov = const_cast<iovec*>(vectors);
    message.msg_iovlen = count;
    ssize_t sent = 0;
    do {
      sent = ::sendmsg(descriptor_, &message, MSG_DONTWAIT | MSG_NOSIGNAL | (more ? MSG_MORE : 0));
    } while (sent < 0 && errno == EINTR);
    return sent < 0 ? -errno : sent;
  }

  // Closing a TCP socket with unread bytes resets the connection, and a reset may overtake the Abort frame in the peer's
  // socket.
  void finish_sending() noexcept override {
    (void)::shutdown(descriptor_, SHUT_WR);
    std::array<std::byte, 16 * KiB> dropped;
    for (size_t total = 0; total < kDrainBytesMax;) {
      const ssize_t got = ::recv(descriptor_, dropped.data(), dropped.size(), MSG_DONTWAIT);
      if (got <= 0) return;
      total += static_cast<size_t>(got);
    }
  }

  bool told_by_level() const noexcept override { return true; }
  int descriptor() const noexcept override { return descriptor_; }

 private:
  const int descriptor_;
  Loop* loop_ = nullptr;
  Watch* watch_ = nullptr;
  uint32_t watched_ = 0;
};

}  // namespace

std::unique_ptr<Transport> socket_transport(int descriptor) { return std::make_unique<SocketTransport>(descriptor); }

}  // namespace halfstep::net
