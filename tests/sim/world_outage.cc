// world_outage.cc — times at which the device, or some segments of it, take no writes or give no reads, and what must hold
// then.
#include <algorithm>

#include "sim/world.h"

namespace halfstep::sim {
namespace {

// How long who waits for media may go without an answer: time, and turns in which the store could do something about it.
constexpr uint64_t kAnswerUs = 600'000;
constexpr uint64_t kAnswerTurns = 60;
constexpr uint64_t kOverdueTurns = 8;  // of them, after that time: turns that are close together let nothing be tried again
// Of the device, before two writes have failed for a put that needs a segment first: a batch of the log that is under way and
// fails, the flush and the page of the snapshot that follows it, the same once more, and what reclaim reads and flushes.
constexpr uint64_t kRequestsBeforeAnswer = 8;
constexpr uint64_t kForgottenUs = 5'000'000;  // after the end of an outage
constexpr uint64_t kRetirementsMax = 3;       // of a segment, before it is not tried again

}  // namespace

void World::begin_outage(const Op& op) {
  Prng prng(op.salt);
  outage_ = {clock_.us + op.amount, clock_.us, turns_, turns_, clock_.us, op.count, prng.chance(0.6) ? prng.below(80) : 0, {}};
  if (!op.flag) return;
  outage_.segments.resize(places_.geometry.segments);
  for (size_t segment = 0; segment < outage_.segments.size(); ++segment) outage_.segments[segment] = prng.chance(0.5);
}

// The header's reads are left alone: a store is refused when neither copy can be read, and that is another matter.
int32_t World::outage_error(const io::Request& request) {
  if (!in_outage()) return 0;
  const bool header = request.op != io::Op::Flush && (request.offset < store::format::kHeaderReserveBytes ||
                                                      request.offset + request.bytes > places_.header(1));
  const uint32_t kind = request.op == io::Op::Read    ? kOutageReads
                        : request.op == io::Op::Write ? kOutageWrites
                        : request.op == io::Op::Flush ? kOutageFlushes
                                                      : 0;
  if ((outage_.kinds & kind) == 0 || (header && request.op == io::Op::Read)) return 0;
  if (!outage_.segments.empty()) {
    const uint64_t from = places_.segment(0);
    const bool in_segment = request.offset >= from && request.offset < places_.segment(places_.geometry.segments);
    if (!in_segment || !outage_.segments[(request.offset - from) / places_.geometry.segment_bytes]) return 0;
  }
  if (request.op == io::Op::Read && outage_.spared_reads > 0) {
    --outage_.spared_reads;
    return 0;
  }
  ++count(FaultKind::Outage);
  fault_is_outage_ = true;
  if (request.op == io::Op::Read) {
    ++unread_;
    unread_turn_ = turns_;
  }
  return (outage_.kinds & kOutageNoSpace) != 0 && request.op == io::Op::Write ? -ENOSPC : -EIO;
}

bool World::strict_outage() const noexcept {
  constexpr uint32_t kOthers = kMediaFaults | bit_of(FaultKind::WriteError) | bit_of(FaultKind::FlushError) |
                               bit_of(FaultKind::NoSpace) | bit_of(FaultKind::TornWrite);
  return on(FaultKind::Outage) && (history_.profile.faults & kOthers) == 0;
}

// How long one request may take: the device, not the store, makes whoever waits for it wait.
uint64_t World::request_turns() const noexcept {
  const io::MemoryFaults& chances = history_.profile.chances;
  return chances.delay_polls_max + chances.completion_polls_max + (on(FaultKind::Stall) ? io::kStallPolls : 0);
}

// The store may hear of the outage's last failures only now: of a frame, when the slowest of its writes has come back.
bool World::failures_on_their_way() const noexcept { return turns_ - outage_.last_turn < kAnswerTurns + request_turns(); }

// Nothing failed but what an outage failed, and that one has been over for so long that nobody is refused for it any more: in
// turns in which the store could find out, and in time since it heard of the last failure.
bool World::over_long_ago() const noexcept {
  return strict_outage() && !in_outage() && !failures_on_their_way() && clock_.us >= outage_.heard_us + kForgottenUs;
}

// A put that waits for media while nothing can be written.
void World::check_outage() {
  if (in_outage()) outage_.last_turn = turns_;
  if (failures_on_their_way()) outage_.heard_us = clock_.us;
  // Where reads fail, too, a put may wait for a segment, and that for what is worth a copy.
  const bool whole =
      in_outage() && outage_.segments.empty() && (outage_.kinds & (kOutageWrites | kOutageReads)) == kOutageWrites;
  if (!whole || !strict_outage() || on(FaultKind::Stall) || process_->store->recovering()) return;
  const uint64_t answer_turns = kAnswerTurns + kRequestsBeforeAnswer * request_turns();
  if (clock_.us - outage_.from_us < kAnswerUs || turns_ - outage_.from_turn < answer_turns) return;
  // What an outage of reads before this one kept from being read at once is read page by page, and a put's segment may wait
  // for that: nothing is written meanwhile that could tell.
  const uint64_t read_turns = answer_turns + uint64_t{places_.segment_pages()} * (1 + request_turns());
  if (unread_ > 0 && turns_ - unread_turn_ < read_turns) return;
  for (const auto& write : process_->writes) {
    // Each shard finds out for itself, by its own first write.
    if (!write->committed || write->answers > 0 || turns_ - write->committed_at < answer_turns) continue;
    if (clock_.us - write->committed_us < kAnswerUs || ++write->overdue_turns < kOverdueTurns) continue;
    return model_.fail(Rule::WaitsInOutage, "a put of key " + std::to_string(write->key->number));
  }
}

void World::check_retired() {
  const store::Counters& counters = process_->store->counters();
  const store::Gauges gauges = process_->store->gauges();
  const bool has_turned = turns_ > process_->recovered_at + 1;
  if (retired_ < kRetirementsMax && !process_->store->recovering() && has_turned &&
      gauges.segments_bad > counters.segments_retired) {
    return model_.fail(Rule::RetiredForGood, std::to_string(gauges.segments_bad) + " segments are bad, " +
                                                 std::to_string(counters.segments_retired) + " retired by this process");
  }
  if (!strict_outage()) return;
  if (gauges.segments_bad > 0 || counters.blocks_evicted_unreadable > 0) {
    model_.fail(Rule::LostToOutage, std::to_string(gauges.segments_bad) + " segments bad, " +
                                        std::to_string(counters.blocks_evicted_unreadable) + " blocks given up");
  }
}

}  // namespace halfstep::sim
