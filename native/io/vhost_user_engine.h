// vhost_user_engine.h — requests through a virtqueue to a vhost-user-blk target, another process that has the drive.
// A shared arena is given to the target: bytes move between it and the drive without a copy here. Other memory (headers, logs,
// footers, recovery, scrub; all of it where the arena is private) goes through pages of the engine's own.
// Invariants: a slot has at most one request, and a request at most one slot; a kick is made in flush_submissions() alone, so
// there is at most one a turn. Nothing that the target writes is an address, a size or an index that is not checked
// (virtqueue.h). When the link is lost, what was in flight ends with -EIO, but only after the arena has been taken back and the
// engine's own pages are new ones: the old target, or a drive that it asked, may go on writing, and writes into pages that are
// nobody's. That is done a piece a turn. While the target is away requests fail at once. Descriptors: the target has the call
// eventfd, and may change its flags, so it is never read or written here, and what the loop waits for is an epoll descriptor.
// Of the kick the target has its own end (vhost_kick.h). Thread: the shard's; the session has its own (vhost_session.h).
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/shared_mapping.h"
#include "io/engine.h"
#include "io/request.h"
#include "io/vhost_session.h"
#include "io/virtqueue.h"

namespace halfstep::io {

class VhostUserEngine final : public Engine {
 public:
  // A backing that has a session.
  static Fault open(const EngineConfig& config, Arena& arena, const std::vector<Backing*>& backings,
                    std::unique_ptr<Engine>* out);
  ~VhostUserEngine() override;
  VhostUserEngine(const VhostUserEngine&) = delete;
  VhostUserEngine& operator=(const VhostUserEngine&) = delete;

  void submit(Request& request) noexcept override;
  void flush_submissions() noexcept override;
  size_t poll() noexcept override;
  void wait() noexcept override;
  int wake_descriptor() const noexcept override { return epoll_; }
  uint32_t in_flight() const noexcept override { return in_flight_; }
  uint64_t device_bytes(uint8_t device) const noexcept override { return device == 0 ? session_.device().bytes : 0; }
  DiscardLimits discard_limits(uint8_t) const noexcept override { return {}; }
  const EngineFacts& facts() const noexcept override { return facts_; }
  const EngineCounters& counters() const noexcept override { return counters_; }

 private:
  using Link = VhostMember::Link;
  static constexpr uint32_t kBounceBytes = 64 * KiB;
  static constexpr uint32_t kBounces = 16;
  static constexpr uint16_t kNoBounce = UINT16_MAX;

  struct Slot {
    Request* request = nullptr;
    uint32_t bytes = 0;  // of the request, in this piece of it
    uint16_t bounce = kNoBounce;
  };

  VhostUserEngine(Arena& arena, VhostSession& session, uint16_t slots);
  Fault set_up();
  Fault make_memory();
  Fault no_reserved_pages(const std::string& what) const;
  Fault make_bells();
  void close_bells() noexcept;
  void offer();
  bool live() const noexcept { return member_.link.load(std::memory_order_acquire) == Link::Live; }
  bool in_arena(const Request& request) const noexcept;
  std::byte* bounce(uint16_t number) const noexcept { return bounces_ + uint64_t{number} * kBounceBytes; }
  void fill_queue() noexcept;
  bool push(Request& request) noexcept;
  void reap() noexcept;
  void landed(const Virtqueue::Done& done) noexcept;
  void free_slot(uint16_t number) noexcept;
  void take_back() noexcept;
  void fail_waiting() noexcept;
  void finish(Request& request) noexcept { done_.push_back(request); }
  void wake() noexcept;

  Arena& arena_;
  VhostSession& session_;
  const uint16_t slot_count_;
  VhostMember member_;
  bool joined_ = false;
  SharedMapping own_;  // the queue, then the bounce pages
  std::byte* bounces_ = nullptr;
  std::unique_ptr<Virtqueue> queue_;
  int epoll_ = -1;  // of the call, and of wake_
  int wake_ = -1;
  std::vector<Slot> slots_;
  std::vector<uint16_t> free_slots_;
  std::vector<uint16_t> free_bounces_;
  RequestQueue waiting_;
  RequestQueue done_;  // finished, complete() not called
  uint32_t in_flight_ = 0;
  bool taking_back_ = false;
  EngineFacts facts_;
  EngineCounters counters_;
};

}  // namespace halfstep::io
