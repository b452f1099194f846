#include "net/zero_copy_linger.h"

#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace halfstep::net {
namespace {

// How often everybody is looked at, whatever epoll tells of them: for those whose time is over, and so that nothing depends on
// an edge.
constexpr uint64_t kLookUs = 200'000;

}  // namespace

class ZeroCopyLinger::Socket final : public Watch {
 public:
  Socket(ZeroCopyLinger& linger, int descriptor, ZeroCopyLedger held) noexcept
      : ledger(std::move(held)), due_us(linger.loop_.now_us() + kGraceUs), linger_(linger), descriptor_(descriptor) {
    (void)::shutdown(descriptor, SHUT_WR);
    // By edge: a socket that is disconnected is EPOLLHUP for good. What comes before this, and what is not told if it fails,
    // the timer finds.
    (void)linger.loop_.add(descriptor, EPOLLET, this);
  }
  ~Socket() override {
    linger_.loop_.remove(descriptor_, this);
    ::close(descriptor_);
  }

  void on_ready(uint32_t) override {
    look();
    if (linger_.settle(*this)) linger_.remove(*this);  // destroys this
  }

  // A socket that cannot be disconnected (now) stays as it is, and holds what it holds.
  void disconnect() noexcept {
    const sockaddr nobody{.sa_family = AF_UNSPEC, .sa_data = {}};
    disconnected = ::connect(descriptor_, &nobody, sizeof(nobody)) == 0;
  }
  // What was dropped unsent is notified, too: it counts as neither sent nor copied.
  void look() noexcept {
    ZeroCopyCounts dropped;
    (void)take_notifications(descriptor_, ledger, disconnected ? dropped : linger_.counts_);
  }

  ZeroCopyLedger ledger;
  const uint64_t due_us;
  bool disconnected = false;

 private:
  ZeroCopyLinger& linger_;
  const int descriptor_;
};

ZeroCopyLinger::ZeroCopyLinger(Loop& loop, size_t grace_sockets_max) noexcept
    : loop_(loop), grace_sockets_max_(grace_sockets_max), timer_(&ZeroCopyLinger::on_timer, this) {}

ZeroCopyLinger::~ZeroCopyLinger() { close_all(); }

size_t ZeroCopyLinger::grace_sockets() const noexcept {
  return static_cast<size_t>(
      std::count_if(sockets_.begin(), sockets_.end(), [](const auto& socket) { return !socket->disconnected; }));
}

uint64_t ZeroCopyLinger::bytes() const noexcept {
  uint64_t sum = 0;
  for (const auto& socket : sockets_) sum += socket->ledger.bytes_under_way();
  return sum;
}

void ZeroCopyLinger::adopt(int descriptor, ZeroCopyLedger ledger) {
  sockets_.push_back(std::make_unique<Socket>(*this, descriptor, std::move(ledger)));
  if (!patient_ && grace_sockets() > grace_sockets_max_) {
    const auto oldest =
        std::find_if(sockets_.begin(), sockets_.end(), [](const auto& socket) { return !socket->disconnected; });
    (*oldest)->disconnect();
  }
  // At once: some of it may be free already, and the edge may be past.
  loop_.arm(timer_, loop_.now_us());
}

// Releases what is free. True: that was all.
bool ZeroCopyLinger::settle(Socket& socket) {
  Release release;
  while (socket.ledger.take_free(&release)) release();  // may adopt another
  return socket.ledger.empty();
}

void ZeroCopyLinger::remove(const Socket& socket) {
  const auto at = std::find_if(sockets_.begin(), sockets_.end(), [&](const auto& own) { return own.get() == &socket; });
  HALFSTEP_CHECK(at != sockets_.end());
  const std::unique_ptr<Socket> gone = std::move(*at);
  sockets_.erase(at);
}

void ZeroCopyLinger::on_timer(void* self) {
  auto& linger = *static_cast<ZeroCopyLinger*>(self);
  const uint64_t now = linger.loop_.now_us();
  for (size_t i = 0; i < linger.sockets_.size();) {
    Socket& socket = *linger.sockets_[i];
    if (!linger.patient_ && !socket.disconnected && now >= socket.due_us) socket.disconnect();
    socket.look();
    if (linger.settle(socket)) {
      linger.remove(socket);
    } else {
      ++i;
    }
  }
  if (!linger.sockets_.empty() && !linger.timer_.armed()) linger.loop_.arm(linger.timer_, now + kLookUs);
}

void ZeroCopyLinger::close_all() {
  while (!sockets_.empty()) {
    const std::unique_ptr<Socket> socket = std::move(sockets_.front());
    sockets_.erase(sockets_.begin());
    Release release;
    while (socket->ledger.take_any(&release)) release();
  }
  loop_.disarm(timer_);
}

}  // namespace halfstep::net
