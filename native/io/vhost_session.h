// vhost_session.h — what the engines of one vhost-user target share: its socket, and a thread that connects, sets all queues up
// in one go, watches the socket, and connects again.
// An engine is a member: it offers a queue and memory; when all members have offered theirs the thread connects and all are
// Live at once. When the socket ends, or a member calls its queue broken, all are Lost: each takes its memory back
// (base/shared_mapping.h) before it offers again, so that whatever the old target still writes lands nowhere.
// Invariants: `link` is set to Offered and Away by the member, to Live and Lost by the thread; what a member offers is the
// thread's from offer() on, until Lost or the end of leave(). A target that comes back has to offer at least what the first one
// did, or is not taken; and, once the store has said how (judge_by()), it has to hold that store: the thread reads its header
// through the first member's queue, while the target has no memory but that member's own, and no arena. Every byte from the
// socket is checked; none of them is an address or a size of memory. Thread: any; one lock, which no engine takes in a turn
// without news.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "base/bytes.h"
#include "base/status.h"
#include "io/vhost_kick.h"
#include "io/vhost_wire.h"
#include "io/virtqueue.h"

namespace halfstep::io {

// Regions of memory that a target takes: the table of the protocol has no more.
inline constexpr size_t kVhostRegionsMax = 8;

struct VhostMember {
  enum class Link : uint8_t { Away, Offered, Live, Lost };
  struct Region {
    Bytes memory;
    int descriptor = -1;
  };

  std::vector<Region> regions;  // the queue's and the scratch's first
  Virtqueue* queue = nullptr;
  Bytes scratch;      // of the first region: what the thread reads a header into
  size_t shared = 0;  // of the regions, the first ones, that the target was given: the thread's, until Lost
  VhostKick kick;
  int call = -1;
  int wake = -1;  // an eventfd that the thread writes to when `link` or `unreachable` has changed
  std::atomic<Link> link{Link::Away};
  std::atomic<bool> unreachable{false};  // the last try to connect failed
};

class VhostSession {
 public:
  using Read = std::function<Status(uint64_t offset, Bytes into)>;  // whole sectors
  // Whether what the target has is the store: Ok, or what was expected and what is there.
  using Judge = std::function<Fault(const Read& read)>;

  // Connects, to see what is there, and disconnects. `socket`: a path.
  static Fault open(const std::string& socket, bool read_only, std::unique_ptr<VhostSession>* out);
  ~VhostSession();  // all members have left
  VhostSession(const VhostSession&) = delete;
  VhostSession& operator=(const VhostSession&) = delete;

  const std::string& socket() const noexcept { return path_; }
  const BlockDeviceConfig& device() const noexcept { return device_; }
  bool indirect() const noexcept { return (features_ & kFeatureIndirect) != 0; }
  // Whether the device has a cache that a flush empties.
  bool flushes() const noexcept { return (features_ & kFeatureFlush) != 0; }
  // Whether the target may be given reserved 2 MiB pages alone. SPDK's ends by SIGSEGV when it is given others. It polls its
  // queues and so offers no EVENT_IDX, by which it is known here: one that offers none is asked for no more trust than that.
  bool takes_reserved_pages_alone() const noexcept { return !event_index_; }

  // From now on, each connection. On the thread.
  void judge_by(Judge judge);
  // Why the target that is there is not used, and the remedy; empty where it is, or none is there.
  std::string why_refused() const;

  // `of` engines share the target; each has `regions` of memory. The n-th to join has queue n.
  Fault join(VhostMember& member, uint32_t of, size_t regions);
  void offer(VhostMember& member);
  // What came in the member's queue cannot be: the target is left.
  void broken(VhostMember& member);
  // Its queue is stopped, and what it offered is its own again. Waits for the thread, 5 s at most where the target hangs.
  void leave(VhostMember& member);

 private:
  using Clock = std::chrono::steady_clock;
  explicit VhostSession(std::string path) : path_(std::move(path)) {}

  Fault look(uint64_t* features, BlockDeviceConfig* device);  // connects and asks what is there
  Fault set_up(const std::vector<VhostMember*>& members, const Judge& judge);
  Fault give_memory(const std::vector<VhostMember*>& members);
  Fault set_ring(uint32_t number, const VhostMember& member);
  Status read(VhostMember& member, uint64_t offset, Bytes into);
  Status read_piece(VhostMember& member, uint64_t offset, uint32_t bytes);
  Fault failed(const char* what, int error) const;
  void ring_bell() noexcept;
  // On the thread, with the lock.
  void run();
  bool all_offered() const noexcept;
  void connect(std::unique_lock<std::mutex>& lock);
  void drop() noexcept;
  void see_off(std::unique_lock<std::mutex>& lock);
  void watch(std::unique_lock<std::mutex>& lock);
  void tell_members(VhostMember::Link from, VhostMember::Link to) noexcept;

  const std::string path_;
  uint64_t features_ = 0;  // of those that are used, what the target has
  bool event_index_ = false;
  BlockDeviceConfig device_;
  VhostWire wire_;  // the thread's, but for open()
  int bell_ = -1;   // an eventfd that ends the thread's wait
  std::atomic<bool> give_up_{false};
  std::thread thread_;

  mutable std::mutex mutex_;  // guards what follows
  std::condition_variable left_;
  std::vector<VhostMember*> members_;  // by queue; null: has left, or has not joined yet
  uint32_t joined_ = 0;
  VhostMember* leaving_ = nullptr;
  bool broken_ = false;
  bool stop_ = false;
  uint32_t failures_ = 0;
  Judge judge_;
  std::string why_refused_;
  Clock::time_point try_at_;
};

}  // namespace halfstep::io
