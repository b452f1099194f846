// world_stage.cc — blocks that are brought into memory ahead of their gets, some of them taken back before they are.
#include <algorithm>

#include "sim/world.h"

namespace halfstep::sim {

void World::stage(const Op& op) {
  std::vector<Key>& keys = model_.keys();
  for (uint32_t i = 0; i < std::min<size_t>(op.count, keys.size()); ++i) {
    Key& key = keys[(op.key + i) % keys.size()];
    if (!usable(key)) continue;
    StageInFlight& flight = *process_->stages.emplace_back(std::make_unique<StageInFlight>());
    flight.world = this;
    flight.key = &key;
    flight.unread_then = unread_before(key);
    flight.stage.key = key.index_key;
    flight.stage.component = key.component();
    flight.stage.priority = static_cast<uint8_t>(op.salt % 3);
    flight.stage.follow = op.flag;
    flight.stage.keep_us = op.amount;
    flight.stage.owner = &flight;
    flight.stage.done = [](store::Stage& done) {
      auto& self = *static_cast<StageInFlight*>(done.owner);
      self.world->stage_answered(self);
    };
    process_->store->stage(flight.stage);
    if ((op.salt >> (8 + i) & 3U) == 0 && process_->store->withdraw(flight.stage)) flight.answers = 1;
  }
}

void World::stage_answered(StageInFlight& flight) {
  if (dead()) return;
  const Status status = flight.stage.status;
  note(static_cast<uint64_t>(status.code()) << 8 | 4);
  ++tally_.stages;
  if (flight.answers++ > 0) return model_.fail(Rule::CompletedTwice, "a stage");
  if (status.ok() || status == Code::Throttled || status == Code::TooLarge) return;
  const Key& key = *flight.key;
  if (status == Code::NotFound && usable(key) && (history_.profile.faults & kMediaFaults) == 0 && key.filling == 0 &&
      process_->store->find(key.index_key).present) {
    return model_.fail(Rule::FoundButMissed, "key " + std::to_string(key.number) + " is not brought into memory");
  }
  if (status == Code::IoError && (history_.profile.faults & kMediaFaults) == 0 && unread_ == flight.unread_then)
    model_.fail(Rule::WrongAnswer, "a stage: " + std::string(code_name(status.code())));
}

// Its bounds, always; and when nobody asks any more and their time is over, nothing is kept.
void World::check_staged(bool at_end) {
  const store::Gauges gauges = process_->store->gauges();
  if (gauges.staged_bytes > gauges.memory_capacity_bytes / 4) {
    return model_.fail(Rule::Accounting, std::to_string(gauges.staged_bytes) + " bytes are staged, of memory for " +
                                             std::to_string(gauges.memory_capacity_bytes));
  }
  if (at_end && gauges.staged_bytes != 0) {
    model_.fail(Rule::Accounting, std::to_string(gauges.staged_bytes) + " bytes stay staged for ever");
  }
}

}  // namespace halfstep::sim
