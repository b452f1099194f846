// gather_pause.h — whether requests are gathered, after one that was gathered was refused. A file system that cannot take
// vectors refuses all of them; one -EINVAL among millions is a device's bad moment. So gathering rests for some requests, and
// then is tried again; each refusal that follows makes the rest twice as long, up to a bound. Invariants: never ends for good;
// a gather that went well forgets the refusals before it. Thread: its engine's.
#pragma once

#include <algorithm>
#include <cstdint>

namespace halfstep::io {

class GatherPause {
 public:
  static constexpr uint64_t kRequestsMin = 1024;
  static constexpr uint64_t kRequestsMax = uint64_t{1} << 20;

  bool gathers() const noexcept { return left_ == 0; }
  // So many requests have gone to the kernel one by one.
  void passed(uint64_t requests) noexcept { left_ -= std::min(left_, requests); }
  void refused() noexcept {
    if (left_ > 0) return;  // one of those that were under way together
    left_ = next_;
    next_ = std::min(next_ * 2, kRequestsMax);
  }
  void went_well() noexcept {
    if (left_ == 0) next_ = kRequestsMin;
  }

 private:
  uint64_t left_ = 0;
  uint64_t next_ = kRequestsMin;
};

}  // namespace halfstep::io
