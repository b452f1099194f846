// memory_region.h — memory that a device may read or write, the host's or a GPU's: pinned from registering to deregistering.
// Invariants: the memory outlives the region, and the region the queue pairs that use it: whoever holds both drops the queue
// pair first. Thread: one.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "base/bytes.h"
#include "base/status.h"
#include "rdma/device.h"

namespace halfstep::rdma {

class MemoryRegion {
 public:
  enum class Access : uint8_t {
    Local,        // read by the device, for what is sent
    LocalWrite,   // and written, with what it reads from others
    RemoteWrite,  // written by whoever has the key
    Remote,       // and read
    Windows,      // by whoever has the key of a window of it (memory_window.h), and by nobody else
  };

  MemoryRegion() = default;
  ~MemoryRegion() { reset(); }
  MemoryRegion(MemoryRegion&& other) noexcept { *this = std::move(other); }
  MemoryRegion& operator=(MemoryRegion&& other) noexcept {
    std::swap(device_, other.device_);
    std::swap(region_, other.region_);
    return *this;
  }

  static Fault make(std::shared_ptr<Device> device, Bytes memory, Access access, MemoryRegion* out);
  // Memory of a device, a GPU's, as a dma-buf hands it out. Unsupported: not to this card.
  struct DmaBuf {
    int descriptor = -1;
    uint64_t offset = 0;   // where in it the memory begins
    uint64_t address = 0;  // of its first byte
    size_t bytes = 0;
  };
  static Fault make(std::shared_ptr<Device> device, const DmaBuf& memory, Access access, MemoryRegion* out);
  void reset() noexcept;

  uint32_t local_key() const noexcept { return region_->lkey; }
  uint32_t remote_key() const noexcept { return region_->rkey; }
  uint64_t address() const noexcept { return reinterpret_cast<uint64_t>(region_->addr); }
  bool made() const noexcept { return region_ != nullptr; }
  abi::MemoryRegion* handle() const noexcept { return region_; }

 private:
  static int bits_of(Access access) noexcept;

  std::shared_ptr<Device> device_;
  abi::MemoryRegion* region_ = nullptr;
};

}  // namespace halfstep::rdma
