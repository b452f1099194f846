#include "net/shm_transport.h"

#include <unistd.h>

#include <cerrno>
#include <utility>

namespace halfstep::net {
namespace {

class RingTransport final : public Transport {
 public:
  // The server's end has a graveyard.
  RingTransport(RingMemory memory, int socket, int rings, int rung, RingGraveyard* graveyard)
      : graveyard_(graveyard),
        memory_(std::move(memory)),
        socket_(socket),
        rings_(rings),
        rung_(rung),
        reader_(graveyard != nullptr ? memory_.to_server() : memory_.to_client(),
                graveyard != nullptr ? memory_.to_server_data() : memory_.to_client_data(), rings),
        writer_(graveyard != nullptr ? memory_.to_client() : memory_.to_server(),
                graveyard != nullptr ? memory_.to_client_data() : memory_.to_server_data(), rings) {}

  ~RingTransport() override {
    stop();
    if (graveyard_ != nullptr) give_pages_back();
    ::close(rung_);
    ::close(rings_);
    ::close(socket_);
  }

  Status start(Loop& loop, Watch* watch) override {
    if (Status status = loop.add(socket_, EPOLLRDHUP, watch); !status.ok()) return status;
    loop_ = &loop;
    watch_ = watch;
    // Fires once at once, if it was rung already; what is there is then found.
    return loop.add(rung_, EPOLLIN | EPOLLET, watch);
  }

  void stop() noexcept override {
    if (loop_ == nullptr) return;
    loop_->remove(socket_, watch_);
    loop_->remove(rung_, watch_);
    loop_ = nullptr;
  }

  Status want(bool, bool) override { return {}; }

  uint32_t heard(uint32_t epoll_events) noexcept override {
    // Of the socket alone: a bell is only ever readable.
    if ((epoll_events & (EPOLLRDHUP | EPOLLHUP | EPOLLERR)) != 0) peer_gone_ = true;
    return epoll_events;
  }

  ssize_t receive(const iovec* vectors, size_t count) noexcept override {
    const ssize_t got = reader_.read(vectors, count);
    return got == -EAGAIN && peer_gone_ ? 0 : got;
  }

  size_t receive_bytes_max() const noexcept override { return kRingStepBytes; }

  ssize_t send(const iovec* vectors, size_t count, bool) noexcept override {
    if (peer_gone_) return -EPIPE;
    used_ = true;
    return writer_.write(vectors, count);
  }

  void finish_sending() noexcept override {}  // the peer has the memory, and reads what is in it

  // What is not in use of the ring that we fill. The other one is the peer's to trim: it may be writing.
  void trim() noexcept override {
    if (!used_ || writer_.unread() != 0) return;
    RingMemory::drop_pages(graveyard_ != nullptr ? memory_.to_client_data() : memory_.to_server_data());
    used_ = false;
  }
  bool trimmable() const noexcept override { return used_; }

  bool told_by_level() const noexcept override { return false; }
  int descriptor() const noexcept override { return socket_; }
  bool rings() const noexcept override { return true; }

 private:
  // A client that keeps the memory when its connection is over must not keep our pages.
  void give_pages_back() {
    if (peer_gone_) {
      memory_.drop_all_pages();
      graveyard_->give(memory_.bytes());
    } else {
      RingMemory::drop_pages(memory_.to_server_data());
      graveyard_->bury(std::move(memory_));
    }
  }

  RingGraveyard* const graveyard_;
  RingMemory memory_;
  const int socket_;
  const int rings_;
  const int rung_;
  RingReader reader_;
  RingWriter writer_;
  Loop* loop_ = nullptr;
  Watch* watch_ = nullptr;
  bool peer_gone_ = false;
  bool used_ = false;  // pages of the ring that we fill are in memory
};

}  // namespace

std::unique_ptr<Transport> server_rings(RingMemory memory, int socket, int rings, int rung, RingGraveyard& graveyard) {
  return std::make_unique<RingTransport>(std::move(memory), socket, rings, rung, &graveyard);
}

std::unique_ptr<Transport> client_rings(RingMemory memory, int socket, int rings, int rung) {
  return std::make_unique<RingTransport>(std::move(memory), socket, rings, rung, nullptr);
}

}  // namespace halfstep::net
