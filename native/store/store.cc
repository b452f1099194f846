// store.cc — finds blocks, begins and ends writes, and drives the store's parts once per turn.
#include "store/store.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "base/check.h"
#include "store/store_impl.h"

namespace halfstep::store {

// ---- Blocks ----------------------------------------------------------------------------------------------------------------

bool StoreImpl::present(const Block& block) noexcept {
  return block && core_.names.alive(block.scope) && !core_.expired(block.expiry_s);
}

bool StoreImpl::present(const IndexKey& key) noexcept {
  if (const Extent* dirty = core_.memory.find_dirty(key); dirty != nullptr) return present(*dirty);
  return present(core_.catalog.find(key));
}

bool StoreImpl::present(const Extent& extent) noexcept {
  return core_.names.alive(extent.entry.scope) && !core_.expired(extent.entry.expiry_s);
}

bool StoreImpl::decodable(const Extent* extent, const Block& block, uint64_t codecs) const noexcept {
  const uint32_t scope = extent != nullptr ? extent->entry.scope : block.scope;
  if ((core_.names.codecs(scope) & ~codecs) == 0) return true;
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
    for (const Sought& one : part) core_.memory.prefetch_place(one.key);
    for (size_t at = 0; at < part.size(); ++at) known[at] = core_.memory.find_state_ahead(part[at].key);
    size_t count = 0;
    for (size_t at = 0; at < part.size(); ++at) {
      const Extent* extent = known[at];
      const bool dirty = extent != nullptr && extent->state == ExtentState::Dirty;
      if (dirty || (part[at].to_read && extent != nullptr && extent->state == ExtentState::Clean)) {
        core_.memory.prefetch_use(*extent);
        const bool there = present(*extent) && decodable(extent, {}, part[at].codecs);
        out[first + at] = there ? found(extent->block_bytes()) : Found();
      } else {
        indexed[count++] = static_cast<uint8_t>(at);
      }
    }
    core_.catalog.find_many(
        count, [&](size_t i) -> const IndexKey& { return part[indexed[i]].key; },
        [&](size_t i, const Block& block) {
          const size_t at = indexed[i];
          const Extent* extent = known[at];
          if (!present(block) || !decodable(extent, block, part[at].codecs)) {
            out[first + at] = Found();
          } else {
            // What is in memory, or on its way, is pinned whole.
            const bool alone = extent == nullptr && part[at].parts.count != 0;
            out[first + at] = found(core_.catalog.block_bytes(block, part[at].component));
            if (alone) out[first + at].memory_bytes = parts_bytes(block, part[at]);
          }
        });
  }
}

Found StoreImpl::found(uint32_t block_bytes) noexcept {
  return {true, block_bytes, SlotPool::held_bytes(std::max(block_bytes, 1U))};
}

// What a read of these parts takes.
uint64_t StoreImpl::parts_bytes(const Block& block, const Sought& sought) const noexcept {
  const wire::GroupShape* const group = core_.names.group(block.scope, sought.component);
  const PartReader::Plan plan = PartReader::plan(block, group, sought.parts);
  return SlotPool::held_bytes(plan ? plan.bytes() : block.extent_bytes());
}

