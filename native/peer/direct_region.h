// direct_region.h — memory of the caller's, the host's or a GPU's, that daemons may write into over RDMA, and who uses it now.
// It is registered with a device when a connection over that device first asks a daemon to write there, and pinned from then on
// until close. Whoever owns it gives it away from submit to the terminal event: bytes may come at any time in between, and are
// only then what was asked for. What is written into a GPU nobody looks at but the daemon that sent it.
// Invariants: its number is nobody else's until it is closed; it is closed only when no ticket uses it, and deregistered before
// its memory can go; what is pinned stays within the budget. Thread: keys are the client's; uses anybody's.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/bytes.h"
#include "base/status.h"
#include "gpu/peer_writes.h"
#include "net/rdma_end.h"
#include "rdma/device.h"
#include "rdma/memory_region.h"

namespace halfstep::peer {

class DirectRegion {
 public:
  // `gpu`: whose memory it is; null: the host's.
  DirectRegion(Bytes memory, std::shared_ptr<gpu::Device> gpu, uint32_t number, net::RdmaBudget& budget) noexcept
      : memory_(memory), gpu_(std::move(gpu)), number_(number), budget_(budget) {}
  ~DirectRegion() { release(); }
  DirectRegion(const DirectRegion&) = delete;
  DirectRegion& operator=(const DirectRegion&) = delete;

  Bytes memory() const noexcept { return memory_; }
  // The CUDA device's ordinal; -1: the host.
  int device() const noexcept { return gpu_ != nullptr ? gpu_->ordinal() : -1; }
  uint32_t number() const noexcept { return number_; }
  bool has(const void* from, uint64_t bytes) const noexcept {
    const auto at = static_cast<const std::byte*>(from);
    return at >= memory_.data() && at <= memory_.data() + memory_.size() &&
           bytes <= static_cast<uint64_t>(memory_.data() + memory_.size() - at);
  }

  // The key by which a peer of this device writes it and, if it is the host's, reads it; registered if that is still to be
  // done. NoSpace: the budget, or the kernel's limit. Unsupported: a GPU, its driver or the card does not. One that failed is
  // not tried again with the same device.
  Fault key(const std::shared_ptr<rdma::Device>& device, uint32_t* out);
  // It is a GPU's, and cards may write into it.
  bool opened() const noexcept { return writes_ != nullptr; }
  // What has been written by cards is seen by its GPU from here on.
  Fault settle() const { return writes_->settle(); }
  // What windows of it are bound to, of the host's memory alone; a peer gets no key of the whole then. Otherwise as key().
  Fault for_windows(const std::shared_ptr<rdma::Device>& device, const rdma::MemoryRegion** out);
  // It is registered nowhere any more.
  void release() noexcept;
  // Nor with this device.
  void let_go(const rdma::Device& device) noexcept;

  bool used() const noexcept { return uses_.load(std::memory_order_acquire) != 0; }
  std::atomic<bool> closing{false};

 private:
  friend class RegionUse;
  using Access = rdma::MemoryRegion::Access;
  struct Registration {
    std::shared_ptr<rdma::Device> device;
    Access access;
    rdma::MemoryRegion region;
    Fault fault;
  };
  Registration& registered(const std::shared_ptr<rdma::Device>& device, Access access);
  Fault register_gpu(const std::shared_ptr<rdma::Device>& device, Access access, rdma::MemoryRegion* out);
  // What it has pinned of the host's memory.
  uint64_t pinned_bytes() const noexcept { return gpu_ != nullptr ? 0 : memory_.size(); }

  const Bytes memory_;
  const std::shared_ptr<gpu::Device> gpu_;
  std::unique_ptr<gpu::PeerWrites> writes_;  // once its GPU takes them
  const uint32_t number_;
  net::RdmaBudget& budget_;
  std::vector<Registration> registrations_;
  std::atomic<uint32_t> uses_{0};
};

// A ticket's hold on one.
class RegionUse {
 public:
  explicit RegionUse(std::shared_ptr<DirectRegion> region) noexcept : region_(std::move(region)) {
    region_->uses_.fetch_add(1, std::memory_order_relaxed);
  }
  ~RegionUse() {
    if (region_ != nullptr) region_->uses_.fetch_sub(1, std::memory_order_release);
  }
  RegionUse(RegionUse&& other) noexcept = default;
  RegionUse& operator=(RegionUse&&) = delete;
  RegionUse(const RegionUse&) = delete;
  RegionUse& operator=(const RegionUse&) = delete;
  DirectRegion& operator*() const noexcept { return *region_; }
  DirectRegion* operator->() const noexcept { return region_.get(); }

 private:
  std::shared_ptr<DirectRegion> region_;
};

}  // namespace halfstep::peer
