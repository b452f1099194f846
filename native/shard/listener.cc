#include "shard/listener.h"

#include <sys/epoll.h>
#include <unistd.h>

#include <utility>

namespace halfstep::shard {
namespace {

constexpr int kAcceptsPerTurn = 16;
constexpr uint64_t kPauseUs = 100'000;

}  // namespace

Listener::Listener(net::Loop& loop, ListeningSocket socket, OnAccepted on_accepted)
    : loop_(loop),
      on_accepted_(std::move(on_accepted)),
      descriptor_(socket.descriptor),
      map_(std::move(socket.map)),
      file_(descriptor_),
      pause_(&Listener::on_pause_over, this) {}

Listener::~Listener() {
  loop_.remove(descriptor_, this);
  file_.remove();
  ::close(descriptor_);
}

Status Listener::start() { return loop_.add(descriptor_, EPOLLIN, this); }

void Listener::on_ready(uint32_t) {
  for (int i = 0; i < kAcceptsPerTurn; ++i) {
    net::Accepted peer;
    const Status status = net::accept_on(descriptor_, &peer);
    if (status.ok()) {
      if (!on_accepted_(peer, map_)) return;
    } else if (status == Code::Throttled) {
      return;
    } else {
      (void)loop_.change(descriptor_, 0, this);
      loop_.arm(pause_, loop_.now_us() + kPauseUs);
      return;
    }
  }
}

void Listener::on_pause_over(void* self) {
  auto* listener = static_cast<Listener*>(self);
  (void)listener->loop_.change(listener->descriptor_, EPOLLIN, listener);
}

}  // namespace halfstep::shard
