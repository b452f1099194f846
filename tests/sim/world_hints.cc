// world_hints.cc — what a hint promises: a segment whose every block its put gave up goes before any that nobody gave up. It is
// looked at where nothing else decides: no fault, no read, no end (Profile::hints_decide). The oracle knows what was hinted and
// held by itself; only in which segment a block lies is the store's word (explain()).
#include <map>

#include "sim/world.h"
#include "store/format/hint.h"

namespace halfstep::sim {
namespace {

constexpr uint64_t kLookTurns = 32;
// A segment that was sealed so long ago is at rest.
constexpr uint64_t kSureTurns = 400;
// A victim may be picked any time before its first block is gone: what is worth keeping is copied ahead, as time allows. But it
// is picked when the one before it is done, and by the time that its blocks go it may be counted itself.
constexpr uint64_t kSureVictims = 2;

bool given_up(const Key& key) noexcept { return store::goes_first(key.hint) && !key.was_used && key.holds.empty(); }

}  // namespace

void World::check_hints() {
  const uint64_t evicted = process_->store->counters().blocks_evicted;
  const uint64_t victims = process_->store->counters().segments_reclaimed;
  if (evicted == hints_.evicted && turns_ % kLookTurns != 0) return;
  struct Blocks {
    bool given_up = true;  // all of them, and the segment is sealed
  };
  std::map<uint32_t, Blocks> segments;
  std::vector<uint32_t> where(model_.keys().size(), 0);
  for (const Key& key : model_.keys()) {
    if (!usable(key)) continue;
    const std::optional<store::ExplainedBlock> block = block_on_flash(key);
    if (!block.has_value()) continue;
    where[key.number] = block->segment + 1;
    Blocks& of = segments[block->segment];
    of.given_up = of.given_up && block->sealed && given_up(key);
  }
  std::map<uint32_t, HintsSeen::Since> since;
  for (const auto& [segment, blocks] : segments) {
    if (!blocks.given_up) continue;
    const auto before = hints_.given_up_since.find(segment);
    const bool known = before != hints_.given_up_since.end() && before->second.victims <= victims;  // else it was started anew
    since[segment] = known ? before->second : HintsSeen::Since{turns_, victims};
  }
  for (const Key& key : model_.keys()) {
    const uint32_t before = hints_.where.empty() ? 0 : hints_.where[key.number];
    const bool went = before != 0 && where[key.number] == 0 && !process_->store->find(key.sought()).present;
    if (!went || store::goes_first(key.hint)) continue;
    for (const auto& [segment, from] : since) {
      if (segment + 1 == before || turns_ - from.turn < kSureTurns || victims - from.victims < kSureVictims) continue;
      return model_.fail(Rule::HintPassedOver,
                         "key " + std::to_string(key.number) + ", which nobody gave up, went from segment " +
                             std::to_string(before - 1) + " while segment " + std::to_string(segment) +
                             " had only blocks that were given up, for " + std::to_string(turns_ - from.turn) + " turns and " +
                             std::to_string(victims - from.victims) + " victims");
    }
  }
  tally_.hint_looks += since.empty() ? 0 : 1;
  hints_ = {evicted, std::move(where), std::move(since)};
}

}  // namespace halfstep::sim
