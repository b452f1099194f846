#include "io/nvme_identify.h"

#include <algorithm>

#include "base/units.h"

namespace halfstep::io {
namespace {

// Offsets in bytes. Fields are little-endian.
constexpr size_t kNamespaceSize = 0;
constexpr size_t kFormats = 25;      // number of LBA formats, less one
constexpr size_t kFormatInUse = 26;  // bits 0-3, and 5-6 above them where there are more than 16
constexpr size_t kEnduranceGroup = 102;
constexpr size_t kFormatTable = 128;  // u16 bytes of metadata, u8 log2 of a block's bytes, u8 relative performance
constexpr uint32_t kFormatsMax = 64;
constexpr uint32_t kLbaShiftMin = 9;
constexpr uint32_t kLbaShiftMax = 12;  // a page of the store

constexpr size_t kSerial = 4, kSerialBytes = 20;
constexpr size_t kModel = 24, kModelBytes = 40;
constexpr size_t kFirmware = 64, kFirmwareBytes = 8;
constexpr size_t kTransferShift = 77;  // MDTS
constexpr size_t kAttributes = 96;     // CTRATT
constexpr uint32_t kPlacesData = 1U << 19;
constexpr size_t kOptionalCommands = 520;  // ONCS
constexpr uint16_t kDatasetManagement = 1U << 2;
constexpr size_t kVolatileCache = 525;
// MDTS counts in the smallest page of the controller, which only its registers tell: 4 KiB is the least that there is.
constexpr uint32_t kTransferUnitShift = 12;

constexpr size_t kHandleCount = 14;
constexpr size_t kHandles = 16;
constexpr size_t kHandleBytes = 32;

constexpr size_t kUnitsWritten = 48;  // of 1,000 sectors of 512 bytes
constexpr uint64_t kUnitBytes = 512'000;
constexpr size_t kHostBytes = 0;
constexpr size_t kMediaBytes = 16;

std::string short_of(const char* what, size_t bytes, size_t least) {
  return std::string(what) + ": " + std::to_string(bytes) + " bytes, where " + std::to_string(least) + " belong";
}

// Printable ASCII, without the blanks that it is filled up with.
std::string text_at(ConstBytes page, size_t offset, size_t bytes) {
  std::string text(as_text(page.subspan(offset, bytes)));
  std::replace_if(
      text.begin(), text.end(), [](char c) { return c < ' ' || c > '~'; }, ' ');
  text.erase(text.find_last_not_of(' ') + 1);
  text.erase(0, text.find_first_not_of(' '));
  return text;
}

// 128 bits, of which no drive has used up 64.
uint64_t wide_at(ConstBytes page, size_t offset) {
  const auto high = load_le<uint64_t>(page.data() + offset + sizeof(uint64_t));
  return high != 0 ? UINT64_MAX : load_le<uint64_t>(page.data() + offset);
}

}  // namespace

std::string parse_nvme_namespace(ConstBytes page, NvmeNamespaceFormat* out) {
  if (page.size() < kNvmeIdentifyBytes) return short_of("Identify Namespace", page.size(), kNvmeIdentifyBytes);
  const uint32_t formats = std::to_integer<uint32_t>(page[kFormats]) + 1;
  const auto in_use = std::to_integer<uint32_t>(page[kFormatInUse]);
  const uint32_t number = (in_use & 0xF) | (formats > 16 ? (in_use >> 5 & 0x3) << 4 : 0);
  if (number >= formats || number >= kFormatsMax) {
    return "LBA format " + std::to_string(number) + ": the drive has " + std::to_string(formats);
  }
  const std::byte* format = page.data() + kFormatTable + size_t{number} * 4;
  const auto metadata_bytes = load_le<uint16_t>(format);
  const auto shift = std::to_integer<uint32_t>(format[2]);
  if (metadata_bytes != 0) {
    return "LBA format " + std::to_string(number) + " has " + std::to_string(metadata_bytes) +
           " bytes of metadata a block, and 0 are needed: format the namespace without (`nvme format --lbaf`)";
  }
  if (shift < kLbaShiftMin || shift > kLbaShiftMax) {
    return "LBA format " + std::to_string(number) + " has blocks of 2^" + std::to_string(shift) +
           " bytes, and 512 to 4096 are needed: format the namespace with others (`nvme format --lbaf`)";
  }
  const auto blocks = load_le<uint64_t>(page.data() + kNamespaceSize);
  if (blocks == 0 || blocks > uint64_t{INT64_MAX} >> shift) {
    return "a namespace of " + std::to_string(blocks) + " blocks of " + std::to_string(1U << shift) + " bytes";
  }
  out->bytes = blocks << shift;
  out->lba_bytes = 1U << shift;
  out->endurance_group = load_le<uint16_t>(page.data() + kEnduranceGroup);
  return {};
}

std::string parse_nvme_controller(ConstBytes page, NvmeController* out) {
  if (page.size() < kNvmeIdentifyBytes) return short_of("Identify Controller", page.size(), kNvmeIdentifyBytes);
  out->serial = text_at(page, kSerial, kSerialBytes);
  out->model = text_at(page, kModel, kModelBytes);
  out->firmware = text_at(page, kFirmware, kFirmwareBytes);
  const auto shift = std::to_integer<uint32_t>(page[kTransferShift]);
  // More than fits is as good as none.
  out->transfer_bytes_max = shift == 0 || shift > 63 - kTransferUnitShift ? 0 : uint64_t{1} << (shift + kTransferUnitShift);
  out->volatile_cache = (std::to_integer<uint32_t>(page[kVolatileCache]) & 1) != 0;
  out->deallocates = (load_le<uint16_t>(page.data() + kOptionalCommands) & kDatasetManagement) != 0;
  out->places_data = (load_le<uint32_t>(page.data() + kAttributes) & kPlacesData) != 0;
  return {};
}

std::string parse_nvme_placements(ConstBytes page, std::vector<uint16_t>* out) {
  out->clear();
  if (page.size() < kHandles) return short_of("reclaim unit handle status", page.size(), kHandles);
  const uint32_t count = load_le<uint16_t>(page.data() + kHandleCount);
  if (count == 0 || count > kNvmePlacementsMax) {
    return "reclaim unit handles: the drive names " + std::to_string(count) + ", and there are 1 to " +
           std::to_string(kNvmePlacementsMax);
  }
  const size_t needed = kHandles + count * kHandleBytes;
  if (page.size() < needed) return short_of("reclaim unit handle status", page.size(), needed);
  for (uint32_t at = 0; at < count; ++at) out->push_back(load_le<uint16_t>(page.data() + kHandles + at * kHandleBytes));
  return {};
}

std::string parse_nvme_smart(ConstBytes page, NvmeWritten* out) {
  if (page.size() < kNvmeSmartLogBytes) return short_of("SMART log", page.size(), kNvmeSmartLogBytes);
  const uint64_t units = wide_at(page, kUnitsWritten);
  *out = {.host_bytes = units > UINT64_MAX / kUnitBytes ? UINT64_MAX : units * kUnitBytes, .media_bytes = 0};
  return {};
}

std::string parse_nvme_placement_log(ConstBytes page, NvmeWritten* out) {
  if (page.size() < kNvmePlacementLogBytes) return short_of("FDP statistics log", page.size(), kNvmePlacementLogBytes);
  *out = {.host_bytes = wide_at(page, kHostBytes), .media_bytes = wide_at(page, kMediaBytes)};
  return {};
}

}  // namespace halfstep::io
