// mount_write.cc — what a mount takes in and passes on: puts, and deletes behind them.
#include <algorithm>
#include <cstring>
#include <utility>

#include "base/check.h"
#include "base/crc.h"
#include "mount/mount_store.h"

namespace halfstep::mount {

using store::Extent;
using store::ExtentState;
using store::IndexKey;

namespace {

constexpr uint64_t kPutBytesMax = 4 * MiB;
constexpr uint32_t kPutItemsMax = 64;

// The last 8 bytes of a parent's engine key, as the wire has them.
uint64_t tail_of(ConstBytes key) noexcept {
  uint64_t tail = 0;
  const size_t taken = std::min(key.size(), sizeof(tail));
  std::memcpy(&tail, key.data() + (key.size() - taken), taken);
  return tail;
}

// Which key of the section is this one's parent: a client names parents by their place among the keys that it sends.
uint64_t parent_in(const UpstreamSection& section, uint64_t parent) noexcept {
  for (size_t i = section.owners.size(); i-- > 0;) {
    if (tail_of(static_cast<const Extent*>(section.owners[i])->engine_key_bytes()) == parent) return i;
  }
  return HS_PARENT_UNKNOWN;
}

}  // namespace

// ---- Taking in -----------------------------------------------------------------------------------------------------------

Status MountStore::begin_write(store::Write& write) {
  if (closing_) return Code::Closed;
  const wire::GroupShape* shape = shape_of(write.name.scope, write.name.component);
  if (shape == nullptr) return Code::NotFound;
  if (!write.coded_parts.empty()) return Code::Unsupported;  // nobody is told that any codec is spoken here
  if (shape->parts_of(write.block_bytes) == 0) return Code::Invalid;
  if (write.block_bytes > geometry_.block_bytes_max) return Code::TooLarge;
  // Persist is the upstream's word, and it is asked for it each time.
  if (!write.persist) {
    const Extent* there = servable(write.key);
    if (there != nullptr && there->state != ExtentState::Reading) {
      ++counters_.writes_present;
      return Code::Present;
    }
  }
  const bool relief_pending = memory_.relief_pending();
  Extent* extent =
      memory_.write_fits(write.block_bytes) ? memory_.make(write.key, write.block_bytes, ExtentState::Filling) : nullptr;
  if (extent == nullptr) {
    memory_.note_refusal(relief_pending);
    ++counters_.writes_throttled;
    return {Code::Throttled, store::kThrottledMemory};
  }
  extent->entry = {};
  extent->entry.scope = write.name.scope;
  extent->entry.component = write.name.component.value;
  extent->entry.engine_key_bytes = static_cast<uint8_t>(write.name.engine_key.size());
  std::copy(write.name.engine_key.begin(), write.name.engine_key.end(), extent->engine_key.begin());
  extent->set_block_bytes(write.block_bytes);
  HALFSTEP_CHECK(cut(*extent, *shape, write.block_bytes), write.block_bytes);
  write.slot = &extent->slot_memory();
  write.parts = {extent->part_table().data(), extent->part_table().size()};
  write.stored_bytes = write.block_bytes;
  write.store_own = extent;
  return {};
}

void MountStore::abort_write(store::Write& write) noexcept {
  discard(*static_cast<Extent*>(write.store_own));
  ++counters_.writes_aborted;
}

void MountStore::commit_write(store::Write& write) {
  auto& extent = *static_cast<Extent*>(write.store_own);
  uint32_t whole = 0;
  for (const store::PartInfo& part : extent.parts()) whole = crc32c_combine(whole, part.stored_crc, part.stored_bytes);
  extent.set_checksum(whole);
  memory_.set_state(extent, ExtentState::Dirty);
  // A copy that is there is as good; this one only goes to the upstream.
  if (Extent* there = memory_.find(extent.key); there != nullptr && servable(extent.key) == nullptr) drop(*there);
  if (memory_.find(extent.key) == nullptr) memory_.list(extent);
  learn(extent.key, {extent.entry.scope, extent.entry.component, extent.block_bytes(), clock_.now_us(),
                     std::string(as_text(extent.engine_key_bytes()))});
  ++counters_.writes_committed;
  counters_.bytes_user += extent.block_bytes();
  putting_.insert(&extent);
  ++putting_keys_[extent.key];
  ++scopes_[extent.entry.scope - 1].putting;
  to_put_.push_back({&extent, write.parent_kind, write.parent, write.ttl_s, write.depth, write.hint, write.persist});
  extent.write = write.persist ? &write : nullptr;
  if (write.persist) return;
  write.status = {};
  write.done(write);
}

// ---- Passing on ----------------------------------------------------------------------------------------------------------

void MountStore::send_puts() {
  std::unique_ptr<UpstreamRequest> request;
  const auto send = [&] {
    if (request != nullptr) upstream_->submit(std::move(request));
  };
  bool some_ended = false;
  while (!to_put_.empty()) {
    const Put put = to_put_.front();
    to_put_.pop_front();
    Extent& extent = *put.extent;
    const Scope& scope = scopes_[extent.entry.scope - 1];
    if (!scope.alive) {  // cleared: what was put before that is gone
      put_ended(extent, Code::NotFound);
      some_ended = true;
      continue;
    }
    const bool full = request != nullptr && (request->bytes >= kPutBytesMax || request->items >= kPutItemsMax);
    if (full || (request != nullptr && (request->space != scope.space || request->persist != put.persist))) send();
    const auto section_of = [&] {
      return request == nullptr ? nullptr : request->section_for(scope.handle, extent.entry.component, put.ttl_s, put.hint);
    };
    UpstreamSection* section = section_of();
    if (section == nullptr) {
      send();
      request = make_request(HS_OP_PUT, scope.space);
      request->persist = put.persist;
      request->done = [this](UpstreamRequest& of) { put_done(of); };
      section = section_of();
    }
    const uint64_t parent = put.parent_kind == store::Parent::Root    ? HS_PARENT_ROOT
                            : put.parent_kind == store::Parent::Known ? parent_in(*section, put.parent)
                                                                      : HS_PARENT_UNKNOWN;
    section->add_key(extent.engine_key_bytes());
    section->owners.push_back(&extent);
    section->block_bytes.push_back(extent.block_bytes());
    section->parents.push_back(parent);
    section->depths.push_back(put.depth);
    uint32_t pieces = 0;
    extent.slot().for_range(0, extent.block_bytes(), [&](Bytes piece) {
      section->pieces.push_back({piece.data(), piece.size()});
      ++pieces;
    });
    section->piece_counts.push_back(pieces);
    request->bytes += extent.block_bytes();
  }
  send();
  if (some_ended) send_waiting();
}

void MountStore::put_done(UpstreamRequest& request) {
  for (UpstreamSection& section : request.sections) {
    for (uint32_t i = 0; i < section.count; ++i) {
      auto& extent = *static_cast<Extent*>(section.owners[i]);
      const Status status = status_of(section.answers[i]);
      ++mount_.puts;
      if (status.ok()) {
        mount_.put_bytes += extent.block_bytes();
      } else {
        ++mount_.puts_failed;
      }
      put_ended(extent, status);
    }
  }
  send_waiting();
}

// The core reads its memory no more. A block that the upstream did not take is served from here as long as any other.
void MountStore::put_ended(Extent& extent, Status status) {
  putting_.erase(&extent);
  if (const auto at = putting_keys_.find(extent.key); --at->second == 0) putting_keys_.erase(at);
  --scopes_[extent.entry.scope - 1].putting;
  sayings_news_ = true;
  store::Write* write = std::exchange(extent.write, nullptr);
  memory_.set_state(extent, ExtentState::Clean);
  memory_.settle(extent);
  if (write == nullptr) return;
  if (!status.ok()) ++counters_.writes_failed;
  write->status = status == Code::Throttled ? Status(Code::Throttled, store::kThrottledMemory)
                  : status.ok()             ? Status()
                                            : Status(Code::IoError, shard::kNoAnswer);
  write->done(*write);
}

// ---- Deletes -------------------------------------------------------------------------------------------------------------

void MountStore::remove(store::Change& change) {
  if (closing_) return answer(change, Code::Closed);
  forget_block(change.key);
  Waiting waiting;
  waiting.key = change.key;
  waiting.change = &change;
  waiting.component = change.component;
  waiting.engine_key = std::string(as_text(change.engine_key));
  waiting.scope = scope_of_key(change.key, change.component, change.engine_key);
  if (waiting.scope == 0) return answer(change, Code::NotFound);
  ++counters_.removes;
  if (put_under_way(waiting)) {
    waiting_.push_back(std::move(waiting));
  } else {
    send_delete(std::move(waiting));
  }
}

bool MountStore::put_under_way(const Waiting& waiting) const noexcept {
  return waiting.change != nullptr ? putting_keys_.count(waiting.key) != 0 : scopes_[waiting.scope - 1].putting != 0;
}

// After puts have ended.
void MountStore::send_waiting() {
  std::deque<Waiting> still;
  std::vector<Waiting> ready;
  while (!waiting_.empty()) {
    Waiting waiting = std::move(waiting_.front());
    waiting_.pop_front();
    if (put_under_way(waiting)) {
      still.push_back(std::move(waiting));
    } else {
      ready.push_back(std::move(waiting));
    }
  }
  waiting_ = std::move(still);
  for (Waiting& waiting : ready) {
    if (waiting.change != nullptr) {
      send_delete(std::move(waiting));
    } else {
      waiting.cleared();
    }
  }
}

void MountStore::send_delete(Waiting waiting) {
  const Scope& scope = scopes_[waiting.scope - 1];
  auto request = make_request(HS_OP_DELETE, scope.space);
  UpstreamSection* section = request->section_for(scope.handle, waiting.component.value);
  section->add_key(as_bytes(waiting.engine_key));
  store::Change* change = waiting.change;
  const IndexKey key = waiting.key;
  request->done = [this, change, key](UpstreamRequest& of) {
    forget_block(key);  // what came in while it was on its way
    ++mount_.deletes;
    Status status = status_of(of.sections.front().answers.front());
    if (status == Code::Throttled) status = {Code::Throttled, store::kThrottledLog};
    answer(*change, status);
  };
  upstream_->submit(std::move(request));
}

}  // namespace halfstep::mount
