// discard.h — how a block device is told that a range holds nothing any more (TRIM, UNMAP, Deallocate), so that the drive need
// not copy it when it cleans up. What it can take is read from sysfs; how it is asked is tried out once, at start.
//   ring command   BLOCK_URING_CMD_DISCARD (Linux 6.12): no thread waits
//   ioctl          BLKDISCARD blocks until the drive has answered: on a thread that may
// fallocate(PUNCH_HOLE) is no third way: on a block device it writes zeroes, which a drive may take as data.
// Invariants: files take none, for they are allocated whole and never punched. What tries a method out asks for no byte.
// Thread: any.
#pragma once

#include <cstdint>
#include <string>

#include <sys/types.h>

namespace halfstep::io {

// What a device takes. Less than a granule of a range is left as it is.
struct DiscardLimits {
  uint64_t granularity_bytes = 0;  // 0: none
  uint64_t request_bytes_max = 0;  // more is cut up by the kernel, by a thread of it that waits
  bool taken() const noexcept { return granularity_bytes != 0; }
};

// Of the block device of this number, from `sysfs` (a test has its own); none where it cannot be read.
DiscardLimits read_discard_limits(dev_t device, const std::string& sysfs = "/sys");

enum class DiscardMethod : uint8_t { None, RingCommand, Ioctl };
const char* name_of(DiscardMethod method) noexcept;

// What the kernel answers to a discard that starts at byte 1: -EINVAL from one that knows the request and takes it apart.
struct DiscardProbe {
  int (*ring_command)(int descriptor) = nullptr;  // null: there is no ring
  int (*ioctl)(int descriptor) = nullptr;
};
// Asks this kernel.
DiscardProbe ring_discard_probe() noexcept;
DiscardProbe plain_discard_probe() noexcept;

struct DiscardChoice {
  DiscardMethod method = DiscardMethod::None;
  std::string why_none;  // empty when there is a method, or when the device takes none anyway
};
DiscardChoice choose_discard(const DiscardLimits& limits, int descriptor, const DiscardProbe& probe);

// ioctl(BLKDISCARD): blocks. 0 or a negative errno.
int discard_now(int descriptor, uint64_t offset, uint64_t bytes) noexcept;

// SQE of BLOCK_URING_CMD_DISCARD, for headers older than it: _IO(0x12, 0).
inline constexpr uint32_t kRingCommandDiscard = 0x1200;

}  // namespace halfstep::io
