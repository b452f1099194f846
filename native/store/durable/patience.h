// patience.h — how long a start waits for what the device does not answer. A whole device that is silent comes back, or there
// is nothing to serve: for that it waits long, but once, and not at each place anew. One place among others that answer has
// probably gone bad: for that it waits a little, and for all such places together no longer than that would be noticed.
// Invariants: what was not read is asked for again before anything is concluded from its absence. Thread: the shard's.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>

#include "base/clock.h"
#include "io/engine.h"

namespace halfstep::store {

// What has been asked for and not answered.
struct Unanswered {
  uint64_t since_us = 0;  // its first failure; 0: nothing failed yet
  uint64_t reads = 0;     // that the device had answered then
  uint64_t among_us = 0;  // its first failure among others that were answered
  uint32_t tries = 0;
};

class Patience {
 public:
  // `witnesses`: places that could be read a moment ago. Whether they can be now tells a silent device from a bad place.
  Patience(const Clock& clock, const io::Engine& engine, std::array<uint64_t, 2> witnesses)
      : clock_(clock), engine_(engine), witnesses_(witnesses) {}
  const std::array<uint64_t, 2>& witnesses() const noexcept { return witnesses_; }

  // It failed, once more. When to ask again; 0: no more.
  uint64_t again_at_us(Unanswered& place) noexcept {
    const uint64_t now_us = clock_.now_us();
    const uint64_t reads = engine_.counters().reads;
    // Whether others answer, a first failure tells by the failure before: many places would cost a pause each.
    const uint64_t reads_then = place.since_us == 0 ? reads_before_ : place.reads;
    if (place.since_us == 0) place = {now_us, reads, 0, 0};
    if (reads != reads_before_ || silent_since_us_ == 0) silent_since_us_ = now_us;
    reads_before_ = reads;
    const bool others = reads != reads_then;
    place.among_us = !others ? 0 : place.among_us != 0 ? place.among_us : now_us;
    const uint64_t pause_us = std::min(kPauseUs << std::min(place.tries, 5U), kPauseUsMax);
    if (over_ || (others ? now_us - place.among_us >= kPlaceUs : now_us - silent_since_us_ >= kDeviceUs)) return 0;
    if (others) {
      if (spent_us_ >= kPlacesUs) return 0;
      spent_us_ += pause_us;
    }
    ++place.tries;
    return now_us + pause_us;
  }
  // The same, and waits until then. False: no more.
  bool wait(Unanswered& place) noexcept {
    const uint64_t again_us = again_at_us(place);
    if (again_us == 0) return false;
    // Whoever was stopped in between is late already.
    if (const uint64_t now_us = clock_.now_us(); again_us > now_us) clock_.pause_us(again_us - now_us);
    return true;
  }
  // The store stops: what is not answered now is left.
  void end() noexcept { over_ = true; }

 private:
  static constexpr uint64_t kPauseUs = 20'000;
  static constexpr uint64_t kPauseUsMax = 500'000;
  static constexpr uint64_t kPlaceUs = 5'000'000;
  static constexpr uint64_t kPlacesUs = 20'000'000;  // of pauses, for all of them
  static constexpr uint64_t kDeviceUs = 60'000'000;  // of silence without an answer between, whatever was asked for

  const Clock& clock_;
  const io::Engine& engine_;
  const std::array<uint64_t, 2> witnesses_;
  uint64_t reads_before_ = 0;     // that the device had answered at the failure before, of whatever place
  uint64_t silent_since_us_ = 0;  // the first failure after its last answer; 0: none yet
  uint64_t spent_us_ = 0;
  bool over_ = false;
};

}  // namespace halfstep::store
