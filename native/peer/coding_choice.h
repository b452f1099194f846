// coding_choice.h — whether a put codes a block or leaves it as it is: whoever reads it later meets what is stored.
// The choice is a pure function of what was measured. A coded block leaves room on flash for others, so it is coded unless
// that makes its gets slower; its put, for which nobody waits, may take longer within a bound. A block travels while it is
// coded and decoded, so of each way the slower of the two counts. What was not measured stands in nobody's way: coding is
// what measures it, within the first blocks.
#pragma once

#include <cstdint>

#include "wire/coding_choices.h"

namespace halfstep::peer {

enum class CodingMode : uint8_t { Always, Auto, Never };

struct CodingInputs {
  // Of raw bytes, by all threads that code; by the one that decodes at a reader, which is thought to be as fast as this client.
  uint64_t encode_bytes_per_s = 0;
  uint64_t decode_bytes_per_s = 0;
  // Of stored bytes: what the link has carried at its fastest, and what the daemon has served of late.
  uint64_t link_bytes_per_s = 0;
  uint64_t service_bytes_per_s = 0;
  uint32_t block_bytes = 0;
  uint32_t parts = 0;
  uint32_t ratio_milli = 0;  // raw to stored bytes of blocks of late, times 1,000
};

using wire::CodingReason;
using wire::kCodingReasons;
// A put that takes longer is behind what an engine computes, and blocks would be lost for it.
inline constexpr uint32_t kPutTimesMax = 4;

constexpr bool codes(CodingReason reason) noexcept { return reason < CodingReason::Never; }

// What a block takes on flash: whole pages, and a trailer where it is coded (docs/on-flash-format.md, *Extent*).
bool saves_pages(uint64_t block_bytes, uint64_t stored_bytes, uint64_t parts) noexcept;

CodingReason choose_coding(CodingMode mode, const CodingInputs& inputs) noexcept;

}  // namespace halfstep::peer
