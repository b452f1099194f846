// send_queue.h — what one connection has still to send: copied bytes and references to payload memory, in order.
// Invariants: bytes leave in the order they were queued; a payload's `released` is called exactly once, when its last byte has
// left or when the queue is dropped, and never from inside push…(); or it is handed on, once, by consume() or take_front().
// Thread: the loop's. In the steady state nothing is allocated: both vectors keep their capacity until trim().
#pragma once

#include <sys/uio.h>

#include <cstdint>
#include <span>
#include <vector>

#include "base/bytes.h"

namespace halfstep::net {

// Payload memory given back: all bytes queued with it have left and nobody reads them any more, or they never will.
using Released = void (*)(void* owner, uint64_t tag);

struct Release {
  Released call = nullptr;
  void* owner = nullptr;
  uint64_t tag = 0;
  void operator()() const { call(owner, tag); }
};

// Who may know better when a payload is free than when its last byte has left.
class PayloadKeeper {
 public:
  // True: it calls the release later. False: it may be called now.
  virtual bool keep(const Release& release) = 0;

 protected:
  ~PayloadKeeper() = default;
};

// Payload in smaller pieces than this is copied: a fragment each, of which a packet has no more than 17, costs more.
inline constexpr size_t kRunPieceBytesMin = 4096;

class SendQueue {
 public:
  SendQueue() = default;
  ~SendQueue() { drop(); }
  SendQueue(const SendQueue&) = delete;
  SendQueue& operator=(const SendQueue&) = delete;

  void push(ConstBytes copied);
  void push_payload(std::span<const ConstBytes> payload, Released released, void* owner, uint64_t tag);

  uint64_t bytes() const noexcept { return bytes_; }
  bool empty() const noexcept { return first_ == pieces_.size(); }

  // The front of the queue as at most out.size() vectors and at most `bytes_max` bytes (but never none). Valid until the next
  // push() or consume().
  size_t gather(std::span<iovec> out, size_t bytes_max) const noexcept;
  // The same up to where payload begins or ends that is worth sending by itself: consecutive pieces of at least
  // `run_bytes_min`, a page each on average (kRunPieceBytesMin). `run`: whether this is such payload, and nothing else.
  size_t gather_to_border(std::span<iovec> out, size_t bytes_max, size_t run_bytes_min, bool* run) const noexcept;
  // `count` bytes have left. Releases what they complete, unless `keeper` keeps it; a `released` may push.
  void consume(size_t count, PayloadKeeper* keeper = nullptr);
  // The payload whose bytes are next to leave, if there is one: its release is the caller's from here on.
  bool take_front(Release* out) noexcept;
  // Forgets and releases everything.
  void drop();

  size_t held_bytes() const noexcept { return copies_.capacity() + pieces_.capacity() * sizeof(Piece); }
  // Gives capacity back if the queue is empty.
  void trim();

 private:
  struct Piece {
    const std::byte* reference = nullptr;  // null: the next bytes of copies_
    size_t bytes = 0;
    Released released = nullptr;  // with the last piece of a payload
    void* owner = nullptr;
    uint64_t tag = 0;
  };
  void compact() noexcept;
  size_t gather_until(std::span<iovec> out, size_t bytes_max, size_t end) const noexcept;
  bool run_begins(size_t at, size_t skip, size_t run_bytes_min) const noexcept;

  std::vector<Piece> pieces_;
  std::vector<std::byte> copies_;
  size_t first_ = 0;        // pieces before it have left
  size_t first_sent_ = 0;   // bytes of the first piece that have left
  size_t copies_sent_ = 0;  // bytes of copies_ that have left
  uint64_t bytes_ = 0;
};

}  // namespace halfstep::net
