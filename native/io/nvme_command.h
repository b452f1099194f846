// nvme_command.h — the NVMe commands of an engine as the kernel takes them (struct nvme_uring_cmd), and what a completion
// means. Invariants: a range is whole blocks of the namespace, as request.h has checked; commands move no metadata. Thread:
// any.
#pragma once

#include <linux/nvme_ioctl.h>

#include <cstdint>

#include "base/bytes.h"

namespace halfstep::io {

inline constexpr uint8_t kNvmeFlush = 0x00;
inline constexpr uint8_t kNvmeWrite = 0x01;
inline constexpr uint8_t kNvmeRead = 0x02;
inline constexpr uint8_t kNvmeDatasetManagement = 0x09;
inline constexpr uint8_t kNvmeIoManagementReceive = 0x12;
inline constexpr uint8_t kNvmeAdminGetLogPage = 0x02;
inline constexpr uint8_t kNvmeAdminIdentify = 0x06;

// Blocks are counted in 16 bits.
inline constexpr uint32_t kNvmeBlocksMax = 65536;
inline constexpr int32_t kNoPlacement = -1;

// A command's range for deallocation, as Dataset Management reads it from memory.
struct NvmeRange {
  uint32_t attributes = 0;
  uint32_t blocks = 0;
  uint64_t first = 0;
};
static_assert(sizeof(NvmeRange) == 16);

struct NvmeTarget {
  uint32_t id = 0;         // of the namespace
  uint32_t lba_shift = 0;  // 9 to 12
};

nvme_uring_cmd nvme_read(const NvmeTarget& target, uint64_t offset, Bytes into) noexcept;
// placement: an identifier that the drive has named (nvme_identify.h), or kNoPlacement.
nvme_uring_cmd nvme_write(const NvmeTarget& target, uint64_t offset, Bytes from, int32_t placement) noexcept;
nvme_uring_cmd nvme_flush(const NvmeTarget& target) noexcept;
// `range` is filled, and stays where it is until the command has completed.
nvme_uring_cmd nvme_deallocate(const NvmeTarget& target, uint64_t offset, uint32_t bytes, NvmeRange* range) noexcept;

// What the kernel answers a command: 0, a negative errno of its own, or the drive's status. As a Request's error: -EAGAIN is a
// passing state, in which the command may be given once more.
int32_t nvme_error(int32_t result) noexcept;

}  // namespace halfstep::io
