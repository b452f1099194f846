#include "io/scheduler.h"

#include <algorithm>
#include <utility>

namespace halfstep::io {
namespace {

// So long after its last read a device is still thought to be wanted by gets: those of an engine that generates come every few
// milliseconds, and what was let loose between two of them would stand before the second.
constexpr uint64_t kDemandUs = 100'000;
constexpr uint64_t kSteerUs = 20'000;
constexpr uint32_t kSteerReads = 8;  // and at least so many: fewer say nothing
// One read in so many may be late before the window closes: what a goal is for is the slowest hundredth, but it takes hundreds
// of reads to see that one.
constexpr uint32_t kLateOneIn = 16;
constexpr uint64_t kWindowStepBytes = 512 * KiB;
// So long a write or a prefetch may wait before the window opens for it. Shorter waits are what a window is for: frames and
// reclaim come in bursts, and a burst that is let through stands before hundreds of gets. A scrub waits as long as it has to,
// and so does reclaim: once it is late, writers wait for it, and it goes with them.
constexpr uint64_t kPatienceUs = 10'000;
constexpr uint64_t kCalmUs = 100'000;  // without any such wait, before the window closes again
// Of reads that are completed between two looks at the device: verifying them takes some 100 us, and it may run dry meanwhile.
constexpr uint64_t kLookEachBytes = 1 * MiB;

size_t lane_of(const Request& request) noexcept { return static_cast<size_t>(request.io_class); }

bool of_demand(const Request& request) noexcept { return request.io_class == IoClass::Demand; }
bool is_gets(const Request& request) noexcept { return of_demand(request) && request.op == Op::Read; }

constexpr bool opens_window(size_t lane) noexcept {
  return lane == static_cast<size_t>(IoClass::Prefetch) || lane == static_cast<size_t>(IoClass::Write);
}

}  // namespace

void Scheduler::submit(Request& request) noexcept {
  if (request.op == Op::Flush || request.op == Op::Discard) return inner_->submit(request);
  request.engine_queued_us = clock_.now_us();
  request.engine_retries = 0;
  request.engine_done_bytes = 0;
  if (is_gets(request)) {
    pressure_.demand_seen_us.store(request.engine_queued_us, std::memory_order_relaxed);
  }
  lanes_[lane_of(request)].queued.push_back(request);
  ++queued_;
}

// What is at the device already stays what it was.
void Scheduler::hurry(Request& request) noexcept {
  if (of_demand(request) || !lanes_[lane_of(request)].queued.remove(request)) return;
  const uint64_t now_us = clock_.now_us();
  counters_.classes[lane_of(request)].queued_us += now_us - std::min(now_us, request.engine_queued_us);
  request.io_class = IoClass::Demand;
  request.engine_queued_us = now_us;  // the goal is that of the get, which has come only now
  pressure_.demand_seen_us.store(now_us, std::memory_order_relaxed);
  lanes_[lane_of(request)].queued.push_back(request);
}

void Scheduler::flush_submissions() noexcept {
  if (queued_ != 0) dispatch();
  inner_->flush_submissions();
}

// What lands while this is at work is for the next poll: a turn has to end.
size_t Scheduler::poll() noexcept {
  size_t completed = look();
  RequestQueue landed;
  landed.take_all(landed_);
  uint64_t bytes = 0;
  while (Request* request = landed.pop_front()) {
    --landed_count_;
    if (bytes >= kLookEachBytes) {
      bytes = 0;
      completed += look();
    }
    if (request->op == Op::Read) bytes += request->bytes;
    ++completed;
    request->complete(*request);
  }
  return completed;
}

// Whether some have come back, so that there is room for others. Flushes and discards complete here; returns how many.
size_t Scheduler::look() noexcept {
  now_us_ = clock_.now_us();
  const uint32_t before = landed_count_;
  const size_t came = inner_->poll();
  const uint32_t landed = landed_count_ - before;
  if (landed == 0) return came;
  demand_limit_.looked(!lanes_[static_cast<size_t>(IoClass::Demand)].queued.empty());
  steer();
  if (queued_ != 0) flush_submissions();
  return came - landed;
}

void Scheduler::dispatch() noexcept {
  now_us_ = clock_.now_us();
  const uint64_t seen_us = pressure_.demand_seen_us.load(std::memory_order_relaxed);
  const bool wanted = latency_goal_us_ != 0 && seen_us != 0 && now_us_ < seen_us + kDemandUs;
  counters_.window_bytes = pressure_.window_bytes.load(std::memory_order_relaxed) / pressure_.shards;
  window_bytes_ = wanted ? counters_.window_bytes : UINT64_MAX;
  const bool gathers = inner_->gathers();
  for (size_t at = 0; at < kIoClasses; ++at) {
    Lane& lane = lanes_[at];
    const bool demand = at == static_cast<size_t>(IoClass::Demand);
    GatherRun run;
    while (!lane.queued.empty()) {
      Request& next = *lane.queued.front();
      // Beside gets a frame goes piece by piece: one of them comes between two pieces, and stands behind no more than one.
      next.engine_apart = !demand && window_bytes_ != UINT64_MAX;
      const bool gathered = gathers && run.takes(next);
      if (!may_go(lane, demand, next, gathered)) break;
      gathered ? run.add(next) : run.begin(next);
      hand_over(lane, *lane.queued.pop_front(), gathered);
    }
    if (lane.queued.empty() || out_ >= places(demand) || !opens_window(at)) continue;
    if (now_us_ > lane.queued.front()->engine_queued_us + kPatienceUs) short_ = true;
  }
}

bool Scheduler::may_go(const Lane& lane, bool demand, const Request& request, bool gathered) const noexcept {
  if (lane.out == 0) return true;
  if (out_ >= places(demand) && !gathered) return false;
  if (demand) return gathered || request.op != Op::Read || demand_limit_.takes(request.bytes);
  return window_bytes_ == UINT64_MAX || background_bytes_ + request.bytes <= window_bytes_;
}

void Scheduler::hand_over(Lane& lane, Request& request, bool gathered) noexcept {
  --queued_;
  request.engine_gathered = gathered;
  out_ += gathered ? 0 : 1;
  ++lane.out;
  if (!of_demand(request)) background_bytes_ += request.bytes;
  if (is_gets(request)) demand_limit_.given(request.bytes);
  counters_.classes[lane_of(request)].queued_us += now_us_ - std::min(now_us_, request.engine_queued_us);
  request.engine_started_us = now_us_;
  request.engine_complete = std::exchange(request.complete, &Scheduler::on_complete);
  request.engine_scheduler = this;
  inner_->submit(request);
}

void Scheduler::on_complete(Request& request) {
  request.complete = request.engine_complete;
  static_cast<Scheduler*>(request.engine_scheduler)->completed(request);
}

void Scheduler::completed(Request& request) noexcept {
  landed_.push_back(request);
  ++landed_count_;
  Lane& lane = lanes_[lane_of(request)];
  out_ -= request.engine_gathered ? 0 : 1;
  --lane.out;
  if (!of_demand(request)) background_bytes_ -= request.bytes;
  ClassCounters& counters = counters_.classes[lane_of(request)];
  ++counters.requests;
  counters.bytes += request.bytes;
  counters.device_us += now_us_ - std::min(now_us_, request.engine_started_us);
  if (!is_gets(request)) return;
  counters_.gets_bytes += request.bytes;
  demand_limit_.landed(request.bytes, request.engine_gathered ? 0 : 1);
  pressure_.demand_seen_us.store(now_us_, std::memory_order_relaxed);
  if (latency_goal_us_ == 0) return;
  ++reads_;
  if (now_us_ - std::min(now_us_, request.engine_queued_us) <= latency_goal_us_) return;
  ++reads_late_;
  ++counters_.reads_late;
}

// Halves the window when too many came late; opens it by a step where it kept somebody waiting in vain, and closes it by one
// when no shard's has for a while.
void Scheduler::steer() noexcept {
  if (reads_ < kSteerReads || now_us_ < steer_at_us_) return;
  uint64_t window = pressure_.window_bytes.load(std::memory_order_relaxed);
  if (reads_late_ * kLateOneIn > reads_) {
    window /= 2;
  } else if (short_) {
    window += kWindowStepBytes;
  } else if (now_us_ > pressure_.short_seen_us.load(std::memory_order_relaxed) + kCalmUs) {
    window -= std::min(window, kWindowStepBytes);
  }
  if (short_) pressure_.short_seen_us.store(now_us_, std::memory_order_relaxed);
  window = std::clamp(window, pressure_.window_bytes_min, DevicePressure::kWindowBytesMax);
  pressure_.window_bytes.store(window, std::memory_order_relaxed);
  reads_ = reads_late_ = 0;
  short_ = false;
  steer_at_us_ = now_us_ + kSteerUs;
}

}  // namespace halfstep::io