// The parts of the block as it will be stored, with offsets; sums are the caller's.
Status StoreImpl::cut(Write& write, std::vector<PartInfo>* parts) const {
  const wire::GroupShape* group = core_.names.group(write.name.scope, write.name.component);
  if (group == nullptr) return Code::Invalid;
  const uint32_t limit = core_.places.geometry.block_bytes_max;
  if (write.block_bytes > limit) return Code::TooLarge;
  const uint32_t count = write.block_bytes == 0 ? 0 : group->parts_of(write.block_bytes);
  if (count == 0) return Code::Invalid;
  if (count > wire::kPartsMax) return Code::TooLarge;
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

Status StoreImpl::begin_write(Write& write) {
  write.status = {};
  write.store_own = nullptr;
  if (closing_ || header_writer_.lost()) return Code::Closed;
  const size_t key_bytes = write.name.engine_key.size();
  if (key_bytes == 0 || key_bytes > format::kEngineKeyBytesMax) return Code::Invalid;
  if (const Status status = cut(write, &cut_); !status.ok()) return status;
  core_.note_moment();

  const Block stored = core_.catalog.find(write.key);
  // What the device did not give at several moments is written anew.
  const bool doubtful = stored && core_.unread.doubtful(write.key, stored.location);
  if (present(write.key) && !doubtful && decodable(core_.memory.find(write.key), stored, write.codecs)) {
    const Segment* segment = stored ? &core_.catalog.segment(stored.location.segment) : nullptr;
    const bool landed = stored && core_.memory.find_dirty(write.key) == nullptr;
    const bool durable = landed && stored.location.page < segment->durable_page;
    // A flush that failed while recovering left it uncertain for good: then it is written again.
    const bool certain = durable || !stored || streams_.may_become_durable(stored.location);
    if (write.persist && (durable ? core_.names_uncertain.load() : certain)) {  // it soon will be, and is no answer before
      streams_.want_flush();
      return {Code::Throttled, kThrottledPending};
    }
    if (!write.persist || durable) {
      ++core_.counters.writes_present;
      core_.touch(write.key);  // who offers it again has used it
      return Code::Present;
    }
  }
  const auto throttled = [&](int32_t why) -> Status {
    ++core_.counters.writes_throttled;
    return {Code::Throttled, why};
  };
  if (Extent* there = core_.memory.find(write.key); there != nullptr) {
    if (there->dirty()) return throttled(kThrottledPending);
    core_.memory.unlist(*there);  // expired, uncertain, or of no use to the writer
    core_.memory.settle(*there);
  }
  if (recovering()) return throttled(refuse_while_recovering());
  if (core_.writes.out(core_.clock.now_us()) && !HALFSTEP_MUTANT(PutsWaitInOutage)) {
    ++core_.counters.writes_refused;
    return {Code::IoError, core_.writes.error()};
  }
  const ExtentShape shape = shape_of(cut_, write.stored_bytes);
  if (core_.names.over_quota(write.name.scope, shape.extent_bytes())) {
    if (shape.extent_bytes() > core_.names.quota_bytes(write.name.scope)) return Code::TooLarge;
    core_.names.want_room(write.name.scope, shape.extent_bytes());
    return throttled(kThrottledQuota);
  }
  if (streams_.starved() && source_.exhausted()) return throttled(kThrottledSpace);
  if (core_.catalog.index_full() || !core_.catalog.scope_fits(write.name.scope)) {
    ++core_.counters.index_full;
    sweeper_.want_pass();
    return throttled(kThrottledSpace);
  }
  // The first one in a scope: its layout keeps its place from here on, or is giving it up.
  const bool first = !core_.names.used_now(write.name.scope);
  if (first && !core_.scope_use.begin(write.name.scope)) return throttled(kThrottledPending);
  const auto begun = [&] {
    if (first) core_.scope_use.leave(write.name.scope);
  };
  Extent* extent = core_.memory.write_fits(shape.extent_bytes())
                       ? core_.memory.make(write.key, shape.extent_bytes(), ExtentState::Filling)
                       : nullptr;
  if (extent == nullptr) {
    begun();
    core_.memory.note_refusal(core_.memory.relief_pending());
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
  core_.memory.list(*extent);
  core_.names.add_unwritten_bytes(entry.scope, static_cast<int64_t>(shape.extent_bytes()));
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
  core_.names.note_codecs(entry.scope, entry.codecs);
  entry.birth = core_.draw();
  const uint64_t now_s = core_.store_time_s();
  const uint64_t ttl_s = write.ttl_s != 0 ? write.ttl_s : core_.names.default_ttl_s(entry.scope);
  entry.created_s = static_cast<uint32_t>(now_s);
  entry.expiry_s = ttl_s == 0 ? 0 : static_cast<uint32_t>(std::min<uint64_t>(now_s + ttl_s, UINT32_MAX));
  if (write.ttl_s == 0 && core_.names.sliding_ttl_s(entry.scope) != 0) entry.flags |= format::kEntrySliding;
  // A block that expired, is uncertain or is replaced may still be in the index under this key.
  if (const Block before = core_.catalog.find(extent.key); before) (void)core_.catalog.drop(extent.key, before.location);
  if (!core_.unread.empty()) core_.unread.forget(extent.key);
  sweeper_.note_expiry(entry.expiry_s);
  core_.memory.set_state(extent, ExtentState::Dirty);
  ++core_.counters.writes_committed;
  core_.note_stored(extent);
  streams_.commit(extent);
}

void StoreImpl::abort_write(Write& write) noexcept {
  Extent& extent = Extent::of_slot(write.store_own);
  HALFSTEP_CHECK(extent.state == ExtentState::Filling, extent.state);
  ++core_.counters.writes_aborted;
  write.store_own = nullptr;
  extent.write = nullptr;
  core_.names.add_unwritten_bytes(extent.entry.scope, -static_cast<int64_t>(extent.shape.extent_bytes()));
  core_.memory.unlist(extent);
  core_.memory.set_state(extent, ExtentState::Clean);
  core_.memory.settle(extent);
}

// ---- Driving ---------------------------------------------------------------------------------------------------------------

void StoreImpl::turn() {
  core_.holds.expire(core_.clock.now_us(), [this](const IndexKey& last) { core_.unhold(last); });
  answer_absent_removes();  // before what failed is tried again: until then it shows
  stager_.turn();
  if (!header_writer_.lost()) {
    core_.bury_again();
    if (recovery_ != nullptr) {
      (void)recovery_->turn();
      if (recovery_->done()) recovered();
    } else {
      tend();
    }
    if (core_.log.busy()) {
      core_.log.turn(core_.catalog.oldest_generation(core_.sequence), core_.draw(), core_.store_time_s());
    }
    header_writer_.turn();
    core_.flusher.turn();
  }
  count_metadata();
  if (core_.memory.take_relief() && on_memory_) on_memory_();
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
  const uint64_t record_pages = core_.log.pages_written();
  const uint64_t header_bytes = header_writer_.bytes_written();
  core_.counters.bytes_metadata += (record_pages - core_.counters.record_pages) * 2 * kPageBytes;  // in two copies
  core_.counters.bytes_metadata += header_bytes - header_bytes_counted_;
  core_.counters.record_pages = record_pages;
  header_bytes_counted_ = header_bytes;
}

uint64_t StoreImpl::next_turn_us() const noexcept {
  if (absent_remove_due()) return 0;
  if (recovery_ != nullptr) {
    return std::min({recovery_->next_turn_us(), header_writer_.next_turn_us(), core_.holds.next_due_us(), core_.bury_again_us(),
                     stager_.next_turn_us()});
  }
  return std::min({streams_.next_turn_us(), sealer_.next_turn_us(), header_writer_.next_turn_us(), source_.next_turn_us(),
                   rewriter_.next_turn_us(), touch_map_.next_turn_us(), core_.holds.next_due_us(), core_.bury_again_us(),
                   sweeper_.next_turn_us(), rolls_.next_turn_us(), scrubber_.next_turn_us(), teller_.next_turn_us(),
                   stager_.next_turn_us()});
}

Gauges StoreImpl::gauges() const noexcept {
  Gauges g;
  g.blocks = core_.catalog.live_blocks();
  g.bytes_live = core_.catalog.live_bytes();
  for (uint32_t number = 0; number < core_.catalog.segment_count(); ++number) {
    switch (core_.catalog.segment(number).state) {
      case SegmentState::Free:
      case SegmentState::Logging:
      case SegmentState::Ready: ++g.segments_free; break;
      case SegmentState::Open:
      case SegmentState::Sealing: ++g.segments_open; break;
      case SegmentState::Sealed:
      case SegmentState::Ended: ++g.segments_sealed; break;
      case SegmentState::Bad: ++g.segments_bad; break;
    }
    if (core_.catalog.segment(number).unread) ++g.segments_unread;
  }
  g.clock_ahead_s = core_.store_time.clock_ahead_s();
  g.writes_out = core_.writes.out(core_.clock.now_us());
  g.holds = core_.holds.size();
  g.pins = core_.holds.pins();
  g.memory_resident_bytes = core_.memory.resident_bytes();
  g.memory_pinned_bytes = core_.memory.pinned_bytes();
  g.memory_capacity_bytes = core_.memory.capacity_bytes();
  g.staged_bytes = core_.staged.bytes();
  g.index_bytes = core_.catalog.index_bytes();
  g.catalog_bytes = core_.catalog.memory_bytes();
  g.discards = source_.discards();
  g.age_limit = policy_->age_limit();
  g.scrub_bytes_per_s = scrubber_.rate_bytes_per_s();
  g.scrub_age_s = g.scrub_bytes_per_s == 0 ? 0 : (core_.clock.now_us() - scrubber_.verified_since_us()) / 1'000'000;
  return g;
}

}  // namespace halfstep::store
