#include "sim/crash_engine.h"

#include <cerrno>

namespace halfstep::sim {

void CrashEngine::event() noexcept {
  if (!armed_ || dead_ || events_left_-- > 0) return;
  dead_ = true;
  inner_.crash(how_);
}

void CrashEngine::submit(io::Request& request) noexcept {
  event();
  seen_(request);
  if (unused_.empty()) unused_.push_back(&proxies_.emplace_back());
  Proxy& proxy = *unused_.back();
  unused_.pop_back();
  proxy.request = request;
  proxy.original = &request;
  proxy.engine = this;
  proxy.place = outstanding_.size();
  outstanding_.push_back(&proxy);
  proxy.request.owner = &proxy;
  proxy.request.complete = [](io::Request& done) {
    auto& self = *static_cast<Proxy*>(done.owner);
    self.engine->finish(self, done.error);
  };
  if (!dead_) inner_.submit(proxy.request);
}

void CrashEngine::finish(Proxy& proxy, int32_t error) noexcept {
  io::Request& original = *proxy.original;
  outstanding_.back()->place = proxy.place;
  outstanding_[proxy.place] = outstanding_.back();
  outstanding_.pop_back();
  unused_.push_back(&proxy);
  original.error = error;
  original.complete(original);
}

size_t CrashEngine::poll() noexcept {
  event();
  if (!dead_) return inner_.poll();
  const std::vector<Proxy*> cut_off = outstanding_;
  for (Proxy* proxy : cut_off) finish(*proxy, -ENODEV);
  return cut_off.size();
}

}  // namespace halfstep::sim
