#include "shard/listener.h"

#include <sys/epoll.h>
#include <unistd.h>

#include <utility>

#include "shard/shard.h"

namespace halfstep::shard {
namespace {

constexpr int kAcceptsPerTurn = 16;
constexpr uint64_t kPauseUs = 100'000;

}  // namespace

Listener::Listener(Shard& shard, ListeningSocket socket)
    : shard_(shard),
      descriptor_(socket.descriptor),
      map_(std::move(socket.map)),
      file_(descriptor_),
      pause_(&Listener::on_pause_over, this) {}

Listener::~Listener() {
  shard_.loop().remove(descriptor_, this);
  file_.remove();
  ::close(descriptor_);
}

Status Listener::start() { return shard_.loop().add(descriptor_, EPOLLIN, this); }

void Listener::on_ready(uint32_t) {
  for (int i = 0; i < kAcceptsPerTurn; ++i) {
    net::Accepted peer;
    const Status status = net::accept_on(descriptor_, &peer);
    if (status.ok()) {
      if (!shard_.accepted(peer, map_)) return;
    } else if (status == Code::Throttled) {
      return;
    } else {
      (void)shard_.loop().change(descriptor_, 0, this);
      shard_.loop().arm(pause_, shard_.loop().now_us() + kPauseUs);
      return;
    }
  }
}

void Listener::on_pause_over(void* self) {
  auto* listener = static_cast<Listener*>(self);
  (void)listener->shard_.loop().change(listener->descriptor_, EPOLLIN, listener);
}

}  // namespace halfstep::shard
