// world_scrub.cc — waits until the scrub has been through, and looks with its own eyes at what it left.
#include <algorithm>

#include "sim/world.h"

namespace halfstep::sim {
namespace {

constexpr uint64_t kScrubTurnUs = 1000;
constexpr uint32_t kTurnsMax = 20'000;
constexpr uint64_t kGapUs = 61'000'000;  // between two passes
constexpr uint32_t kTurnsToBury = 300;   // of 10 ms: every back-off of the store is shorter

}  // namespace

store::Explanation World::explain(const Key& key) const {
  const store::ComponentRange range{wire::Component::of(key.group, 0, key.number), 1};
  store::KeyQuestion question;
  question.name_space = spaces_[key.name_space].name;
  question.engine_key = as_bytes(key.name);
  question.components = {&range, 1};
  return process_->store->explain(question);
}

// What lies at the block's place is none of the contents that it can have.
bool World::rotted(const Key& key, const store::ExplainedBlock& block) const {
  std::vector<std::byte> extent(block.extent_bytes);
  device_->read(places_.segment(block.segment) + uint64_t{block.page} * kPageBytes, extent);
  const Expectation expected = model_.expect(key, true);
  for (size_t put = expected.low; put < expected.high; ++put) {
    const Version& version = key.puts[put].version;
    std::vector<std::byte> content(version.stored_bytes);
    version.fill(content);
    if (content.size() <= extent.size() && std::equal(content.begin(), content.end(), extent.begin())) return false;
  }
  return true;
}

void World::scrub() {
  settle();
  // What a pass has left is judged by places and events, which are told of one shard alone.
  if (over() || dead() || history_.profile.scrub_bytes_per_s == 0 || history_.profile.shards > 1) return;
  process_->memory.set_faults({});
  const uint64_t events_before = process_->store->events().newest();
  const uint64_t until = process_->store->counters().scrub_passes + 2;
  for (uint32_t turn = 0; turn < kTurnsMax && !dead() && process_->store->counters().scrub_passes < until; ++turn) {
    pump(kScrubTurnUs);
    if (!dead() && process_->engine.in_flight() == 0) {
      const uint64_t next_us = process_->store->next_turn_us();
      clock_.us = std::clamp(next_us, clock_.us, clock_.us + kGapUs);
    }
  }
  for (uint32_t turn = 0; turn < kTurnsToBury && !dead(); ++turn) pump(10'000);
  if (dead()) return;
  const store::Counters& counters = process_->store->counters();
  const bool through = counters.scrub_passes >= until;
  for (Key& key : model_.keys()) {
    if (over() || !usable(key)) continue;
    const bool present = process_->store->find(key.index_key).present;
    for (const store::ExplainedBlock& block : explain(key).blocks) {
      if (block.scope_retired) continue;
      if (present && through && block.on_flash && block.sealed && counters.scrub_pages_bad == 0 && rotted(key, block)) {
        model_.fail(Rule::ScrubMissed, "key " + std::to_string(key.number) + ": segment " + std::to_string(block.segment) +
                                           " page " + std::to_string(block.page));
      }
      const store::Event* last = block.events.empty() ? nullptr : &block.events.back();
      const bool lost = last != nullptr && last->number > events_before &&
                        (last->reason == store::EventReason::Corrupt || last->reason == store::EventReason::Io);
      if (!present && lost && key.filling == 0) model_.buried(key);
    }
  }
  process_->memory.set_faults(calm_ ? io::MemoryFaults{} : history_.profile.chances);
}

}  // namespace halfstep::sim
