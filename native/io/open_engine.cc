// open_engine.cc — chooses the engine: what the backing needs or does best with; else io_uring, or the thread pool. Whatever
// stands in for another says why.
#include <limits>
#include <string>

#include "io/backing.h"
#include "io/engine.h"
#include "io/noop_engine.h"
#include "io/pread_engine.h"
#include "io/request.h"
#include "io/uring_cmd_engine.h"
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

// By NVMe commands, where the backing is a namespace and nothing else was chosen. `out` stays null where another engine is to
// be taken, and `why` says why.
Fault try_commands(const EngineConfig& config, Arena& arena, const std::vector<Backing*>& backings,
                   std::unique_ptr<Engine>* out, std::string* why) {
  out->reset();
  const BackingFacts& facts = backings[0]->facts();
  const bool demanded = config.choice == EngineChoice::UringCmd || config.polled;
  if (facts.nvme_block_path.empty() && demanded) {
    const char* setting = config.polled ? "completions=polled: " : "engine=uring_cmd: ";
    return {Code::Invalid, setting + facts.path + " is no NVMe namespace; name it by its character device, /dev/ngXnY"};
  }
  if (facts.nvme_block_path.empty() || (config.choice != EngineChoice::Auto && config.choice != EngineChoice::UringCmd)) {
    if (!config.polled) return {};
    return {Code::Invalid, "completions=polled: the engine that was chosen has none; leave --engine out, or take uring_cmd"};
  }
  Fault fault{{Code::Unsupported}, facts.why_no_nvme_commands};
  if (backings[0]->nvme() != nullptr) fault = UringCmdEngine::open(config, arena, backings, out);
  if (fault.ok()) return {};
  fault.what = "uring_cmd: " + fault.what;
  if (demanded) return fault;
  *why = std::move(fault.what);
  return {};
}

}  // namespace

Fault open_engine(const EngineConfig& config, Arena& arena, const std::vector<Backing*>& backings,
                  std::unique_ptr<Engine>* out) {
  if (Fault fault = check(config, backings.size()); !fault.ok()) return fault;
  // What a process serves, or what is its memory, is reached in one way, whatever is chosen for what the kernel serves.
  if (backings[0]->session() != nullptr) return VhostUserEngine::open(config, arena, backings, out);
  if (backings[0]->noop() != nullptr) return NoopEngine::open(config, backings, out);
  std::string why_fallback;
  if (Fault fault = try_commands(config, arena, backings, out, &why_fallback); !fault.ok() || *out != nullptr) return fault;
  if (config.choice == EngineChoice::Pread) return PreadEngine::open(config, backings, out);

  std::unique_ptr<Engine> engine;
  Fault refused = UringEngine::open(config, arena, backings, &engine);
  if (refused.ok()) {
    static_cast<UringEngine&>(*engine).set_why_fallback(std::move(why_fallback));
    *out = std::move(engine);
    return {};
  }
  if (config.choice == EngineChoice::Uring) return refused;
  if (Fault fault = PreadEngine::open(config, backings, &engine); !fault.ok()) return fault;
  if (!why_fallback.empty()) why_fallback += "; ";
  static_cast<PreadEngine&>(*engine).set_why_fallback(why_fallback + refused.what);
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
