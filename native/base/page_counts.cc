#include "base/page_counts.h"

#include <cinttypes>
#include <cstdio>
#include <fstream>
#include <string>

#include "base/units.h"

namespace halfstep {

uint64_t counted_bytes(ConstBytes memory, const char* field) {
  // A line "start-end …" for each mapping, then its counts, such as "AnonHugePages:      2048 kB".
  const std::string label = std::string(field) + ":";
  std::ifstream smaps("/proc/self/smaps");
  const auto first = reinterpret_cast<uintptr_t>(memory.data());
  uint64_t bytes = 0;
  bool within = false;
  for (std::string line; std::getline(smaps, line);) {
    uintptr_t start = 0;
    uintptr_t end = 0;
    uint64_t kib = 0;
    if (std::sscanf(line.c_str(), "%" SCNxPTR "-%" SCNxPTR, &start, &end) == 2) {
      within = start >= first && end <= first + memory.size();
    } else if (within && line.starts_with(label) && std::sscanf(line.c_str() + label.size(), "%" SCNu64, &kib) == 1) {
      bytes += kib * KiB;
    }
  }
  return bytes;
}

}  // namespace halfstep
