// names.h — what answers and reasons are called in results, metrics and docs/wire-protocol.md.
#pragma once

#include "wire/records.h"

namespace halfstep::wire {

// Said by a mount alone: unavailable, for the daemon behind it gave no answer. The other reasons are in records.h.
inline constexpr Reason kReasonUpstream = static_cast<Reason>(66);

// "unknown" for a number that has no name here: a later version's.
const char* answer_name(Answer answer) noexcept;
const char* reason_name(Reason reason) noexcept;

}  // namespace halfstep::wire
