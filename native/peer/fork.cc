#include "peer/fork.h"

#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <mutex>
#include <vector>

namespace halfstep::peer {
namespace {

std::atomic<uint64_t> generation{1};

// One for each process that has opened a client. A forked child may find the parent's locked for ever, so it makes its own and
// leaks the old one; nothing here is ever destroyed, because it is used while the process exits.
struct Registry {
  explicit Registry(uint64_t of) noexcept : of_generation(of) {}
  const uint64_t of_generation;
  std::mutex mutex;
  std::vector<Exiting*> alive;
};
std::atomic<Registry*> current{nullptr};

Registry& registry() {
  const uint64_t now = process_generation();
  Registry* known = current.load(std::memory_order_acquire);
  while (known == nullptr || known->of_generation != now) {
    auto* made = new Registry(now);
    if (current.compare_exchange_strong(known, made, std::memory_order_acq_rel)) return *made;
    delete made;
  }
  return *known;
}

void stop_all() noexcept {
  Registry* known = current.load(std::memory_order_acquire);
  if (known == nullptr || known->of_generation != process_generation()) return;
  // Held throughout: whoever closes a client at this moment waits in forget_for_exit().
  const std::lock_guard lock(known->mutex);
  for (Exiting* who : known->alive) who->stop_for_exit();
  known->alive.clear();
}

// Both handlers are inherited by children, so once per program is enough.
void install_handlers() {
  static std::once_flag once;
  std::call_once(once, [] {
    ::pthread_atfork(nullptr, nullptr, [] { generation.fetch_add(1, std::memory_order_relaxed); });
    std::atexit([] { stop_all(); });
  });
}

}  // namespace

uint64_t process_generation() noexcept { return generation.load(std::memory_order_relaxed); }

void remember_for_exit(Exiting& who) {
  install_handlers();
  Registry& known = registry();
  const std::lock_guard lock(known.mutex);
  known.alive.push_back(&who);
}

void forget_for_exit(Exiting& who) {
  Registry& known = registry();
  const std::lock_guard lock(known.mutex);
  std::erase(known.alive, &who);
}

}  // namespace halfstep::peer
