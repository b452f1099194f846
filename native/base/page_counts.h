// page_counts.h — what the kernel counts of the pages behind a stretch of this process's addresses.
// Thread: any.
#pragma once

#include <cstdint>

#include "base/bytes.h"

namespace halfstep {

// The sum of `field`, such as "AnonHugePages", over the mappings that lie within `memory`. Reads /proc/self/smaps; 0 where that
// cannot be read.
uint64_t counted_bytes(ConstBytes memory, const char* field);

}  // namespace halfstep
