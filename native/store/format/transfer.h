// transfer.h — device requests over the pieces of a slot, pooled.
// Pieces that are neighbours in memory and on the device become one request of up to kTransferBytesMax.
// Thread: the shard's.
#pragma once

#include <deque>
#include <type_traits>

#include "base/slots.h"
#include "io/engine.h"

namespace halfstep::store {

inline constexpr uint32_t kTransferBytesMax = 1 * MiB;
// Of a frame: a get's read may have to wait for one that the device has begun.
inline constexpr uint32_t kFrameTransferBytesMax = 256 * KiB;
// Of a block that needs more than one of the largest: the device has fewer bytes at once then, and they come in the order in
// which they are wanted, so that the first block can go while the last is read.
inline constexpr uint32_t kLargeBlockTransferBytesMax = 256 * KiB;

struct Transfer {
  io::Request request;
  Transfer* next = nullptr;
  bool landed = false;

  static Transfer& of(io::Request& request) noexcept { return reinterpret_cast<Transfer&>(request); }
};
static_assert(std::is_standard_layout_v<Transfer>, "a request is found again in the transfer that begins with it");

class TransferPool {
 public:
  // `arena`: where the memory of all of them lies.
  explicit TransferPool(Arena& arena) noexcept : arena_(arena) {}

  Arena& arena() const noexcept { return arena_; }
  // For these bytes at this place of the device; all else, the operation first of all, is as in `like`.
  Transfer& take(const io::Request& like, uint64_t offset, Bytes bytes) {
    if (free_ == nullptr) free_ = &transfers_.emplace_back();
    Transfer& transfer = *free_;
    free_ = transfer.next;
    transfer = {.request = like};
    transfer.request.offset = offset;
    transfer.request.data = bytes.data();
    transfer.request.bytes = static_cast<uint32_t>(bytes.size());
    return transfer;
  }
  void give(Transfer& transfer) noexcept {
    transfer.next = free_;
    free_ = &transfer;
  }

 private:
  Arena& arena_;
  std::deque<Transfer> transfers_;
  Transfer* free_ = nullptr;
};

// Collects memory that goes to consecutive places of the device, and cuts it into requests: emit(uint64_t device_offset,
// Bytes).
template <typename Emit>
class TransferCutter {
 public:
  TransferCutter(Arena& arena, uint64_t device_offset, Emit emit, uint32_t bytes_max = kTransferBytesMax)
      : arena_(arena), at_(device_offset), emit_(std::move(emit)), bytes_max_(bytes_max) {}

  void add(Bytes piece) {
    const bool follows = !run_.empty() && piece.data() == run_.data() + run_.size() &&
                         run_.size() + piece.size() <= bytes_max_ &&
                         arena_.region_of(piece.data()) == arena_.region_of(run_.data());
    if (follows) {
      run_ = Bytes(run_.data(), run_.size() + piece.size());
      return;
    }
    finish();
    run_ = piece;
  }
  void finish() {
    if (run_.empty()) return;
    emit_(at_, run_);
    at_ += run_.size();
    run_ = {};
  }

 private:
  Arena& arena_;
  uint64_t at_;
  Bytes run_;
  Emit emit_;
  const uint32_t bytes_max_;
};

}  // namespace halfstep::store
