// gather_run.h — which transfers of neighbours on a device, submitted one after the other, an engine may hand to the kernel as
// one: what a request costs of a core it costs once, and merging them further down saves nothing of that.
// Together go pieces of one thing that is of use only whole, a frame or a block; and small reads, whatever they are of: a read
// of 256 KiB takes 15 us where 16 of 16 KiB take 40. Neighbours that are larger and not of one thing go one by one, since they
// are of use one by one; what was tried before goes alone. A run remembers nothing of a request that it was shown but its
// values: that may be another thread's by then. Thread: any, each its own.
#pragma once

#include "base/units.h"
#include "io/engine.h"

namespace halfstep::io {

class GatherRun {
 public:
  static constexpr uint32_t kSmallBytesMax = 64 * KiB;
  static constexpr uint32_t kSmallTogetherBytesMax = 256 * KiB;
  static constexpr uint32_t kWholeTogetherBytesMax = 1 * MiB;
  static constexpr size_t kPiecesMax = kWholeTogetherBytesMax / kPageBytes;

  void begin(const Request& first) noexcept {
    open_ = may(first);
    op_ = first.op;
    device_ = first.device;
    owner_ = owner_of_whole(first);
    small_ = small(first);
    end_ = first.offset + first.bytes;
    bytes_ = first.bytes;
  }
  bool takes(const Request& next) const noexcept {
    if (!open_ || !may(next) || next.op != op_ || next.device != device_ || next.offset != end_) return false;
    const uint64_t bytes = bytes_ + next.bytes;
    if (small_ && small(next) && bytes <= kSmallTogetherBytesMax) return true;
    return owner_ != nullptr && owner_of_whole(next) == owner_ && bytes <= kWholeTogetherBytesMax;
  }
  void add(const Request& next) noexcept {
    if (owner_of_whole(next) != owner_) owner_ = nullptr;
    small_ = small_ && small(next);
    end_ += next.bytes;
    bytes_ += next.bytes;
  }
  // Of all of them, where they are pieces of one thing; null where they are not.
  void* owner() const noexcept { return owner_; }

 private:
  static bool may(const Request& request) noexcept {
    if (request.alone || request.engine_retries != 0 || request.engine_done_bytes != 0) return false;
    return request.op == Op::Read || request.op == Op::Write;
  }
  static bool small(const Request& request) noexcept { return request.op == Op::Read && request.bytes <= kSmallBytesMax; }
  static void* owner_of_whole(const Request& request) noexcept {
    return request.whole && !request.engine_apart ? request.owner : nullptr;
  }

  bool open_ = false;
  Op op_ = Op::Read;
  uint8_t device_ = 0;
  bool small_ = false;  // all of them
  void* owner_ = nullptr;
  uint64_t end_ = 0;
  uint64_t bytes_ = 0;
};

}  // namespace halfstep::io
