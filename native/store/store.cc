// store.cc — finds blocks, begins and ends writes, and drives the store's parts once per turn.
#include "store/store.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "base/check.h"
#include "compress/unit.h"
#include "store/store_impl.h"

namespace halfstep::store {

// ---- Blocks ----------------------------------------------------------------------------------------------------------------

bool StoreImpl::present(const Block& block) noexcept {
  return block && names_.alive(block.scope) && !store_time_.expired(block.expiry_s);
}

bool StoreImpl::present(const IndexKey& key) noexcept {
  if (const Extent* dirty = memory_.find_dirty(key); dirty != nullptr) return present(*dirty);
  return present(catalog_.find(key));
}

bool StoreImpl::present(const Extent& extent) noexcept {
  return names_.alive(extent.entry.scope) && !store_time_.expired(extent.entry.expiry_s);
}

bool StoreImpl::decodable(const Extent* extent, const Block& block, uint64_t codecs) const noexcept {
  const uint32_t scope = extent != nullptr ? extent->entry.scope : block.scope;
  if ((names_.codecs(scope) & ~codecs) == 0) return true;
  if (extent == nullptr || extent->state == ExtentState::Filling || extent->state == ExtentState::Reading)
    return !block.trailer;
  return std::all_of(extent->parts().begin(), extent->parts().end(),
                     [codecs](const PartInfo& part) { return (codec_bit(part.codec) & ~codecs) == 0; });
}

Found StoreImpl::find(const Sought& sought) noexcept {
  Found found;
  find_many({&sought, 1}, {&found, 1});
  return found;
}

void StoreImpl::find_many(std::span<const Sought> sought, std::span<Found> out) noexcept {
  constexpr size_t kAtOnce = 64;
  std::array<const Extent*, kAtOnce> known;
  std::array<uint8_t, kAtOnce> indexed;  // those that the index is asked for
  for (size_t first = 0; first < sought.size(); first += kAtOnce) {
    const auto part = sought.subspan(first, std::min(kAtOnce, sought.size() - first));
    for (const Sought& one : part) memory_.prefetch_place(one.key);
    for (size_t at = 0; at < part.size(); ++at) known[at] = memory_.find_state_ahead(part[at].key);
    size_t count = 0;
    for (size_t at = 0; at < part.size(); ++at) {
      const Extent* extent = known[at];
      const bool dirty = extent != nullptr && extent->state == ExtentState::Dirty;
      if (dirty || (part[at].to_read && extent != nullptr && extent->state == ExtentState::Clean)) {
        memory_.prefetch_use(*extent);
        const bool there = present(*extent) && decodable(extent, {}, part[at].codecs);
        out[first + at] = there ? found(extent->block_bytes(), extent->slot().held_bytes()) : Found();
      } else {
        indexed[count++] = static_cast<uint8_t>(at);
      }
    }
    catalog_.find_many(
        count, [&](size_t i) -> const IndexKey& { return part[indexed[i]].key; },
        [&](size_t i, const Block& block) {
          const size_t at = indexed[i];
          const Extent* extent = known[at];
          if (!present(block) || !decodable(extent, block, part[at].codecs)) {
            out[first + at] = Found();
          } else {
            // What is in memory, or on its way, is pinned whole.
            const bool alone = extent == nullptr && part[at].parts.count != 0;
            const uint64_t bytes = extent != nullptr ? extent->slot().held_bytes() : block.extent_bytes();
            out[first + at] = found(catalog_.block_bytes(block, part[at].component), bytes);
            if (alone) out[first + at].memory_bytes = parts_bytes(block, part[at]);
          }
        });
  }
}

// memory_bytes: what a read takes, which of a coded block has nothing to do with its length.
Found StoreImpl::found(uint32_t block_bytes, uint64_t memory_bytes) noexcept {
  return {true, block_bytes, SlotPool::held_bytes(std::max(memory_bytes, uint64_t{1}))};
}

// What a read of these parts takes.
uint64_t StoreImpl::parts_bytes(const Block& block, const Sought& sought) const noexcept {
  const PartReader::Plan plan = reader_.part_reader().plan(sought.key, block, sought.component, sought.parts);
  return SlotPool::held_bytes(plan ? plan.bytes() : block.extent_bytes());
}

// The parts of the block as it will be stored, with offsets; sums are the caller's.
Status StoreImpl::cut(Write& write, std::vector<PartInfo>* parts) const {
  const wire::GroupShape* group = names_.group(write.name.scope, write.name.component);
  if (group == nullptr) return Code::Invalid;
  const uint32_t limit = places_.geometry.block_bytes_max;
  if (write.block_bytes > limit) return Code::TooLarge;
  const uint32_t count = write.block_bytes == 0 ? 0 : group->parts_of(write.block_bytes);
  if (count == 0) return Code::Invalid;
  if (count > wire::kPartsMax) return Code::TooLarge;
  // A block takes no more memory for its parts than for its bytes.
  if (count * sizeof(PartInfo) > round_up(write.block_bytes, kPageBytes)) return Code::TooLarge;
  parts->resize(count);
  cut_parts(*group, write.block_bytes, *parts);
  write.stored_bytes = write.block_bytes;
  if (write.coded_parts.empty()) return {};
  if (write.coded_parts.size() != count) return Code::Invalid;
  uint64_t stored = 0;
  for (uint32_t p = 0; p < count; ++p) {
    const PartInfo& coded = write.coded_parts[p];
    PartInfo& part = (*parts)[p];
    if (coded.raw_bytes != part.raw_bytes || coded.stored_bytes == 0) return Code::Invalid;
    if (coded.codec == 0 && coded.stored_bytes != coded.raw_bytes) return Code::Invalid;
    if (stored + coded.stored_bytes > limit) return Code::TooLarge;
    part = {static_cast<uint32_t>(stored), coded.stored_bytes, coded.raw_bytes, 0, coded.raw_crc, coded.codec};
    stored += coded.stored_bytes;
  }
  write.stored_bytes = static_cast<uint32_t>(stored);
  return {};
}

bool StoreImpl::below_floor(const Write& write) const noexcept {
  const auto lossy = [](const PartInfo& part) { return compress::may_be_lossy(part.codec); };
  return std::any_of(write.coded_parts.begin(), write.coded_parts.end(), lossy) && !names_.lossy_fits(write.name.scope);
}

Status StoreImpl::begin_write(Write& write) {
  write.status = {};
  write.store_own = nullptr;
  if (closing_ || header_writer_.lost()) return Code::Closed;
  const size_t key_bytes = write.name.engine_key.size();
  if (key_bytes == 0 || key_bytes > format::kEngineKeyBytesMax) return Code::Invalid;
  if (const Status status = cut(write, &cut_); !status.ok()) return status;
  if (below_floor(write)) return {Code::Unsupported, kBelowFloor};
  uses_.note_moment();

  const Block stored = catalog_.find(write.key);
  // What the device did not give at several moments is written anew.
  const bool doubtful = stored && unread_.doubtful(write.key, stored.location);
  if (present(write.key) && !doubtful && decodable(memory_.find(write.key), stored, write.codecs)) {
    const Segment* segment = stored ? &catalog_.segment(stored.location.segment) : nullptr;
    const bool landed = stored && memory_.find_dirty(write.key) == nullptr;
    const bool durable = landed && stored.location.page < segment->durable_page;
    // A flush that failed while recovering left it uncertain for good: then it is written again.
    const bool certain = durable || !stored || streams_.may_become_durable(stored.location);
    if (write.persist && (durable ? names_uncertain_.load() : certain)) {  // it soon will be, and is no answer before
      streams_.want_flush();
      return {Code::Throttled, kThrottledPending};
    }
    if (!write.persist || durable) {
      ++counters_.writes_present;
      uses_.touch(write.key);  // who offers it again has used it
      return Code::Present;
    }
  }
  const auto throttled = [&](int32_t why) -> Status {
    ++counters_.writes_throttled;
    return {Code::Throttled, why};
  };
  if (Extent* there = memory_.find(write.key); there != nullptr) {
    if (there->dirty()) return throttled(kThrottledPending);
    memory_.unlist(*there);  // expired, uncertain, or of no use to the writer
    memory_.settle(*there);
  }
  if (recovering()) return throttled(refuse_while_recovering());
  if (writes_.out(clock_.now_us()) && !HALFSTEP_MUTANT(PutsWaitInOutage)) {
    ++counters_.writes_refused;
    return {Code::IoError, writes_.error()};
  }
  const ExtentShape shape = shape_of(cut_, write.stored_bytes);
  if (names_.over_quota(write.name.scope, shape.extent_bytes())) {
    if (shape.extent_bytes() > names_.quota_bytes(write.name.scope)) return Code::TooLarge;
    names_.want_room(write.name.scope, shape.extent_bytes());
    return throttled(kThrottledQuota);
  }
  if (streams_.starved() && source_.exhausted()) return throttled(kThrottledSpace);
  uint64_t codecs = 0;
  for (const PartInfo& part : cut_) codecs |= codec_bit(part.codec);
  if (catalog_.index_full() ||
      !catalog_.scope_fits(write.name.scope, static_cast<uint16_t>(write.name.component.group()), codecs)) {
    ++counters_.index_full;
    sweeper_.want_pass();
    return throttled(kThrottledSpace);
  }
  // The first one in a scope: its layout keeps its place from here on, or is giving it up.
  const bool first = !names_.used_now(write.name.scope);
  if (first && !scope_use_.begin(write.name.scope)) return throttled(kThrottledPending);
  const auto begun = [&] {
    if (first) scope_use_.leave(write.name.scope);
  };
  Extent* extent =
      memory_.write_fits(shape.extent_bytes()) ? memory_.make(write.key, shape.extent_bytes(), ExtentState::Filling) : nullptr;
  if (extent == nullptr) {
    begun();
    memory_.note_refusal(memory_.relief_pending());
    return throttled(kThrottledMemory);
  }
  extent->shape = shape;
  extent->set_block_bytes(write.block_bytes);
  extent->part_table().reset(cut_.size());
  std::copy(cut_.begin(), cut_.end(), extent->part_table().begin());
  extent->write = &write;
  std::memcpy(extent->engine_key.data(), write.name.engine_key.data(), key_bytes);
  format::Entry& entry = extent->entry;
  entry = {};
  entry.key_low = write.key.low;
  entry.key_high = write.key.high;
  entry.engine_key_bytes = static_cast<uint8_t>(key_bytes);
  if (key_bytes <= format::kEngineKeyInline) {
    std::memcpy(entry.engine_key.data(), write.name.engine_key.data(), key_bytes);
  } else {
    entry.engine_key = sha256(write.name.engine_key);
  }
  entry.parent = write.parent;
  entry.stored_bytes = write.stored_bytes;
  entry.raw_bytes = write.block_bytes;
  entry.scope = write.name.scope;
  entry.component = write.name.component.value;
  entry.depth = write.depth;
  entry.parts = static_cast<uint16_t>(shape.parts);
  entry.flags = static_cast<uint8_t>((shape.trailer ? format::kEntryTrailer : 0) |
                                     (static_cast<uint8_t>(write.parent_kind) << format::kEntryParentShift));
  entry.hint = write.hint;
  memory_.list(*extent);
  names_.add_unwritten_bytes(entry.scope, static_cast<int64_t>(shape.extent_bytes()));
  begun();
  write.store_own = extent;
  write.slot = &extent->slot_memory();
  write.parts = extent->part_table();
  return {};
}

void StoreImpl::commit_write(Write& write) {
  Extent& extent = Extent::of_slot(write.store_own);
  HALFSTEP_CHECK(extent.state == ExtentState::Filling && extent.write == &write, extent.state, extent.write, &write);
  format::Entry& entry = extent.entry;
  for (PartInfo& part : extent.part_table()) {
    if (part.codec == 0) part.raw_crc = part.stored_crc;
  }
  entry.checksum = finish_extent(extent.slot(), extent.shape, extent.parts(), entry.raw_bytes);
  extent.set_checksum(entry.checksum);
  for (const PartInfo& part : extent.parts()) entry.codecs |= codec_bit(part.codec);
  names_.note_codecs(entry.scope, entry.codecs);
  entry.birth = sequence_.draw();
  const uint64_t now_s = store_time_.now_s();
  const uint64_t ttl_s = write.ttl_s != 0 ? write.ttl_s : names_.default_ttl_s(entry.scope);
  entry.created_s = static_cast<uint32_t>(now_s);
  entry.expiry_s = ttl_s == 0 ? 0 : static_cast<uint32_t>(std::min<uint64_t>(now_s + ttl_s, UINT32_MAX));
  if (write.ttl_s == 0 && names_.sliding_ttl_s(entry.scope) != 0) entry.flags |= format::kEntrySliding;
  // A block that expired, is uncertain or is replaced may still be in the index under this key.
  if (const Block before = catalog_.find(extent.key); before) (void)catalog_.drop(extent.key, before.location);
  if (!unread_.empty()) unread_.forget(extent.key);
  sweeper_.note_expiry(entry.expiry_s);
  memory_.set_state(extent, ExtentState::Dirty);
  ++counters_.writes_committed;
  block_events_.stored(extent);
  streams_.commit(extent);
}

void StoreImpl::abort_write(Write& write) noexcept {
  Extent& extent = Extent::of_slot(write.store_own);
  HALFSTEP_CHECK(extent.state == ExtentState::Filling, extent.state);
  ++counters_.writes_aborted;
  write.store_own = nullptr;
  extent.write = nullptr;
  names_.add_unwritten_bytes(extent.entry.scope, -static_cast<int64_t>(extent.shape.extent_bytes()));
  memory_.unlist(extent);
  memory_.set_state(extent, ExtentState::Clean);
  memory_.settle(extent);
}

// ---- Driving ---------------------------------------------------------------------------------------------------------------

void StoreImpl::turn() {
  holds_.expire(clock_.now_us(), [this](const IndexKey& last) { catalog_.set_held(last, false); });
  answer_absent_removes();  // before what failed is tried again: until then it shows
  stager_.turn();
  if (!header_writer_.lost()) {
    tombstones_.turn();
    if (recovery_ != nullptr) {
      (void)recovery_->turn();
      if (recovery_->done()) recovered();
    } else {
      tend();
    }
    if (log_.busy()) {
      log_.turn(catalog_.oldest_generation(sequence_.last()), sequence_.draw(), store_time_.now_s());
    }
    header_writer_.turn();
    flusher_.turn();
  }
  count_metadata();
#ifndef NDEBUG
  if (++turns_ % kTurnsBetweenChecks == 0) check_invariants();
#endif
  if (memory_.take_relief() && on_memory_) on_memory_();
}

// What needs to know all that is on flash.
void StoreImpl::tend() {
  pruner_.turn();
  sweeper_.turn();
  rewriter_.turn();  // before the sealer: a footer says of copies whether they took their original's place
  teller_.turn();
  source_.turn(streams_, rewriter_);
  streams_.turn();
  source_.discard_turn();
  sealer_.turn(streams_);
  touch_map_.turn();
  lister_.turn();
  rolls_.turn();
  scrubber_.turn(reader_.in_flight() > 0 || rewriter_.active() || !streams_.idle() || !rolls_.idle());
}

// Of those who count for themselves.
void StoreImpl::count_metadata() noexcept {
  const uint64_t record_pages = log_.pages_written();
  const uint64_t header_bytes = header_writer_.bytes_written();
  counters_.bytes_metadata += (record_pages - counters_.record_pages) * 2 * kPageBytes;  // in two copies
  counters_.bytes_metadata += header_bytes - header_bytes_counted_;
  counters_.record_pages = record_pages;
  header_bytes_counted_ = header_bytes;
}

uint64_t StoreImpl::next_turn_us() const noexcept {
  if (absent_remove_due()) return 0;
  if (recovery_ != nullptr) {
    return std::min({recovery_->next_turn_us(), header_writer_.next_turn_us(), holds_.next_due_us(), tombstones_.next_turn_us(),
                     stager_.next_turn_us()});
  }
  return std::min({streams_.next_turn_us(), sealer_.next_turn_us(), header_writer_.next_turn_us(), source_.next_turn_us(),
                   rewriter_.next_turn_us(), touch_map_.next_turn_us(), holds_.next_due_us(), tombstones_.next_turn_us(),
                   sweeper_.next_turn_us(), rolls_.next_turn_us(), scrubber_.next_turn_us(), teller_.next_turn_us(),
                   stager_.next_turn_us()});
}

Gauges StoreImpl::gauges() const noexcept {
  Gauges g;
  g.blocks = catalog_.live_blocks();
  g.bytes_live = catalog_.live_bytes();
  for (uint32_t number = 0; number < catalog_.segment_count(); ++number) {
    switch (catalog_.segment(number).state) {
      case SegmentState::Free:
      case SegmentState::Logging:
      case SegmentState::Ready: ++g.segments_free; break;
      case SegmentState::Open:
      case SegmentState::Sealing: ++g.segments_open; break;
      case SegmentState::Sealed:
      case SegmentState::Ended: ++g.segments_sealed; break;
      case SegmentState::Bad: ++g.segments_bad; break;
    }
    if (catalog_.segment(number).unread) ++g.segments_unread;
  }
  g.clock_ahead_s = store_time_.clock_ahead_s();
  g.writes_out = writes_.out(clock_.now_us());
  g.holds = holds_.size();
  g.pins = holds_.pins();
  g.memory_resident_bytes = memory_.resident_bytes();
  g.memory_pinned_bytes = memory_.pinned_bytes();
  g.memory_capacity_bytes = memory_.capacity_bytes();
  g.staged_bytes = staged_.bytes();
  g.index_bytes = catalog_.index_bytes();
  g.catalog_bytes = catalog_.memory_bytes();
  g.discards = source_.discards();
  g.age_limit = policy_->age_limit();
  g.scrub_bytes_per_s = scrubber_.rate_bytes_per_s();
  g.scrub_age_s = g.scrub_bytes_per_s == 0 ? 0 : (clock_.now_us() - scrubber_.verified_since_us()) / 1'000'000;
  return g;
}

}  // namespace halfstep::store
