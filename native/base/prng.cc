#include "base/prng.h"

#include <sys/random.h>

#include <cerrno>

namespace halfstep {

Status system_random(Bytes out) noexcept {
  while (!out.empty()) {
    const ssize_t got = getrandom(out.data(), out.size(), 0);
    if (got < 0) {
      if (errno == EINTR) continue;
      return {Code::IoError, -errno};
    }
    out = out.subspan(static_cast<size_t>(got));
  }
  return {};
}

}  // namespace halfstep
