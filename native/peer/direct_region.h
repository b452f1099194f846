// direct_region.h — memory of the caller's that daemons may write into over RDMA, and who uses it now.
// It is registered with a device when a connection over that device first asks a daemon to write there, and pinned from then on
// until close. Whoever owns it gives it away from submit to the terminal event: bytes may come at any time in between, and are
// only then what was asked for.
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
#include "net/rdma_end.h"
#include "rdma/device.h"
#include "rdma/memory_region.h"

namespace halfstep::peer {

class DirectRegion {
 public:
  DirectRegion(Bytes memory, uint32_t number, net::RdmaBudget& budget) noexcept
      : memory_(memory), number_(number), budget_(budget) {}
  ~DirectRegion() { release(); }
  DirectRegion(const DirectRegion&) = delete;
  DirectRegion& operator=(const DirectRegion&) = delete;

  Bytes memory() const noexcept { return memory_; }
  uint32_t number() const noexcept { return number_; }
  bool has(const void* from, uint64_t bytes) const noexcept {
    const auto at = static_cast<const std::byte*>(from);
    return at >= memory_.data() && at <= memory_.data() + memory_.size() &&
           bytes <= static_cast<uint64_t>(memory_.data() + memory_.size() - at);
  }

  // The key by which a peer of this device writes into it; registered if that is still to be done. NoSpace: the budget, or the
  // kernel's limit. One that failed is not tried again with the same device.
  Fault key(const std::shared_ptr<rdma::Device>& device, uint32_t* out);
  // It is registered nowhere any more.
  void release() noexcept;

  bool used() const noexcept { return uses_.load(std::memory_order_acquire) != 0; }
  std::atomic<bool> closing{false};

 private:
  friend class RegionUse;
  struct Registration {
    std::shared_ptr<rdma::Device> device;
    rdma::MemoryRegion region;
    Fault fault;
  };

  const Bytes memory_;
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
