#include "peer/coding_choice.h"

#include <algorithm>

namespace halfstep::peer {
namespace {

constexpr uint64_t kPageBytes = 4096;
constexpr uint64_t kTrailerTailBytes = 32;
constexpr uint64_t kTrailerPartBytes = 24;

uint64_t pages(uint64_t bytes) noexcept { return (bytes + kPageBytes - 1) / kPageBytes; }

// 0 is not known.
uint64_t slower_of(uint64_t one, uint64_t other) noexcept {
  if (one == 0 || other == 0) return std::max(one, other);
  return std::min(one, other);
}

}  // namespace

bool saves_pages(uint64_t block_bytes, uint64_t stored_bytes, uint64_t parts) noexcept {
  return pages(stored_bytes + kTrailerTailBytes + kTrailerPartBytes * parts) < pages(block_bytes);
}

CodingReason choose_coding(CodingMode mode, const CodingInputs& inputs) noexcept {
  if (mode == CodingMode::Always) return CodingReason::Always;
  if (mode == CodingMode::Never) return CodingReason::Never;
  const auto bytes = static_cast<double>(inputs.block_bytes);
  const double stored = inputs.ratio_milli == 0 ? 0 : bytes * 1000 / inputs.ratio_milli;
  if (inputs.ratio_milli != 0 && !saves_pages(inputs.block_bytes, static_cast<uint64_t>(stored), inputs.parts)) {
    return CodingReason::Pages;
  }
  const uint64_t path = slower_of(inputs.link_bytes_per_s, inputs.service_bytes_per_s);
  if (path == 0 || inputs.encode_bytes_per_s == 0 || inputs.decode_bytes_per_s == 0 || inputs.ratio_milli == 0) {
    return CodingReason::Unmeasured;
  }
  const double raw = bytes / static_cast<double>(path);
  const double travel = stored / static_cast<double>(path);
  const double get = std::max(travel, bytes / static_cast<double>(inputs.decode_bytes_per_s));
  const double put = std::max(travel, bytes / static_cast<double>(inputs.encode_bytes_per_s));
  if (get > raw) return CodingReason::SlowDecode;
  if (put > kPutTimesMax * raw) return CodingReason::SlowEncode;
  return put > raw ? CodingReason::Room : CodingReason::Faster;
}

}  // namespace halfstep::peer
