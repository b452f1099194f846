// nvme_queue.h — the seam between an engine that makes NVMe commands and whatever carries them: a ring of the kernel
// (nvme_ring.h), or a fake drive in the tests.
// Invariants: a command that push() took comes back exactly once, from reap() or from take_back(). Destruction waits for what
// is in hand: after it nothing touches a command's memory any more.
// Thread: one at a time.
#pragma once

#include <linux/nvme_ioctl.h>

#include <cstdint>
#include <span>

namespace halfstep::io {

struct NvmeDone {
  uint32_t tag = 0;
  int32_t result = 0;  // for nvme_error()
};

class NvmeQueue {
 public:
  virtual ~NvmeQueue() = default;
  // Memory of a registered region, or kUnregistered. False: there is no room until submit() has taken what is here.
  static constexpr int32_t kUnregistered = -1;
  virtual bool push(const nvme_uring_cmd& command, int32_t region, uint32_t tag) noexcept = 0;
  // Hands over what was pushed. 0: all of it was taken; -EAGAIN: not yet; else it never will be.
  virtual int submit() noexcept = 0;
  // What was pushed and not taken comes back; how many were put into `tags`.
  virtual size_t take_back(std::span<uint32_t> tags) noexcept = 0;
  // What has completed; fewer than there is room for: no more now.
  virtual size_t reap(std::span<NvmeDone> done) noexcept = 0;
  // Until something has completed that reap() has not given. As submit(), which it does first.
  virtual int wait() noexcept = 0;
  // For completions and for whoever wakes the loop otherwise.
  virtual int wake_descriptor() const noexcept = 0;
};

}  // namespace halfstep::io
