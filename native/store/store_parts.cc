// store_parts.cc — what each part of a store is built from, in the order of the members.

#include "store/memory/own_memory.h"
#include "store/store_impl.h"

namespace halfstep::store {
namespace {

uint64_t leases_max_bytes(const Places& places, double share) noexcept {
  return static_cast<uint64_t>(1.5 * share * static_cast<double>(places.segments() * places.geometry.segment_bytes));
}

HashKey secret_of_owners(const HashKey& secret) noexcept {
  const Hash128 hash = keyed_hash(secret, as_bytes("halfstep: owners of holds"));
  return {hash.low, hash.high};
}

// Empty where it would not hold two frames' headers.
Slot rewrite_buffer(SlotPool& slots, uint32_t segments) {
  const uint64_t bytes = rewrite_buffer_bytes(segments, slots.capacity_bytes());
  return bytes >= 2 * kFrameHeaderBytes ? slots.take(bytes) : Slot();
}

}  // namespace

// For the log: whether there is a block that a record of this sequence applies to. Of one in frames nothing in memory says
// when it was born: then it may.
bool StoreImpl::born_before(void* store, const IndexKey& key, uint64_t sequence) {
  const auto& self = *static_cast<const StoreImpl*>(store);
  if (self.recovering() || self.catalog_.find(key)) return true;
  const Extent* extent = self.memory_.find(key);
  return extent != nullptr && extent->state == ExtentState::Dirty && extent->entry.birth < sequence;
}

StoreImpl::StoreImpl(io::Engine& engine, SlotPool& slots, const Clock& clock, const Options& options, const ShardPlace& place,
                     std::unique_ptr<ReclaimPolicy> policy, std::unique_ptr<index::BlockIndex> index)
    : seat_(place.keeper, place.wake),
      yield_(place.yield),
      engine_(engine),
      clock_(clock),
      header_(*seat_.take_first()),
      options_(share_of(options, header_.fixed.shards)),
      places_(header_.places().of_shard(place.number)),
      index_secret_(header_.index_secret()),
      page_secret_(header_.page_secret()),
      owner_secret_(secret_of_owners(index_secret_)),
      media_{engine_, places_, page_secret_},
      store_time_(clock_, header_.fixed.store_time_s),
      transfers_(slots.arena()),
      names_(leases_max_bytes(places_, options_.lease_share), &place.keeper->scope_use()),
      catalog_({places_.segments(), places_.geometry.segment_bytes, std::move(index)}, names_),
      memory_(slots, own_memory_bytes(places_.segments(), slots.capacity_bytes()), options_.write_share),
      staged_(memory_, counters_, places_.geometry.block_bytes_max),
      holds_(options_.holds_max, options_.lease_ms_max * 1000, index_secret_, names_),
      events_(options_.events_max),
      block_events_(events_, names_, store_time_),
      evictor_(catalog_, memory_, names_, store_time_, block_events_, counters_),
      uses_(catalog_, memory_, names_, clock_, store_time_),
      flusher_(engine_, counters_.flushes, &place.keeper->flushes(), place.wake),
      names_uncertain_(place.keeper->names_uncertain()),
      scope_use_(place.keeper->scope_use()),
      log_({&engine_, &flusher_, places_, page_secret_, &StoreImpl::born_before, this}),
      tombstones_(log_, sequence_, clock_),
      policy_(std::move(policy)),
      header_writer_(engine_, flusher_, clock_, header_, seat_, [this](const HeaderState& next) { adopt_header(next); }),
      reader_({.media = media_,
               .transfers = transfers_,
               .catalog = catalog_,
               .memory = memory_,
               .staged = staged_,
               .names = names_,
               .uses = uses_,
               .unread = unread_,
               .evictor = evictor_,
               .tombstones = tombstones_,
               .clock = clock_,
               .store_time = store_time_,
               .counters = counters_}),
      stager_({.catalog = catalog_,
               .memory = memory_,
               .staged = staged_,
               .names = names_,
               .clock = clock_,
               .store_time = store_time_,
               .counters = counters_},
              reader_),
      rolls_(media_, catalog_),
      teller_({.catalog = catalog_,
               .memory = memory_,
               .names = names_,
               .events = block_events_,
               .evictor = evictor_,
               .clock = clock_,
               .store_time = store_time_},
              rolls_, options_.events_max),
      source_({.engine = engine_,
               .places = places_,
               .log = log_,
               .catalog = catalog_,
               .writes = writes_,
               .evictor = evictor_,
               .sequence = sequence_,
               .clock = clock_,
               .store_time = store_time_,
               .counters = counters_},
              *policy_, teller_, rewrite_buffer_bytes(places_.segments(), slots.capacity_bytes()) > 0,
              options_.discard_bytes_per_s),
      streams_({.media = media_,
                .transfers = transfers_,
                .flusher = flusher_,
                .names_uncertain = names_uncertain_,
                .catalog = catalog_,
                .names = names_,
                .memory = memory_,
                .holds = holds_,
                .writes = writes_,
                .tombstones = tombstones_,
                .events = block_events_,
                .sequence = sequence_,
                .clock = clock_,
                .store_time = store_time_,
                .counters = counters_},
               slots, source_),
      rewriter_({.engine = engine_,
                 .places = places_,
                 .transfers = transfers_,
                 .log = log_,
                 .catalog = catalog_,
                 .memory = memory_,
                 .names = names_,
                 .events = block_events_,
                 .evictor = evictor_,
                 .tombstones = tombstones_,
                 .clock = clock_,
                 .store_time = store_time_,
                 .counters = counters_},
                streams_, rolls_, *policy_, rewrite_buffer(slots, places_.segments())),
      sealer_({.media = media_,
               .catalog = catalog_,
               .writes = writes_,
               .sequence = sequence_,
               .clock = clock_,
               .store_time = store_time_,
               .counters = counters_}),
      touch_map_({.media = media_,
                  .catalog = catalog_,
                  .names = names_,
                  .sequence = sequence_,
                  .clock = clock_,
                  .store_time = store_time_,
                  .counters = counters_},
                 rolls_, options_.rewrite_bytes_per_day),
      sweeper_({.catalog = catalog_,
                .memory = memory_,
                .names = names_,
                .holds = holds_,
                .evictor = evictor_,
                .clock = clock_,
                .store_time = store_time_},
               rolls_, teller_),
      pruner_(log_, catalog_, rolls_),
      lister_({.header = header_,
               .log = log_,
               .catalog = catalog_,
               .memory = memory_,
               .names = names_,
               .clock = clock_,
               .store_time = store_time_},
              rolls_),
      scrubber_({.media = media_,
                 .catalog = catalog_,
                 .unread = unread_,
                 .evictor = evictor_,
                 .tombstones = tombstones_,
                 .clock = clock_,
                 .counters = counters_},
                options_.scrub_bytes_per_s, header_.fixed.start_number) {
  names_.refresh(header_);
}

}  // namespace halfstep::store
