#include "sim/sharded_store.h"

#include <algorithm>
#include <bit>

#include "store/durable/header_keeper.h"

namespace halfstep::sim {
namespace {

// As a client's cursor names the shard.
constexpr unsigned kCursorShift = 60;

}  // namespace

Fault ShardedStore::open(io::Engine& engine, const std::vector<Arena*>& arenas, const Clock& clock,
                         const store::Options& options, std::unique_ptr<store::Store>* out) {
  std::shared_ptr<store::HeaderKeeper> keeper;
  if (Fault fault = store::HeaderKeeper::load(engine, &keeper, store::pausing_by(clock)); !fault.ok()) return fault;
  std::unique_ptr<ShardedStore> all(new ShardedStore(engine, arenas));
  for (uint32_t number = 0; number < arenas.size(); ++number) {
    One one;
    one.slots = std::make_unique<SlotPool>(*arenas[number]);
    // Nobody sleeps here, so nobody has to be woken; who waits for the others lets them have their turns.
    const auto yield = [store = all.get()] {
      store->engine_.poll();
      store->turn();
    };
    const store::ShardPlace place{keeper, number, {}, yield};
    if (Fault fault = store::Store::open_shard(engine, *one.slots, clock, options, place, &one.store); !fault.ok())
      return fault;
    all->shards_.push_back(std::move(one));
  }
  *out = std::move(all);
  return {};
}

// ---- What is told of all ---------------------------------------------------------------------------------------------------

const store::RecoveryReport& ShardedStore::recovery() const noexcept {
  report_ = {};
  for (const One& one : shards_) {
    const store::RecoveryReport& r = one.store->recovery();
    report_.blocks += r.blocks;
    report_.bytes += r.bytes;
    report_.segments_left += r.segments_left;
    report_.segments_by_footer += r.segments_by_footer;
    report_.segments_by_frames += r.segments_by_frames;
    report_.segments_empty += r.segments_empty;
    report_.segments_bad += r.segments_bad;
    report_.tombstones += r.tombstones;
  }
  return report_;
}

bool ShardedStore::recovering() const noexcept {
  return std::any_of(shards_.begin(), shards_.end(), [](const One& one) { return one.store->recovering(); });
}

std::vector<store::NamespaceInfo> ShardedStore::namespaces() const {
  std::vector<store::NamespaceInfo> out = first().namespaces();
  for (size_t number = 1; number < shards_.size(); ++number) {
    for (const store::NamespaceInfo& info : shards_[number].store->namespaces()) {
      for (store::NamespaceInfo& known : out) known.used_bytes += known.name == info.name ? info.used_bytes : 0;
    }
  }
  return out;
}

const store::Counters& ShardedStore::counters() const noexcept {
  using Numbers = std::array<uint64_t, sizeof(store::Counters) / sizeof(uint64_t)>;
  Numbers sums{};
  for (const One& one : shards_) {
    const auto numbers = std::bit_cast<Numbers>(one.store->counters());
    for (size_t i = 0; i < sums.size(); ++i) sums[i] += numbers[i];
  }
  counters_ = std::bit_cast<store::Counters>(sums);
  return counters_;
}

store::Gauges ShardedStore::gauges() const noexcept {
  store::Gauges sum;
  for (const One& one : shards_) {
    const store::Gauges g = one.store->gauges();
    sum.blocks += g.blocks;
    sum.bytes_live += g.bytes_live;
    sum.segments_free += g.segments_free;
    sum.segments_open += g.segments_open;
    sum.segments_sealed += g.segments_sealed;
    sum.segments_bad += g.segments_bad;
    sum.segments_unread += g.segments_unread;
    sum.writes_out = sum.writes_out || g.writes_out;
    sum.holds += g.holds;
    sum.pins += g.pins;
    sum.memory_pinned_bytes += g.memory_pinned_bytes;
    sum.memory_capacity_bytes += g.memory_capacity_bytes;
    sum.staged_bytes += g.staged_bytes;
  }
  return sum;
}

// ---- What goes to all ------------------------------------------------------------------------------------------------------

// Whose it is follows from where its memory lies.
void ShardedStore::unpin(store::Resident* resident) noexcept {
  const std::byte* at = nullptr;
  resident->slot().for_range(0, 1, [&](Bytes piece) { at = piece.data(); });
  for (size_t number = 0; number < shards_.size(); ++number) {
    const Bytes memory = arenas_[number]->bytes();
    if (at >= memory.data() && at < memory.data() + memory.size()) return shards_[number].store->unpin(resident);
  }
}

void ShardedStore::list(store::Listing& listing) {
  listing_ = &listing;
  listed_shard_ = listing.cursor >> kCursorShift;
  inner_ = listing;
  inner_.cursor = listing.cursor & ((uint64_t{1} << kCursorShift) - 1);
  inner_.owner = this;
  inner_.visit = [](store::Listing& inner, const store::Listed& listed) {
    store::Listing& to = *static_cast<ShardedStore*>(inner.owner)->listing_;
    to.visit(to, listed);
  };
  inner_.done = [](store::Listing& inner) {
    auto& self = *static_cast<ShardedStore*>(inner.owner);
    const uint64_t shard = self.listed_shard_ + (inner.next == 0 ? 1 : 0);
    self.listing_->next = shard < self.shards_.size() ? shard << kCursorShift | inner.next : 0;
    self.listing_->done(*self.listing_);
  };
  shards_[listed_shard_].store->list(inner_);
}

uint64_t ShardedStore::renew(uint64_t owner, uint64_t until_us) noexcept {
  uint64_t renewed = 0;
  for (const One& one : shards_) renewed += one.store->renew(owner, until_us);
  return renewed;
}

void ShardedStore::release_all(store::Change& change) {
  ReleaseOfAll& release = releases_.emplace_back();
  release.asked = &change;
  release.open = static_cast<uint32_t>(shards_.size());
  for (const One& one : shards_) {
    store::Change& part = release.parts.emplace_back();
    part.holder = change.holder;
    part.owner = &release;
    part.done = [](store::Change& done) {
      auto& of = *static_cast<ReleaseOfAll*>(done.owner);
      if (!done.status.ok()) of.asked->status = done.status;
      if (--of.open == 0) of.asked->done(*of.asked);
    };
    one.store->release_all(part);
  }
}

store::Explanation ShardedStore::explain(const store::KeyQuestion& question) const {
  store::Explanation whole;
  for (const One& one : shards_) {
    std::vector<store::ExplainedBlock> blocks = std::move(whole.blocks);
    store::Explanation part = one.store->explain(question);
    std::ranges::move(part.blocks, std::back_inserter(blocks));
    whole = std::move(part);
    whole.blocks = std::move(blocks);
  }
  return whole;
}

// ---- Driving ---------------------------------------------------------------------------------------------------------------

void ShardedStore::turn() {
  for (size_t number = closed_; number < shards_.size(); ++number) shards_[number].store->turn();
}

uint64_t ShardedStore::next_turn_us() const noexcept {
  uint64_t next = UINT64_MAX;
  for (const One& one : shards_) next = std::min(next, one.store->next_turn_us());
  return next;
}

void ShardedStore::set_on_memory(std::function<void()> on_memory) {
  for (const One& one : shards_) one.store->set_on_memory(on_memory);
}

Status ShardedStore::close() {
  Status first_failure;
  for (const One& one : shards_) {
    const Status status = one.store->close();
    if (first_failure.ok()) first_failure = status;
    ++closed_;
  }
  return first_failure;
}

}  // namespace halfstep::sim
