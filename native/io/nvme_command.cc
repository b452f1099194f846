#include "io/nvme_command.h"

#include <cerrno>

namespace halfstep::io {
namespace {

// The status field without its phase bit: code in bits 0-7, type in bits 8-10, delay, more, and "do not retry".
constexpr int32_t kTypeAndCode = 0x7FF;
constexpr int32_t kDoNotRetry = 0x4000;

constexpr uint32_t kDeallocate = 1U << 2;
constexpr uint32_t kDirectiveShift = 20;  // in CDW12
constexpr uint32_t kPlacementDirective = 2;

nvme_uring_cmd transfer(uint8_t opcode, const NvmeTarget& target, uint64_t offset, Bytes memory) noexcept {
  nvme_uring_cmd out{};
  out.opcode = opcode;
  out.nsid = target.id;
  out.addr = reinterpret_cast<uintptr_t>(memory.data());
  out.data_len = static_cast<uint32_t>(memory.size());
  const uint64_t first = offset >> target.lba_shift;
  out.cdw10 = static_cast<uint32_t>(first);
  out.cdw11 = static_cast<uint32_t>(first >> 32);
  out.cdw12 = static_cast<uint32_t>((memory.size() >> target.lba_shift) - 1);
  return out;
}

}  // namespace

nvme_uring_cmd nvme_read(const NvmeTarget& target, uint64_t offset, Bytes into) noexcept {
  return transfer(kNvmeRead, target, offset, into);
}

nvme_uring_cmd nvme_write(const NvmeTarget& target, uint64_t offset, Bytes from, int32_t placement) noexcept {
  nvme_uring_cmd out = transfer(kNvmeWrite, target, offset, from);
  if (placement != kNoPlacement) {
    out.cdw12 |= kPlacementDirective << kDirectiveShift;
    out.cdw13 = static_cast<uint32_t>(placement) << 16;
  }
  return out;
}

nvme_uring_cmd nvme_flush(const NvmeTarget& target) noexcept {
  nvme_uring_cmd out{};
  out.opcode = kNvmeFlush;
  out.nsid = target.id;
  return out;
}

nvme_uring_cmd nvme_deallocate(const NvmeTarget& target, uint64_t offset, uint32_t bytes, NvmeRange* range) noexcept {
  *range = {.attributes = 0, .blocks = bytes >> target.lba_shift, .first = offset >> target.lba_shift};
  nvme_uring_cmd out{};
  out.opcode = kNvmeDatasetManagement;
  out.nsid = target.id;
  out.addr = reinterpret_cast<uintptr_t>(range);
  out.data_len = sizeof(*range);
  out.cdw11 = kDeallocate;  // of one range: CDW10 counts from 0
  return out;
}

int32_t nvme_error(int32_t result) noexcept {
  if (result <= 0) return result;
  const int32_t type_and_code = result & kTypeAndCode;
  const bool may_retry = (result & kDoNotRetry) == 0;
  switch (type_and_code) {
    case 0x000: return 0;
    case 0x082:  // namespace not ready
    case 0x021:  // command interrupted
    case 0x304:  // asymmetric access transition
      return may_retry ? -EAGAIN : -EIO;
    case 0x001:                  // opcode
    case 0x002:                  // field
    case 0x180:                  // conflicting attributes
    case 0x080: return -EINVAL;  // LBA out of range
    case 0x00B: return -ENXIO;   // namespace or its format
    case 0x081: return -ENOSPC;  // capacity exceeded
    case 0x020:                  // namespace is write protected
    case 0x182: return -EROFS;   // write to read-only range
    case 0x286: return -EACCES;  // access denied
    default: return -EIO;
  }
}

}  // namespace halfstep::io
