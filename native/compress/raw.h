// raw.h — codec 0: the bytes as they are. It never pays, so that a part becomes raw by what its own codec says.
#pragma once

#include "base/bytes.h"
#include "base/status.h"
#include "compress/unit.h"

namespace halfstep::compress {

size_t raw_encode(ConstBytes raw, const UnitShape& shape, Scratch& scratch, Bytes out);
Status raw_decode(ConstBytes unit, Scratch& scratch, Bytes out);
Status raw_inspect(ConstBytes unit, UnitFacts* out);

}  // namespace halfstep::compress
