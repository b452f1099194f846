#include "net/rdma_end.h"

#include <sys/mman.h>
#include <sys/random.h>

#include <cerrno>
#include <string>

#include "base/numa.h"

namespace halfstep::net {
namespace {

constexpr uint32_t kPsnMask = (1U << 24) - 1;

// A packet of an earlier connection, or of a stranger, hits the window by chance alone.
uint32_t random_psn() noexcept {
  uint32_t psn = 0;
  (void)!::getrandom(&psn, sizeof(psn), 0);
  return psn & kPsnMask;
}

}  // namespace

Fault beyond_budget(const RdmaBudget& budget, uint64_t bytes) {
  return {Code::NoSpace, "rings have " + std::to_string(budget.used_bytes()) + " of " + std::to_string(budget.bytes_max()) +
                             " bytes pinned, and " + std::to_string(bytes) + " more are needed"};
}

Fault RdmaEnd::make(const rdma::Path& path, uint32_t ring_bytes, RdmaBudget& budget, std::unique_ptr<RdmaEnd>* out) {
  std::unique_ptr<RdmaEnd> end(new RdmaEnd(budget));
  const uint64_t bytes = pinned_bytes(ring_bytes);
  if (!budget.take(bytes)) return beyond_budget(budget, bytes);
  end->charged_bytes_ = bytes;
  void* mapped = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapped == MAP_FAILED) {
    const int error = errno;
    return {{Code::NoSpace, -error}, "mapping " + std::to_string(bytes) + " bytes of rings: " + errno_name(error)};
  }
  end->memory_ = static_cast<std::byte*>(mapped);
  end->ring_bytes_ = ring_bytes;
  // A child that shared the pages would take them from under the device with its first write, or ours.
  if (::madvise(mapped, bytes, MADV_DONTFORK) != 0) {
    const int error = errno;
    return {{Code::Unsupported, -error}, "keeping rings from children: madvise(MADV_DONTFORK): " + errno_name(error)};
  }
  (void)numa::prefer_as_thread({end->memory_, static_cast<size_t>(bytes)});
  Fault fault = rdma::MemoryRegion::make(path.device, end->ring(), rdma::MemoryRegion::Access::RemoteWrite, &end->ring_region_);
  if (!fault.ok()) return fault;
  fault = rdma::MemoryRegion::make(path.device, end->outbox(), rdma::MemoryRegion::Access::Local, &end->outbox_region_);
  if (!fault.ok()) return fault;
  const rdma::QueueDepths depths{.sends = kSends, .receives = kReceives, .send_pieces = kPieces};
  fault = rdma::QueuePair::make(path, depths, random_psn(), &end->queue_pair_);
  if (!fault.ok()) return fault;
  if (const int error = end->queue_pair_->post_receives(kReceives); error != 0) {
    return {{Code::IoError, -error}, path.device->name() + ": posting receives: " + errno_name(error)};
  }
  *out = std::move(end);
  return {};
}

RdmaEnd::~RdmaEnd() {
  queue_pair_ = nullptr;
  outbox_region_.reset();
  ring_region_.reset();
  if (memory_ != nullptr) ::munmap(memory_, 2 * size_t{ring_bytes_});
  budget_.give(charged_bytes_);
}

wire::RdmaPath RdmaEnd::description() const noexcept {
  return {.gid = queue_pair_->path().gid,
          .queue_pair = queue_pair_->number(),
          .psn = queue_pair_->psn(),
          .ring_address = ring_region_.address(),
          .ring_key = ring_region_.remote_key(),
          .ring_bytes = ring_bytes_,
          .mtu_bytes = queue_pair_->path().mtu_bytes};
}

Fault RdmaEnd::connect(const wire::RdmaPath& other, const rdma::Reads& reads) {
  other_ = other;
  reads_out_ = reads.out;
  return queue_pair_->connect({.gid = other.gid, .number = other.queue_pair, .psn = other.psn, .mtu_bytes = other.mtu_bytes},
                              reads);
}

}  // namespace halfstep::net
