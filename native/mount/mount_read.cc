// mount_read.cc — what a mount asks and fetches: names by a match, blocks by a get, and touches on their way back.
#include <algorithm>
#include <array>
#include <utility>

#include "base/check.h"
#include "base/crc.h"
#include "mount/mount_store.h"

namespace halfstep::mount {

using store::Extent;
using store::ExtentState;
using store::IndexKey;

namespace {

// Of one fetch: large ones would keep their first blocks waiting for their last.
constexpr uint64_t kFetchBytesMax = 4 * MiB;
constexpr uint32_t kFetchItemsMax = 64;
// What is brought ahead at once.
constexpr uint64_t kStagingBytesMax = 8 * MiB;
// Uses are told to the upstream so often, and so many at once.
constexpr uint64_t kTouchUs = 1'000'000;
constexpr size_t kTouchesMax = 4096;
// A match that has less left than this is not worth sending.
constexpr uint64_t kAskUsMin = 500;
// About 200 bytes each, until the upstream has answered or the time is over, though whoever asked may have gone. One question
// more may be as large as a request can be.
constexpr uint64_t kAskingMax = 262'144;

}  // namespace

// ---- Asking --------------------------------------------------------------------------------------------------------------

bool MountStore::ask(shard::Question& question) {
  const uint64_t now_us = clock_.now_us();
  if (closing_ || question.until_us < now_us + kAskUsMin || asking_ > kAskingMax) {
    for (const IndexKey& key : question.keys) {
      if (!is_to_ask(key)) continue;
      ++mount_.asked;
      ++mount_.asked_unknown;
      note_unanswered(key);
    }
    return false;
  }
  // Not by where it is: the next question may stand at the same place while answers to this one are still to come.
  const uint64_t number = ++questions_asked_;
  std::vector<std::unique_ptr<UpstreamRequest>> requests;
  for (size_t i = 0; i < question.names.size(); ++i) {
    const IndexKey& key = question.keys[i];
    if (!is_to_ask(key)) continue;
    const store::BlockName& name = question.names[i];
    if (layout_of(name.scope) == nullptr) continue;
    Scope& scope = scopes_[name.scope - 1];
    scope.asked = true;
    UpstreamSection* section = nullptr;
    if (!requests.empty() && requests.back()->space == scope.space) {
      section = requests.back()->section_for(scope.handle, name.component.value);
    }
    if (section == nullptr) {
      requests.push_back(make_request(HS_OP_MATCH, scope.space));
      UpstreamRequest& request = *requests.back();
      request.deadline_us = static_cast<uint32_t>(std::min<uint64_t>(question.until_us - now_us, UINT32_MAX));
      request.question = number;
      request.done = [this](UpstreamRequest& of) { answered(of); };
      section = request.section_for(scope.handle, name.component.value);
    }
    section->add_key(name.engine_key);
    section->index_keys.push_back(key);
    section->parents.push_back(name.scope);
  }
  if (requests.empty()) return false;
  question.store_open = static_cast<uint32_t>(requests.size());
  question.store_number = number;
  questions_.emplace(number, &question);
  for (auto& request : requests) {
    asking_ += request->items;
    upstream_->submit(std::move(request));
  }
  return true;
}

// What is on its way is there; a put's own name stays until the upstream has it.
bool MountStore::is_to_ask(const IndexKey& key) noexcept {
  const Extent* extent = memory_.find(key);
  if (extent != nullptr && extent->state != ExtentState::Clean) return false;
  const Known* known = find_known(key);
  return known == nullptr || !fresh(*known);
}

// Its answers still teach us.
void MountStore::forget(shard::Question& question) noexcept { questions_.erase(question.store_number); }

void MountStore::answered(UpstreamRequest& request) {
  asking_ -= request.items;
  for (UpstreamSection& section : request.sections) {
    const uint8_t* at = section.keys.data();
    for (uint32_t i = 0; i < section.count; ++i, at += 1 + *at) {
      const IndexKey& key = section.index_keys[i];
      const auto scope = static_cast<uint32_t>(section.parents[i]);
      ++mount_.asked;
      const Status status = status_of(section.answers[i]);
      if (status.ok() && section.lengths[i] != 0) {
        if (layout_of(scope) == nullptr) continue;
        learn(key, {scope, section.component, section.lengths[i], request.started_us,
                    std::string(reinterpret_cast<const char*>(at + 1), *at)});
      } else if (status.ok() || status == Code::NotFound) {
        // What was put or asked for since is newer than this answer.
        const Known* known = find_known(key);
        if (known == nullptr || known->seen_us <= request.started_us) forget_block(key);
      } else {
        ++mount_.asked_unknown;
        note_unanswered(key);
      }
    }
  }
  const auto at = questions_.find(request.question);
  if (at == questions_.end()) return;
  shard::Question& question = *at->second;
  if (--question.store_open != 0) return;
  questions_.erase(at);
  question.done(question);
}

// ---- Finding -------------------------------------------------------------------------------------------------------------

// What a read is answered from, or joins; null where there is none that may be served.
Extent* MountStore::servable(const IndexKey& key) noexcept {
  Extent* extent = memory_.find(key);
  if (extent == nullptr || layout_of(extent->entry.scope) == nullptr) return nullptr;
  if (extent->state != ExtentState::Clean) return extent;
  const Known* known = find_known(key);
  return known != nullptr && fresh(*known) ? extent : nullptr;
}

store::Found MountStore::find(const store::Sought& sought) noexcept {
  uint32_t block_bytes = 0;
  if (const Extent* extent = servable(sought.key); extent != nullptr) {
    block_bytes = extent->block_bytes();
  } else if (const Known* known = find_known(sought.key); known != nullptr && fresh(*known)) {
    block_bytes = known->block_bytes;
  }
  if (block_bytes == 0) return {};
  return {true, block_bytes, SlotPool::held_bytes(block_bytes)};
}

void MountStore::find_many(std::span<const store::Sought> sought, std::span<store::Found> out) noexcept {
  for (size_t i = 0; i < sought.size(); ++i) out[i] = find(sought[i]);
}

// ---- Reading -------------------------------------------------------------------------------------------------------------

Extent* MountStore::make_reading(const IndexKey& key, const Known& known) {
  Extent* extent = memory_.make(key, known.block_bytes, ExtentState::Reading);
  if (extent == nullptr) return nullptr;
  extent->entry = {};
  extent->entry.scope = known.scope;
  extent->entry.component = known.component;
  extent->entry.engine_key_bytes = static_cast<uint8_t>(known.engine_key.size());
  std::copy_n(as_bytes(known.engine_key).begin(), known.engine_key.size(), extent->engine_key.begin());
  extent->set_block_bytes(known.block_bytes);
  if (Extent* stale = memory_.find(key); stale != nullptr) drop(*stale);
  memory_.list(*extent);
  return extent;
}

Status MountStore::begin_reads(std::span<store::Read* const> window) {
  memory_.begin_moment();
  const bool relief_pending = memory_.relief_pending();
  // What is in memory is pinned first: nothing of a window makes room for the rest of it.
  uint64_t missing_bytes = 0;
  for (store::Read* read : window) {
    Extent* extent = servable(read->key);
    read->store_own = extent;
    read->status = extent != nullptr ? Status() : why_absent(read->key);
    if (extent != nullptr) {
      memory_.pin(*extent);
    } else if (const Known* known = find_known(read->key); known != nullptr && fresh(*known)) {
      missing_bytes += SlotPool::held_bytes(known->block_bytes);
    }
  }
  const auto undo = [&](std::span<Extent* const> made) {
    for (store::Read* read : window) {
      if (read->store_own != nullptr) memory_.unpin(*static_cast<Extent*>(read->store_own));
    }
    for (Extent* extent : made) discard(*extent);
  };
  if (missing_bytes > memory_.read_bytes_max()) {
    undo({});
    return Code::TooLarge;
  }
  std::vector<Extent*> made;
  for (store::Read* read : window) {
    if (read->store_own != nullptr) continue;
    Extent* extent = servable(read->key);  // another read of this window may have made it
    const Known* known = find_known(read->key);
    if (extent == nullptr && known != nullptr && fresh(*known) && shape_of(known->scope, {known->component}) != nullptr) {
      extent = make_reading(read->key, *known);
      if (extent == nullptr) {
        undo(made);
        memory_.note_refusal(relief_pending);
        return Code::Throttled;
      }
      made.push_back(extent);
      if (read->ahead) {
        extent->staged = Extent::Staged::Coming;
        extent->staged_kind = reinterpret_cast<store::Stage*>(static_cast<uintptr_t>(read->tag))->kind;
      }
    }
    if (extent == nullptr) continue;
    memory_.pin(*extent);
    read->store_own = extent;
    read->status = {};
  }
  // From here on nothing fails. The root of a chain is touched last (docs/store-rules.md, rule 12).
  for (size_t i = window.size(); i-- > 0;) {
    auto* extent = static_cast<Extent*>(window[i]->store_own);
    if (extent == nullptr) continue;
    if (!window[i]->ahead) note_read(*extent);
    memory_.touch(*extent);
    if (extent->state == ExtentState::Clean) note_touch(extent->key);
  }
  std::vector<store::Read*> ready;
  for (store::Read* read : window) {
    auto* extent = static_cast<Extent*>(read->store_own);
    if (extent != nullptr && extent->state == ExtentState::Reading) {
      if (extent->waiters != nullptr) ++mount_.fetches_shared;
      read->store_next = extent->waiters;
      extent->waiters = read;
    } else {
      ready.push_back(read);
    }
  }
  fetch(made);
  for (store::Read* read : ready) {
    read->resident = static_cast<Extent*>(read->store_own);
    ++(read->resident != nullptr       ? counters_.hits_memory
       : read->status == Code::IoError ? counters_.misses_io
                                       : counters_.misses_absent);
    read->complete(*read);
  }
  return {};
}

void MountStore::unpin(store::Resident* resident) noexcept { memory_.unpin(Extent::of(*resident)); }

void MountStore::fetch(std::span<Extent* const> extents) {
  std::unique_ptr<UpstreamRequest> request;
  const auto send = [&] {
    if (request != nullptr) upstream_->submit(std::move(request));
  };
  for (Extent* extent : extents) {
    const Scope& scope = scopes_[extent->entry.scope - 1];
    const bool full = request != nullptr && (request->bytes >= kFetchBytesMax || request->items >= kFetchItemsMax);
    if (full || (request != nullptr && request->space != scope.space)) send();
    UpstreamSection* section = request != nullptr ? request->section_for(scope.handle, extent->entry.component) : nullptr;
    if (section == nullptr) {
      send();
      request = make_request(HS_OP_GET, scope.space);
      request->done = [this](UpstreamRequest& of) { fetched(of); };
      section = request->section_for(scope.handle, extent->entry.component);
    }
    section->add_key(extent->engine_key_bytes());
    section->owners.push_back(extent);
    uint32_t pieces = 0;
    extent->slot().for_range(0, extent->block_bytes(), [&](Bytes piece) {
      section->pieces.push_back({piece.data(), piece.size()});
      ++pieces;
    });
    section->piece_counts.push_back(pieces);
    request->bytes += extent->block_bytes();
    ++mount_.fetches;
  }
  send();
}

void MountStore::fetched(UpstreamRequest& request) {
  for (UpstreamSection& section : request.sections) {
    for (uint32_t i = 0; i < section.count; ++i) {
      auto& extent = *static_cast<Extent*>(section.owners[i]);
      Status status = status_of(section.answers[i]);
      // Shorter than it was said to be: another block under the name. It is asked for again.
      if (status.ok() && section.lengths[i] != extent.block_bytes()) status = Code::NotFound;
      if (status.ok()) {
        mount_.fetch_bytes += extent.block_bytes();
        // Of one that was deleted meanwhile this is no news.
        if (extent.listed) {
          learn(extent.key, {extent.entry.scope, extent.entry.component, extent.block_bytes(), request.started_us,
                             std::string(as_text(extent.engine_key_bytes()))});
        }
      } else {
        ++mount_.fetches_failed;
        if (status == Code::NotFound && extent.listed) known_.erase(extent.key);
      }
      arrived(extent, status);
    }
  }
}

// The core touches its memory no more. Who waits has a pin on it.
void MountStore::arrived(Extent& extent, Status status) {
  HALFSTEP_CHECK(extent.state == ExtentState::Reading, extent.state);
  // Deleted meanwhile: nobody hears of its bytes.
  if (status.ok() && !extent.listed) status = Code::NotFound;
  const wire::GroupShape* shape = shape_of(extent.entry.scope, {extent.entry.component});
  if (status.ok() && (shape == nullptr || !cut(extent, *shape, extent.block_bytes()))) status = Code::NotFound;
  note_arrival(extent, status.ok());
  if (status.ok()) {
    sum(extent);
  } else {
    memory_.unlist(extent);
  }
  memory_.pin(extent);
  memory_.set_state(extent, ExtentState::Clean);
  for (store::Read* read = std::exchange(extent.waiters, nullptr); read != nullptr;) {
    store::Read* next = read->store_next;
    read->status = status;
    read->resident = status.ok() ? &extent : nullptr;
    if (!status.ok()) memory_.unpin(extent);
    ++(status.ok() ? counters_.hits_flash : status == Code::NotFound ? counters_.misses_absent : counters_.misses_io);
    read->complete(*read);
    read = next;
  }
  memory_.unpin(extent);
}

// False: no block of this group has that length.
bool MountStore::cut(Extent& extent, const wire::GroupShape& shape, uint32_t block_bytes) {
  const uint32_t parts = shape.parts_of(block_bytes);
  if (parts == 0) return false;
  extent.part_table().reset(parts);
  store::cut_parts(shape, block_bytes, {extent.part_table().data(), parts});
  return true;
}

// The sums by which its parts go out, and the one that tells versions of a block apart.
void MountStore::sum(Extent& extent) noexcept {
  uint32_t whole = 0;
  for (store::PartInfo& part : extent.part_table()) {
    part.stored_crc = 0;
    extent.slot().for_range(part.offset, part.stored_bytes,
                            [&](Bytes piece) { part.stored_crc = crc32c(piece, part.stored_crc); });
    whole = crc32c_combine(whole, part.stored_crc, part.stored_bytes);
  }
  extent.set_checksum(whole);
}

// ---- Ahead of the first read -----------------------------------------------------------------------------------------------

void MountStore::stage(store::Stage& stage) { staged_.push_back(&stage); }

bool MountStore::withdraw(store::Stage& stage) noexcept { return std::erase(staged_, &stage) != 0; }

void MountStore::send_stages() {
  while (!staged_.empty() && staging_bytes_ < kStagingBytesMax) {
    store::Stage* stage = staged_.front();
    staged_.pop_front();
    const Extent* there = servable(stage->key);
    const Known* known = find_known(stage->key);
    stage->was_there = there != nullptr && there->state != ExtentState::Reading;
    if (stage->was_there || (there == nullptr && (known == nullptr || !fresh(*known)))) {
      stage->status = stage->was_there ? Status() : why_absent(stage->key);
      stage->done(*stage);
      continue;
    }
    const uint64_t bytes = there != nullptr ? there->block_bytes() : known->block_bytes;
    auto staging = std::make_unique<Staging>();
    store::Read& read = staging->read;
    read.key = stage->key;
    read.component = stage->component;
    read.complete = &MountStore::on_staged;
    read.ahead = true;
    read.owner = this;
    read.tag = reinterpret_cast<uintptr_t>(stage);
    staging->bytes = bytes;
    staging_.emplace(stage, std::move(staging));
    staging_bytes_ += bytes;
    std::array<store::Read*, 1> window = {&read};
    const Status status = begin_reads(window);
    if (status.ok()) continue;
    staging_bytes_ -= bytes;
    staging_.erase(stage);
    if (status == Code::Throttled && stage->follow) {
      staged_.push_front(stage);
      return;
    }
    stage->status = status == Code::Throttled ? Status(Code::Throttled, store::kThrottledMemory) : status;
    stage->done(*stage);
  }
}

// What was brought ahead of its first read has ended so.
void MountStore::note_read(Extent& extent) noexcept {
  store::Counters::StagedOfKind& kind = counters_.staged_kinds[extent.staged_kind];
  if (extent.staged == Extent::Staged::Coming) {
    extent.staged = Extent::Staged::Late;
    ++counters_.staged_late;
    kind.late_bytes += extent.slot().held_bytes();
  } else if (extent.staged == Extent::Staged::Kept) {
    extent.staged = Extent::Staged::No;
    ++counters_.staged_used;
    kind.used_bytes += extent.slot().held_bytes();
  }
}

// Of one that is brought ahead: from here on it waits for its first read, unless that has come already.
void MountStore::note_arrival(Extent& extent, bool is_there) noexcept {
  if (extent.staged == Extent::Staged::No) return;
  if (is_there) {
    ++counters_.staged;
    counters_.staged_bytes += extent.slot().held_bytes();
    counters_.staged_kinds[extent.staged_kind].bytes += extent.slot().held_bytes();
  }
  const bool is_kept = is_there && extent.staged == Extent::Staged::Coming;
  extent.staged = is_kept ? Extent::Staged::Kept : Extent::Staged::No;
}

void MountStore::on_staged(store::Read& read) {
  auto& store = *static_cast<MountStore*>(read.owner);
  auto* stage = reinterpret_cast<store::Stage*>(static_cast<uintptr_t>(read.tag));
  auto node = store.staging_.extract(stage);
  stage->status = read.status;
  if (read.resident != nullptr) store.unpin(read.resident);
  store.staging_bytes_ -= std::min(store.staging_bytes_, node.mapped()->bytes);
  stage->done(*stage);
}

// ---- Touching ------------------------------------------------------------------------------------------------------------

void MountStore::touch(std::span<const IndexKey> keys) {
  memory_.begin_moment();
  for (const IndexKey& key : keys) {
    if (Extent* extent = memory_.find(key); extent != nullptr) memory_.touch(*extent);
    note_touch(key);
    ++counters_.touches;
  }
}

void MountStore::note_touch(const IndexKey& key) {
  if (touches_.empty()) touch_at_us_ = clock_.now_us() + kTouchUs;
  touches_.push_back(key);
  if (touches_.size() >= kTouchesMax) send_touches();
}

// Leaf first, root last, as they came. Nobody waits for the answer.
void MountStore::send_touches() {
  std::vector<std::unique_ptr<UpstreamRequest>> requests;
  std::unordered_set<IndexKey, KeyHash> told;
  // Of several uses the last one counts.
  std::reverse(touches_.begin(), touches_.end());
  std::erase_if(touches_, [&](const IndexKey& key) { return !told.insert(key).second; });
  std::reverse(touches_.begin(), touches_.end());
  for (const IndexKey& key : touches_) {
    const Known* known = find_known(key);
    if (known == nullptr || layout_of(known->scope) == nullptr) continue;
    const Scope& scope = scopes_[known->scope - 1];
    UpstreamSection* section = nullptr;
    if (!requests.empty() && requests.back()->space == scope.space) {
      section = requests.back()->section_for(scope.handle, known->component);
    }
    if (section == nullptr) {
      requests.push_back(make_request(HS_OP_TOUCH, scope.space));
      requests.back()->done = [](UpstreamRequest&) {};
      section = requests.back()->section_for(scope.handle, known->component);
    }
    section->add_key(as_bytes(known->engine_key));
    ++mount_.touches;
  }
  touches_.clear();
  for (auto& request : requests) upstream_->submit(std::move(request));
}

}  // namespace halfstep::mount
