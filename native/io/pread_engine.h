// pread_engine.h — requests on a few threads that call pread, pwrite, fdatasync and ioctl(BLKDISCARD):
// where io_uring is refused. Invariants: `queued_`, `done_` and `signalled_` change under `mutex_` alone; a worker
// touches a Request from taking it off `queued_` to putting it on `done_`, the shard's thread at
// all other times; the eventfd is readable exactly while `signalled_`. Thread: the shard's, and its
// own workers, which no signal reaches.
#pragma once

#include <pthread.h>

#include <condition_variable>
#include <memory>
#include <mutex>
#include <vector>

#include "io/engine.h"
#include "io/request.h"

namespace halfstep::io {

class PreadEngine final : public Engine {
 public:
  static Fault open(const EngineConfig& config, const std::vector<Backing*>& backings, std::unique_ptr<Engine>* out,
                    const DiscardProbe& probe = plain_discard_probe());
  ~PreadEngine() override;
  PreadEngine(const PreadEngine&) = delete;
  PreadEngine& operator=(const PreadEngine&) = delete;

  void submit(Request& request) noexcept override;
  void flush_submissions() noexcept override;
  size_t poll() noexcept override;
  void wait() noexcept override;
  int wake_descriptor() const noexcept override { return event_; }
  uint32_t in_flight() const noexcept override { return in_flight_; }
  uint64_t device_bytes(uint8_t device) const noexcept override {
    return device < devices_.size() ? devices_[device].bytes : 0;
  }
  DiscardLimits discard_limits(uint8_t device) const noexcept override {
    return device < devices_.size() ? devices_[device].discard : DiscardLimits();
  }
  const EngineFacts& facts() const noexcept override { return facts_; }
  const EngineCounters& counters() const noexcept override { return counters_; }
  // For open_engine(), which knows what this engine stands in for.
  void set_why_fallback(std::string why) { facts_.why_fallback = std::move(why); }

 private:
  struct Device {
    int descriptor = -1;
    uint64_t bytes = 0;
    DiscardLimits discard;  // none without a method
  };

  PreadEngine() = default;
  static void* run_worker(void* engine) noexcept;
  void work() noexcept;
  void transfer(Request& request) const noexcept;

  std::vector<Device> devices_;
  std::vector<pthread_t> workers_;
  int event_ = -1;
  uint32_t in_flight_ = 0;
  RequestQueue submitted_;  // not handed to the workers yet
  RequestQueue refused_;    // failed in submit()
  EngineFacts facts_;
  EngineCounters counters_;

  std::mutex mutex_;
  std::condition_variable work_ready_;
  std::condition_variable work_done_;
  RequestQueue queued_;
  RequestQueue done_;
  bool signalled_ = false;
  bool stopping_ = false;
};

}  // namespace halfstep::io
