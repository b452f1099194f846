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
  Extent* extent = memory_.find(change.key);
  if (extent != nullptr && extent->state != ExtentState::Filling && !HALFSTEP_MUTANT(DeletedStaysHot)) {
    memory_.unlist(*extent);
    memory_.settle(*extent);
  }
  if (const Block block = catalog_.find(change.key); block) stored = catalog_.drop(change.key, block.location);
  // So does one that is not known: it may have been swept away, or frames that could not be read whole, or are being given up,
  // may hold it, and a restart may find it there.
  stored = stored || catalog_.any_may_return();
  // A lease waits for the block to come back; a pin was taken on these bytes.
  holds_.unpin_all(change.key, [](const IndexKey&) {});
  change.status = there ? Status() : Status(Code::NotFound);
  if (!stored || HALFSTEP_MUTANT(TombstoneNotLogged)) {
    if (!tombstones_.all_buried()) change.status = Code::IoError;  // it may come back: its tombstone is still to be written
    absent_removes_.push_back({&change, log_.tombstones_appended()});
    return;
  }
  if (there) {
    ++counters_.removes;
    ++counters_.blocks_evicted;
    ++counters_.blocks_evicted_deleted;
  }
  change.store_own = &tombstones_;
  tombstones_.log(
      change.key,
      [](RecordLog::Pending& pending, Status status) {
        auto* done = static_cast<Change*>(pending.owner);
        static_cast<Tombstones*>(done->store_own)->answered(pending, status);
        if (!status.ok()) done->status = Status(Code::IoError, status.detail());
        done->done(*done);
      },
      &change);
}

// What goes by this remove, or went before it by its own time and was not swept yet.
void StoreImpl::note_removed(const Change& change, bool there) {
  const EventReason why = there ? EventReason::Deleted : EventReason::Expired;
  const Extent* extent = memory_.find(change.key);
  if (extent != nullptr && extent->state == ExtentState::Dirty && extent->listed) return block_events_.removed(*extent, why);
  const Block block = catalog_.find(change.key);
  if (!block) return;
  const uint32_t bytes = catalog_.block_bytes(block, change.component);
  block_events_.removed({change.key, block.scope, change.component.value, bytes, change.engine_key}, why);
}

void StoreImpl::answer_absent_removes() {
  while (absent_remove_due()) {
    Change& change = *absent_removes_.front().change;
    absent_removes_.pop_front();
    if (!tombstones_.all_buried()) change.status = Code::IoError;
    change.done(change);
  }
}

// ---- Touch, expire ---------------------------------------------------------------------------------------------------------

void StoreImpl::touch(std::span<const IndexKey> keys) {
  uses_.note_moment();
  for (const IndexKey& key : keys) uses_.touch(key);
  counters_.touches += keys.size();
}

