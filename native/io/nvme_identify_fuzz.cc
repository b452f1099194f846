// Any bytes as what a drive says of itself: what parses has bounds that hold.
#include <cstdlib>

#include "base/units.h"
#include "io/nvme_identify.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace halfstep;
  using namespace halfstep::io;
  const ConstBytes input(reinterpret_cast<const std::byte*>(data), size);
  NvmeNamespaceFormat format;
  if (parse_nvme_namespace(input, &format).empty()) {
    const bool block = format.lba_bytes >= 512 && format.lba_bytes <= kPageBytes && kPageBytes % format.lba_bytes == 0;
    const bool whole = format.bytes > 0 && format.bytes % format.lba_bytes == 0 && format.bytes <= uint64_t{INT64_MAX};
    if (!block || !whole) std::abort();
  }
  NvmeController controller;
  if (parse_nvme_controller(input, &controller).empty()) {
    if (controller.model.size() > 40 || controller.serial.size() > 20 || controller.firmware.size() > 8) std::abort();
    if (controller.transfer_bytes_max % kPageBytes != 0) std::abort();
  }
  std::vector<uint16_t> ids;
  const bool named = parse_nvme_placements(input, &ids).empty();
  if (ids.empty() == named || ids.size() > kNvmePlacementsMax) std::abort();
  NvmeWritten written;
  (void)parse_nvme_smart(input, &written);
  (void)parse_nvme_placement_log(input, &written);
  return 0;
}
