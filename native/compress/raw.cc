#include "compress/raw.h"

#include <cstring>

namespace halfstep::compress {

size_t raw_encode(ConstBytes /*raw*/, const UnitShape& /*shape*/, Scratch& /*scratch*/, Bytes /*out*/) { return 0; }

Status raw_decode(ConstBytes unit, Scratch& /*scratch*/, Bytes out) {
  if (unit.size() != out.size()) return Code::Corrupt;
  if (!out.empty()) std::memcpy(out.data(), unit.data(), out.size());
  return {};
}

Status raw_inspect(ConstBytes unit, UnitFacts* out) {
  *out = {.raw_bytes = unit.size()};
  return {};
}

}  // namespace halfstep::compress
