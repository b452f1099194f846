// queue_pair.h — one reliable connection of a device: a queue pair, the queue of its completions, and a descriptor that becomes
// readable when one comes after arm().
// Invariants: released in the order queue pair, completion queue, channel, so that nothing is completed into what is gone; each
// event of the channel is acknowledged at once, or the completion queue could not be destroyed. Must never: block.
// Thread: one, the loop's.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "base/status.h"
#include "rdma/device.h"

namespace halfstep::rdma {

// More are of no use: one brings as much as a path has under way.
inline constexpr uint32_t kReadsMax = 16;

struct QueueDepths {
  uint32_t sends = 64;
  uint32_t receives = 128;
  uint32_t send_pieces = 1;  // of memory, in one write
};

// What the other end has to know of a queue pair, beside its GID, and what we have to know of theirs.
struct RemoteQueuePair {
  Gid gid{};
  uint32_t number = 0;
  uint32_t psn = 0;  // of the first packet that it sends
  uint32_t mtu_bytes = 0;
};

// RDMA READs of one queue pair at once: those of the other end's that it answers, and its own.
struct Reads {
  uint32_t in = 0;  // 0: the other end may not read
  uint32_t out = 0;
};

class QueuePair {
 public:
  // In the state Init, with nothing posted. psn: of the first packet that it will send, 24 bits, random.
  static Fault make(const Path& path, const QueueDepths& depths, uint32_t psn, std::unique_ptr<QueuePair>* out);
  ~QueuePair();
  QueuePair(const QueuePair&) = delete;
  QueuePair& operator=(const QueuePair&) = delete;

  const Path& path() const noexcept { return path_; }
  uint32_t number() const noexcept { return qp_->qp_num; }
  uint32_t psn() const noexcept { return psn_; }
  int descriptor() const noexcept { return channel_->fd; }

  // To ReadyToSend, over the smaller of both MTUs. Receives have to be posted before. No more reads than reads_max().
  Fault connect(const RemoteQueuePair& remote, const Reads& reads = {});
  // What its device can do, at most kReadsMax.
  Reads reads_max() const noexcept;
  // Nothing is sent or received any more, and what was posted completes as flushed.
  void fail() noexcept;

  // 0 or an errno.
  int post_sends(abi::SendRequest* chain) noexcept { return path_.device->verbs().post_send(qp_, chain); }
  // `count` receives without memory, for writes with an immediate.
  int post_receives(uint32_t count) noexcept;
  // How many were there, at most out.size(); a negative errno.
  int poll(std::span<abi::Completion> out) noexcept;
  // The next completion makes descriptor() readable. What has come before is not told: poll once more.
  int arm() noexcept { return path_.device->verbs().req_notify_cq(cq_); }
  // Takes what the descriptor became readable for. False: nothing.
  bool take_event() noexcept;

 private:
  QueuePair(Path path, uint32_t psn) : path_(std::move(path)), psn_(psn) {}

  const Path path_;
  const uint32_t psn_;
  abi::CompletionChannel* channel_ = nullptr;
  abi::Cq* cq_ = nullptr;
  abi::Qp* qp_ = nullptr;
};

// "remote access error" of an ibv_wc_status, and the errno by which a transport says the same.
const char* completion_status_name(int status) noexcept;
int completion_errno(int status) noexcept;

}  // namespace halfstep::rdma
