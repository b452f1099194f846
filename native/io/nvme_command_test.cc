#include "io/nvme_command.h"

#include <gtest/gtest.h>

#include <cerrno>

#include "base/units.h"

namespace halfstep::io {
namespace {

std::byte memory[8192];

TEST(NvmeCommand, AddressesBlocksByTheFormatsSize) {
  const uint64_t offset = (uint64_t{1} << 45) + 8192;
  nvme_uring_cmd command = nvme_read({.id = 7, .lba_shift = 9}, offset, {memory, 8192});
  EXPECT_EQ(command.opcode, 0x02);
  EXPECT_EQ(command.nsid, 7U);
  EXPECT_EQ(command.addr, reinterpret_cast<uintptr_t>(memory));
  EXPECT_EQ(command.data_len, 8192U);
  EXPECT_EQ(command.cdw10 | uint64_t{command.cdw11} << 32, offset / 512);
  EXPECT_EQ(command.cdw11, 16U);
  EXPECT_EQ(command.cdw12, 15U) << "blocks, counted from 0";
  command = nvme_write({.id = 1, .lba_shift = 12}, 4096, {memory, 4096}, kNoPlacement);
  EXPECT_EQ(command.opcode, 0x01);
  EXPECT_EQ(command.cdw10, 1U);
  EXPECT_EQ(command.cdw12, 0U);
  EXPECT_EQ(command.cdw13, 0U);
}

TEST(NvmeCommand, PlacesWritesByDirective) {
  const nvme_uring_cmd command = nvme_write({.id = 1, .lba_shift = 12}, 0, {memory, 8192}, 5);
  EXPECT_EQ(command.cdw12, 1U | 2U << 20);
  EXPECT_EQ(command.cdw13, 5U << 16);
}

TEST(NvmeCommand, FlushesANamespaceAndDeallocatesARange) {
  EXPECT_EQ(nvme_flush({.id = 3, .lba_shift = 12}).opcode, 0x00);
  EXPECT_EQ(nvme_flush({.id = 3, .lba_shift = 12}).nsid, 3U);
  NvmeRange range;
  const nvme_uring_cmd command = nvme_deallocate({.id = 3, .lba_shift = 9}, 64 * KiB, 1 * MiB, &range);
  EXPECT_EQ(command.opcode, 0x09);
  EXPECT_EQ(command.cdw10, 0U);
  EXPECT_EQ(command.cdw11, 4U);
  EXPECT_EQ(command.data_len, 16U);
  EXPECT_EQ(command.addr, reinterpret_cast<uintptr_t>(&range));
  EXPECT_EQ(range.first, 128U);
  EXPECT_EQ(range.blocks, 2048U);
}

TEST(NvmeCommand, MapsEachStatusToAnError) {
  struct Case {
    int32_t result, error;
  };
  constexpr Case kCases[] = {
      {0, 0},
      {-EINTR, -EINTR},  // of the kernel, as they are
      {-EAGAIN, -EAGAIN},
      {0x4000, 0},        // success, whatever the other bits say
      {0x082, -EAGAIN},   // not ready: once more
      {0x4082, -EIO},     // not ready, and never will be
      {0x021, -EAGAIN},   // interrupted
      {0x304, -EAGAIN},   // path in transition
      {0x4002, -EINVAL},  // invalid field
      {0x4080, -EINVAL},  // LBA out of range
      {0x400B, -ENXIO},   // no such namespace
      {0x4081, -ENOSPC},  // capacity exceeded
      {0x4020, -EROFS},   // write protected
      {0x182, -EROFS},    // read-only range
      {0x286, -EACCES},   // access denied
      {0x281, -EIO},      // unrecovered read error
      {0x280, -EIO},      // write fault
      {0x371, -EIO},      // aborted by the host
      {0x006, -EIO},      // internal error
      {0x7FF, -EIO},
  };
  for (const Case& c : kCases) EXPECT_EQ(nvme_error(c.result), c.error) << std::hex << c.result;
}

}  // namespace
}  // namespace halfstep::io
