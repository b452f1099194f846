// rdma_choice.h — whether the next connection of a client offers rings over RDMA, and why those that are up have none.
// A path that could not be made, or that died, is not tried again for a while: a second, then twice as long each time, up to a
// minute. A cable that is pulled ends all the paths of a client, and is one failure: paths that were made before the pause are
// not counted again. What has a reason that stays (no device, a daemon that refuses) is asked again with every connection: the
// rings remember what they have looked for in vain.
// Thread: the client's.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>

#include "peer/options.h"

namespace halfstep::peer {

class RdmaChoice {
 public:
  static constexpr uint64_t kBackoffUsMin = 1'000'000;
  static constexpr uint64_t kBackoffUsMax = 60'000'000;

  explicit RdmaChoice(Carrier wanted) noexcept : wanted_(wanted) {}

  // Whether a connection may do without.
  bool required() const noexcept { return wanted_ == Carrier::Rdma; }
  bool offers(uint64_t now_us) const noexcept { return wanted_ != Carrier::Tcp && (required() || now_us >= not_before_us_); }
  // Every connection is up, over a path.
  void made() { why_not_.clear(); }
  // So many bytes, of both ways, have travelled over a path. After two rings of them one ring at least has arrived, whatever is
  // still under way: the next failure is the first. Less is not enough, since a path may carry small answers and lose all that
  // is larger than a packet.
  void carried(uint64_t bytes, uint64_t ring_bytes) noexcept {
    if (bytes >= 2 * ring_bytes) failures_in_row_ = 0;
  }
  // None is offered, or none given.
  void refused(std::string why) { why_not_ = std::move(why); }
  // It could not be made, or died. begun_us: when it was offered.
  void failed(uint64_t now_us, uint64_t begun_us, std::string why) {
    why_not_ = std::move(why);
    if (begun_us < not_before_us_) return;
    ++failures_;
    const uint32_t doublings = std::min(failures_in_row_++, 10U);
    not_before_us_ = now_us + std::min(kBackoffUsMin << doublings, kBackoffUsMax);
  }

  const std::string& why_not() const noexcept { return why_not_; }
  uint64_t failures() const noexcept { return failures_; }

 private:
  const Carrier wanted_;
  std::string why_not_;
  uint64_t failures_ = 0;
  uint32_t failures_in_row_ = 0;
  uint64_t not_before_us_ = 0;
};

}  // namespace halfstep::peer
