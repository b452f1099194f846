#include "io/nvme_namespace.h"

#include <fcntl.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <fstream>

#include "base/units.h"

namespace halfstep::io {
namespace {

constexpr uint32_t kTimeoutMs = 5'000;
constexpr uint32_t kIdentifyNamespace = 0;
constexpr uint32_t kIdentifyController = 1;
constexpr uint32_t kSmartLog = 0x02;
constexpr uint32_t kPlacementLog = 0x22;
constexpr uint32_t kHandleStatus = 1;  // management operation of I/O Management Receive
constexpr uint32_t kEveryNamespace = 0xFFFFFFFF;

std::string status_of(int result) {
  if (result < 0) return errno_name(result);
  char text[32];
  std::snprintf(text, sizeof(text), "status 0x%x", static_cast<unsigned>(result));
  return text;
}

std::string remedy_for(int result) {
  if (result == -EACCES || result == -EPERM) {
    return "; let this user read and write the device, and on Linux before 6.2 grant CAP_SYS_ADMIN";
  }
  return {};
}

int command_with(int descriptor, unsigned long request, nvme_passthru_cmd& command) {
  const int result = ::ioctl(descriptor, request, &command);
  return result < 0 ? -errno : result;
}

int identify(const NvmeNamespace::Command& admin, uint32_t nsid, uint32_t what, Bytes page) {
  nvme_passthru_cmd command{};
  command.opcode = kNvmeAdminIdentify;
  command.nsid = nsid;
  command.addr = reinterpret_cast<uintptr_t>(page.data());
  command.data_len = static_cast<uint32_t>(page.size());
  command.cdw10 = what;
  command.timeout_ms = kTimeoutMs;
  return admin(command);
}

int read_log(const NvmeNamespace::Command& admin, uint32_t nsid, uint32_t log, uint16_t group, Bytes page) {
  nvme_passthru_cmd command{};
  command.opcode = kNvmeAdminGetLogPage;
  command.nsid = nsid;
  command.addr = reinterpret_cast<uintptr_t>(page.data());
  command.data_len = static_cast<uint32_t>(page.size());
  command.cdw10 = log | static_cast<uint32_t>(page.size() / 4 - 1) << 16;
  command.cdw11 = uint32_t{group} << 16;
  command.timeout_ms = kTimeoutMs;
  return admin(command);
}

Fault asked(const char* what, int result) {
  return {{Code::Unsupported, result < 0 ? result : -EIO}, std::string(what) + ": " + status_of(result) + remedy_for(result)};
}

// A namespace that places data and names no identifiers is written without.
void ask_placements(const NvmeNamespace::Command& io, NvmeFacts* facts) {
  if (!facts->controller.places_data) return;
  std::array<std::byte, kNvmeIdentifyBytes> page{};
  nvme_passthru_cmd command{};
  command.opcode = kNvmeIoManagementReceive;
  command.nsid = facts->target.id;
  command.addr = reinterpret_cast<uintptr_t>(page.data());
  command.data_len = page.size();
  command.cdw10 = kHandleStatus;
  command.cdw11 = page.size() / 4 - 1;
  command.timeout_ms = kTimeoutMs;
  if (const int result = io(command); result != 0) {
    facts->why_no_placements = "asking for placement identifiers: " + status_of(result) + remedy_for(result);
    return;
  }
  facts->why_no_placements = parse_nvme_placements(page, &facts->placements);
}

uint64_t number_in(const std::string& path) {
  std::ifstream in(path);
  uint64_t value = 0;
  return in >> value ? value : 0;
}

}  // namespace

NvmeQueueLimits read_nvme_queue_limits(const std::string& block_name, const std::string& sysfs) {
  const std::string queue = sysfs + "/block/" + block_name + "/queue/";
  NvmeQueueLimits out;
  out.transfer_bytes_max = std::min<uint64_t>(number_in(queue + "max_hw_sectors_kb"), uint64_t{UINT32_MAX}) * KiB;
  out.segments_max = number_in(queue + "max_segments");
  out.polled = number_in(queue + "io_poll") != 0;
  return out;
}

Fault identify_nvme(const NvmeNamespace::Ways& ways, const NvmeQueueLimits& limits, uint64_t block_bytes, NvmeFacts* facts) {
  std::array<std::byte, kNvmeIdentifyBytes> page{};
  if (const int result = identify(ways.admin, facts->target.id, kIdentifyNamespace, page); result != 0) {
    return asked("identifying the namespace", result);
  }
  if (std::string what = parse_nvme_namespace(page, &facts->format); !what.empty()) return {Code::Unsupported, std::move(what)};
  if (facts->format.bytes != block_bytes) {
    return {Code::Unsupported, "the namespace has " + std::to_string(facts->format.bytes) + " bytes, and its block device " +
                                   std::to_string(block_bytes) + ": they are not the same"};
  }
  facts->target.lba_shift = static_cast<uint32_t>(std::countr_zero(facts->format.lba_bytes));
  page = {};
  if (const int result = identify(ways.admin, 0, kIdentifyController, page); result != 0) {
    return asked("identifying the controller", result);
  }
  if (std::string what = parse_nvme_controller(page, &facts->controller); !what.empty()) {
    return {Code::Unsupported, std::move(what)};
  }
  uint64_t most = uint64_t{kNvmeBlocksMax} << facts->target.lba_shift;
  for (const uint64_t bound : {facts->controller.transfer_bytes_max, limits.transfer_bytes_max}) {
    if (bound != 0) most = std::min(most, bound);
  }
  facts->transfer_bytes_max = std::max<uint64_t>(round_down(most, kPageBytes), kPageBytes);
  facts->scattered_bytes_max = facts->transfer_bytes_max;
  if (limits.segments_max != 0) {
    const uint64_t pages = std::bit_floor(std::min<uint64_t>(limits.segments_max, UINT16_MAX));
    facts->scattered_bytes_max = std::min(facts->transfer_bytes_max, pages * kPageBytes);
  }
  if (!limits.polled) {
    facts->why_not_polled =
        "the driver has no queues for polled completions: set nvme.poll_queues=N at boot, or `modprobe nvme poll_queues=N`";
  }
  ask_placements(ways.io, facts);
  return {};
}

Fault read_nvme_written(const NvmeNamespace::Command& admin, const NvmeFacts& facts, NvmeWritten* out) {
  if (!facts.placements.empty()) {
    std::array<std::byte, kNvmePlacementLogBytes> page{};
    const int result = read_log(admin, 0, kPlacementLog, facts.format.endurance_group, page);
    if (result != 0) return asked("reading the FDP statistics log", result);
    std::string what = parse_nvme_placement_log(page, out);
    return what.empty() ? Fault() : Fault{Code::Unsupported, std::move(what)};
  }
  std::array<std::byte, kNvmeSmartLogBytes> page{};
  const int result = read_log(admin, kEveryNamespace, kSmartLog, 0, page);
  if (result != 0) return asked("reading the SMART log", result);
  std::string what = parse_nvme_smart(page, out);
  return what.empty() ? Fault() : Fault{Code::Unsupported, std::move(what)};
}

std::string NvmeNamespace::block_device_of(const std::string& path, std::string* why, const std::string& sysfs) {
  struct stat about {};
  if (::stat(path.c_str(), &about) != 0 || !S_ISCHR(about.st_mode)) {
    *why = path + " is no character device";
    return {};
  }
  const std::string number = std::to_string(major(about.st_rdev)) + ":" + std::to_string(minor(about.st_rdev));
  std::error_code error;
  const auto device = std::filesystem::canonical(sysfs + "/dev/char/" + number, error);
  const std::string name = error ? std::string() : device.filename().string();
  unsigned controller = 0;
  unsigned namespace_id = 0;
  int taken = 0;
  if (std::sscanf(name.c_str(), "ng%un%u%n", &controller, &namespace_id, &taken) != 2 ||
      static_cast<size_t>(taken) != name.size()) {
    *why = path + " is no NVMe namespace (/dev/ngXnY)";
    return {};
  }
  const std::string block = "nvme" + std::to_string(controller) + "n" + std::to_string(namespace_id);
  const std::string found = (std::filesystem::path(path).parent_path() / block).string();
  std::ifstream in(sysfs + "/class/block/" + block + "/dev");
  std::string wanted;
  in >> wanted;
  struct stat disk {};
  if (::stat(found.c_str(), &disk) != 0 || !S_ISBLK(disk.st_mode) ||
      wanted != std::to_string(major(disk.st_rdev)) + ":" + std::to_string(minor(disk.st_rdev))) {
    *why = path + ": its block device " + found + ", by which a daemon claims it, is not there; give the service both devices";
    return {};
  }
  return found;
}

Fault NvmeNamespace::open(const std::string& path, const std::string& block_path, uint64_t block_bytes, bool read_only,
                          std::unique_ptr<NvmeNamespace>* out, const std::string& sysfs) {
  const int descriptor = ::open(path.c_str(), (read_only ? O_RDONLY : O_RDWR) | O_CLOEXEC);
  if (descriptor < 0) {
    const int error = -errno;
    return {{Code::Unsupported, error}, "opening " + path + ": " + errno_name(error) + remedy_for(error)};
  }
  std::unique_ptr<NvmeNamespace> opened(new NvmeNamespace(descriptor));
  const int id = ::ioctl(descriptor, NVME_IOCTL_ID);
  if (id <= 0) return asked("asking for the namespace's number", id < 0 ? -errno : -ENXIO);
  opened->facts_.target.id = static_cast<uint32_t>(id);
  const Ways ways{[descriptor](nvme_passthru_cmd& command) { return command_with(descriptor, NVME_IOCTL_ADMIN_CMD, command); },
                  [descriptor](nvme_passthru_cmd& command) { return command_with(descriptor, NVME_IOCTL_IO_CMD, command); }};
  const NvmeQueueLimits limits = read_nvme_queue_limits(std::filesystem::path(block_path).filename().string(), sysfs);
  if (Fault fault = identify_nvme(ways, limits, block_bytes, &opened->facts_); !fault.ok()) {
    return {fault.status, path + ": " + fault.what};
  }
  *out = std::move(opened);
  return {};
}

NvmeNamespace::~NvmeNamespace() { ::close(descriptor_); }

Fault NvmeNamespace::written(NvmeWritten* out) const {
  const int descriptor = descriptor_;
  return read_nvme_written(
      [descriptor](nvme_passthru_cmd& command) { return command_with(descriptor, NVME_IOCTL_ADMIN_CMD, command); }, facts_,
      out);
}

}  // namespace halfstep::io
