// store_life.cc — how a block's life goes on and ends: touch, expire, holds, remove.
// What a restart has to know is in force at once in memory and answered when it is on media: who is not answered does not know
// what a restart will say. When another owner has taken the store nothing is written any more, and so nothing is changed.
#include <array>
#include <cstring>

#include "store/format/mutant.h"
#include "store/store_impl.h"
#include "wire/message.h"

namespace halfstep::store {
namespace {

constexpr uint64_t kForLongestS = uint64_t{1} << 40;

void answer(Change& change, Status status) {
  change.status = status;
  change.done(change);
}

}  // namespace

// ---- Remove ----------------------------------------------------------------------------------------------------------------

void StoreImpl::remove(Change& change) {
  if (header_writer_.lost()) return answer(change, Code::Closed);
  const bool there = present(change.key);
  // An expired block counts as absent, but needs its tombstone: the clock may go back.
  bool stored = there;
  note_removed(change, there);
  // A block that is being filled is not there yet: what its writer commits later is a newer one.
  Extent* extent = core_.memory.find(change.key);
  if (extent != nullptr && extent->state != ExtentState::Filling && !HALFSTEP_MUTANT(DeletedStaysHot)) {
    core_.memory.unlist(*extent);
    core_.memory.settle(*extent);
  }
  if (const Block block = core_.catalog.find(change.key); block) stored = core_.catalog.drop(change.key, block.location);
  // So does one that is not known: it may have been swept away, or frames that could not be read whole, or are being given up,
  // may hold it, and a restart may find it there.
  stored = stored || core_.catalog.any_may_return();
  // A lease waits for the block to come back; a pin was taken on these bytes.
  core_.holds.unpin_all(change.key, [](const IndexKey&) {});
  change.status = there ? Status() : Status(Code::NotFound);
  if (!stored || HALFSTEP_MUTANT(TombstoneNotLogged)) {
    if (!core_.all_buried()) change.status = Code::IoError;  // it may come back: its tombstone is still to be written
    absent_removes_.push_back({&change, core_.log.tombstones_appended()});
    return;
  }
  if (there) {
    ++core_.counters.removes;
    ++core_.counters.blocks_evicted;
    ++core_.counters.blocks_evicted_deleted;
  }
  change.store_own = &core_;
  core_.log_tombstone(
      change.key,
      [](RecordLog::Pending& pending, Status status) {
        auto* done = static_cast<Change*>(pending.owner);
        auto* core = static_cast<Core*>(done->store_own);
        status.ok() ? core->give_pending(pending) : core->keep_burying(pending);
        if (!status.ok()) done->status = Status(Code::IoError, status.detail());
        done->done(*done);
      },
      &change);
}

// What goes by this remove, or went before it by its own time and was not swept yet.
void StoreImpl::note_removed(const Change& change, bool there) {
  const EventReason why = there ? EventReason::Deleted : EventReason::Expired;
  const Extent* extent = core_.memory.find(change.key);
  if (extent != nullptr && extent->state == ExtentState::Dirty && extent->listed) return core_.note_removed(*extent, why);
  const Block block = core_.catalog.find(change.key);
  if (!block) return;
  const uint32_t bytes = core_.catalog.block_bytes(block, change.component);
  core_.note_removed({change.key, block.scope, change.component.value, bytes, change.engine_key}, why);
}

void StoreImpl::answer_absent_removes() {
  while (absent_remove_due()) {
    Change& change = *absent_removes_.front().change;
    absent_removes_.pop_front();
    if (!core_.all_buried()) change.status = Code::IoError;
    change.done(change);
  }
}

// ---- Touch, expire ---------------------------------------------------------------------------------------------------------

void StoreImpl::touch(std::span<const IndexKey> keys) {
  core_.note_moment();
  for (const IndexKey& key : keys) core_.touch(key);
  core_.counters.touches += keys.size();
}

void StoreImpl::expire(Change& change) {
  if (header_writer_.lost()) return answer(change, Code::Closed);
  if (!present(change.key)) return answer(change, Code::NotFound);
  // A record would apply to any older copy that is still to be found, and to a newer one as well.
  if (recovering()) return answer(change, {Code::Throttled, refuse_while_recovering()});
  if (!log_takes_life()) return answer(change, {Code::Throttled, kThrottledLog});
  const uint64_t until_s = core_.store_time_s() + change.for_s;
  const uint32_t expiry_s = change.for_s == 0 ? 0 : static_cast<uint32_t>(std::min<uint64_t>(until_s, UINT32_MAX));
  core_.catalog.set_expiry(change.key, expiry_s);
  // What is in memory answers gets, whether it is on flash already or not; what is being filled is a successor.
  Extent* extent = core_.memory.find(change.key);
  if (extent != nullptr && extent->state != ExtentState::Filling && !HALFSTEP_MUTANT(HotKeepsExpiry)) {
    extent->entry.expiry_s = expiry_s;
    extent->entry.flags &= static_cast<uint8_t>(~format::kEntrySliding);  // whoever says when has the last word
    core_.round_expiry(*extent);
  }
  sweeper_.note_expiry(expiry_s);
  if (HALFSTEP_MUTANT(ExpiryNotLogged)) return answer(change, {});
  format::Record record;
  record.kind = static_cast<uint8_t>(format::RecordKind::Expiry);
  record.value = expiry_s;
  log_life(record, change);
}

// ---- Holds -----------------------------------------------------------------------------------------------------------------

uint64_t StoreImpl::owner_of(std::string_view name_space, uint64_t owner) const noexcept {
  std::array<std::byte, sizeof(owner) + wire::kNamespaceBytesMax> message;
  store_le(message.data(), owner);
  const size_t bytes = std::min<size_t>(name_space.size(), wire::kNamespaceBytesMax);
  std::memcpy(message.data() + sizeof(owner), name_space.data(), bytes);
  return keyed_hash(core_.owner_secret, ConstBytes(message).first(sizeof(owner) + bytes)).low;
}

Holds::Held StoreImpl::held_block(const IndexKey& key) noexcept {
  if (const Block block = core_.catalog.find(key)) return {block.scope, block.extent_bytes()};
  const Extent* dirty = core_.memory.find_dirty(key);
  return {dirty->entry.scope, dirty->shape.extent_bytes()};
}

Status StoreImpl::hold(const IndexKey& key, uint64_t owner, uint64_t until_us) {
  if (!present(key)) return Code::NotFound;
  if (const Status taken = core_.holds.take(key, owner, core_.clock.now_us(), until_us, held_block(key)); !taken.ok()) {
    ++core_.counters.holds_refused;
    return taken;
  }
  ++core_.counters.holds_taken;
  core_.catalog.set_held(key, true);
  return {};
}

void StoreImpl::hold(Change& change) {
  if (header_writer_.lost()) return answer(change, Code::Closed);
  if (!present(change.key)) return answer(change, Code::NotFound);
  const Holds::Held pinned = held_block(change.key);
  const auto refuse = [&](int32_t why) {
    ++core_.counters.holds_refused;
    answer(change, {Code::Throttled, why});
  };
  if (recovering()) return refuse(refuse_while_recovering());
  if (!log_takes_life()) return refuse(kThrottledLog);
  if (!core_.holds.pinned(change.key) && !core_.names.pin_fits(pinned.scope, pinned.bytes) && !find_dead_pins(pinned)) {
    return refuse(kThrottledPins);
  }
  if (!core_.holds.place_for(change.key, change.holder, pinned.scope)) return refuse(kThrottledHolds);
  const uint64_t now_us = core_.clock.now_us();
  const uint64_t now_s = core_.store_time_s();
  const uint64_t until_s = change.for_s == 0 ? format::kHoldNoEnd : now_s + std::min(change.for_s, kForLongestS);
  change.store_fresh_pin = !core_.holds.pinned_by(change.key, change.holder);
  if (!core_.holds.pin(change.key, change.holder, now_us, until_us_of(until_s, now_s, now_us), pinned)) {
    return refuse(kThrottledHolds);
  }
  ++core_.counters.holds_taken;
  core_.catalog.set_held(change.key, true);
  format::Record record;
  record.kind = static_cast<uint8_t>(format::RecordKind::Hold);
  record.owner = change.holder;
  record.value = until_s;
  log_life(record, change);
}

uint64_t StoreImpl::renew(uint64_t owner, uint64_t until_us) noexcept {
  return core_.holds.renew(owner, core_.clock.now_us(), until_us);
}

void StoreImpl::release(Change& change) {
  if (header_writer_.lost()) return answer(change, Code::Closed);
  // Which pins there are is known when recovery ends.
  const bool logged = recovering() || core_.holds.pinned_by(change.key, change.holder);
  core_.holds.release(change.key, change.holder, [this](const IndexKey& last) { core_.unhold(last); });
  if (!logged) return answer(change, {});
  format::Record record;
  record.kind = static_cast<uint8_t>(format::RecordKind::Hold);
  record.owner = change.holder;
  record.value = format::kHoldReleased;
  log_life(record, change);
}

void StoreImpl::release_all(Change& change) {
  if (header_writer_.lost()) return answer(change, Code::Closed);
  const bool logged = recovering() || core_.holds.any_pinned_by(change.holder);
  core_.holds.release_all(change.holder, [this](const IndexKey& last) { core_.unhold(last); });
  if (!logged) return answer(change, {});
  change.key = {};
  format::Record record;
  record.kind = static_cast<uint8_t>(format::RecordKind::Hold);
  record.flags = format::kHoldAllKeys;
  record.owner = change.holder;
  record.value = format::kHoldReleased;
  log_life(record, change);
}

// A pin outlives its block when that is evicted despite it, cleared or lost to the media: the budget is theirs until somebody
// needs it. Looked for at most once a second: it walks all holds.
bool StoreImpl::find_dead_pins(const Holds::Held& wanted) {
  if (core_.clock.now_us() < dead_pins_at_us_) return false;
  dead_pins_at_us_ = core_.clock.now_us() + kTidyUs;
  core_.holds.unpin_dead([this](const IndexKey& key) { return present(key); },
                         [this](const IndexKey& last) { core_.unhold(last); });
  return core_.names.pin_fits(wanted.scope, wanted.bytes);
}

// ---- What they share -------------------------------------------------------------------------------------------------------

bool StoreImpl::log_takes_life() {
  if (core_.log.takes_life()) return true;
  if (core_.clock.now_us() < room_for_life_at_us_) return false;
  room_for_life_at_us_ = core_.clock.now_us() + kTidyUs;
  core_.log.make_room_for_life(core_.catalog.oldest_generation(core_.sequence), core_.store_time_s());
  return core_.log.takes_life();
}

void StoreImpl::log_life(format::Record record, Change& change) {
  record.sequence = core_.draw();
  record.key_low = change.key.low;
  record.key_high = change.key.high;
  change.store_own = this;
  RecordLog::Pending& pending = core_.take_pending();
  pending.record = record;
  pending.owner = &change;
  pending.done = [](RecordLog::Pending& done, Status status) {
    auto& of = *static_cast<Change*>(done.owner);
    auto& self = *static_cast<StoreImpl*>(of.store_own);
    self.core_.give_pending(done);
    // A pin that is not on media is none. What a restart says of it is unknown, as the answer tells.
    if (!status.ok() && of.store_fresh_pin) {
      self.core_.holds.release(of.key, of.holder, [&self](const IndexKey& last) { self.core_.unhold(last); });
    }
    answer(of, status.ok() ? Status() : Status(Code::IoError, status.detail()));
  };
  core_.log.append(pending);
}

}  // namespace halfstep::store
