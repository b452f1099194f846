#include "sim/run.h"

#include "sim/world.h"

namespace halfstep::sim {

void Tally::add(const Tally& other) noexcept {
  for (size_t kind = 0; kind < kFaultKinds; ++kind) faults[kind] += other.faults[kind];
  lost_writes += other.lost_writes;
  crashes_in_open += other.crashes_in_open;
  crashes_in_recovery += other.crashes_in_recovery;
  served_recovering += other.served_recovering;
  stages += other.stages;
  part_hits += other.part_hits;
  parts_landed += other.parts_landed;
  crashes_in_close += other.crashes_in_close;
  operations += other.operations;
  puts += other.puts;
  persists += other.persists;
  hits += other.hits;
  misses += other.misses;
  removes += other.removes;
  expiries += other.expiries;
  restarts += other.restarts;
  segments_reclaimed += other.segments_reclaimed;
  blocks_evicted += other.blocks_evicted;
  stores_lost += other.stores_lost;
  hint_looks += other.hint_looks;
  segments_retired += other.segments_retired;
  segments_tried_again += other.segments_tried_again;
  frames_repeated += other.frames_repeated;
}

Outcome run(const History& history) {
  World world(history);
  world.begin();
  for (uint32_t step = 0; step < history.ops.size() && !world.over(); ++step) world.act(history.ops[step], step);
  if (!world.over()) world.end();
  return world.outcome();
}

}  // namespace halfstep::sim
