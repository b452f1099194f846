// store.cc — the Store itself: begins and ends writes, removes, lists, and drives its parts once per turn.
#include "store/store.h"

#include <cassert>
#include <cstring>
#include <deque>

#include "base/prng.h"
#include "store/core.h"
#include "store/header_io.h"
#include "store/mutant.h"
#include "store/reader.h"
#include "store/recovery.h"
#include "store/rewriter.h"
#include "store/sealer.h"
#include "store/segment_source.h"
#include "store/streams.h"
#include "store/sweeper.h"
#include "store/touch_map.h"

namespace halfstep::store {
namespace {

// Whether a namespace may have one more layout.
bool layout_fits(const HeaderState& state, uint32_t namespace_number, const wire::Layout& layout) {
  uint32_t count = 1;
  uint64_t bytes = layout.canonical().size();
  for (const format::ScopeRecord& scope : state.scopes) {
    if (scope.namespace_number != namespace_number) continue;
    ++count;
    bytes += state.layouts[scope.layout]->canonical().size();
  }
  return count <= format::kNamespaceLayoutsMax && bytes <= format::kNamespaceLayoutBytesMax;
}

class StoreImpl final : public Store {
 public:
  StoreImpl(io::Engine& engine, SlotPool& slots, const Clock& clock, const Options& options, HeaderState header,
            std::unique_ptr<ReclaimPolicy> policy)
      : core_(engine, slots, clock, options, std::move(header)),
        policy_(std::move(policy)),
        header_writer_(engine, core_.flusher, core_.header),
        reader_(core_),
        source_(core_, *policy_),
        streams_(core_, source_),
        rewriter_(core_, streams_, *policy_),
        sealer_(core_),
        touch_map_(core_),
        sweeper_(core_) {}

  Status recover_now() { return recover(core_, &report_); }
  RecoveryReport& report() noexcept { return report_; }

  const Geometry& geometry() const noexcept override { return core_.places.geometry; }
  const RecoveryReport& recovery() const noexcept override { return report_; }
  std::array<std::byte, 16> uuid() const noexcept override { return core_.header.fixed.store_uuid; }

  bool has_namespace(std::string_view name) const noexcept override { return core_.header.find_namespace(name) != nullptr; }
  std::vector<NamespaceInfo> namespaces() const override;
  void create_namespace(const NamespaceInfo& info, std::function<void(Status)> done) override;
  void delete_namespace(std::string_view name, std::function<void(Status)> done) override;
  void register_layout(std::string_view name, const wire::Layout& layout,
                       std::function<void(Status, uint32_t scope)> done) override;
  const wire::Layout* layout_of(uint32_t scope) const noexcept override { return core_.names.layout(scope); }
  IndexKey key_of(const BlockName& name) const noexcept override;

  Found find(const IndexKey& key) noexcept override;
  Status begin_reads(std::span<Read* const> window) override { return reader_.begin(window); }
  void unpin(Resident* resident) noexcept override { core_.memory.unpin(Extent::of(*resident)); }
  Status begin_write(Write& write) override;
  void commit_write(Write& write) override;
  void abort_write(Write& write) noexcept override;
  void remove(Remove& remove) override;
  void touch(std::span<const IndexKey> keys) override;
  uint64_t list(std::string_view name, uint64_t cursor, uint32_t limit,
                const std::function<void(const Listed&)>& visit) const override;

  Status hold(const IndexKey& key, uint64_t owner, uint64_t until_us) override;
  void release(const IndexKey& key, uint64_t owner) noexcept override;
  void release_all(uint64_t owner) noexcept override;

  void turn() override;
  uint64_t next_turn_us() const noexcept override;
  void set_on_memory(std::function<void()> on_memory) override { on_memory_ = std::move(on_memory); }
  Status close() override;

  const Counters& counters() const noexcept override { return core_.counters; }
  Gauges gauges() const noexcept override;

 private:
  Status cut(Write& write, std::vector<PartInfo>* parts) const;
  bool present(const IndexKey& key, uint32_t* block_bytes, bool* durable) noexcept;
  void change_header(std::function<Status(HeaderState&)> change, std::function<void(Status)> done);
  bool absent_remove_due() const noexcept {
    return !absent_removes_.empty() && absent_removes_.front().tombstones_before <= core_.log.tombstones_answered();
  }
  void answer_absent_removes();
  // The key's last hold is gone.
  void unhold(const IndexKey& key) noexcept {
    if (const Location location = core_.catalog.find(key); location.valid()) core_.catalog.set_held(location, false);
  }

