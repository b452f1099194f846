// utf8.h — is this text that a log, a shell and another language's decoder will take?
// Strict (Unicode 15, table 3-7): no overlong forms, no surrogates, nothing above U+10FFFF.
#pragma once

#include "base/bytes.h"

namespace halfstep::wire {

bool valid_utf8(ConstBytes text) noexcept;

}  // namespace halfstep::wire
