// request.h — what every engine does with a Request alike: refuse what it must not pass on, queue,
// count. Thread: the shard's, unless its user locks.
#pragma once

#include <cerrno>
#include <cstdint>

#include "base/check.h"
#include "base/units.h"
#include "io/engine.h"

namespace halfstep::io {

inline constexpr uint32_t kQueueDepthMax = 4096;
// EINTR and EAGAIN are passing states; a request that meets nothing else fails with them instead of
// spinning.
inline constexpr uint8_t kRetriesMax = 64;

// 0 or a negative errno. An address comes, through the index, from flash: it is refused here, never
// asserted, and never lets a write grow the file.
inline int32_t refusal(const Request& request, uint64_t device_bytes, bool takes_discards) noexcept {
  if (request.op == Op::Flush) return request.bytes == 0 ? 0 : -EINVAL;
  if (request.bytes == 0 || request.bytes % kPageBytes != 0 || request.offset % kPageBytes != 0) return -EINVAL;
  const bool moves = request.op != Op::Discard;
  if (moves && (request.data == nullptr || reinterpret_cast<uintptr_t>(request.data) % kPageBytes != 0)) return -EINVAL;
  if (request.bytes > device_bytes || request.offset > device_bytes - request.bytes) return -EINVAL;
  return moves || takes_discards ? 0 : -EOPNOTSUPP;
}

// What goes on with a request after one transfer of it.
enum class Step : uint8_t { Finished, Again };

// `result` is what the kernel answered: bytes moved, 0 for what moves none, or a negative errno. Sets request.error when it
// is finished.
inline Step advance(Request& request, int64_t result) noexcept {
  if (result == -EINTR || result == -EAGAIN) {
    if (request.engine_retries++ < kRetriesMax) return Step::Again;
  }
  if (result < 0) {
    request.error = static_cast<int32_t>(result);
    return Step::Finished;
  }
  if (request.op == Op::Flush || request.op == Op::Discard) return Step::Finished;
  const auto moved = static_cast<uint32_t>(result);
  HALFSTEP_CHECK(moved <= request.bytes - request.engine_done_bytes, moved, request.bytes - request.engine_done_bytes);
  if (moved == request.bytes - request.engine_done_bytes) {
    request.engine_done_bytes = request.bytes;
    return Step::Finished;
  }
  // Carried on from a page border, as O_DIRECT demands. No page moved: a file that was cut, or a
  // full device.
  const auto pages = static_cast<uint32_t>(round_down(moved, kPageBytes));
  if (pages == 0 && (moved == 0 || request.engine_retries++ >= kRetriesMax)) {
    request.error = -EIO;
    return Step::Finished;
  }
  request.engine_done_bytes += pages;
  return Step::Again;
}

inline void count(EngineCounters& counters, const Request& request) noexcept {
  if (request.error != 0) {
    ++counters.errors;
    return;
  }
  switch (request.op) {
    case Op::Read:
      ++counters.reads;
      counters.read_bytes += request.bytes;
      return;
    case Op::Write:
      ++counters.writes;
      counters.write_bytes += request.bytes;
      return;
    case Op::Flush: ++counters.flushes; return;
    case Op::Discard:
      ++counters.discards;
      counters.discard_bytes += request.bytes;
      return;
  }
}

// Intrusive FIFO through Request::engine_next.
class RequestQueue {
 public:
  bool empty() const noexcept { return head_ == nullptr; }
  Request* front() const noexcept { return head_; }

  void push_back(Request& request) noexcept {
    request.engine_next = nullptr;
    *(head_ == nullptr ? &head_ : &tail_->engine_next) = &request;
    tail_ = &request;
  }
  void push_front(Request& request) noexcept {
    request.engine_next = head_;
    if (head_ == nullptr) tail_ = &request;
    head_ = &request;
  }
  Request* pop_front() noexcept {
    Request* request = head_;
    if (request != nullptr) head_ = request->engine_next;
    return request;
  }
  // False: it is not here.
  bool remove(Request& request) noexcept {
    Request* before = nullptr;
    for (Request* at = head_; at != nullptr; before = at, at = at->engine_next) {
      if (at != &request) continue;
      *(before == nullptr ? &head_ : &before->engine_next) = at->engine_next;
      if (tail_ == at) tail_ = before;
      return true;
    }
    return false;
  }
  // Appends all of `other`, which is empty afterwards.
  void take_all(RequestQueue& other) noexcept {
    if (other.head_ == nullptr) return;
    *(head_ == nullptr ? &head_ : &tail_->engine_next) = other.head_;
    tail_ = other.tail_;
    other.head_ = nullptr;
  }

 private:
  Request* head_ = nullptr;
  Request* tail_ = nullptr;  // meaningless when head_ is null
};

}  // namespace halfstep::io