  void count_metadata() noexcept;

  Core core_;
  std::unique_ptr<ReclaimPolicy> policy_;
  HeaderWriter header_writer_;
  BlockReader reader_;
  SegmentSource source_;
  Streams streams_;
  Rewriter rewriter_;
  Sealer sealer_;
  TouchMap touch_map_;
  Sweeper sweeper_;
  uint64_t header_bytes_counted_ = 0;
  RecoveryReport report_;
  std::vector<PartInfo> cut_;  // of the write that is being begun
  std::function<void()> on_memory_;
  // Removes of blocks that were not there: answered when all tombstones before them are on media.
  struct AbsentRemove {
    Remove* remove = nullptr;
    uint64_t tombstones_before = 0;
  };
  std::deque<AbsentRemove> absent_removes_;
  bool closing_ = false;
};

// ---- Names -----------------------------------------------------------------------------------------------------------------

std::vector<NamespaceInfo> StoreImpl::namespaces() const {
  std::vector<NamespaceInfo> out;
  for (const StoredNamespace& n : core_.header.namespaces) {
    out.push_back({n.name, n.record.quota_bytes, n.record.default_ttl_s});
  }
  return out;
}

void StoreImpl::change_header(std::function<Status(HeaderState&)> change, std::function<void(Status)> done) {
  header_writer_.submit(
      [this, change = std::move(change)](HeaderState& state) {
        state.fixed.store_time_s = core_.store_time_s();
        return change(state);
      },
      [this, done = std::move(done)](Status status) {
        if (core_.names.refresh(core_.header)) sweeper_.begin();
        done(status);
      });
}

void StoreImpl::create_namespace(const NamespaceInfo& info, std::function<void(Status)> done) {
  if (info.name.empty() || info.name.size() > format::kNamespaceNameBytesMax) return done(Code::Invalid);
  if (has_namespace(info.name)) return done(Code::Present);
  change_header(
      [info](HeaderState& state) -> Status {
        if (state.find_namespace(info.name) != nullptr) return Code::Present;
        StoredNamespace& added = state.namespaces.emplace_back();
        added.name = info.name;
        added.record.number = state.fixed.next_namespace++;
        added.record.quota_bytes = info.quota_bytes;
        added.record.default_ttl_s = info.default_ttl_s;
        return {};
      },
      std::move(done));
}

void StoreImpl::delete_namespace(std::string_view name, std::function<void(Status)> done) {
  if (!has_namespace(name)) return done(Code::NotFound);
  change_header(
      [name = std::string(name)](HeaderState& state) -> Status {
        const StoredNamespace* found = state.find_namespace(name);
        if (found == nullptr) return Code::NotFound;
        const uint32_t number = found->record.number;
        std::erase_if(state.scopes, [&](const format::ScopeRecord& s) { return s.namespace_number == number; });
        std::erase_if(state.namespaces, [&](const StoredNamespace& n) { return n.record.number == number; });
        state.drop_unused_layouts();
        return {};
      },
      std::move(done));
}

void StoreImpl::register_layout(std::string_view name, const wire::Layout& layout, std::function<void(Status, uint32_t)> done) {
  const StoredNamespace* space = core_.header.find_namespace(name);
  if (space == nullptr) return done(Code::NotFound, 0);
  const uint32_t number = space->record.number;
  if (const uint32_t scope = core_.header.find_scope(number, layout.id()); scope != 0) return done({}, scope);
  auto shared = std::make_shared<const wire::Layout>(layout);
  change_header(
      [shared, number](HeaderState& state) -> Status {
        const auto same = [&](const StoredNamespace& n) { return n.record.number == number; };
        if (std::none_of(state.namespaces.begin(), state.namespaces.end(), same)) return Code::NotFound;
        if (state.find_scope(number, shared->id()) != 0) return {};
        if (!layout_fits(state, number, *shared)) return Code::NoSpace;
        uint32_t place = 0;
        while (place < state.layouts.size() && state.layouts[place]->id() != shared->id()) ++place;
        if (place == state.layouts.size()) state.layouts.push_back(shared);
        if (state.fixed.next_scope == UINT32_MAX) return Code::NoSpace;
        state.scopes.push_back({state.fixed.next_scope++, number, place, 0});
        if (HALFSTEP_MUTANT(ScopeReused)) state.fixed.next_scope = static_cast<uint32_t>(state.scopes.size()) + 1;
        return {};
      },
      [this, shared, number, done = std::move(done)](Status status) {
        const uint32_t scope = status.ok() ? core_.header.find_scope(number, shared->id()) : 0;
        // None: the namespace was deleted by a change that went to media together with this one.
        done(status.ok() && scope == 0 ? Status(Code::NotFound) : status, scope);
      });
}

IndexKey StoreImpl::key_of(const BlockName& name) const noexcept {
  assert(!name.engine_key.empty() && name.engine_key.size() <= format::kEngineKeyBytesMax);
  std::array<std::byte, 9 + format::kEngineKeyBytesMax> bytes;
  store_le(bytes.data(), HALFSTEP_MUTANT(NoKeyInCheck) ? 0U : name.scope);
  store_le(bytes.data() + 4, name.component.value);
  bytes[8] = static_cast<std::byte>(name.engine_key.size());
  std::memcpy(bytes.data() + 9, name.engine_key.data(), name.engine_key.size());
  const Hash128 hash = keyed_hash(core_.index_secret, ConstBytes(bytes).first(9 + name.engine_key.size()));
  return {hash.low, hash.high};
}

// ---- Blocks ----------------------------------------------------------------------------------------------------------------

bool StoreImpl::present(const IndexKey& key, uint32_t* block_bytes, bool* durable) noexcept {
  if (const Extent* extent = core_.memory.find(key); extent != nullptr && extent->state == ExtentState::Dirty) {
    *block_bytes = extent->block_bytes();
    *durable = false;
    return core_.names.alive(extent->entry.scope) && !core_.expired(extent->entry.expiry_s);
  }
  const Location location = core_.catalog.find(key);
  if (!location.valid()) return false;
  const Block& block = core_.catalog.at(location);
  *block_bytes = block.raw_bytes;
  *durable = block.page < core_.catalog.segment(location.segment).durable_page;
  return core_.names.alive(block.scope) && !core_.expired(block.expiry_s);
}

Found StoreImpl::find(const IndexKey& key) noexcept {
  Found found;
  bool durable = false;
  found.present = present(key, &found.block_bytes, &durable);
  if (!found.present) found.block_bytes = 0;
  return found;
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

  uint32_t there_bytes = 0;
  bool durable = false;
  if (present(write.key, &there_bytes, &durable)) {
    const Location stored = core_.catalog.find(write.key);
    // A flush that failed while recovering left it uncertain for good: then it is written again.
    const bool certain = durable || !stored.valid() || streams_.may_become_durable(stored);
    if (write.persist && !durable && certain) {  // it soon will be, and is no answer before
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
    core_.memory.unlist(*there);  // expired, or uncertain
    core_.memory.settle(*there);
  }
  const ExtentShape shape = shape_of(cut_, write.stored_bytes);
  if (core_.names.over_quota(write.name.scope, shape.extent_bytes())) return throttled(kThrottledQuota);
  if (streams_.starved() && source_.exhausted()) return throttled(kThrottledSpace);
  Extent* extent = core_.memory.write_fits(shape.extent_bytes())
                       ? core_.memory.make(write.key, shape.extent_bytes(), ExtentState::Filling)
                       : nullptr;
  if (extent == nullptr) {
    core_.memory.note_refusal();
    return throttled(kThrottledMemory);
  }
  extent->shape = shape;
  extent->set_block_bytes(write.block_bytes);
  extent->part_table().assign(cut_.begin(), cut_.end());
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
  write.store_own = extent;
  write.slot = &extent->slot_memory();
  write.parts = extent->part_table();
  return {};
}

void StoreImpl::commit_write(Write& write) {
  Extent& extent = Extent::of_slot(write.store_own);
  assert(extent.state == ExtentState::Filling && extent.write == &write);
  format::Entry& entry = extent.entry;
  for (PartInfo& part : extent.part_table()) {
    if (part.codec == 0) part.raw_crc = part.stored_crc;
  }
  entry.checksum = finish_extent(extent.slot(), extent.shape, extent.parts(), entry.raw_bytes);
  entry.birth = core_.draw();
  const uint64_t now_s = core_.store_time_s();
  const uint64_t ttl_s = write.ttl_s != 0 ? write.ttl_s : core_.names.default_ttl_s(entry.scope);
  entry.created_s = static_cast<uint32_t>(now_s);
  entry.expiry_s = ttl_s == 0 ? 0 : static_cast<uint32_t>(std::min<uint64_t>(now_s + ttl_s, UINT32_MAX));
  // An expired or uncertain block may still be in the index under this key.
  if (const Location before = core_.catalog.find(extent.key); before.valid()) core_.catalog.drop(before);
  core_.memory.set_state(extent, ExtentState::Dirty);
  ++core_.counters.writes_committed;
  streams_.commit(extent);
}

void StoreImpl::abort_write(Write& write) noexcept {
  Extent& extent = Extent::of_slot(write.store_own);
  assert(extent.state == ExtentState::Filling);
  ++core_.counters.writes_aborted;
  write.store_own = nullptr;
  extent.write = nullptr;
  core_.memory.unlist(extent);
  core_.memory.set_state(extent, ExtentState::Clean);
  core_.memory.settle(extent);
}

void StoreImpl::remove(Remove& remove) {
  uint32_t block_bytes = 0;
  bool durable = false;
  const bool there = present(remove.key, &block_bytes, &durable);
  // An expired block counts as absent, but needs its tombstone: the clock may go back.
  bool stored = there;
  // A block that is being filled is not there yet: what its writer commits later is a newer one.
  if (Extent* extent = core_.memory.find(remove.key); extent != nullptr && extent->state != ExtentState::Filling) {
    core_.memory.unlist(*extent);
    core_.memory.settle(*extent);
  }
  if (const Location location = core_.catalog.find(remove.key); location.valid()) {
    core_.catalog.drop(location);
    stored = true;
  }
  // So does one that is not known: frames of a segment that is being reclaimed, or could not be read whole, may hold it, and a
  // restart may find it there.
  stored = stored || core_.catalog.oldest_generation_unknown(UINT64_MAX) != UINT64_MAX;
  remove.status = there ? Status() : Status(Code::NotFound);
  if (!stored || HALFSTEP_MUTANT(TombstoneNotLogged)) {
    if (!core_.all_buried()) remove.status = Code::IoError;  // it may come back: its tombstone is still to be written
    absent_removes_.push_back({&remove, core_.log.tombstones_appended()});
    return;
  }
  if (there) {
    ++core_.counters.removes;
    ++core_.counters.blocks_evicted;
    ++core_.counters.blocks_evicted_deleted;
  }
  remove.store_own = &core_;
  core_.log_tombstone(
      remove.key,
      [](RecordLog::Pending& pending, Status status) {
        auto* done = static_cast<Remove*>(pending.owner);
        auto* core = static_cast<Core*>(done->store_own);
        status.ok() ? core->give_pending(pending) : core->keep_burying(pending);
        if (!status.ok()) done->status = Status(Code::IoError, status.detail());
        done->done(*done);
      },
      &remove);
}

void StoreImpl::touch(std::span<const IndexKey> keys) {
  for (const IndexKey& key : keys) core_.touch(key);
  core_.counters.touches += keys.size();
}

uint64_t StoreImpl::list(std::string_view name, uint64_t cursor, uint32_t limit,
                         const std::function<void(const Listed&)>& visit) const {
  // The cursor is the place of the next block, plus one: places do not change while blocks come and go.
  const StoredNamespace* space = core_.header.find_namespace(name);
  if (space == nullptr) return 0;
  const uint32_t number = space->record.number;
  Location at = cursor == 0 ? Location{0, 0} : Location::of(cursor - 1);
  const uint64_t now_s = std::max(core_.store_time_base_s, core_.clock.wall_s());
  uint32_t seen = 0;
  for (; at.segment < core_.catalog.segment_count(); at = {at.segment + 1, 0}) {
    const Segment& segment = core_.catalog.segment(at.segment);
    for (; at.ordinal < segment.blocks.size(); ++at.ordinal) {
      const Block& block = segment.blocks[at.ordinal];
      if (!block.live || block.key_bytes == 0 || core_.names.namespace_of(block.scope) != number) continue;
      if (block.expiry_s != 0 && block.expiry_s <= now_s) continue;
      if (seen++ == limit) return at.packed() + 1;
      Listed listed;
      listed.layout = core_.names.layout(block.scope)->id();
      listed.component = {block.component};
      listed.engine_key = segment.key_of(block);
      listed.block_bytes = block.raw_bytes;
      listed.parts = block.parts;
      listed.created_s = block.created_s;
      listed.expiry_s = block.expiry_s;
      visit(listed);
    }
  }
  return 0;
}

// ---- Holds -----------------------------------------------------------------------------------------------------------------

Status StoreImpl::hold(const IndexKey& key, uint64_t owner, uint64_t until_us) {
  if (!find(key).present) return Code::NotFound;
  const uint64_t now_us = core_.clock.now_us();
  if (!core_.holds.take(key, owner, now_us, until_us)) {
    ++core_.counters.holds_refused;
    return Code::Throttled;
  }
  ++core_.counters.holds_taken;
  if (const Location location = core_.catalog.find(key); location.valid()) core_.catalog.set_held(location, true);
  return {};
}

void StoreImpl::release(const IndexKey& key, uint64_t owner) noexcept {
  core_.holds.release(key, owner, [this](const IndexKey& last) { unhold(last); });
}

void StoreImpl::release_all(uint64_t owner) noexcept {
  core_.holds.release_all(owner, [this](const IndexKey& last) { unhold(last); });
}

// ---- Driving ---------------------------------------------------------------------------------------------------------------

void StoreImpl::turn() {
  core_.holds.expire(core_.clock.now_us(), [this](const IndexKey& last) { unhold(last); });
  answer_absent_removes();  // before what failed is tried again: until then it shows
  if (!header_writer_.lost()) {
    core_.bury_again();
    core_.prune_tombstones();
    sweeper_.turn();
    rewriter_.turn();  // before the sealer: a footer says of copies whether they took their original's place
    source_.turn(streams_, rewriter_);
    streams_.turn();
    sealer_.turn(streams_);
    touch_map_.turn();
    if (core_.log.busy()) {
      core_.log.turn(core_.catalog.oldest_generation(core_.sequence), core_.draw(), core_.store_time_s());
    }
    header_writer_.turn();
    core_.flusher.turn();
  }
  count_metadata();
  if (core_.memory.take_relief() && on_memory_) on_memory_();
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

void StoreImpl::answer_absent_removes() {
  while (absent_remove_due()) {
    Remove& remove = *absent_removes_.front().remove;
    absent_removes_.pop_front();
    if (!core_.all_buried()) remove.status = Code::IoError;
    remove.done(remove);
  }
}

uint64_t StoreImpl::next_turn_us() const noexcept {
  if (absent_remove_due()) return 0;
  if (sweeper_.busy()) return 0;
  return std::min({streams_.next_turn_us(), source_.next_turn_us(), rewriter_.next_turn_us(), touch_map_.next_turn_us(),
                   core_.holds.next_due_us(), core_.bury_again_us()});
}

Status StoreImpl::close() {
  closing_ = true;
  streams_.hurry();
  source_.hurry();
  streams_.close_open_segments();
  // Holds end with the process: they must not keep room from what somebody waits for.
  core_.holds.expire(UINT64_MAX, [this](const IndexKey& last) { unhold(last); });
  const auto sealing = [&] {
    for (const Segment& segment : core_.catalog.segments()) {
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
    const bool unburied = !core_.all_buried() && buries < kBuriesMax;
    if (unburied && !core_.log.busy()) {
      ++buries;
      core_.bury_now();
    }
    if (streams_.idle()) streams_.close_open_segments();
    const bool busy = !streams_.idle() || sealing() || core_.log.busy() || unburied || header_writer_.busy() ||
                      !core_.flusher.idle() || reader_.in_flight() > 0 || source_.busy() || touch_map_.busy();
    if (!busy && touches_asked) break;
    if (!busy) {
      touches_asked = true;
      touch_map_.hurry();
      continue;
    }
    core_.engine.flush_submissions();
    turns_without_work = core_.engine.in_flight() == 0 ? turns_without_work + 1 : 0;
    core_.engine.wait();
    core_.engine.poll();
  }
  streams_.give_up();
  turn();
  if (header_writer_.lost()) return Code::Closed;
  BlockingIo io(core_.engine);
  if (const Status status = io.flush(); !status.ok()) return status;
  const bool clean = streams_.idle() && core_.all_buried();
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
    core_.flusher.turn();
    core_.engine.flush_submissions();
    core_.engine.wait();
    core_.engine.poll();
  }
  return written;
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
      case SegmentState::Bad: break;
    }
  }
  g.holds = core_.holds.size();
  g.memory_resident_bytes = core_.memory.resident_bytes();
  g.memory_pinned_bytes = core_.memory.pinned_bytes();
  g.memory_capacity_bytes = core_.memory.capacity_bytes();
  g.index_bytes = core_.catalog.memory_bytes();
  g.age_limit = policy_->age_limit();
  return g;
}

// ---- Birth -----------------------------------------------------------------------------------------------------------------

void start_here(HeaderState& state, const Clock& clock) {
  ++state.fixed.start_number;
  sign_owner(state.fixed);
  state.fixed.clean_stop = 0;
  state.fixed.store_time_s = std::max(state.fixed.store_time_s, clock.wall_s());
  for (format::DeviceRecord& device : state.devices) device.start_number = state.fixed.start_number;
}

}  // namespace

Fault Store::format(io::Engine& engine, Arena&, const Clock& clock, const Geometry& geometry,
                    const std::function<Status(Bytes)>& random) {
  HeaderState state;
  const Places places = places_of(geometry);
  if (!places.valid()) {
    return {Code::Invalid, "geometry: " + std::to_string(geometry.segments) + " segments of " +
                               std::to_string(geometry.segment_bytes) + " bytes do not fit " +
                               std::to_string(geometry.device_bytes) + " bytes; let plan_geometry() choose"};
  }
  if (geometry.shards != 1)
    return {Code::Unsupported, "shards=" + std::to_string(geometry.shards) + ": this build formats one"};
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
  start_here(state, clock);
  f.clean_stop = 1;

  // The log first: with the header the store exists.
  Flusher flusher(engine, f.sequence);
  RecordLog log({&engine, &flusher, places, state.page_secret(), 0});
  if (const Status status = log.format_now(); !status.ok()) {
    return {status, "record log: " + errno_name(status.detail()) + " while writing an empty one"};
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
  LoadedHeader loaded;
  std::unique_ptr<ReclaimPolicy> policy;
  if (Fault fault = load_header(engine, &loaded); !fault.ok()) return fault;
  if (loaded.state.fixed.shards != 1) {
    return {Code::Unsupported, "shards=" + std::to_string(loaded.state.fixed.shards) + ": this build serves one"};
  }
  const PolicySetup setup{loaded.state.fixed.segments, options.rewrite_share, options.rewrite_bytes_per_day};
  if (Fault fault = make_policy(options.policy, setup, &policy); !fault.ok()) return fault;
  start_here(loaded.state, clock);
  uint32_t bad_copies = 0;
  if (const Status status = write_header_now(engine, loaded.state, &bad_copies); !status.ok()) {
    return {status, "store header: " + errno_name(status.detail()) + " at both ends while taking ownership"};
  }
  auto store = std::make_unique<StoreImpl>(engine, slots, clock, options, std::move(loaded.state), std::move(policy));
  if (loaded.copy_bad[0] || loaded.copy_bad[1]) {
    store->report().notes.push_back(std::string("store header: the copy at the ") + (loaded.copy_bad[0] ? "start" : "end") +
                                    " was damaged or stale; written anew from the other one");
  }
  if (bad_copies > 0) store->report().notes.push_back("store header: one copy cannot be written; replace the device");
  if (const Status status = store->recover_now(); !status.ok()) return {status, "recovery failed"};
  *out = std::move(store);
  return {};
}

}  // namespace halfstep::store
