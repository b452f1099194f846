// discarder.h — tells the device that a segment holds nothing any more, after its new generation is on media and before its
// first byte, so that the drive need not copy what is dead when it cleans up. In chunks, one at a time and not faster than a
// rate, because a drive may be slow to answer reads meanwhile. Whoever wants a segment now takes it as it is: discarding is
// good for the drive and never needed. Invariants: nothing reads from, writes to or may find anything in a segment that is
// here; what is under way of it lands before let_go() gives it away. A discard that failed costs nothing but itself; after some
// in a row there are no more. Thread: the shard's.
#pragma once

#include <vector>

#include "base/clock.h"
#include "io/engine.h"
#include "store/catalog/segment.h"
#include "store/format/geometry.h"
#include "store/format/report.h"

namespace halfstep::store {

class Discarder {
 public:
  // bytes_per_s: discarded at most; 0: none are.
  Discarder(io::Engine& engine, const Clock& clock, const Places& places, uint64_t bytes_per_s, Counters& counters);
  Discarder(const Discarder&) = delete;
  Discarder& operator=(const Discarder&) = delete;

  // The device takes discards, some are wanted, and they have not failed too often.
  bool on() const noexcept { return rate_bytes_ != 0; }
  // Of a segment whose generation is on media; nothing to do where discards are off.
  void add(const Segment& segment);
  bool has(const Segment& segment) const noexcept;
  // Ends what waits of it. False: a part is under way, and it is free when that has landed.
  bool let_go(const Segment& segment) noexcept;
  // The next part, when it is due.
  void turn();
  // No more: the end is near.
  void give_up() noexcept;

  uint64_t next_turn_us() const noexcept { return flying_ || queue_.empty() ? UINT64_MAX : due_us_; }
  bool busy() const noexcept { return flying_; }

 private:
  void landed() noexcept;
  void end_front(uint64_t& outcome) noexcept;
  void switch_off() noexcept;
  // Of the segment's range, what is left: whole granules alone.
  uint64_t end_of(uint32_t segment) const noexcept;

  io::Engine& engine_;
  const Clock& clock_;
  const Places& places_;
  Counters& counters_;
  const io::DiscardLimits limits_;
  const uint64_t part_bytes_;
  uint64_t rate_bytes_;          // a second; 0: off
  std::vector<uint32_t> queue_;  // segments; the first one is being discarded
  uint64_t next_offset_ = 0;     // on the device, of the first one
  bool begun_ = false;
  bool flying_ = false;
  bool wanted_ = false;  // somebody waits for the first one
  uint64_t due_us_ = 0;
  uint32_t failures_in_a_row_ = 0;
  io::Request request_;
};

}  // namespace halfstep::store
