#include "store/reclaim/discarder.h"

#include <algorithm>
#include <cerrno>

#include "base/check.h"

namespace halfstep::store {
namespace {

// What a drive does in milliseconds; a writer that wants the segment waits for no more than one.
constexpr uint64_t kPartBytesMax = 32 * MiB;
constexpr uint64_t kPartsMin = 8;  // of a segment
constexpr uint32_t kFailuresMax = 3;

uint64_t part_bytes(const io::DiscardLimits& limits, uint64_t segment_bytes) noexcept {
  if (!limits.taken()) return 0;
  const uint64_t wanted = std::min({segment_bytes / kPartsMin, kPartBytesMax, limits.request_bytes_max});
  return std::max(round_down(wanted, limits.granularity_bytes), limits.granularity_bytes);
}

}  // namespace

Discarder::Discarder(io::Engine& engine, const Clock& clock, const Places& places, uint64_t bytes_per_s, Counters& counters)
    : engine_(engine),
      clock_(clock),
      places_(places),
      counters_(counters),
      limits_(engine.discard_limits(0)),
      part_bytes_(part_bytes(limits_, places.geometry.segment_bytes)),
      rate_bytes_(bytes_per_s) {
  if (!limits_.taken() || part_bytes_ > places.geometry.segment_bytes) rate_bytes_ = 0;
  request_.op = io::Op::Discard;
  request_.owner = this;
  request_.complete = [](io::Request& request) { static_cast<Discarder*>(request.owner)->landed(); };
}

bool Discarder::has(const Segment& segment) const noexcept {
  return std::find(queue_.begin(), queue_.end(), segment.number) != queue_.end();
}

uint64_t Discarder::end_of(uint32_t segment) const noexcept {
  return round_down(places_.segment(segment) + places_.geometry.segment_bytes, limits_.granularity_bytes);
}

void Discarder::add(const Segment& segment) {
  HALFSTEP_CHECK(segment.reads_in_flight == 0 && segment.frames_in_flight == 0, segment.reads_in_flight,
                 segment.frames_in_flight);
  if (on() && !has(segment)) queue_.push_back(segment.number);
}

bool Discarder::let_go(const Segment& segment) noexcept {
  const auto at = std::find(queue_.begin(), queue_.end(), segment.number);
  if (at == queue_.end()) return true;
  if (at == queue_.begin()) {
    wanted_ = flying_;
    if (!wanted_) end_front(counters_.discards_skipped);
    return !wanted_;
  }
  queue_.erase(at);
  ++counters_.discards_skipped;
  return true;
}

void Discarder::turn() {
  if (flying_ || queue_.empty() || clock_.now_us() < due_us_) return;
  if (!begun_) {
    begun_ = true;
    next_offset_ = round_up(places_.segment(queue_.front()), limits_.granularity_bytes);
  }
  const uint64_t end = end_of(queue_.front());
  if (next_offset_ >= end) return end_front(counters_.discards_skipped);  // less than a granule lies in it whole
  request_.offset = next_offset_;
  request_.bytes = static_cast<uint32_t>(std::min(part_bytes_, end - next_offset_));
  HALFSTEP_CHECK(places_.in_segment(queue_.front(), request_.offset, request_.bytes), queue_.front(), request_.offset,
                 request_.bytes);
  due_us_ = clock_.now_us() + uint64_t{request_.bytes} * 1'000'000 / rate_bytes_;
  flying_ = true;
  engine_.submit(request_);
}

void Discarder::landed() noexcept {
  flying_ = false;
  if (request_.error != 0) {
    end_front(counters_.discards_failed);
    if (request_.error == -EOPNOTSUPP || ++failures_in_a_row_ >= kFailuresMax) switch_off();
    return;
  }
  failures_in_a_row_ = 0;
  counters_.bytes_discarded += request_.bytes;
  next_offset_ += request_.bytes;
  const bool whole = next_offset_ >= end_of(queue_.front());
  if (whole || wanted_) end_front(whole ? counters_.segments_discarded : counters_.discards_skipped);
}

void Discarder::end_front(uint64_t& outcome) noexcept {
  ++outcome;
  queue_.erase(queue_.begin());
  begun_ = wanted_ = false;
}

void Discarder::give_up() noexcept {
  const bool keeps_front = flying_;
  counters_.discards_skipped += queue_.size() - (keeps_front ? 1 : 0);
  queue_.resize(keeps_front ? 1 : 0);
  wanted_ = keeps_front;
  begun_ = keeps_front;
}

void Discarder::switch_off() noexcept {
  give_up();
  rate_bytes_ = 0;
}

}  // namespace halfstep::store
