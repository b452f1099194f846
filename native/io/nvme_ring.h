// nvme_ring.h — an io_uring ring that carries NVMe commands to a namespace's character device (Linux 5.19): 128-byte entries
// one way, 32-byte ones back.
// Invariants: at most `entries` commands are in it; the completion queue has twice that room. It has no single issuer: on Linux
// 6.1 a ring whose issuer has ended gives back nothing of its commands, and whoever ends the engine would wait for ever.
// Polled, nobody is woken by a completion: who has commands in it has to look.
// Thread: one at a time.
#pragma once

#include <liburing.h>

#include <memory>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "base/status.h"
#include "io/nvme_queue.h"

namespace halfstep::io {

class NvmeRing final : public NvmeQueue {
 public:
  struct Options {
    int descriptor = -1;  // of the character device; stays its owner's
    uint32_t entries = 0;
    bool polled = false;
    std::vector<Bytes> regions;  // to be registered
  };
  static Fault open(const Options& options, std::unique_ptr<NvmeRing>* out);
  ~NvmeRing() override;
  NvmeRing(const NvmeRing&) = delete;
  NvmeRing& operator=(const NvmeRing&) = delete;

  bool push(const nvme_uring_cmd& command, int32_t region, uint32_t tag) noexcept override;
  int submit() noexcept override;
  size_t take_back(std::span<uint32_t> tags) noexcept override;
  size_t reap(std::span<NvmeDone> done) noexcept override;
  int wait() noexcept override;
  int wake_descriptor() const noexcept override { return event_; }

  // Empty where the regions are registered.
  const std::string& why_unregistered() const noexcept { return why_unregistered_; }
  const char* features() const noexcept { return features_; }

 private:
  NvmeRing() = default;
  Fault set_up(const Options& options);
  int taken(int result) noexcept;

  io_uring ring_{};
  bool ring_open_ = false;
  bool polled_ = false;
  int descriptor_ = -1;
  int event_ = -1;
  uint32_t active_ = 0;  // pushed and not reaped
  std::string why_unregistered_;
  const char* features_ = "";
};

}  // namespace halfstep::io
