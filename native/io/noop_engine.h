// noop_engine.h — what the software alone costs: a no-op device, bytes in this process's memory, and a no-op engine, which
// moves them with memcpy and completes at the next look. No kernel, no queue, no drive; nothing outlives the process. It is
// named by `noop:`, as a store that a daemon makes anew at each start. Its figures stand beside those of a drive. Thread: the
// shard's; engines of several shards share a device, each with ranges of its own.
#pragma once

#include <memory>

#include "base/bytes.h"
#include "base/status.h"
#include "io/engine.h"
#include "io/request.h"

namespace halfstep::io {

// Pages come as they are first written.
class NoopDevice {
 public:
  static Fault create(uint64_t bytes, std::unique_ptr<NoopDevice>* out);
  ~NoopDevice();
  NoopDevice(const NoopDevice&) = delete;
  NoopDevice& operator=(const NoopDevice&) = delete;
  Bytes bytes() const noexcept { return bytes_; }

 private:
  explicit NoopDevice(Bytes bytes) : bytes_(bytes) {}
  Bytes bytes_;
};

class NoopEngine final : public Engine {
 public:
  // A backing that is a no-op device.
  static Fault open(const EngineConfig& config, const std::vector<Backing*>& backings, std::unique_ptr<Engine>* out);
  NoopEngine(NoopDevice& device, uint32_t queue_depth);
  ~NoopEngine() override;
  NoopEngine(const NoopEngine&) = delete;
  NoopEngine& operator=(const NoopEngine&) = delete;

  void submit(Request& request) noexcept override;
  void flush_submissions() noexcept override {}
  size_t poll() noexcept override;
  void wait() noexcept override {}
  int wake_descriptor() const noexcept override { return event_; }
  uint32_t in_flight() const noexcept override { return in_flight_; }
  bool ready() const noexcept override { return !done_.empty(); }
  uint64_t device_bytes(uint8_t device) const noexcept override { return device == 0 ? device_.bytes().size() : 0; }
  DiscardLimits discard_limits(uint8_t) const noexcept override { return {}; }
  const EngineFacts& facts() const noexcept override { return facts_; }
  const EngineCounters& counters() const noexcept override { return counters_; }

 private:
  NoopDevice& device_;
  int event_ = -1;
  RequestQueue done_;
  uint32_t in_flight_ = 0;
  EngineFacts facts_;
  EngineCounters counters_;
};

}  // namespace halfstep::io
