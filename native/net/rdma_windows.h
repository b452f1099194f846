// rdma_windows.h — the memory windows of one pipe: which are open, and which were closed and when that is so.
//
//   Free --take()--> Open --close()--> Closing --next()--> Posted --done()--> Over --take_closed()--> Free
//
// Invariants: a window that is not Free is not bound again; what was closed is told of once, in order, and only after its
// invalidation has completed. Thread: the loop's. In the steady state nothing is allocated.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/status.h"
#include "rdma/memory_window.h"

namespace halfstep::net {

class RdmaWindows {
 public:
  // As many as a connection has open, and not yet told to be closed.
  static constexpr size_t kMax = 256;

  // A free one. NoSpace: there is none, and the device gives no more.
  Fault take(const std::shared_ptr<rdma::Device>& device, uint32_t* number) {
    if (free_.empty()) {
      if (windows_.size() == kMax) {
        return {Code::NoSpace, "memory windows: " + std::to_string(kMax) + " of a connection are in use"};
      }
      rdma::MemoryWindow window;
      if (Fault fault = rdma::MemoryWindow::make(device, &window); !fault.ok()) return fault;
      free_.push_back(static_cast<uint32_t>(windows_.size()));
      windows_.push_back(std::move(window));
    }
    *number = free_.back();
    free_.pop_back();
    return {};
  }
  rdma::MemoryWindow& at(uint32_t number) noexcept { return windows_[number]; }
  void close(uint32_t number) noexcept { queue_[closed_++ % kMax] = number; }

  // The next whose invalidation is to be posted; null: none.
  const rdma::MemoryWindow* next() noexcept { return waits() ? &windows_[queue_[posted_++ % kMax]] : nullptr; }
  bool waits() const noexcept { return posted_ != closed_; }
  // How many were posted so far: to be given to done() when the last of them has completed.
  uint64_t posted() const noexcept { return posted_; }
  void done(uint64_t posted) noexcept { done_ = posted; }
  bool take_closed(uint32_t* number) {
    if (told_ == done_) return false;
    *number = queue_[told_++ % kMax];
    free_.push_back(*number);
    return true;
  }

  // All are freed, and with them their keys.
  void drop() noexcept { windows_.clear(); }

 private:
  std::vector<rdma::MemoryWindow> windows_;
  std::vector<uint32_t> free_;
  // Of those that were closed, in order; each is in it once. How many ever were closed, posted, done and told of.
  std::array<uint32_t, kMax> queue_{};
  uint64_t closed_ = 0;
  uint64_t posted_ = 0;
  uint64_t done_ = 0;
  uint64_t told_ = 0;
};

}  // namespace halfstep::net
