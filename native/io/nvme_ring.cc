#include "io/nvme_ring.h"

#include <sys/eventfd.h>
#include <sys/uio.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <vector>

#include "base/check.h"
#include "io/ring_refusal.h"

namespace halfstep::io {
namespace {

// A command in an SQE of 128 bytes: the 80 from byte 48 on are its own.
constexpr size_t kCommandOffset = 48;
constexpr size_t kCommandBytes = 80;
static_assert(sizeof(nvme_uring_cmd) <= kCommandBytes);

constexpr unsigned kBigEntries = IORING_SETUP_SQE128 | IORING_SETUP_CQE32;
constexpr unsigned kAlways = kBigEntries | IORING_SETUP_CLAMP | IORING_SETUP_SUBMIT_ALL;
constexpr unsigned kWithoutInterrupts = IORING_SETUP_TASKRUN_FLAG | IORING_SETUP_COOP_TASKRUN;

}  // namespace

Fault NvmeRing::open(const Options& options, std::unique_ptr<NvmeRing>* out) {
  std::unique_ptr<NvmeRing> ring(new NvmeRing);
  if (Fault fault = ring->set_up(options); !fault.ok()) return fault;
  *out = std::move(ring);
  return {};
}

Fault NvmeRing::set_up(const Options& options) {
  descriptor_ = options.descriptor;
  polled_ = options.polled;
  if (const int error = try_to_enter_ring(); error != 0) {
    return {{Code::Unsupported, error}, explain_ring_refusal(error, "io_uring_enter")};
  }
  io_uring_params params{};
  params.flags = kAlways | (polled_ ? IORING_SETUP_IOPOLL : kWithoutInterrupts);
  const int error = io_uring_queue_init_params(options.entries, &ring_, &params);
  if (error == -EINVAL) {
    return {{Code::Unsupported, error},
            "io_uring_setup: EINVAL: this kernel has no ring for NVMe commands; Linux 5.19 or newer is needed, 6.1 for polled "
            "completions"};
  }
  if (error != 0) return {{Code::Unsupported, error}, explain_ring_refusal(error, "io_uring_setup")};
  ring_open_ = true;
  features_ = polled_ ? "iopoll" : "coop_taskrun";
  event_ = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (event_ < 0) return {{Code::IoError, -errno}, "eventfd for the ring: " + errno_name(errno)};
  if (!polled_) {
    if (const int refused = io_uring_register_eventfd(&ring_, event_); refused != 0) {
      return {{Code::Unsupported, refused}, "registering the ring's eventfd: " + errno_name(refused)};
    }
  }
  std::vector<iovec> regions;
  uint64_t bytes = 0;
  for (const Bytes region : options.regions) {
    regions.push_back({region.data(), region.size()});
    bytes += region.size();
  }
  if (regions.empty()) return {};
  if (const int refused = io_uring_register_buffers(&ring_, regions.data(), static_cast<unsigned>(regions.size()));
      refused != 0) {
    why_unregistered_ = "registering the arena's " + std::to_string(bytes) + " bytes with the ring: " + errno_name(refused) +
                        "; the memlock limit is " + memlock_limit() + ": raise it (LimitMEMLOCK=) or grant CAP_IPC_LOCK";
  }
  return {};
}

NvmeRing::~NvmeRing() {
  if (ring_open_) {
    // What the kernel has not taken goes down with the ring. What it has, the drive may still write through.
    std::array<NvmeDone, 64> done;
    active_ -= io_uring_sq_ready(&ring_);
    while (active_ > 0) {
      if (reap(done) > 0) continue;
      io_uring_cqe* next = nullptr;
      (void)io_uring_wait_cqe(&ring_, &next);
    }
    io_uring_queue_exit(&ring_);
  }
  if (event_ >= 0) ::close(event_);
}

bool NvmeRing::push(const nvme_uring_cmd& command, int32_t region, uint32_t tag) noexcept {
  io_uring_sqe* sqe = io_uring_get_sqe(&ring_);
  if (sqe == nullptr) return false;
  auto* bytes = reinterpret_cast<std::byte*>(sqe);
  std::memset(bytes, 0, kCommandOffset + kCommandBytes);
  sqe->opcode = IORING_OP_URING_CMD;
  sqe->fd = descriptor_;
  sqe->cmd_op = NVME_URING_CMD_IO;
  sqe->user_data = tag;
  if (region != kUnregistered) {
    sqe->uring_cmd_flags = IORING_URING_CMD_FIXED;
    sqe->buf_index = static_cast<uint16_t>(region);
  }
  std::memcpy(bytes + kCommandOffset, &command, sizeof(command));
  ++active_;
  return true;
}

// What io_uring_submit answered.
int NvmeRing::taken(int result) noexcept {
  if (io_uring_sq_ready(&ring_) == 0) return 0;
  if (result >= 0 || result == -EINTR || result == -EAGAIN || result == -EBUSY) return -EAGAIN;
  return result;
}

int NvmeRing::submit() noexcept { return taken(io_uring_submit(&ring_)); }

// A polled wait finds out by itself.
int NvmeRing::wait() noexcept { return taken(io_uring_submit_and_wait(&ring_, 1)); }

size_t NvmeRing::take_back(std::span<uint32_t> tags) noexcept {
  // The kernel reads this queue only inside io_uring_enter, so between two calls it may be taken back.
  io_uring_sq& sq = ring_.sq;
  const unsigned head = __atomic_load_n(sq.khead, __ATOMIC_ACQUIRE);
  size_t count = 0;
  for (unsigned at = head; at != sq.sqe_tail; ++at) {
    HALFSTEP_CHECK(count < tags.size(), count, tags.size());
    tags[count++] = static_cast<uint32_t>(sq.sqes[size_t{at & sq.ring_mask} * 2].user_data);  // of 128 bytes each
  }
  sq.sqe_head = sq.sqe_tail = head;
  __atomic_store_n(sq.ktail, head, __ATOMIC_RELEASE);
  active_ -= static_cast<uint32_t>(count);
  return count;
}

size_t NvmeRing::reap(std::span<NvmeDone> done) noexcept {
  if (active_ == 0) return 0;
  // Relaxed is enough: where the flag tells of work that nothing else would wake us for, the eventfd is written to after it is
  // set. Polled, completions come to be by this call alone.
  const unsigned flags = __atomic_load_n(ring_.sq.kflags, __ATOMIC_RELAXED);
  if (polled_ || (flags & (IORING_SQ_TASKRUN | IORING_SQ_CQ_OVERFLOW)) != 0) (void)io_uring_get_events(&ring_);
  size_t count = 0;
  unsigned head = 0;
  io_uring_cqe* cqe = nullptr;
  io_uring_for_each_cqe(&ring_, head, cqe) {
    if (count == done.size()) break;
    done[count++] = {static_cast<uint32_t>(cqe->user_data), cqe->res};
  }
  io_uring_cq_advance(&ring_, static_cast<unsigned>(count));
  active_ -= static_cast<uint32_t>(count);
  return count;
}

}  // namespace halfstep::io
