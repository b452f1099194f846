// segment_supply.h — where writers get their segments from. Reclaim makes them (segment_source.h), and writers do not know it.
#pragma once

namespace halfstep::store {

struct Segment;

class SegmentSupply {
 public:
  // A segment that is ready, now Open; null when there is none yet.
  virtual Segment* take(bool for_copies) noexcept = 0;
  virtual bool has_ready(bool for_copies) const noexcept = 0;
  // There is none and nothing is under way: everything is held or being read.
  virtual bool exhausted() const noexcept = 0;
  // A writer's place takes nothing: whether another one does is to be found out, by a page of a ready segment.
  virtual void want_probe(const Segment& failing) noexcept = 0;

 protected:
  ~SegmentSupply() = default;
};

}  // namespace halfstep::store
