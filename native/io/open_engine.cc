// open_engine.cc — chooses the engine: what the backing needs; else io_uring, or the thread pool with the reason.
#include <limits>
#include <string>

#include "io/backing.h"
#include "io/engine.h"
#include "io/pread_engine.h"
#include "io/request.h"
#include "io/uring_engine.h"
#include "io/vhost_user_engine.h"

namespace halfstep::io {
namespace {

constexpr uint32_t kPreadThreadsMax = 64;

Fault check(const EngineConfig& config, size_t devices) {
  if (config.queue_depth == 0 || config.queue_depth > kQueueDepthMax) {
    return {Code::Invalid,
            "queue_depth=" + std::to_string(config.queue_depth) + ": must be 1 to " + std::to_string(kQueueDepthMax)};
  }
  if (config.pread_threads == 0 || config.pread_threads > kPreadThreadsMax) {
    return {Code::Invalid,
            "pread_threads=" + std::to_string(config.pread_threads) + ": must be 1 to " + std::to_string(kPreadThreadsMax)};
  }
  constexpr size_t kDevicesMax = size_t{std::numeric_limits<decltype(Request::device)>::max()} + 1;
  if (devices == 0 || devices > kDevicesMax) {
    return {Code::Invalid, "devices=" + std::to_string(devices) + ": must be 1 to " + std::to_string(kDevicesMax)};
  }
  return {};
}

}  // namespace

Fault open_engine(const EngineConfig& config, Arena& arena, const std::vector<Backing*>& backings,
                  std::unique_ptr<Engine>* out) {
  if (Fault fault = check(config, backings.size()); !fault.ok()) return fault;
  // What a process serves is reached in one way, whatever is chosen for what the kernel serves.
  if (backings[0]->session() != nullptr) return VhostUserEngine::open(config, arena, backings, out);
  if (config.choice == EngineChoice::Pread) return PreadEngine::open(config, backings, out);
  Fault refused = UringEngine::open(config, arena, backings, out);
  if (refused.ok() || config.choice == EngineChoice::Uring) return refused;

  std::unique_ptr<Engine> engine;
  if (Fault fault = PreadEngine::open(config, backings, &engine); !fault.ok()) return fault;
  static_cast<PreadEngine&>(*engine).set_why_fallback(std::move(refused.what));
  *out = std::move(engine);
  return {};
}

Fault open_plain_engine(Arena& arena, Backing& backing, std::unique_ptr<Engine>* out) {
  EngineConfig one_thread;
  one_thread.choice = EngineChoice::Pread;
  one_thread.pread_threads = 1;
  return open_engine(one_thread, arena, {&backing}, out);
}

}  // namespace halfstep::io
