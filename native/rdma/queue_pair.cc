#include "rdma/queue_pair.h"

#include <fcntl.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <utility>

namespace halfstep::rdma {
namespace {

// 4.096 us * 2^17 = 0.54 s for an acknowledgement, seven times: a path that is dead is noticed within 4 s. (Some devices take a
// retry count of 7 for "for ever".)
constexpr uint8_t kTimeout = 17;
constexpr uint8_t kRetries = 6;
// A peer without a receive posted is asked again after 0.64 ms, for as long as it takes: its process may just be busy. Its
// socket tells when it is dead.
constexpr uint8_t kRnrTimer = 12;
constexpr uint8_t kRnrRetries = 7;
constexpr uint8_t kHops = 64;

Status why_failed() noexcept { return {Code::IoError, errno != 0 ? -errno : -EIO}; }

}  // namespace

Fault QueuePair::make(const Path& path, const QueueDepths& depths, uint32_t psn, std::unique_ptr<QueuePair>* out) {
  std::unique_ptr<QueuePair> made(new QueuePair(path, psn));
  Verbs& verbs = path.device->verbs();
  const auto failed = [&](const char* what, Status status) {
    return Fault(status, path.device->name() + ": " + what + ": " + errno_name(status.detail()));
  };
  const abi::DeviceAttributes& most = path.device->attributes();
  if (depths.sends > static_cast<uint32_t>(most.max_qp_wr) || depths.receives > static_cast<uint32_t>(most.max_qp_wr) ||
      depths.send_pieces > static_cast<uint32_t>(most.max_sge)) {
    return {Code::Unsupported, path.device->name() + ": queues of " + std::to_string(most.max_qp_wr) + " requests of " +
                                   std::to_string(most.max_sge) + " pieces at the most; " +
                                   std::to_string(std::max(depths.sends, depths.receives)) + " of " +
                                   std::to_string(depths.send_pieces) + " are needed"};
  }
  errno = 0;
  if ((made->channel_ = verbs.create_comp_channel(path.device->context())) == nullptr) {
    return failed("completion channel", why_failed());
  }
  const int flags = ::fcntl(made->channel_->fd, F_GETFL);
  if (flags < 0 || ::fcntl(made->channel_->fd, F_SETFL, flags | O_NONBLOCK) != 0) {
    return failed("completion channel", why_failed());
  }
  const auto entries = static_cast<int>(depths.sends + depths.receives);
  if ((made->cq_ = verbs.create_cq(path.device->context(), entries, made.get(), made->channel_)) == nullptr) {
    return failed("completion queue", why_failed());
  }
  abi::QpInit init{};
  init.send_cq = init.recv_cq = made->cq_;
  init.cap = {.max_send_wr = depths.sends,
              .max_recv_wr = depths.receives,
              .max_send_sge = depths.send_pieces,
              .max_recv_sge = 1,
              .max_inline_data = 0};
  init.qp_type = abi::kQpReliable;
  if ((made->qp_ = verbs.create_qp(path.device->pd(), &init)) == nullptr) return failed("queue pair", why_failed());
  abi::QpAttributes attributes{};
  attributes.qp_state = abi::QpState::Init;
  attributes.port_num = path.port;
  attributes.qp_access_flags = abi::kAccessRemoteWrite;
  const int mask = abi::kQpState | abi::kQpPkeyIndex | abi::kQpPort | abi::kQpAccessFlags;
  if (const int error = verbs.modify_qp(made->qp_, &attributes, mask); error != 0) {
    return failed("queue pair to INIT", {Code::IoError, -error});
  }
  *out = std::move(made);
  return {};
}

QueuePair::~QueuePair() {
  Verbs& verbs = path_.device->verbs();
  if (qp_ != nullptr) (void)verbs.destroy_qp(qp_);
  if (cq_ != nullptr) (void)verbs.destroy_cq(cq_);
  if (channel_ != nullptr) (void)verbs.destroy_comp_channel(channel_);
}

Reads QueuePair::reads_max() const noexcept {
  const abi::DeviceAttributes& device = path_.device->attributes();
  const auto within = [](int most) { return static_cast<uint32_t>(std::clamp(most, 0, static_cast<int>(kReadsMax))); };
  return {.in = within(device.max_qp_rd_atom), .out = within(device.max_qp_init_rd_atom)};
}

Fault QueuePair::connect(const RemoteQueuePair& remote, const Reads& reads) {
  Verbs& verbs = path_.device->verbs();
  abi::QpAttributes attributes{};
  attributes.qp_state = abi::QpState::ReadyToReceive;
  attributes.path_mtu = mtu_number(std::min(path_.mtu_bytes, remote.mtu_bytes));
  attributes.dest_qp_num = remote.number;
  attributes.rq_psn = remote.psn;
  attributes.min_rnr_timer = kRnrTimer;
  attributes.ah_attr.is_global = 1;
  attributes.ah_attr.port_num = path_.port;
  attributes.ah_attr.grh.dgid = remote.gid;
  attributes.ah_attr.grh.sgid_index = path_.gid_index;
  attributes.ah_attr.grh.hop_limit = kHops;
  int mask = abi::kQpState | abi::kQpAddress | abi::kQpPathMtu | abi::kQpDestination | abi::kQpReceivePsn | abi::kQpReadsIn |
             abi::kQpRnrTimer;
  if (reads.in != 0) {
    attributes.max_dest_rd_atomic = static_cast<uint8_t>(reads.in);
    attributes.qp_access_flags = abi::kAccessRemoteWrite | abi::kAccessRemoteRead;
    mask |= abi::kQpAccessFlags;
  }
  if (const int error = verbs.modify_qp(qp_, &attributes, mask); error != 0) {
    return {{Code::IoError, -error}, path_.device->name() + ": no path to " + gid_text(remote.gid) + ": " + errno_name(error)};
  }
  attributes = {};
  attributes.qp_state = abi::QpState::ReadyToSend;
  attributes.sq_psn = psn_;
  attributes.timeout = kTimeout;
  attributes.retry_cnt = kRetries;
  attributes.rnr_retry = kRnrRetries;
  attributes.max_rd_atomic = static_cast<uint8_t>(reads.out);
  mask = abi::kQpState | abi::kQpSendPsn | abi::kQpTimeout | abi::kQpRetryCount | abi::kQpRnrRetry | abi::kQpReadsOut;
  if (const int error = verbs.modify_qp(qp_, &attributes, mask); error != 0) {
    return {{Code::IoError, -error}, path_.device->name() + ": queue pair to RTS: " + errno_name(error)};
  }
  return {};
}

void QueuePair::fail() noexcept {
  abi::QpAttributes attributes{};
  attributes.qp_state = abi::QpState::Error;
  (void)path_.device->verbs().modify_qp(qp_, &attributes, abi::kQpState);
}

int QueuePair::post_receives(uint32_t count) noexcept {
  std::array<abi::ReceiveRequest, 32> requests{};
  while (count != 0) {
    const uint32_t step = std::min<uint32_t>(count, requests.size());
    for (uint32_t i = 0; i < step; ++i) requests[i].next = i + 1 < step ? &requests[i + 1] : nullptr;
    if (const int error = path_.device->verbs().post_recv(qp_, requests.data()); error != 0) return error;
    count -= step;
  }
  return 0;
}

int QueuePair::poll(std::span<abi::Completion> out) noexcept {
  const int count = path_.device->verbs().poll_cq(cq_, static_cast<int>(out.size()), out.data());
  return count < 0 ? -EIO : count;
}

bool QueuePair::take_event() noexcept {
  Verbs& verbs = path_.device->verbs();
  abi::Cq* cq = nullptr;
  void* owner = nullptr;
  if (verbs.get_cq_event(channel_, &cq, &owner) != 0) return false;
  verbs.ack_cq_events(cq, 1);
  return true;
}

const char* completion_status_name(int status) noexcept {
  switch (status) {
    case abi::kStatusSuccess: return "success";
    case abi::kStatusLengthError: return "local length error";
    case abi::kStatusProtectionError: return "local protection error";
    case abi::kStatusFlushed: return "flushed";
    case abi::kStatusRemoteInvalid: return "remote invalid request";
    case abi::kStatusRemoteAccess: return "remote access error";
    case abi::kStatusRetryExceeded: return "no acknowledgement";
    case abi::kStatusRnrExceeded: return "peer not ready to receive";
    default: return "another error";
  }
}

int completion_errno(int status) noexcept {
  switch (status) {
    case abi::kStatusSuccess: return 0;
    case abi::kStatusFlushed: return ECONNABORTED;
    case abi::kStatusRemoteInvalid:
    case abi::kStatusRemoteAccess: return EACCES;
    case abi::kStatusRetryExceeded:
    case abi::kStatusRnrExceeded: return ETIMEDOUT;
    default: return EIO;
  }
}

}  // namespace halfstep::rdma
