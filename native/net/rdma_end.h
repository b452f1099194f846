// rdma_end.h — what one end of a connection over RDMA holds before and after it knows the other: a ring that the other writes
// into, memory to send from, both registered, and a queue pair.
//
//   memory    ring     ring_bytes       registered for remote writes: its key covers this and nothing else
//             outbox   ring_bytes       registered for reading by the device: copies of what is sent
//
// Invariants: both count against the budget of the process from making to dropping; the queue pair goes first, then the
// registrations, then the memory, so that no device writes into what is gone; a child of this process has none of it.
// Thread: one, the loop's; the budget is anybody's.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <utility>

#include "base/bytes.h"
#include "base/status.h"
#include "base/units.h"
#include "rdma/device.h"
#include "rdma/memory_region.h"
#include "rdma/queue_pair.h"
#include "wire/rdma.h"

namespace halfstep::net {

// How much a process pins for rings.
class RdmaBudget {
 public:
  explicit RdmaBudget(uint64_t bytes_max) noexcept : bytes_max_(bytes_max) {}
  bool take(uint64_t bytes) noexcept {
    const uint64_t before = used_.fetch_add(bytes, std::memory_order_relaxed);
    if (before + bytes <= bytes_max_) return true;
    used_.fetch_sub(bytes, std::memory_order_relaxed);
    return false;
  }
  // A guess, as others take of it: take() decides.
  bool has(uint64_t bytes) const noexcept { return used_bytes() + bytes <= bytes_max_; }
  void give(uint64_t bytes) noexcept { used_.fetch_sub(bytes, std::memory_order_relaxed); }
  uint64_t used_bytes() const noexcept { return used_.load(std::memory_order_relaxed); }
  uint64_t bytes_max() const noexcept { return bytes_max_; }

 private:
  const uint64_t bytes_max_;
  std::atomic<uint64_t> used_{0};
};

// That so many bytes are more than is left.
Fault beyond_budget(const RdmaBudget& budget, uint64_t bytes);

class RdmaEnd {
 public:
  // What one takes of the budget.
  static constexpr uint64_t pinned_bytes(uint32_t ring_bytes) noexcept { return 2 * uint64_t{ring_bytes}; }
  // Writes under way, and receives posted. A full ring is 16 writes of kRdmaWriteBytesMax; small frames are smaller ones.
  static constexpr uint32_t kSends = 128;
  static constexpr uint32_t kReceives = 256;
  // Of one write: pieces of payload from where they lie.
  static constexpr uint32_t kPieces = 8;

  // NoSpace: the budget, or the kernel's limit. Receives are posted. The budget outlives it.
  static Fault make(const rdma::Path& path, uint32_t ring_bytes, RdmaBudget& budget, std::unique_ptr<RdmaEnd>* out);
  ~RdmaEnd();
  RdmaEnd(const RdmaEnd&) = delete;
  RdmaEnd& operator=(const RdmaEnd&) = delete;

  // For the other end.
  wire::RdmaPath description() const noexcept;
  // From here on both sides may write. reads.out is kept: how many this end has out at once.
  Fault connect(const wire::RdmaPath& other, const rdma::Reads& reads);
  uint32_t reads_out() const noexcept { return reads_out_; }

  rdma::QueuePair& queue_pair() noexcept { return *queue_pair_; }
  const std::shared_ptr<rdma::Device>& device() const noexcept { return queue_pair_->path().device; }
  Bytes ring() const noexcept { return {memory_, ring_bytes_}; }
  Bytes outbox() const noexcept { return {memory_ + ring_bytes_, ring_bytes_}; }
  uint32_t outbox_key() const noexcept { return outbox_region_.local_key(); }
  const wire::RdmaPath& other() const noexcept { return other_; }

 private:
  explicit RdmaEnd(RdmaBudget& budget) noexcept : budget_(budget) {}

  RdmaBudget& budget_;
  uint64_t charged_bytes_ = 0;
  std::byte* memory_ = nullptr;
  uint32_t ring_bytes_ = 0;
  wire::RdmaPath other_;
  uint32_t reads_out_ = 0;
  rdma::MemoryRegion ring_region_;
  rdma::MemoryRegion outbox_region_;
  std::unique_ptr<rdma::QueuePair> queue_pair_;
};

}  // namespace halfstep::net
