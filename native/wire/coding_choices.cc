#include "wire/coding_choices.h"

namespace halfstep::wire {

std::string_view coding_reason_name(CodingReason reason) noexcept {
  switch (reason) {
    case CodingReason::Always: return "always";
    case CodingReason::Unmeasured: return "unmeasured";
    case CodingReason::Faster: return "faster";
    case CodingReason::Room: return "room";
    case CodingReason::Probe: return "probe";
    case CodingReason::Never: return "never";
    case CodingReason::Pages: return "pages";
    case CodingReason::SlowEncode: return "slow_encode";
    case CodingReason::SlowDecode: return "slow_decode";
    case CodingReason::NoGain: return "no_gain";
    case CodingReason::NoMemory: return "no_memory";
  }
  return "";
}

Status parse_coding_choices(ConstBytes value, CodingChoicesView* out) noexcept {
  Reader reader(value);
  out->section = reader.take<uint16_t>();
  const auto zero = reader.take<uint16_t>();
  const auto count = reader.take<uint32_t>();
  out->known = reader.take<CodingKnown>();
  out->reasons = reader.rest();
  const bool whole = !reader.failed() && out->reasons.size() == count;
  return whole && zero == 0 && out->known.reserved == 0 ? Status() : Status(Code::Invalid);
}

}  // namespace halfstep::wire
