#include "sim/shrink.h"

#include <algorithm>

namespace halfstep::sim {
namespace {

History without(const History& history, size_t from, size_t count) {
  History shorter = history;
  const auto first = shorter.ops.begin() + static_cast<ptrdiff_t>(from);
  shorter.ops.erase(first, first + static_cast<ptrdiff_t>(std::min(count, shorter.ops.size() - from)));
  return shorter;
}

// By chance alone: what an operation does on purpose is the operation's.
History without(const History& history, FaultKind fault) {
  History calmer = history;
  io::MemoryFaults& chances = calmer.profile.chances;
  switch (fault) {
    case FaultKind::Reorder: chances.shuffle = false; break;
    case FaultKind::Delay: chances.delay_polls_max = chances.completion_polls_max = 0; break;
    case FaultKind::Stall: chances.stall_chance = 0; break;
    case FaultKind::ReadError: chances.read_error_chance = 0; break;
    case FaultKind::WriteError: chances.write_error_chance = 0; break;
    case FaultKind::FlushError: chances.flush_error_chance = 0; break;
    case FaultKind::NoSpace: chances.no_space_chance = 0; break;
    case FaultKind::BitFlip: chances.bit_flip_chance = 0; break;
    case FaultKind::MisdirectedRead: chances.misdirected_read_chance = 0; break;
    case FaultKind::MisdirectedWrite: chances.misdirected_write_chance = 0; break;
    case FaultKind::TornWrite: chances.torn_writes = false; break;
    case FaultKind::DiscardError: chances.discard_error_chance = 0; break;
    case FaultKind::LostCompletion: chances.lost_completion_chance = 0; break;
    default: break;
  }
  const bool by_operation = fault == FaultKind::WriteError || fault == FaultKind::FlushError || fault == FaultKind::NoSpace ||
                            fault == FaultKind::Outage || fault == FaultKind::Kill || fault == FaultKind::PowerCut ||
                            fault == FaultKind::BitRot;
  if (!by_operation) calmer.profile.faults &= ~bit_of(fault);
  return calmer;
}

}  // namespace

History shrink(History history, const Violation& violation, const Replay& replay, uint32_t replays_max) {
  uint32_t replays = 0;
  const auto still_fails = [&](const History& candidate) {
    if (replays == replays_max) return false;
    ++replays;
    const std::optional<Violation> seen = replay(candidate);
    return seen.has_value() && seen->rule == violation.rule;
  };
  const auto take = [&](History candidate) {
    if (!still_fails(candidate)) return false;
    history = std::move(candidate);
    return true;
  };
  if (violation.step + 1 < history.ops.size()) {
    take(without(history, violation.step + 1, history.ops.size()));
  }
  for (size_t kind = 0; kind < kFaultKinds; ++kind) take(without(history, static_cast<FaultKind>(kind)));
  for (size_t chunk = std::max<size_t>(history.ops.size() / 2, 1);;) {
    bool shorter = false;
    for (size_t at = 0; at < history.ops.size();) {
      if (take(without(history, at, chunk))) {
        shorter = true;
      } else {
        at += chunk;
      }
    }
    if (chunk == 1 && !shorter) break;
    if (replays == replays_max) break;
    if (!shorter || chunk > history.ops.size()) chunk = std::max<size_t>(chunk / 2, 1);
  }
  return history;
}

}  // namespace halfstep::sim
