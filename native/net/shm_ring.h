// shm_ring.h — one direction of a connection in shared memory: a ring of bytes with one producer and one consumer.
//
//   control   tail           bytes ever put in      written by the producer
//             head           bytes ever taken out   written by the consumer
//             reader_waits   1: ring the consumer's bell after the next bytes   set by the consumer, cleared by the producer
//             writer_waits   1: ring the producer's bell when there is room     set by the producer, cleared by the consumer
//   data      a power of two of bytes; byte n of the stream is at n % size
//
// Invariants: the other end is not trusted. Each side goes by its own position alone; what the other publishes must lie within
// one ring of it and never go back, else the ring is broken (-EPROTO) and says nothing else from then on. Nothing in the ring
// is looked at in place: bytes are copied out once, and whoever wants to believe them does so in the copy. Positions are never
// read twice for one decision.
// Memory order: a side publishes its position with seq_cst and then looks whether the other waits; one that found nothing says
// that it waits, seq_cst, and then looks once more. So one of the two sees the other, and no bell is missed.
// Thread: each side belongs to one thread.
#pragma once

#include <sys/types.h>
#include <sys/uio.h>

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "base/bytes.h"

namespace halfstep::net {

// Two lines apart, since processors fetch lines in pairs.
inline constexpr size_t kRingLineBytes = 128;

struct RingControl {
  alignas(kRingLineBytes) std::atomic<uint64_t> tail;
  alignas(kRingLineBytes) std::atomic<uint64_t> head;
  alignas(kRingLineBytes) std::atomic<uint32_t> reader_waits;
  alignas(kRingLineBytes) std::atomic<uint32_t> writer_waits;
};
static_assert(sizeof(RingControl) == 4 * kRingLineBytes && std::atomic<uint64_t>::is_always_lock_free);

// Copied at a stretch before the other side is told, so that it copies what we have copied while we go on. One read() takes no
// more: who checks what came finds it in the core's first cache.
inline constexpr size_t kRingStepBytes = 16 * 1024;

class RingWriter {
 public:
  // `bell`: an eventfd of which nobody else holds the description, or -1.
  RingWriter(RingControl& control, Bytes data, int bell) noexcept;
  // Bytes copied; -EAGAIN: there is no room, the other side knows that we wait for some; -EPROTO: broken.
  ssize_t write(const iovec* vectors, size_t count) noexcept;
  // Bytes that the other side has not taken, as far as it says; 0 for a broken ring.
  size_t unread() noexcept;

 private:
  ssize_t room() noexcept;
  bool wait() noexcept;
  void publish() noexcept;

  RingControl& control_;
  const Bytes data_;
  const int bell_;
  uint64_t tail_ = 0;
  uint64_t head_ = 0;  // as last seen
  bool broken_ = false;
};

class RingReader {
 public:
  RingReader(RingControl& control, Bytes data, int bell) noexcept;
  // Bytes copied, not all that there are; -EAGAIN: there are none, the other side knows that we wait for some; -EPROTO: broken.
  ssize_t read(const iovec* vectors, size_t count) noexcept;

 private:
  ssize_t filled() noexcept;
  bool wait() noexcept;
  void publish() noexcept;

  RingControl& control_;
  const Bytes data_;
  const int bell_;
  uint64_t head_ = 0;
  uint64_t tail_ = 0;  // as last seen
  bool broken_ = false;
};

}  // namespace halfstep::net
