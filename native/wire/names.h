// names.h — what answers and reasons are called in results, metrics and docs/wire-protocol.md.
#pragma once

#include "wire/records.h"

namespace halfstep::wire {

// "unknown" for a number that has no name here: a later version's.
const char* answer_name(Answer answer) noexcept;
const char* reason_name(Reason reason) noexcept;

}  // namespace halfstep::wire
