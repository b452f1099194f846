#include "store/recover/log_age.h"

#include <algorithm>
#include <vector>

#include "store/durable/blocking_io.h"
#include "store/format/page.h"

namespace halfstep::store {
namespace {

// Of the segments that the log has never used, those that are written first.
constexpr uint32_t kUnusedLookedAt = 64;

}  // namespace

std::string LogAge::sentence(const LogContents& log) const {
  return "both copies end at " + std::to_string(log.sequence_max) + ", older than the frames of segment " +
         std::to_string(segment) + " (" + std::to_string(generation) + "): what was deleted since is not known";
}

LogAge age_of_log(const Places& places, const HashKey& secret, const LogContents& log, std::span<const uint32_t> walked,
                  uint64_t device_bytes, const std::function<bool(uint64_t offset, Bytes page)>& read) {
  LogAge age;
  if (log.damaged || log.newer_records) return age;
  std::vector<uint32_t> looked_at;
  for (uint32_t number = 0; number < log.segments.size() && looked_at.size() < kUnusedLookedAt; ++number) {
    const bool there = device_bytes == 0 || places.segment(number) < device_bytes;
    if (log.segments[number].generation == 0 && there) looked_at.push_back(number);
  }
  looked_at.insert(looked_at.end(), walked.begin(), walked.end());
  PageBuffer page(1);
  for (const uint32_t number : looked_at) {
    format::PageHeader header;
    const PageAddress address{0, places.shard, number, 0, 0};
    if (!read(places.segment(number), page.bytes())) continue;
    if (!open_page_of_any_generation(secret, page.bytes(), format::PageKind::FrameEntries, address, &header).ok()) continue;
    if (header.generation <= log.sequence_max) continue;
    age.sequence_max = std::max({age.sequence_max, header.generation, header.sequence});
    if (age.older) continue;
    age.older = true;
    age.segment = number;
    age.generation = header.generation;
  }
  return age;
}

}  // namespace halfstep::store
