// zero_copy.h — sends without a copy (MSG_ZEROCOPY): which of them the kernel still reads from, and what payload waits for
// that. The kernel numbers the successful sends of a socket that had the flag, from 0, in 32 bits that wrap, and says on the
// socket's error queue which ranges of numbers it is done with: out of order where a connection ends, several numbers in one.
// A payload is held until every send that came before its end is done. So payloads are given back in the order in which they
// were sent, and one that was copied waits for those before it.
// Invariants: what hold() has kept comes back by take_free() or take_any(), once.
// Thread: the loop's. In the steady state nothing is allocated.
#pragma once

#include <cstdint>
#include <vector>

#include "net/send_queue.h"

namespace halfstep::net {

// What transports of one loop count. Only their thread writes it.
struct ZeroCopyCounts {
  uint64_t bytes = 0;         // that the kernel has sent from where they were
  uint64_t copied_bytes = 0;  // that it was asked not to copy, and has
  uint64_t notifications = 0;
  uint64_t copied_notifications = 0;  // that said so
  uint64_t refused = 0;               // sends that it had no memory for (ENOBUFS), and that were copied
  uint64_t given_up = 0;              // connections that ask for it no more, because of the two above, or what their socket is
};

class ZeroCopyLedger {
 public:
  // `first`: the kernel's number of the first send, for tests.
  explicit ZeroCopyLedger(uint32_t first = 0) noexcept : done_(first) {}

  // The kernel took `bytes` in one send with the flag.
  void sent(uint32_t bytes);
  // It is done with these, inclusive. Gives their bytes; 0: they are not all of those that are under way, and nothing was done.
  uint64_t notified(uint32_t first, uint32_t last) noexcept;

  // False: nothing is under way, and nobody reads the payload.
  bool hold(const Release& release);
  bool take_free(Release* out) noexcept;
  // The same whatever is under way.
  bool take_any(Release* out) noexcept;

  uint64_t bytes_under_way() const noexcept { return bytes_; }
  bool under_way() const noexcept { return first_ != sends_.size(); }
  // Nothing is under way and nothing is held.
  bool empty() const noexcept { return !under_way() && first_held_ == held_.size(); }

 private:
  struct Send {
    uint32_t bytes = 0;
    bool done = false;
  };
  struct Held {
    Release release;
    uint64_t after = 0;  // free when all sends before this number are done
  };
  uint64_t next() const noexcept { return done_ + (sends_.size() - first_); }

  std::vector<Send> sends_;  // from first_ on: those from number done_ on
  size_t first_ = 0;
  uint64_t done_;  // all before it are done; its low 32 bits are the kernel's
  uint64_t bytes_ = 0;
  std::vector<Held> held_;  // from first_held_ on
  size_t first_held_ = 0;
};

struct Notified {
  bool any = false;
  bool copied = false;  // the kernel had to copy: it cannot do without where this connection goes
};
// Takes all that the error queue of a socket says. Nothing is released.
Notified take_notifications(int descriptor, ZeroCopyLedger& ledger, ZeroCopyCounts& counts) noexcept;

}  // namespace halfstep::net
