// memory_window.h — a key of its own for a part of a memory region: good from bind() to invalidate(), both of which travel
// through a queue pair among what else is posted there, and for that queue pair alone. Each time it is another of 256.
// Invariants: bound at most once at a time; it goes before its region does, and is freed before the queue pair that bound it:
// then nobody writes by it either. Thread: one, the loop's.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>

#include "base/bytes.h"
#include "base/status.h"
#include "rdma/device.h"
#include "rdma/memory_region.h"

namespace halfstep::rdma {

class MemoryWindow {
 public:
  MemoryWindow() = default;
  ~MemoryWindow() { reset(); }
  MemoryWindow(MemoryWindow&& other) noexcept { *this = std::move(other); }
  MemoryWindow& operator=(MemoryWindow&& other) noexcept {
    std::swap(device_, other.device_);
    std::swap(window_, other.window_);
    std::swap(key_, other.key_);
    return *this;
  }

  // NoSpace: the device has no more.
  static Fault make(std::shared_ptr<Device> device, MemoryWindow* out);
  void reset() noexcept;

  // What `request` does when it is carried out: `bytes` of the region can be read or written (abi::kAccessRemote…) by key().
  void bind(const MemoryRegion& region, Bytes bytes, int access, abi::SendRequest* request) noexcept;
  // Right after that was posted: providers read the key that was before while they post.
  void bound() noexcept { window_->rkey = key_; }
  // key() is good for nothing any more when the completion of `request` has come.
  void invalidate(abi::SendRequest* request) const noexcept;
  uint32_t key() const noexcept { return key_; }

 private:
  std::shared_ptr<Device> device_;
  abi::MemoryWindow* window_ = nullptr;
  uint32_t key_ = 0;
};

}  // namespace halfstep::rdma
