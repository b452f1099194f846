#include "io/noop_engine.h"

#include <sys/eventfd.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string>

#include "base/units.h"
#include "io/backing.h"
#include "io/finished.h"

namespace halfstep::io {

Fault NoopDevice::create(uint64_t bytes, std::unique_ptr<NoopDevice>* out) {
  if (bytes == 0 || bytes % kPageBytes != 0) {
    return {Code::Invalid, "size=" + std::to_string(bytes) + " for a no-op device: must be a positive multiple of " +
                               std::to_string(kPageBytes)};
  }
  void* at = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (at == MAP_FAILED) {
    const int error = errno;
    return {{Code::NoSpace, -error},
            "size=" + std::to_string(bytes) + " for a no-op device: " + errno_name(error) + "; it lies in memory: lower it"};
  }
  out->reset(new NoopDevice({static_cast<std::byte*>(at), static_cast<size_t>(bytes)}));
  return {};
}

NoopDevice::~NoopDevice() { ::munmap(bytes_.data(), bytes_.size()); }

Fault NoopEngine::open(const EngineConfig& config, const std::vector<Backing*>& backings, std::unique_ptr<Engine>* out) {
  if (backings.size() != 1) {
    return {Code::Invalid, "devices=" + std::to_string(backings.size()) + ": a no-op device is an engine's only one"};
  }
  auto engine = std::make_unique<NoopEngine>(*backings[0]->noop(), config.queue_depth);
  if (engine->event_ < 0) return {{Code::IoError, -errno}, "eventfd for the no-op engine: " + errno_name(errno)};
  *out = std::move(engine);
  return {};
}

NoopEngine::NoopEngine(NoopDevice& device, uint32_t queue_depth)
    : device_(device), event_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  facts_.name = "noop";
  facts_.queue_depth = queue_depth;
  facts_.registered_buffers = true;  // nothing is pinned for a request, as where they are
  facts_.discard = name_of(DiscardMethod::None);
}

NoopEngine::~NoopEngine() {
  if (event_ >= 0) ::close(event_);
}

void NoopEngine::submit(Request& request) noexcept {
  ++in_flight_;
  request.error = request.device == 0 ? refusal(request, device_.bytes().size(), false) : -EINVAL;
  if (request.error == 0 && request.op == Op::Read) {
    std::memcpy(request.data, device_.bytes().data() + request.offset, request.bytes);
  } else if (request.error == 0 && request.op == Op::Write) {
    std::memcpy(device_.bytes().data() + request.offset, request.data, request.bytes);
  }
  if (done_.empty()) (void)::eventfd_write(event_, 1);
  done_.push_back(request);
}

size_t NoopEngine::poll() noexcept { return complete_all(done_, in_flight_, counters_); }

}  // namespace halfstep::io
