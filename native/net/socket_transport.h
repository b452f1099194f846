// socket_transport.h — a Transport over a socket, stream by stream as the kernel has it.
// Thread: the loop's.
#pragma once

#include "net/transport.h"

namespace halfstep::net {

class SocketTransport : public Transport {
 public:
  explicit SocketTransport(int descriptor) noexcept : descriptor_(descriptor) {}
  ~SocketTransport() override;

  Status start(Loop& loop, Watch* watch) override;
  void stop() noexcept override;
  Status want(bool to_receive, bool to_send) override;
  uint32_t heard(uint32_t epoll_events) noexcept override { return epoll_events; }
  ssize_t receive(const iovec* vectors, size_t count) noexcept override;
  ssize_t send(const iovec* vectors, size_t count, bool more) noexcept override;
  void finish_sending() noexcept override;
  bool told_by_level() const noexcept override { return true; }
  int descriptor() const noexcept override { return descriptor_; }

 protected:
  ssize_t send_with(const iovec* vectors, size_t count, int flags) noexcept;
  Loop* loop() const noexcept { return loop_; }
  // It is the caller's to close; nothing but the destructor may follow stop() and this.
  int give_descriptor() noexcept;

 private:
  int descriptor_;
  Loop* loop_ = nullptr;
  Watch* watch_ = nullptr;
  uint32_t watched_ = 0;
};

}  // namespace halfstep::net
