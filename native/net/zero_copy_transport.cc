#include "net/zero_copy_transport.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <utility>

#include "net/socket_transport.h"
#include "net/zero_copy.h"

namespace halfstep::net {
namespace {

// After ENOBUFS. What is under way is mostly done by then, and a limit that stays too low costs a system call each time.
constexpr uint64_t kPauseUs = 100'000;

// A TCP socket without an upper layer, of a kernel that knows the option (4.14).
bool ask_for_zero_copy(int descriptor) noexcept {
  int protocol = 0;
  socklen_t bytes = sizeof(protocol);
  if (::getsockopt(descriptor, SOL_SOCKET, SO_PROTOCOL, &protocol, &bytes) != 0 || protocol != IPPROTO_TCP) return false;
  std::array<char, 16> layer{};
  bytes = layer.size();
  if (::getsockopt(descriptor, IPPROTO_TCP, TCP_ULP, layer.data(), &bytes) == 0 && bytes != 0) return false;
  const int on = 1;
  return ::setsockopt(descriptor, SOL_SOCKET, SO_ZEROCOPY, &on, sizeof(on)) == 0;
}

class ZeroCopyTransport final : public SocketTransport {
 public:
  ZeroCopyTransport(int descriptor, ZeroCopyLinger& linger) noexcept : SocketTransport(descriptor), linger_(linger) {}
  ~ZeroCopyTransport() override {
    if (ledger_.empty()) return;
    stop();
    linger_.adopt(give_descriptor(), std::move(ledger_));
  }

  // EPOLLERR stands for notifications as well as for an error. It is by level: an error beside them is told again.
  uint32_t heard(uint32_t epoll_events) noexcept override {
    if ((epoll_events & EPOLLERR) == 0 || state_ == State::Undecided) return epoll_events;
    const Notified notified = take_notifications(descriptor(), ledger_, linger_.counts());
    if (notified.copied) give_up();
    return notified.any ? epoll_events & ~uint32_t{EPOLLERR} : epoll_events;
  }

  size_t held_run_bytes_min() noexcept override {
    if (state_ == State::Off || loop() == nullptr) return SIZE_MAX;
    if (paused_until_us_ != 0 && loop()->now_us() < paused_until_us_) return SIZE_MAX;
    paused_until_us_ = 0;
    return kZeroCopyRunBytesMin;
  }

  ssize_t send_held(const iovec* vectors, size_t count, bool more) noexcept override {
    if (state_ == State::Undecided) {
      state_ = State::On;
      if (!ask_for_zero_copy(descriptor())) give_up();
    }
    if (state_ == State::Off) return send(vectors, count, more);
    const ssize_t sent = send_with(vectors, count, MSG_ZEROCOPY | (more ? MSG_MORE : 0));
    if (sent > 0) ledger_.sent(static_cast<uint32_t>(sent));  // numbered by the kernel, however much of it was taken
    if (sent >= 0 || sent == -EAGAIN || sent == -EWOULDBLOCK) return sent;
    if (sent == -ENOBUFS) {
      ++linger_.counts().refused;
      paused_until_us_ = loop()->now_us() + kPauseUs;
    } else {
      give_up();  // an upper layer that came later, perhaps; a connection that is over says so to a send with copies, too
    }
    return send(vectors, count, more);
  }

  bool hold(const Release& release) override { return ledger_.hold(release); }
  bool take_free(Release* out) noexcept override { return ledger_.take_free(out); }
  uint64_t held_bytes() const noexcept override { return ledger_.bytes_under_way(); }
  bool zero_copy() const noexcept override { return state_ == State::On; }

 private:
  enum class State : uint8_t { Undecided, On, Off };

  void give_up() noexcept {
    if (state_ != State::Off) ++linger_.counts().given_up;
    state_ = State::Off;
  }

  ZeroCopyLinger& linger_;
  ZeroCopyLedger ledger_;
  uint64_t paused_until_us_ = 0;
  State state_ = State::Undecided;
};

}  // namespace

bool zero_copy_possible() noexcept {
  const int probe = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (probe < 0) return false;
  const bool possible = ask_for_zero_copy(probe);
  ::close(probe);
  return possible;
}

std::unique_ptr<Transport> zero_copy_transport(int descriptor, ZeroCopyLinger& linger) {
  return std::make_unique<ZeroCopyTransport>(descriptor, linger);
}

}  // namespace halfstep::net
