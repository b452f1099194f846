// nvme_namespace.h — an NVMe namespace by its character device, /dev/ngXnY: what it is, and its administration.
// The block device of the same namespace, /dev/nvmeXnY, is what a daemon claims (backing.h): there is no claim on a character
// device, and one on the disk keeps mounts and other daemons away from both.
// Thread: any, but each call waits for the drive, which may take as long as the driver's time limit.
#pragma once

#include <linux/nvme_ioctl.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/status.h"
#include "io/nvme_command.h"
#include "io/nvme_identify.h"

namespace halfstep::io {

struct NvmeFacts {
  NvmeTarget target;
  NvmeNamespaceFormat format;
  NvmeController controller;
  uint64_t transfer_bytes_max = 0;   // of one command, whole pages: of the drive and of its driver
  uint64_t scattered_bytes_max = 0;  // the same where memory is in ordinary pages, each a piece of its own
  std::vector<uint16_t> placements;  // identifiers that this namespace may write with; empty: none
  std::string why_no_placements;     // not empty where a drive that places data gives none
  std::string why_not_polled;        // empty where the driver has queues for polled completions
};

// What the driver says of a block device's queue. 0: it does not say.
struct NvmeQueueLimits {
  uint64_t transfer_bytes_max = 0;
  uint64_t segments_max = 0;
  bool polled = false;
};

class NvmeNamespace {
 public:
  // A command's way to the drive: 0, a negative errno, or the drive's status. In tests a table of answers.
  using Command = std::function<int(nvme_passthru_cmd& command)>;
  struct Ways {
    Command admin, io;
  };

  // The block device of a character device `path`, "/dev/nvme0n1" for "/dev/ng0n1". Empty: it is no namespace, or the device is
  // not there, and `why` says so.
  static std::string block_device_of(const std::string& path, std::string* why, const std::string& sysfs = "/sys");

  // block_bytes: of that block device, which has to be the same size. read_only: the kernel refuses commands that write.
  static Fault open(const std::string& path, const std::string& block_path, uint64_t block_bytes, bool read_only,
                    std::unique_ptr<NvmeNamespace>* out, const std::string& sysfs = "/sys");
  ~NvmeNamespace();
  NvmeNamespace(const NvmeNamespace&) = delete;
  NvmeNamespace& operator=(const NvmeNamespace&) = delete;

  int descriptor() const noexcept { return descriptor_; }
  const NvmeFacts& facts() const noexcept { return facts_; }
  // What the drive counts as written. Waits for it.
  Fault written(NvmeWritten* out) const;

 private:
  explicit NvmeNamespace(int descriptor) : descriptor_(descriptor) {}
  int descriptor_;
  NvmeFacts facts_;
};

// Asks the drive what it is; `facts->target.id` is known.
Fault identify_nvme(const NvmeNamespace::Ways& ways, const NvmeQueueLimits& limits, uint64_t block_bytes, NvmeFacts* facts);
// Its log of health, or of placement where it has one.
Fault read_nvme_written(const NvmeNamespace::Command& admin, const NvmeFacts& facts, NvmeWritten* out);
NvmeQueueLimits read_nvme_queue_limits(const std::string& block_name, const std::string& sysfs = "/sys");

}  // namespace halfstep::io
