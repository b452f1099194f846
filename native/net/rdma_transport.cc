#include "net/rdma_transport.h"

#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <utility>

namespace halfstep::net {
namespace {

class RdmaTransport final : public Transport, private DeviceUser {
 public:
  RdmaTransport(std::unique_ptr<RdmaPipe> pipe, int socket, uint64_t socket_bytes, RdmaRings& rings)
      : rings_(rings), pipe_(std::move(pipe)), socket_(socket), socket_left_(socket_bytes) {
    rings_.add(*this);
  }

  ~RdmaTransport() override {
    stop();
    rings_.remove(*this);
    if (placed_into_ || pipe_->pulls()) pipe_->cut();
    rings_.linger(std::move(pipe_), socket_, peer_gone_);
  }

  Status start(Loop& loop, Watch* watch) override {
    if (Status status = loop.add(socket_, EPOLLRDHUP, watch); !status.ok()) return status;
    loop_ = &loop;
    watch_ = watch;
    if (Status status = loop.add(pipe_->descriptor(), EPOLLIN, watch); !status.ok()) return status;
    pipe_->begin();
    return {};
  }

  void stop() noexcept override {
    if (loop_ == nullptr) return;
    loop_->remove(socket_, watch_);
    loop_->remove(pipe_->descriptor(), watch_);
    loop_ = nullptr;
  }

  // Room is a matter of the pipe, but for what still leaves by the socket.
  Status want(bool, bool to_send) override {
    const bool wanted = to_send && socket_left_ != 0;
    if (loop_ == nullptr || wanted == waits_for_socket_) return {};
    const Status status = loop_->change(socket_, wanted ? EPOLLRDHUP | EPOLLOUT : EPOLLRDHUP, watch_);
    if (status.ok()) waits_for_socket_ = wanted;
    return status;
  }

  uint32_t heard(uint32_t epoll_events) noexcept override {
    // Of the socket: a completion channel is only ever readable, or broken, which ends the connection, too.
    if ((epoll_events & (EPOLLRDHUP | EPOLLHUP | EPOLLERR)) != 0) peer_gone_ = true;
    pipe_->heard();
    return epoll_events | EPOLLIN;
  }

  ssize_t receive(const iovec* vectors, size_t count) noexcept override {
    // An error of the path says more than the end of a socket that the other one closed because of it.
    const ssize_t got = pipe_->read(vectors, count);
    return got == -EAGAIN && peer_gone_ ? 0 : got;
  }

  size_t receive_bytes_max() const noexcept override { return RdmaPipe::kReadBytesMax; }

  ssize_t send(const iovec* vectors, size_t count, bool more) noexcept override {
    if (peer_gone_) return -EPIPE;
    return socket_left_ != 0 ? send_by_socket(vectors, count) : pipe_->write(vectors, count, more);
  }

  size_t held_run_bytes_min() noexcept override { return socket_left_ == 0 && registered() ? kRdmaRunBytesMin : SIZE_MAX; }
  ssize_t send_held(const iovec* vectors, size_t count, bool more) noexcept override {
    if (peer_gone_) return -EPIPE;
    return pipe_->write_held(vectors, count, more);
  }
  bool hold(const Release& release) override { return pipe_->hold(release); }
  bool take_free(Release* out) noexcept override { return pipe_->take_free(out); }
  uint64_t held_bytes() const noexcept override { return pipe_->held_bytes(); }
  bool zero_copy() const noexcept override { return registered(); }

  bool place_room() noexcept override { return !peer_gone_ && registered() && pipe_->place_room(); }
  bool place(std::span<const ConstBytes> payload, std::span<const RemoteRun> runs) noexcept override {
    return !peer_gone_ && socket_left_ == 0 && pipe_->place(payload, runs);
  }
  bool pull(std::span<const Bytes> into, std::span<const RemoteRun> runs) override {
    return !peer_gone_ && socket_left_ == 0 && pipe_->pull(into, runs);
  }
  bool take_pulled() noexcept override { return pipe_->take_pulled(); }
  Fault open_window(const rdma::MemoryRegion& region, Bytes bytes, int access, RemoteWindow* out) override {
    return pipe_->open_window(region, bytes, access, out);
  }
  void close_window(uint32_t number) noexcept override { pipe_->close_window(number); }
  bool take_closed(uint32_t* number) override { return pipe_->take_closed(number); }
  void accept_places() noexcept override { placed_into_ = true; }
  int broken() const noexcept override { return -pipe_->error(); }
  void push() noexcept override { pipe_->push(); }

  void finish_sending() noexcept override {}  // it lingers

  bool told_by_level() const noexcept override { return false; }
  int descriptor() const noexcept override { return socket_; }
  bool rdma() const noexcept override { return true; }

  // DeviceUser
  bool uses(const rdma::Device& device) const noexcept override { return pipe_->uses(device); }
  void end() noexcept override {
    pipe_->device_gone();
    if (loop_ != nullptr) watch_->on_ready(EPOLLIN);
  }
  void leave_by_socket(uint64_t bytes) noexcept override { socket_left_ = bytes; }

 private:
  ssize_t send_by_socket(const iovec* vectors, size_t count) noexcept {
    std::array<iovec, 16> first{};
    size_t used = 0;
    uint64_t left = socket_left_;
    for (; used < std::min(count, first.size()) && left != 0; ++used) {
      first[used] = {vectors[used].iov_base, static_cast<size_t>(std::min<uint64_t>(vectors[used].iov_len, left))};
      left -= first[used].iov_len;
    }
    msghdr message{};
    message.msg_iov = first.data();
    message.msg_iovlen = used;
    ssize_t sent = 0;
    do {
      sent = ::sendmsg(socket_, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
    } while (sent < 0 && errno == EINTR);
    if (sent < 0) return -errno;
    socket_left_ -= static_cast<uint64_t>(sent);
    return sent;
  }

  // A device that is being taken away is so first of all from the payload.
  bool registered() const noexcept { return rings_.payload_registered(*pipe_->device()); }

  RdmaRings& rings_;
  std::unique_ptr<RdmaPipe> pipe_;
  const int socket_;
  uint64_t socket_left_;
  Loop* loop_ = nullptr;
  Watch* watch_ = nullptr;
  bool peer_gone_ = false;
  bool waits_for_socket_ = false;
  bool placed_into_ = false;
};

}  // namespace

std::unique_ptr<Transport> rdma_transport(std::unique_ptr<RdmaPipe> pipe, int socket, uint64_t socket_bytes, RdmaRings& rings) {
  return std::make_unique<RdmaTransport>(std::move(pipe), socket, socket_bytes, rings);
}

}  // namespace halfstep::net
