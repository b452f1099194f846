// upstream_engine.h — what stands where a shard has a device: nothing is read or written, and the descriptor that ends the
// wait of the shard's loop is the upstream's. The ends themselves are the store's to take (Upstream::turn).
// Invariant: no request is ever submitted. Thread: the shard's.
#pragma once

#include "base/check.h"
#include "io/engine.h"

namespace halfstep::mount {

class UpstreamEngine final : public io::Engine {
 public:
  explicit UpstreamEngine(int descriptor) : descriptor_(descriptor) { facts_.name = "upstream"; }
  void submit(io::Request& request) noexcept override { HALFSTEP_CHECK(false, request.offset); }
  void flush_submissions() noexcept override {}
  size_t poll() noexcept override { return 0; }
  void wait() noexcept override {}
  int wake_descriptor() const noexcept override { return descriptor_; }
  uint32_t in_flight() const noexcept override { return 0; }
  uint64_t device_bytes(uint8_t) const noexcept override { return 0; }
  io::DiscardLimits discard_limits(uint8_t) const noexcept override { return {}; }
  const io::EngineFacts& facts() const noexcept override { return facts_; }
  const io::EngineCounters& counters() const noexcept override { return counters_; }

 private:
  const int descriptor_;
  io::EngineFacts facts_;
  io::EngineCounters counters_;
};

}  // namespace halfstep::mount
