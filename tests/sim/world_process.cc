// world_process.cc — how the store's processes of a run begin and end.
#include <algorithm>
#include <map>
#include <utility>

#include "sim/sharded_store.h"
#include "sim/world.h"

namespace halfstep::sim {
namespace {

constexpr uint32_t kOpensMax = 40;
constexpr uint64_t kEventsInOpen = 120;
constexpr uint64_t kEventsInRecovery = 30;  // what open() has left of it

// One arena of each size for all runs of the process: mapping one costs more than a short run.
Arena& arena_of(uint64_t bytes, uint32_t shard = 0) {
  static std::map<std::pair<uint64_t, uint32_t>, std::unique_ptr<Arena>> arenas;
  std::unique_ptr<Arena>& arena = arenas[{bytes, shard}];
  if (arena == nullptr && !Arena::create(bytes, false, &arena).ok()) std::abort();
  return *arena;
}

store::Places places_of_profile(const Profile& profile) {
  const uint64_t segment_bytes = store::format::kSegmentBytesMin;
  store::Geometry geometry{4 * MiB, segment_bytes, profile.segments * profile.shards, profile.shards,
                           static_cast<uint32_t>(store::block_bytes_max_of(segment_bytes))};
  while (!store::places_of(geometry).valid()) geometry.device_bytes += MiB;
  return store::places_of(geometry);
}

store::Options options_of(const Profile& profile) {
  store::Options options;
  options.lease_ms_max = profile.lease_ms_max;
  options.holds_max = profile.holds_max;
  if (profile.serves_while_recovering) options.recover_before_us = 0;
  options.scrub_bytes_per_s = profile.scrub_bytes_per_s;
  options.events_max = 512;
  return options;
}

}  // namespace

World::World(const History& history)
    : history_(history),
      places_(places_of_profile(history.profile)),
      placements_(places_),
      model_(history, placements_, clock_),
      random_(history.seed ^ 0x52414E44),
      device_(std::make_unique<io::MemoryDevice>(places_.geometry.device_bytes, history.profile.volatile_cache)) {
  if (on(FaultKind::Discard)) device_->take_discards();
  for (uint32_t number = 0; number < history.profile.namespaces; ++number) {
    spaces_.push_back({number == 0 ? "default" : "space " + std::to_string(number), Known::No, false, false, {}});
  }
}

void World::begin() {
  io::MemoryConfig config;
  config.seed = random_.next();
  io::MemoryEngine engine(config, {device_.get()});
  const halfstep::Fault fault =
      store::Store::format(engine, arena_of(history_.profile.arena_bytes), clock_, places_.geometry, [this](Bytes out) {
        random_.fill(out);
        return Status();
      });
  if (!fault.ok()) return model_.fail(Rule::OpenRefused, "format: " + fault.what);
  spaces_[0].there = Known::Yes;
  open(0);
  for (uint32_t number = 1; number < spaces_.size() && !over(); ++number) create_namespace(number);
  if (!over()) settle();
}

bool World::arm_by_chance(Prng& prng, double chance, uint64_t events_max) {
  const bool kill = prng.chance(0.5);
  const uint64_t events = prng.below(events_max);
  const bool wanted = prng.chance(chance) && on(kill ? FaultKind::Kill : FaultKind::PowerCut) && !calm_;
  if (wanted) process_->crash.arm(kill ? CrashEngine::Crash::Killed : CrashEngine::Crash::PowerCut, events);
  if (wanted) ++count(kill ? FaultKind::Kill : FaultKind::PowerCut);
  return wanted;
}

// Both copies of the header unreadable, or not to be written: then there is no store to open. Else open() has to succeed.
bool World::refusal_excused(uint64_t hits_before) const noexcept {
  const io::MemoryFaultCounters& faults = process_->memory.fault_counters();
  const bool one_hit = placements_.header_hit(0) || placements_.header_hit(1);
  const bool both_hit = placements_.header_hit(0) && placements_.header_hit(1);
  return both_hit || (one_hit && placements_.hits() > hits_before) ||
         faults.write_errors + faults.flush_errors + faults.no_space_errors >= 2;
}

halfstep::Fault World::open_store() {
  const Profile& profile = history_.profile;
  const store::Options options = options_of(profile);
  if (profile.shards == 1) {
    return store::Store::open(process_->engine, process_->slots, clock_, options, &process_->store);
  }
  std::vector<Arena*> arenas;
  for (uint32_t shard = 0; shard < profile.shards; ++shard) arenas.push_back(&arena_of(profile.arena_bytes, shard));
  return ShardedStore::open(process_->engine, arenas, clock_, options, &process_->store);
}

void World::open(uint64_t salt) {
  Prng prng(salt);
  placements_.opening();
  std::array<bool, 2> stale = header_stale_;
  for (uint32_t attempt = 0; attempt < kOpensMax; ++attempt) {
    io::MemoryConfig config;
    config.seed = random_.next();
    config.faults = history_.profile.chances;
    if (calm_) config.faults = {};
    process_ = std::make_unique<Process>(config, *device_, arena_of(history_.profile.arena_bytes), clock_,
                                         [this](const io::Request& request) { seen(request); });
    process_->memory.set_outage([this](const io::Request& request) { return outage_error(request); });
    process_->memory.on_fault([this](const io::MemoryFault& fault) { fault_fired(fault); });
    const uint64_t hits_before = process_->hits_before_open = placements_.hits();
    header_stale_ = {};
    if (attempt < 3) arm_by_chance(prng, salt == 0 ? 0 : 0.35, kEventsInOpen);
    const halfstep::Fault fault = open_store();
    note(static_cast<uint64_t>(fault.status.code()));
    clock_.us += 1000;
    model_.time().sample(clock_);
    for (size_t copy = 0; copy < 2; ++copy) stale[copy] = stale[copy] || header_stale_[copy];
    if (process_->crash.dead()) {
      ++tally_.crashes_in_open;
      bury_process();
      continue;
    }
    process_->crash.disarm();
    if (!fault.ok()) {
      if (!refusal_excused(hits_before)) return model_.fail(Rule::OpenRefused, fault.what);
      bury_process();
      continue;
    }
    // A change that stood in one copy alone, and that one was hit: the other one is older. Two faults, and nobody can know.
    if ((stale[0] && placements_.header_hit(1)) || (stale[1] && placements_.header_hit(0))) {
      ++tally_.stores_lost;
      over_ = true;
      return bury_process();
    }
    process_->tombstones = process_->store->recovery().tombstones;
    process_->open_flush_failed = process_->memory.fault_counters().flush_errors > 0;
    for (uint32_t shard = 0; shard < history_.profile.shards; ++shard) {
      if (placements_.log_lost(shard)) model_.log_was_lost(shard);
    }
    placements_.opened();
    model_.process_began();
    process_->recovering = process_->store->recovering();
    process_->recovered_at = turns_;
    process_->hits_recovered = placements_.hits();
    process_->reports_due.assign(history_.profile.shards, true);
    check_reports();
    reopen_namespaces();
    if (!over()) look_at_everything();
    if (!over() && process_->recovering) arm_by_chance(prng, salt == 0 ? 0 : 0.35, kEventsInRecovery);
    return;
  }
  // Both headers are gone for good: the one thing that a store does not survive.
  ++tally_.stores_lost;
  over_ = true;
}

// A shard ends its recovery when it does.
bool World::recovering(const Key& key) const noexcept {
  return shard(shard_of(key.index_key, history_.profile.shards)).recovering();
}

uint64_t World::counted_bytes() const {
  const store::Counters& counters = process_->store->counters();
  return counters.bytes_user + counters.bytes_rewritten + counters.bytes_padding + counters.bytes_metadata +
         counters.bytes_repeated;
}

const store::Store& World::shard(uint32_t number) const noexcept {
  const store::Store& store = *process_->store;
  return history_.profile.shards == 1 ? store : static_cast<const ShardedStore&>(store).shard(number);
}

// Of each shard as soon as it has recovered: from then on it takes puts.
void World::check_reports() {
  for (uint32_t number = 0; number < process_->reports_due.size(); ++number) {
    if (!process_->reports_due[number] || shard(number).recovering()) continue;
    process_->reports_due[number] = false;
    check_report(shard(number));
  }
}

void World::check_report(const store::Store& shard) {
  const store::RecoveryReport& report = shard.recovery();
  const store::Gauges gauges = shard.gauges();
  note(report.blocks);
  if (report.blocks != gauges.blocks || report.bytes != gauges.bytes_live) {
    model_.fail(Rule::RecoveryReport, "reported " + std::to_string(report.blocks) + " blocks of " +
                                          std::to_string(report.bytes) + " bytes, there are " + std::to_string(gauges.blocks) +
                                          " of " + std::to_string(gauges.bytes_live));
  }
  if (report.segments_by_footer + report.segments_by_frames + report.segments_empty + report.segments_bad >
      history_.profile.segments) {
    model_.fail(Rule::RecoveryReport, "more segments than there are");
  }
}

// Whether a write or a flush failed in this process, so that answers may say so.
bool World::failures_possible() const noexcept {
  const io::MemoryFaultCounters& faults = process_->memory.fault_counters();
  return faults.write_errors + faults.flush_errors + faults.no_space_errors > 0;
}

Evidence World::evidence(const Key& key) const {
  constexpr uint64_t kTombstonesOfCrowdedLog = 1200;  // of the 1,488 records in three quarters of the smallest half
  Evidence evidence;
  evidence.counters = process_->store->counters();
  evidence.recovering = recovering(key);
  evidence.flush_errors = process_->memory.fault_counters().flush_errors;
  evidence.open_flush_failed = process_->open_flush_failed;
  evidence.log_crowded =
      process_->tombstones + evidence.counters.misses_corrupt + evidence.counters.misses_io > kTombstonesOfCrowdedLog ||
      evidence.flush_errors > 4;
  return evidence;
}

void World::let_go() {
  for (const auto& read : process_->reads) {
    if (read->pinned()) unpin(*read);
  }
  while (WriteInFlight* begun = oldest_begun()) abort(*begun);
}

void World::close(uint64_t salt) {
  let_go();
  Prng prng(salt ^ 0xC105E);
  arm_by_chance(prng, 0.3, kEventsInOpen);
  // Whoever closes meanwhile leaves what the device does not give to the next start.
  const bool left_unread = process_->recovering && on(FaultKind::Outage);
  const Status status = process_->store->close();
  if (dead()) {
    ++tally_.crashes_in_close;
    return bury_process();
  }
  process_->crash.disarm();
  process_->recovering = false;
  note(static_cast<uint64_t>(status.code()));
  // Where all segments are bad, by errors of earlier lives perhaps, nothing that was put can be written.
  const store::Gauges gauges = process_->store->gauges();
  const bool writable = gauges.segments_free + gauges.segments_open + gauges.segments_sealed > 0;
  if (!status.ok() && !failures_possible() && (writable || !(status == Code::NoSpace))) {
    model_.fail(Rule::WrongAnswer, "close: " + std::string(code_name(status.code())));
  }
  for (const auto& write : process_->writes) {
    if (write->committed && write->answers == 0) model_.fail(Rule::NeverCompleted, "a write");
  }
  for (const auto& read : process_->reads) {
    if (read->answers == 0) model_.fail(Rule::NeverCompleted, "a read");
    if (read->pinned()) unpin(*read);
  }
  for (const auto& stage : process_->stages) {
    if (stage->answers == 0) model_.fail(Rule::NeverCompleted, "a stage");
  }
  for (const auto& remove : process_->removes) {
    if (remove->answers == 0) model_.fail(Rule::NeverCompleted, "a remove");
  }
  for (const auto& expire : process_->expires) {
    if (expire->answers == 0) model_.fail(Rule::NeverCompleted, "a change of an expiry");
  }
  if (process_->engine.in_flight() > 0) model_.fail(Rule::NeverCompleted, "a request to the device");
  if (over()) return;
  for (Key& key : model_.keys()) {
    key.holds.clear();  // they ended when close() began
    Evidence known = evidence(key);
    known.recovering = known.recovering || left_unread;
    if (usable(key)) model_.looked(key, process_->store->find(key.sought()), known);
  }
  if (status.ok() && !failures_possible() && !process_->gave_up && writable) model_.process_stopped_cleanly();
  bury_process();
}

void World::bury_process() {
  if (process_->recovering) ++tally_.crashes_in_recovery;
  if (process_->store != nullptr) {
    // Its memory still says what had been evicted: that may come back, and need not.
    for (Key& key : model_.keys()) {
      const bool found = key.scope == 0 || process_->store->find(key.index_key).present;
      if (!found && !recovering(key)) model_.missing_at_death(key);
    }
    const store::Counters& counters = process_->store->counters();
    tally_.segments_reclaimed += counters.segments_reclaimed;
    tally_.blocks_evicted += counters.blocks_evicted;
    tally_.segments_retired += counters.segments_retired;
    tally_.segments_tried_again += counters.segments_tried_again;
    tally_.frames_repeated += counters.frames_repeated;
    retired_ += counters.segments_retired;
  }
  const io::MemoryFaultCounters& faults = process_->memory.fault_counters();
  count(FaultKind::Reorder) += faults.reordered;
  count(FaultKind::Delay) += faults.delayed;
  count(FaultKind::Stall) += faults.stalled;
  count(FaultKind::ReadError) += faults.read_errors;
  count(FaultKind::WriteError) += faults.write_errors;
  count(FaultKind::FlushError) += faults.flush_errors;
  count(FaultKind::NoSpace) += faults.no_space_errors;
  count(FaultKind::BitFlip) += faults.bit_flips;
  count(FaultKind::BitRot) += faults.rotted_bits;
  count(FaultKind::MisdirectedRead) += faults.misdirected_reads;
  count(FaultKind::MisdirectedWrite) += faults.misdirected_writes;
  count(FaultKind::TornWrite) += faults.torn_writes;
  count(FaultKind::Discard) += faults.discarded_pages;
  count(FaultKind::DiscardError) += faults.discard_errors;
  count(FaultKind::LostCompletion) += faults.lost_completions;
  tally_.lost_writes += faults.lost_writes;
  ++tally_.restarts;
  note(process_->memory.counters().writes);
  placements_.process_ended([this](uint64_t offset, Bytes page) { device_->read(offset, page); });
  process_.reset();
  model_.process_died();
}

void World::fault_fired(const io::MemoryFault& fault) {
  const Range range{fault.offset, fault.bytes};
  const bool outage = std::exchange(fault_is_outage_, false);
  if (outage && fault.op == io::Op::Read) return;  // media are as they were
  if (outage && fault.op == io::Op::Write && strict_outage()) return placements_.unwritten_footer(range);
  if (fault.op == io::Op::Read || fault.error == 0) placements_.hit(range);
  if (fault.op == io::Op::Read) return;
  if (fault.op == io::Op::Write && fault.error != 0) placements_.unwritten(range);
  for (uint32_t copy = 0; copy < 2; ++copy) {
    const bool header = range.touches({places_.header(copy), store::format::kHeaderReserveBytes});
    header_stale_[copy] = header_stale_[copy] || header;
  }
}

void World::seen(const io::Request& request) {
  if (request.op != io::Op::Write && request.op != io::Op::Discard) return;
  const uint64_t end = request.offset + request.bytes;
  const uint64_t segments_from = places_.segment(0);
  const uint64_t segments_to = places_.segment(places_.geometry.segments);
  const uint64_t segment_bytes = places_.geometry.segment_bytes;
  bool inside = request.bytes > 0 && request.bytes % kPageBytes == 0 && request.offset % kPageBytes == 0 &&
                end <= places_.geometry.device_bytes;
  if (inside && request.offset >= segments_from && request.offset < segments_to) {
    inside = (request.offset - segments_from) / segment_bytes == (end - 1 - segments_from) / segment_bytes;
  } else if (inside) {
    const bool outside = end <= segments_from || request.offset >= places_.log(1, 0, 0);
    inside = outside && request.op == io::Op::Write;  // what is no segment is never empty
  }
  if (!inside) {
    return model_.fail(Rule::WroteOutside, std::to_string(request.bytes) + " bytes at " + std::to_string(request.offset));
  }
  if (request.op != io::Op::Write) return;
  process_->device_bytes += request.bytes;
  placements_.wrote(request.offset, {request.data, request.bytes});
}

}  // namespace halfstep::sim
