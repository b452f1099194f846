#include "net/shm_ring.h"

#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>

#include "base/check.h"

namespace halfstep::net {
namespace {

void ring_bell(int bell) noexcept {
  const uint64_t one = 1;
  // A full counter has been heard already.
  if (bell >= 0) (void)!::write(bell, &one, sizeof(one));
}

// A plain exchange for each publication would pull the line away from who seldom writes it.
void tell(std::atomic<uint32_t>& waits, int bell) noexcept {
  if (waits.load(std::memory_order_seq_cst) == 0) return;
  waits.store(0, std::memory_order_relaxed);
  ring_bell(bell);
}

}  // namespace

// ---- Writer --------------------------------------------------------------------------------------------------------------

RingWriter::RingWriter(RingControl& control, Bytes data, int bell) noexcept : control_(control), data_(data), bell_(bell) {
  HALFSTEP_CHECK(std::has_single_bit(data.size()));
}

ssize_t RingWriter::room() noexcept {
  if (broken_) return -EPROTO;
  const uint64_t head = control_.head.load(std::memory_order_seq_cst);
  // head_ <= head <= tail_, by distances: positions may pass 2^64 in a ring that lives long enough, and a liar's always.
  if (head - head_ > tail_ - head_) {
    broken_ = true;
    return -EPROTO;
  }
  head_ = head;
  return static_cast<ssize_t>(data_.size() - (tail_ - head_));
}

// Says that we wait. False: it is not for us to wait, there is room after all.
bool RingWriter::wait() noexcept {
  control_.writer_waits.store(1, std::memory_order_seq_cst);
  if (room() <= 0) return true;
  control_.writer_waits.store(0, std::memory_order_relaxed);
  return false;
}

void RingWriter::publish() noexcept {
  control_.tail.store(tail_, std::memory_order_seq_cst);
  tell(control_.reader_waits, bell_);
}

ssize_t RingWriter::write(const iovec* vectors, size_t count) noexcept {
  if (broken_) return -EPROTO;
  size_t total = 0;
  size_t unpublished = 0;
  auto left = static_cast<size_t>(data_.size() - (tail_ - head_));
  for (size_t i = 0; i < count; ++i) {
    const auto* from = static_cast<const std::byte*>(vectors[i].iov_base);
    for (size_t bytes = vectors[i].iov_len; bytes != 0;) {
      if (left == 0) {
        if (unpublished != 0) publish();
        unpublished = 0;
        ssize_t room_now = room();
        if (room_now == 0 && !wait()) room_now = room();
        if (room_now < 0) return room_now;
        if (room_now == 0) return total != 0 ? static_cast<ssize_t>(total) : -EAGAIN;
        left = static_cast<size_t>(room_now);
      }
      const size_t at = tail_ & (data_.size() - 1);
      const size_t step = std::min({bytes, left, data_.size() - at, kRingStepBytes - unpublished});
      std::memcpy(data_.data() + at, from, step);
      from += step;
      bytes -= step;
      left -= step;
      tail_ += step;
      total += step;
      unpublished += step;
      if (unpublished == kRingStepBytes) {
        publish();
        unpublished = 0;
      }
    }
  }
  if (unpublished != 0) publish();
  return static_cast<ssize_t>(total);
}

size_t RingWriter::unread() noexcept {
  const ssize_t room_now = room();
  return room_now < 0 ? 0 : data_.size() - static_cast<size_t>(room_now);
}

// ---- Reader --------------------------------------------------------------------------------------------------------------

RingReader::RingReader(RingControl& control, Bytes data, int bell) noexcept : control_(control), data_(data), bell_(bell) {
  HALFSTEP_CHECK(std::has_single_bit(data.size()));
}

ssize_t RingReader::filled() noexcept {
  if (broken_) return -EPROTO;
  const uint64_t tail = control_.tail.load(std::memory_order_seq_cst);
  // tail_ <= tail <= head_ + size
  if (tail - head_ > data_.size() || tail - head_ < tail_ - head_) {
    broken_ = true;
    return -EPROTO;
  }
  tail_ = tail;
  return static_cast<ssize_t>(tail_ - head_);
}

bool RingReader::wait() noexcept {
  control_.reader_waits.store(1, std::memory_order_seq_cst);
  if (filled() <= 0) return true;
  control_.reader_waits.store(0, std::memory_order_relaxed);
  return false;
}

// A writer that waits is told when half of the ring is free, not for every byte: then it has something to do.
void RingReader::publish() noexcept {
  control_.head.store(head_, std::memory_order_seq_cst);
  if (tail_ - head_ <= data_.size() / 2) tell(control_.writer_waits, bell_);
}

ssize_t RingReader::read(const iovec* vectors, size_t count) noexcept {
  if (broken_) return -EPROTO;
  if (tail_ == head_) {
    ssize_t now = filled();
    if (now == 0 && !wait()) now = filled();
    if (now <= 0) return now == 0 ? -EAGAIN : now;
  }
  const size_t most = std::min<uint64_t>(tail_ - head_, kRingStepBytes);
  size_t total = 0;
  for (size_t i = 0; i < count && total < most; ++i) {
    auto* to = static_cast<std::byte*>(vectors[i].iov_base);
    for (size_t bytes = std::min(vectors[i].iov_len, most - total); bytes != 0;) {
      const size_t at = head_ & (data_.size() - 1);
      const size_t step = std::min(bytes, data_.size() - at);
      std::memcpy(to, data_.data() + at, step);
      to += step;
      bytes -= step;
      head_ += step;
      total += step;
    }
  }
  publish();
  return static_cast<ssize_t>(total);
}

}  // namespace halfstep::net