void StoreImpl::expire(Change& change) {
  if (header_writer_.lost()) return answer(change, Code::Closed);
  if (!present(change.key)) return answer(change, Code::NotFound);
  // A record would apply to any older copy that is still to be found, and to a newer one as well.
  if (recovering()) return answer(change, {Code::Throttled, refuse_while_recovering()});
  if (!log_takes_life()) return answer(change, {Code::Throttled, kThrottledLog});
  const uint64_t until_s = store_time_.now_s() + change.for_s;
  const uint32_t expiry_s = change.for_s == 0 ? 0 : static_cast<uint32_t>(std::min<uint64_t>(until_s, UINT32_MAX));
  catalog_.set_expiry(change.key, expiry_s);
  // What is in memory answers gets, whether it is on flash already or not; what is being filled is a successor.
  Extent* extent = memory_.find(change.key);
  if (extent != nullptr && extent->state != ExtentState::Filling && !HALFSTEP_MUTANT(HotKeepsExpiry)) {
    extent->entry.expiry_s = expiry_s;
    extent->entry.flags &= static_cast<uint8_t>(~format::kEntrySliding);  // whoever says when has the last word
    round_expiry(catalog_, *extent);
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
  return keyed_hash(owner_secret_, ConstBytes(message).first(sizeof(owner) + bytes)).low;
}

Holds::Held StoreImpl::held_block(const IndexKey& key) noexcept {
  if (const Block block = catalog_.find(key)) return {block.scope, block.extent_bytes()};
  const Extent* dirty = memory_.find_dirty(key);
  return {dirty->entry.scope, dirty->shape.extent_bytes()};
}

Status StoreImpl::hold(const IndexKey& key, uint64_t owner, uint64_t until_us) {
  if (!present(key)) return Code::NotFound;
  if (const Status taken = holds_.take(key, owner, clock_.now_us(), until_us, held_block(key)); !taken.ok()) {
    ++counters_.holds_refused;
    return taken;
  }
  ++counters_.holds_taken;
  catalog_.set_held(key, true);
  return {};
}

void StoreImpl::hold(Change& change) {
  if (header_writer_.lost()) return answer(change, Code::Closed);
  if (!present(change.key)) return answer(change, Code::NotFound);
  const Holds::Held pinned = held_block(change.key);
  const auto refuse = [&](int32_t why) {
    ++counters_.holds_refused;
    answer(change, {Code::Throttled, why});
  };
  if (recovering()) return refuse(refuse_while_recovering());
  if (!log_takes_life()) return refuse(kThrottledLog);
  if (!holds_.pinned(change.key) && !names_.pin_fits(pinned.scope, pinned.bytes) && !find_dead_pins(pinned)) {
    return refuse(kThrottledPins);
  }
  if (!holds_.place_for(change.key, change.holder, pinned.scope)) return refuse(kThrottledHolds);
  const uint64_t now_us = clock_.now_us();
  const uint64_t now_s = store_time_.now_s();
  const uint64_t until_s = change.for_s == 0 ? format::kHoldNoEnd : now_s + std::min(change.for_s, kForLongestS);
  change.store_fresh_pin = !holds_.pinned_by(change.key, change.holder);
  if (!holds_.pin(change.key, change.holder, now_us, Holds::until_us_of(until_s, now_s, now_us), pinned)) {
    return refuse(kThrottledHolds);
  }
  ++counters_.holds_taken;
  catalog_.set_held(change.key, true);
  format::Record record;
  record.kind = static_cast<uint8_t>(format::RecordKind::Hold);
  record.owner = change.holder;
  record.value = until_s;
  log_life(record, change);
}

uint64_t StoreImpl::renew(uint64_t owner, uint64_t until_us) noexcept { return holds_.renew(owner, clock_.now_us(), until_us); }

void StoreImpl::release(Change& change) {
  if (header_writer_.lost()) return answer(change, Code::Closed);
  // Which pins there are is known when recovery ends.
  const bool logged = recovering() || holds_.pinned_by(change.key, change.holder);
  holds_.release(change.key, change.holder, [this](const IndexKey& last) { catalog_.set_held(last, false); });
  if (!logged) return answer(change, {});
  format::Record record;
  record.kind = static_cast<uint8_t>(format::RecordKind::Hold);
  record.owner = change.holder;
  record.value = format::kHoldReleased;
  log_life(record, change);
}

void StoreImpl::release_all(Change& change) {
  if (header_writer_.lost()) return answer(change, Code::Closed);
  const bool logged = recovering() || holds_.any_pinned_by(change.holder);
  holds_.release_all(change.holder, [this](const IndexKey& last) { catalog_.set_held(last, false); });
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
  if (clock_.now_us() < dead_pins_at_us_) return false;
  dead_pins_at_us_ = clock_.now_us() + kTidyUs;
  holds_.unpin_dead([this](const IndexKey& key) { return present(key); },
                    [this](const IndexKey& last) { catalog_.set_held(last, false); });
  return names_.pin_fits(wanted.scope, wanted.bytes);
}

// ---- What they share -------------------------------------------------------------------------------------------------------

bool StoreImpl::log_takes_life() {
  if (log_.takes_life()) return true;
  if (clock_.now_us() < room_for_life_at_us_) return false;
  room_for_life_at_us_ = clock_.now_us() + kTidyUs;
  log_.make_room_for_life(catalog_.oldest_generation(sequence_.last()), store_time_.now_s());
  return log_.takes_life();
}

void StoreImpl::log_life(format::Record record, Change& change) {
  record.sequence = sequence_.draw();
  record.key_low = change.key.low;
  record.key_high = change.key.high;
  change.store_own = this;
  RecordLog::Pending& pending = log_.take_pending();
  pending.record = record;
  pending.owner = &change;
  pending.done = [](RecordLog::Pending& done, Status status) {
    auto& of = *static_cast<Change*>(done.owner);
    auto& self = *static_cast<StoreImpl*>(of.store_own);
    self.log_.give_pending(done);
    // A pin that is not on media is none. What a restart says of it is unknown, as the answer tells.
    if (!status.ok() && of.store_fresh_pin) {
      self.holds_.release(of.key, of.holder, [&self](const IndexKey& last) { self.catalog_.set_held(last, false); });
    }
    answer(of, status.ok() ? Status() : Status(Code::IoError, status.detail()));
  };
  log_.append(pending);
}

}  // namespace halfstep::store
