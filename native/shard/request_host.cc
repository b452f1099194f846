#include "shard/request_host.h"

#include <algorithm>

namespace halfstep::shard {

wire::LoadRecord RequestHost::load() const noexcept {
  wire::LoadRecord load;
  load.queue_depth = static_cast<uint32_t>(std::min<uint64_t>(counts_.requests_open - counts_.requests_waiting, UINT32_MAX));
  load.bytes_per_s = meter_.bytes_per_s();
  if (load.bytes_per_s != 0) {
    load.queue_us =
        static_cast<uint32_t>(std::min<uint64_t>(counts_.credit_held_bytes * 1'000'000 / load.bytes_per_s, UINT32_MAX));
  }
  return load;
}

}  // namespace halfstep::shard
