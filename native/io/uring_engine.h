// uring_engine.h — requests on one io_uring ring, with the arena and the files registered where the
// kernel lets us. Invariants: at most queue_depth requests are in the ring, the rest waits in order
// in `waiting_`; the completion queue has twice that room, so it cannot overflow; the address of a Request, or of a Gather of
// them, is its SQE's user_data and the kernel's only handle on it. Thread: the ring is made
// disabled and enabled by the first call that hands it work, because SINGLE_ISSUER (Linux 6.0) ties
// it to the thread that enables it, and the factory may run on another one.
// Without deferred task run (before Linux 6.1) the kernel completes requests by interrupting this thread: a system call that
// waits may return EINTR.
// Kernels: 5.15 and newer. What is newer than that is tried and left out when it is refused.
#pragma once

#include <liburing.h>

#include <array>
#include <memory>
#include <vector>

#include "io/discard_worker.h"
#include "io/engine.h"
#include "io/gather_pause.h"
#include "io/gather_run.h"
#include "io/request.h"

namespace halfstep::io {

class UringEngine final : public Engine {
 public:
  // What the kernel is asked for at most: a test takes the place of an older kernel with it.
  enum class Features : uint8_t { All, NoDeferredTaskRun, NoSingleIssuer, None };

  // Fails, with cause and remedy, only where no ring is to be had at all.
  static Fault open(const EngineConfig& config, Arena& arena, const std::vector<Backing*>& backings,
                    std::unique_ptr<Engine>* out, Features features = Features::All,
                    const DiscardProbe& probe = ring_discard_probe());
  ~UringEngine() override;
  UringEngine(const UringEngine&) = delete;
  UringEngine& operator=(const UringEngine&) = delete;

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
  bool gathers() const noexcept override { return gather_pause_.gathers(); }
  const EngineFacts& facts() const noexcept override { return facts_; }
  const EngineCounters& counters() const noexcept override { return counters_; }
  // For open_engine(), which knows what this engine stands in for.
  void set_why_fallback(std::string why) { facts_.why_fallback = std::move(why); }

 private:
  struct Device {
    int descriptor = -1;
    uint64_t bytes = 0;
    DiscardLimits discard;  // none without a method
    DiscardMethod discard_method = DiscardMethod::None;
    bool async = false;  // IOSQE_ASYNC: io_uring_enter() would wait for its file system otherwise
  };

  // A GatherRun on its way.
  struct Gather {
    RequestQueue requests;
    uint64_t bytes = 0;
    uint32_t count = 0;      // of pieces: neighbours in memory are one
    bool one_thing = false;  // of use only whole
    bool fixed = false;      // in registered memory, all of one region
    uint32_t region = 0;
    std::array<iovec, GatherRun::kPiecesMax> pieces;
  };

  explicit UringEngine(Arena& arena) : arena_(arena) {}
  int set_up_ring(uint32_t entries, Features features);
  void register_resources();
  void set_up_discard(const std::vector<Backing*>& backings, const DiscardProbe& probe);
  bool enable() noexcept;
  void fill_ring() noexcept;
  void submit_ring() noexcept;
  bool registered(const Bytes& memory, uint32_t* region) const noexcept;
  int file_of(uint8_t device) const noexcept { return facts_.registered_files ? device : devices_[device].descriptor; }
  void prepare(io_uring_sqe& sqe, Request& request) const noexcept;
  void prepare(io_uring_sqe& sqe, Gather& gather) const noexcept;
  void finish_sqe(io_uring_sqe& sqe, uint8_t device) const noexcept;
  void prepare_transfer(io_uring_sqe& sqe, const Request& like, Bytes memory, uint64_t offset) const noexcept;
  // Of another region, or to where a vector could not be of registered memory, it costs more together than by itself.
  bool fits(const Gather& gather, const Request& next) const noexcept;
  // `first` with those of `waiting_` that follow it at the device; null when there is none.
  Gather* gather(Request& first) noexcept;
  void submitted(int result) noexcept;
  void fail_unsubmitted(int32_t error) noexcept;
  void reap() noexcept;
  void landed(uint64_t user_data, int32_t result) noexcept;
  void landed(Gather& gather, int32_t result) noexcept;
  void give(Gather& gather) noexcept { idle_gathers_.push_back(&gather); }
  void finish(Request& request) noexcept { done_.push_back(request); }
  void wake() noexcept;

  Arena& arena_;
  std::vector<Device> devices_;
  io_uring ring_{};
  bool ring_open_ = false;
  bool disabled_ = false;  // made with R_DISABLED and not enabled yet
  int event_ = -1;
  uint32_t active_ = 0;  // SQEs filled and not reaped
  uint32_t in_flight_ = 0;
  RequestQueue waiting_;
  GatherPause gather_pause_;                          // after a device has refused one
  bool gathers_registered_ = false;                   // into registered buffers; Linux 6.15
  std::vector<std::unique_ptr<Gather>> all_gathers_;  // queue_depth at most
  std::vector<Gather*> idle_gathers_;
  std::unique_ptr<DiscardWorker> discard_worker_;  // null unless a device needs it
  RequestQueue done_;                              // finished, complete() not called
  EngineFacts facts_;
  EngineCounters counters_;
};

}  // namespace halfstep::io
