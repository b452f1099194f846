// coding_choices.h — CodingChoices of a put: why each of its blocks is coded or raw, and what its client knew when it chose.
// It is there to be counted: no answer depends on it.
#pragma once

#include <cstdint>
#include <string_view>

#include "base/bytes.h"
#include "base/status.h"

namespace halfstep::wire {

enum class CodingReason : uint8_t {
  Always,      // coded: it was asked for
  Unmeasured,  // coded: a speed or the ratio is not known yet
  Faster,      // coded: neither a get nor a put of it takes longer
  Room,        // coded: a get takes no longer; its put does, within a bound, and room on flash is worth it
  Probe,       // coded: one in so many that would be raw, so that the speeds stay those of today
  Never,       // raw: it was asked for
  Pages,       // raw: at this ratio it needs as many pages on flash
  SlowEncode,  // raw: its put would take longer than that bound
  SlowDecode,  // raw: a get of it would take longer
  NoGain,      // raw: it was coded, and needs as many pages
  NoMemory,    // raw: there was none to code it, or its put was given up
};
inline constexpr uint32_t kCodingReasons = 11;
// "" for a number that has no name here: a later version's.
std::string_view coding_reason_name(CodingReason reason) noexcept;

// Bytes a second, as the client of the put measured them; 0: not yet.
struct CodingKnown {
  uint64_t encode_bytes_per_s = 0;
  uint64_t decode_bytes_per_s = 0;
  uint64_t link_bytes_per_s = 0;
  uint64_t service_bytes_per_s = 0;
  uint32_t ratio_milli = 0;  // raw to stored bytes of blocks of late, times 1,000
  uint32_t reserved = 0;
};
static_assert(sizeof(CodingKnown) == 40);

// CodingChoices = u16 section, u16 zero, u32 count (= items of the section), CodingKnown, u8 reason[count]; follows the
// section's Offers.
struct CodingChoicesView {
  uint16_t section = 0;
  CodingKnown known;
  ConstBytes reasons;
};
Status parse_coding_choices(ConstBytes value, CodingChoicesView* out) noexcept;

}  // namespace halfstep::wire
