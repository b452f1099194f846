// nvme_identify.h — what an NVMe drive says of itself: the structures that Identify, Get Log Page and I/O Management Receive
// give back (NVM Express Base 2.0, NVM Command Set 1.0, TP4146 for flexible data placement).
// Invariants: every byte comes from the drive and none is trusted: what parses has bounds that hold, what does not is a
// sentence. Thread: any.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/bytes.h"

namespace halfstep::io {

inline constexpr uint32_t kNvmeIdentifyBytes = 4096;
inline constexpr uint32_t kNvmeSmartLogBytes = 512;
inline constexpr uint32_t kNvmePlacementLogBytes = 64;
inline constexpr uint32_t kNvmePlacementsMax = 128;

// Of Identify Namespace (CNS 0).
struct NvmeNamespaceFormat {
  uint64_t bytes = 0;
  uint32_t lba_bytes = 0;        // 512 to 4096
  uint16_t endurance_group = 0;  // 0: none
};

// Of Identify Controller (CNS 1).
struct NvmeController {
  std::string model, serial, firmware;
  uint64_t transfer_bytes_max = 0;  // of one command; 0: no limit of the drive's own
  bool volatile_cache = false;
  bool deallocates = false;
  bool places_data = false;  // flexible data placement (FDP)
};

// What the drive was given, and what it wrote of it and for itself. Counted from its first day.
struct NvmeWritten {
  uint64_t host_bytes = 0;
  uint64_t media_bytes = 0;  // 0 where the drive does not tell: without FDP it only says the first
};

// Empty, or what is wrong with it: cause, value and bound.
std::string parse_nvme_namespace(ConstBytes page, NvmeNamespaceFormat* out);
std::string parse_nvme_controller(ConstBytes page, NvmeController* out);
// Reclaim unit handle status: the namespace's placement identifiers, in the order of their handles.
std::string parse_nvme_placements(ConstBytes page, std::vector<uint16_t>* out);
// SMART / health log: what hosts wrote, in units of 512,000 bytes.
std::string parse_nvme_smart(ConstBytes page, NvmeWritten* out);
// FDP statistics log of an endurance group.
std::string parse_nvme_placement_log(ConstBytes page, NvmeWritten* out);

}  // namespace halfstep::io
