#include "io/discard.h"

#include <liburing.h>
#include <linux/fs.h>
#include <sys/ioctl.h>
#include <sys/sysmacros.h>

#include <algorithm>
#include <cerrno>
#include <fstream>

#include "base/status.h"
#include "base/units.h"

namespace halfstep::io {
namespace {

uint64_t read_number(const std::string& path) {
  std::ifstream in(path);
  uint64_t value = 0;
  return in >> value ? value : 0;
}

// Not a multiple of any sector: refused before the device hears of it, by every kernel.
constexpr uint64_t kNoSector = 1;

int probe_ioctl(int descriptor) { return discard_now(descriptor, kNoSector, 0); }

// On a ring of its own: the engine's belongs to another thread.
int probe_ring_command(int descriptor) {
  io_uring ring{};
  if (const int error = io_uring_queue_init(2, &ring, 0); error != 0) return error;
  int answer = -EOPNOTSUPP;
  // A kernel without the opcode answers EINVAL as well.
  io_uring_probe* known = io_uring_get_probe_ring(&ring);
  if (known != nullptr && io_uring_opcode_supported(known, IORING_OP_URING_CMD) != 0) {
    io_uring_sqe* sqe = io_uring_get_sqe(&ring);
    io_uring_prep_rw(IORING_OP_URING_CMD, sqe, descriptor, nullptr, 0, 0);
    sqe->cmd_op = kRingCommandDiscard;
    sqe->addr = kNoSector;
    io_uring_cqe* cqe = nullptr;
    answer = io_uring_submit_and_wait(&ring, 1);
    if (answer >= 0) answer = io_uring_wait_cqe(&ring, &cqe);
    if (answer == 0) answer = cqe->res;
  }
  io_uring_free_probe(known);
  io_uring_queue_exit(&ring);
  return answer;
}

}  // namespace

DiscardLimits read_discard_limits(dev_t device, const std::string& sysfs) {
  const std::string at = sysfs + "/dev/block/" + std::to_string(major(device)) + ":" + std::to_string(minor(device));
  // A partition has the queue of the disk that it lies in.
  for (const char* queue : {"/queue/", "/../queue/"}) {
    DiscardLimits limits;
    limits.request_bytes_max = read_number(at + queue + "discard_max_bytes");
    if (limits.request_bytes_max == 0) continue;
    limits.granularity_bytes = std::max<uint64_t>(read_number(at + queue + "discard_granularity"), kPageBytes);
    limits.granularity_bytes = round_up(limits.granularity_bytes, kPageBytes);
    limits.request_bytes_max =
        std::max(round_down(limits.request_bytes_max, limits.granularity_bytes), limits.granularity_bytes);
    return limits;
  }
  return {};
}

const char* name_of(DiscardMethod method) noexcept {
  switch (method) {
    case DiscardMethod::None: return "none";
    case DiscardMethod::RingCommand: return "ring command";
    case DiscardMethod::Ioctl: return "ioctl";
  }
  return "none";
}

DiscardProbe ring_discard_probe() noexcept { return {probe_ring_command, probe_ioctl}; }
DiscardProbe plain_discard_probe() noexcept { return {nullptr, probe_ioctl}; }

DiscardChoice choose_discard(const DiscardLimits& limits, int descriptor, const DiscardProbe& probe) {
  if (!limits.taken()) return {};
  if (probe.ring_command != nullptr && probe.ring_command(descriptor) == -EINVAL) return {DiscardMethod::RingCommand, {}};
  const int answer = probe.ioctl(descriptor);
  if (answer == -EINVAL) return {DiscardMethod::Ioctl, {}};
  return {DiscardMethod::None, "the device says that it takes discards, and BLKDISCARD answers " +
                                   (answer == 0 ? std::string("nothing") : errno_name(answer)) +
                                   "; nothing is discarded: open it for writing, and look at the kernel's log"};
}

int discard_now(int descriptor, uint64_t offset, uint64_t bytes) noexcept {
  uint64_t range[2] = {offset, bytes};
  return ioctl(descriptor, BLKDISCARD, range) == 0 ? 0 : -errno;
}

}  // namespace halfstep::io
