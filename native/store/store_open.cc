// store_open.cc — a store from nothing, a store that is there, and its clean end.

#include "base/prng.h"
#include "store/reclaim/policies.h"
#include "store/sizing.h"
#include "store/store_impl.h"

namespace halfstep::store {
namespace {

uint64_t index_bytes_of(const Options& options, const format::StoreHeader& header) noexcept {
  if (options.index_bytes != 0) return share_of(options.index_bytes, header.shards);
  return default_index_bytes(header.segments / header.shards * header.segment_bytes, header.shards);
}

// Behind by less, a clock was only set right.
constexpr uint64_t kBehindS = 60;

// stored_s: the store's time before this start.
void note_clock(const Clock& clock, uint64_t stored_s, std::vector<std::string>* notes) {
  const uint64_t wall_s = clock.wall_s();
  if (believable_s(wall_s) == 0) {
    notes->push_back(
        "clock: it says " + std::to_string(wall_s) +
        " s since 1970, from where no end of a block can be expressed; the store's time goes on without it: set it");
  } else if (believable_s(stored_s) > wall_s + kBehindS) {
    notes->push_back("clock: it is " + std::to_string(stored_s - wall_s) +
                     " s behind the store's time, which goes on from where it was; ends of blocks are counted by it: set the "
                     "clock, if it is wrong");
  }
}

}  // namespace

Options share_of(Options whole, uint32_t shards) noexcept {
  whole.holds_max = share_of(whole.holds_max, shards);
  whole.index_bytes = share_of(whole.index_bytes, shards);
  whole.rewrite_bytes_per_day = share_of(whole.rewrite_bytes_per_day, shards);
  whole.discard_bytes_per_s = share_of(whole.discard_bytes_per_s, shards);
  if (whole.scrub_bytes_per_s != kScrubAuto) whole.scrub_bytes_per_s = share_of(whole.scrub_bytes_per_s, shards);
  whole.events_max = static_cast<uint32_t>(share_of(whole.events_max, shards));
  return whole;
}

Fault Store::format(io::Engine& engine, Arena&, const Clock& clock, const Geometry& geometry,
                    const std::function<Status(Bytes)>& random) {
  HeaderState state;
  const Places places = places_of(geometry);
  if (!places.valid()) {
    return {Code::Invalid, "geometry: " + std::to_string(geometry.segments) + " segments of " +
                               std::to_string(geometry.segment_bytes) + " bytes do not fit " +
                               std::to_string(geometry.device_bytes) + " bytes; let plan_geometry() choose"};
  }
  format::StoreHeader& f = state.fixed;
  f.device_bytes = geometry.device_bytes;
  f.segment_bytes = geometry.segment_bytes;
  f.segments = geometry.segments;
  f.shards = geometry.shards;
  f.block_bytes_max = geometry.block_bytes_max;
  f.log_half_pages = places.log_half_pages;
  f.touch_pages = places.touch_pages;
  format::DeviceRecord& device = state.devices.emplace_back();
  device.bytes = geometry.device_bytes;
  device.segments = geometry.segments;
  if (!random(f.store_uuid).ok() || !random(f.secret).ok() || !random(device.uuid).ok()) {
    return {Code::Internal, "getrandom: failed; the store's secret needs it"};
  }
  StoredNamespace& space = state.namespaces.emplace_back();
  space.name = "default";
  space.record.number = f.next_namespace++;
  begin_ownership(state, clock);
  f.clean_stop = 1;

  // The logs first: with the header the store exists.
  Flusher flusher(engine, f.sequence);
  for (uint32_t shard = 0; shard < geometry.shards; ++shard) {
    RecordLog log({&engine, &flusher, places.of_shard(shard), state.page_secret()});
    if (const Status status = log.format_now(); !status.ok()) {
      return {status, "record log: " + errno_name(status.detail()) + " while writing an empty one"};
    }
  }
  f.sequence = 0;
  uint32_t bad_copies = 0;
  const Status status = write_header_now(engine, state, &bad_copies);
  if (!status.ok() || bad_copies > 0) {
    return {status.ok() ? Status(Code::IoError) : status, "store header: could not be written at both ends"};
  }
  return {};
}

Fault Store::open(io::Engine& engine, SlotPool& slots, const Clock& clock, const Options& options,
                  std::unique_ptr<Store>* out) {
  ShardPlace place;
  if (Fault fault = HeaderKeeper::load(engine, &place.keeper, pausing_by(clock)); !fault.ok()) return fault;
  if (const uint32_t shards = place.keeper->shards(); shards != 1) {
    return {Code::Unsupported, "shards=" + std::to_string(shards) + ": one shard of several is opened by open_shard()"};
  }
  return open_shard(engine, slots, clock, options, place, out);
}

Fault Store::open_shard(io::Engine& engine, SlotPool& slots, const Clock& clock, const Options& options,
                        const ShardPlace& place, std::unique_ptr<Store>* out) {
  const HeaderKeeper::Snapshot header = place.keeper->newest();
  const format::StoreHeader& f = header->fixed;
  std::unique_ptr<ReclaimPolicy> policy;
  const PolicySetup setup{f.segments / f.shards, options.rewrite_share, share_of(options.rewrite_bytes_per_day, f.shards)};
  if (Fault fault = make_policy(options.policy, setup, &policy); !fault.ok()) return fault;
  std::unique_ptr<index::BlockIndex> index;
  if (Fault fault = index::BlockIndex::create(index_bytes_of(options, f), options.large_pages, &index); !fault.ok()) {
    return fault;
  }
  if (Fault fault = place.keeper->start(engine, clock); !fault.ok()) return fault;
  const std::string why_smaller = index->mapping().why_smaller();
  auto store = std::make_unique<StoreImpl>(engine, slots, clock, options, place, std::move(policy), std::move(index));
  store->report().notes = place.keeper->take_notes();
  if (!why_smaller.empty()) store->report().notes.push_back(why_smaller);
  if (place.number == 0) note_clock(clock, f.store_time_s, &store->report().notes);
  store->header_bytes_counted(place.keeper->take_bytes_written());
  if (Fault fault = store->begin_recovery(); !fault.ok()) return fault;
  *out = std::move(store);
  return {};
}

Fault StoreImpl::begin_recovery() {
  const Recovery::Needs needs{.media = media_,
                              .log = log_,
                              .flusher = flusher_,
                              .tombstones = tombstones_,
                              .catalog = catalog_,
                              .names = names_,
                              .memory = memory_,
                              .holds = holds_,
                              .sequence = sequence_,
                              .clock = clock_,
                              .store_time = store_time_,
                              .counters = counters_};
  recovery_ = std::make_unique<Recovery>(needs, start_number(), &report_);
  if (Fault fault = recovery_->begin(); !fault.ok()) return fault;
  if (recovery_->go_on(options_.recover_before_us)) recovered();
  count_metadata();
  return {};
}

void StoreImpl::recovered() {
  recovery_.reset();
  // What could not be read may hold blocks of any scope: none counts as empty in this process.
  if (report_.segments_unread + report_.blocks_unread == 0) scope_use_.recovered();
}

// With the others' as well: each shard's flushes go on until the last one has left.
Status StoreImpl::flush_at_end() {
  last_flush_.waiter.owner = &last_flush_;
  last_flush_.waiter.done = [](FlushWaiter& waiter, Status status) {
    auto& last = *static_cast<LastFlush*>(waiter.owner);
    last.status = status;
    last.done = true;
  };
  flusher_.want(last_flush_.waiter);
  while (!last_flush_.done) {
    flusher_.turn();
    engine_.flush_submissions();
    if (engine_.in_flight() == 0 && flusher_.waits_for_others()) {
      wait_for_flushes();
      continue;
    }
    engine_.wait();
    engine_.poll();
  }
  return last_flush_.status;
}

void StoreImpl::wait_for_flushes() { yield_ ? yield_() : flusher_.wait_for_others(); }

void StoreImpl::finish_recovery() {
  if (recovery_ != nullptr) recovery_->hurry();
  while (recovery_ != nullptr && !header_writer_.lost()) {
    turn();
    engine_.flush_submissions();
    if (next_turn_us() != 0) engine_.wait();
    engine_.poll();
  }
  // Another owner has the store: what is being read of it only has to land.
  while (recovery_ != nullptr && engine_.in_flight() > 0) {
    engine_.flush_submissions();
    engine_.wait();
    engine_.poll();
  }
}

Status StoreImpl::close() {
  closing_ = true;
  stager_.stop();
  finish_recovery();
  scrubber_.stop();
  teller_.stop();
  streams_.hurry();
  sealer_.hurry();
  source_.hurry();
  streams_.close_open_segments();
  // Leases end with the process: they must not keep room from what somebody waits for.
  holds_.end_leases([this](const IndexKey& last) { catalog_.set_held(last, false); });
  const auto sealing = [&] {
    for (const Segment& segment : catalog_.segments()) {
      if (segment.state == SegmentState::Sealing) return true;
    }
    return false;
  };
  // A device that answers nothing but errors ends this too: every attempt is bounded.
  constexpr uint32_t kBuriesMax = 3;
  uint32_t buries = 0;
  bool touches_asked = false;
  for (uint32_t turns_without_work = 0; turns_without_work < 1000;) {
    turn();
    const bool unburied = !tombstones_.all_buried() && buries < kBuriesMax;
    if (unburied && !log_.busy()) {
      ++buries;
      tombstones_.bury_now();
    }
    if (streams_.idle()) streams_.close_open_segments();
    const bool busy = !streams_.idle() || sealing() || log_.busy() || unburied || header_writer_.busy() || !flusher_.idle() ||
                      reader_.in_flight() > 0 || source_.busy() || touch_map_.busy() || !rolls_.idle() || scrubber_.reading();
    if (!busy && touches_asked) break;
    if (!busy) {
      touches_asked = true;
      touch_map_.hurry();
      continue;
    }
    engine_.flush_submissions();
    if (engine_.in_flight() == 0 && flusher_.waits_for_others()) {
      wait_for_flushes();
      continue;
    }
    if (engine_.in_flight() == 0 && header_writer_.waits_for_others() && !header_writer_.lost()) {
      yield_ ? yield_() : seat_.wait_called();
      continue;
    }
    turns_without_work = engine_.in_flight() == 0 ? turns_without_work + 1 : 0;
    engine_.wait();
    engine_.poll();
  }
  streams_.give_up();
  turn();
  const Status flushed = header_writer_.lost() ? Status(Code::Closed) : flush_at_end();
  // What waits for a segment that does not come any more is lost, and whoever stops the store hears of it.
  const Status told = flushed.ok() && !streams_.idle() ? Status(Code::NoSpace) : flushed;
  bool clean = told.ok() && tombstones_.all_buried();
  // However it ends, the others wait for it no longer. The last one writes down how all ended.
  if (!seat_.leave(&clean) || !flushed.ok()) return told;
  Status written;
  bool done = false;
  change_header(
      [clean](HeaderState& state) -> Status {
        state.fixed.clean_stop = clean ? 1 : 0;
        return {};
      },
      [&](Status status) {
        written = status;
        done = true;
      });
  while (!done) {
    header_writer_.turn();
    flusher_.turn();
    engine_.flush_submissions();
    engine_.wait();
    engine_.poll();
  }
  return written.ok() ? told : written;
}

}  // namespace halfstep::store
