// uring_cmd_engine.h — requests as NVMe commands, straight to the drive's queues: the kernel's block layer sees none of them.
// A request of more bytes than a command moves is cut up, and its pieces are at the drive together. Writes carry a placement
// identifier where the drive gives them (FDP): those of a stream lie together in it, and are erased together.
// Invariants: a slot has at most one command, with its own memory for a range to deallocate; a request's pieces are all handed
// over before the next request's; a request with an error hands over no more, and ends when its last piece has. A flush is a
// command where the drive has a volatile cache, and else has nothing to do. Nothing is read through the page cache, which the
// block device of the same namespace has: it is claimed, and opened for direct requests alone.
// Neighbours are not gathered: a command has one piece of memory. Thread: the shard's.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "io/engine.h"
#include "io/nvme_namespace.h"
#include "io/nvme_queue.h"
#include "io/request.h"

namespace halfstep::io {

class UringCmdEngine final : public Engine {
 public:
  // A backing that has a namespace. Unsupported: what this kernel or user may not; the block device still serves.
  static Fault open(const EngineConfig& config, Arena& arena, const std::vector<Backing*>& backings,
                    std::unique_ptr<Engine>* out);

  // Makes the queue: with these regions of memory registered, or why not.
  struct Carrier {
    std::unique_ptr<NvmeQueue> queue;
    std::string why_unregistered, features;
  };
  using MakeCarrier = std::function<Fault(const std::vector<Bytes>& regions, Carrier* out)>;
  struct Drive {
    NvmeFacts facts;
    DiscardLimits discard;  // of the block device
  };
  static Fault open_on(const EngineConfig& config, Arena& arena, Drive drive, const MakeCarrier& make,
                       std::unique_ptr<Engine>* out);
  ~UringCmdEngine() override;
  UringCmdEngine(const UringCmdEngine&) = delete;
  UringCmdEngine& operator=(const UringCmdEngine&) = delete;

  void submit(Request& request) noexcept override;
  void flush_submissions() noexcept override;
  size_t poll() noexcept override;
  void wait() noexcept override;
  int wake_descriptor() const noexcept override { return queue_->wake_descriptor(); }
  uint32_t in_flight() const noexcept override { return in_flight_; }
  // Polled, nothing tells that a command has completed.
  bool ready() const noexcept override { return facts_.polled && out_ > 0; }
  uint64_t device_bytes(uint8_t device) const noexcept override { return device == 0 ? drive_.facts.format.bytes : 0; }
  DiscardLimits discard_limits(uint8_t device) const noexcept override { return device == 0 ? discard_ : DiscardLimits(); }
  const EngineFacts& facts() const noexcept override { return facts_; }
  const EngineCounters& counters() const noexcept override { return counters_; }

 private:
  struct Piece {
    Request* request = nullptr;
    uint32_t at = 0;  // of the request's bytes
    uint32_t bytes = 0;
    uint8_t retries = 0;
  };

  UringCmdEngine(const EngineConfig& config, Arena& arena, Drive drive);
  Fault set_up(const MakeCarrier& make);
  bool takes_registered() noexcept;
  int32_t try_to_read(Bytes into, int32_t region) noexcept;
  bool in_region(const std::byte* data, uint32_t bytes, int32_t* region) const noexcept;
  uint32_t piece_bytes(const Request& request) const noexcept;
  bool push(uint16_t slot) noexcept;
  void fill() noexcept;
  bool issue(Request& request) noexcept;
  void submitted(int result) noexcept;
  void reap() noexcept;
  void landed(uint16_t slot, int32_t error) noexcept;
  void finish(Request& request) noexcept { done_.push_back(request); }
  void wake() noexcept;

  Arena& arena_;
  const Drive drive_;
  DiscardLimits discard_;
  uint32_t large_piece_bytes_ = 0;  // where the arena is in large pages
  uint32_t small_piece_bytes_ = 0;
  std::unique_ptr<std::byte[], void (*)(std::byte*)> own_pages_;  // one to try out with, then each slot's NvmeRange
  std::unique_ptr<NvmeQueue> queue_;
  std::vector<Piece> pieces_;
  std::vector<uint16_t> free_;
  std::vector<uint16_t> again_;  // that the drive was not ready for
  std::vector<uint32_t> taken_back_;
  uint32_t out_ = 0;          // pieces in the queue
  bool unsubmitted_ = false;  // of them: some wait for another turn
  RequestQueue waiting_;
  RequestQueue done_;  // finished, complete() not called
  uint32_t in_flight_ = 0;
  EngineFacts facts_;
  EngineCounters counters_;
};

}  // namespace halfstep::io
