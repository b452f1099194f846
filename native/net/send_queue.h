// send_queue.h — what one connection has still to send: copied bytes and references to payload memory, in order.
// Invariants: bytes leave in the order they were queued; a payload's `released` is called exactly once, when its last byte has
// left or when the queue is dropped, and never from inside push…().
// Thread: the loop's. In the steady state nothing is allocated: both vectors keep their capacity until trim().
#pragma once

#include <sys/uio.h>

#include <cstdint>
#include <span>
#include <vector>

#include "base/bytes.h"

namespace halfstep::net {

// Payload memory given back: all bytes queued with it have left, or the connection is gone.
using Released = void (*)(void* owner, uint64_t tag);

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
  // `count` bytes have left. Releases what they complete; a `released` may push.
  void consume(size_t count);
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

  std::vector<Piece> pieces_;
  std::vector<std::byte> copies_;
  size_t first_ = 0;        // pieces before it have left
  size_t first_sent_ = 0;   // bytes of the first piece that have left
  size_t copies_sent_ = 0;  // bytes of copies_ that have left
  uint64_t bytes_ = 0;
};

}  // namespace halfstep::net
