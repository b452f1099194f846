// peer_writes.h — writes of another PCIe device, an RDMA card, into the memory of a GPU: what opens the memory to it, a dma-buf
// (DmaBuf), and what makes the GPU see what was written (PeerWrites::settle()).
// A device that orders such writes by itself needs nothing for that; for one that does not, the driver flushes. Where neither
// can be had there are none: the GPU might read what was there before. Invariants: the descriptor may be closed as soon as a
// card has the memory, which stays until no card has it. Thread: one.
#pragma once

#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

#include "base/status.h"
#include "gpu/copier.h"
#include "gpu/cuda.h"

namespace halfstep::gpu {

class DmaBuf {
 public:
  DmaBuf() = default;
  DmaBuf(int descriptor, uint64_t offset) noexcept : descriptor_(descriptor), offset_(offset) {}
  ~DmaBuf() {
    if (descriptor_ >= 0) ::close(descriptor_);
  }
  DmaBuf(DmaBuf&& other) noexcept { *this = std::move(other); }
  DmaBuf& operator=(DmaBuf&& other) noexcept {
    std::swap(descriptor_, other.descriptor_);
    std::swap(offset_, other.offset_);
    return *this;
  }

  int descriptor() const noexcept { return descriptor_; }
  // Where in it the memory begins that it was made for.
  uint64_t offset() const noexcept { return offset_; }

 private:
  int descriptor_ = -1;
  uint64_t offset_ = 0;
};

class PeerWrites {
 public:
  // Unsupported: the device or its driver cannot, and in what.
  static Fault open(std::shared_ptr<Device> device, std::unique_ptr<PeerWrites>* out);

  // `bytes` from `at` on, all of one allocation. Invalid: they are not. Unsupported: in the driver's words.
  Fault export_memory(DevicePointer at, size_t bytes, DmaBuf* out) const;
  // What had been written when this was called is seen by what runs on the GPU afterwards.
  Fault settle() const;

 private:
  PeerWrites(std::shared_ptr<Device> device, bool flushes) noexcept : device_(std::move(device)), flushes_(flushes) {}

  const std::shared_ptr<Device> device_;
  const bool flushes_;
};

}  // namespace halfstep::gpu
