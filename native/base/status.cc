#include "base/status.h"

#include <cstdlib>
#include <cstring>

namespace halfstep {

std::string_view code_name(Code code) noexcept {
  switch (code) {
    case Code::Ok: return "ok";
    case Code::NotFound: return "not_found";
    case Code::Present: return "present";
    case Code::Corrupt: return "corrupt";
    case Code::Invalid: return "invalid";
    case Code::TooLarge: return "too_large";
    case Code::Throttled: return "throttled";
    case Code::Unsupported: return "unsupported";
    case Code::Late: return "late";
    case Code::Cancelled: return "cancelled";
    case Code::Closed: return "closed";
    case Code::NoSpace: return "no_space";
    case Code::IoError: return "io_error";
    case Code::Internal: return "internal";
  }
  return "unknown";
}

std::string errno_name(int32_t error) {
  const int number = error < 0 ? -error : error;
  const char* name = strerrorname_np(number);
  std::string out = name != nullptr ? name : std::to_string(number);
  const char* text = strerrordesc_np(number);
  if (text != nullptr) {
    out += " (";
    out += text;
    out += ")";
  }
  return out;
}

}  // namespace halfstep
