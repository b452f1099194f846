// waiter.h — a request as the lists see it in which it waits: for credit (credit.h), or for memory (memory_waiters.h).
// Invariant: it stands in one such list at a time. Thread: the shard's.
#pragma once

#include <cstdint>

namespace halfstep::shard {

class Waiter {
 public:
  virtual ~Waiter() = default;
  Waiter(const Waiter&) = delete;
  Waiter& operator=(const Waiter&) = delete;

  // What it waits for may be there now.
  virtual void resume() = 0;
  // How much memory it would take if there was some.
  virtual uint64_t memory_wanted() const noexcept = 0;

 protected:
  Waiter() = default;

 private:
  friend class MemoryWaiters;
  Waiter* waits_before_ = nullptr;
  Waiter* waits_after_ = nullptr;
};

}  // namespace halfstep::shard
