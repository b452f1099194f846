#include "mount/mount_store.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/check.h"
#include "base/prng.h"
#include "store/account/explain.h"
#include "store/format/format.h"

namespace halfstep::mount {

using store::Extent;
using store::ExtentState;
using store::IndexKey;

namespace {

constexpr uint32_t kBlockBytesMax = 64 * MiB;
// How long a start waits for the upstream to say how large its blocks are. It is no error if that says nothing.
constexpr uint32_t kReadyMs = 2'000;
constexpr ptrdiff_t kScopesMax = 4096;  // alive
// About 150 bytes each.
constexpr size_t kKnownMax = 262'144;
// About 100 bytes each. The oldest of more is said to be absent.
constexpr size_t kUnansweredMax = 262'144;
// What waits for room to be brought ahead looks again.
constexpr uint64_t kStageUs = 10'000;
constexpr uint64_t kCloseUs = 5'000'000;

}  // namespace

Fault MountStore::open(SlotPool& slots, const Clock& clock, const Options& options, Place place, double write_share,
                       std::unique_ptr<Upstream> upstream, std::unique_ptr<MountStore>* out) {
  if (Fault fault = upstream->wait_ready(kReadyMs); !fault.ok()) return fault;
  auto store = std::unique_ptr<MountStore>(new MountStore(slots, clock, options, place, write_share, std::move(upstream)));
  std::array<std::byte, sizeof(HashKey)> secret;
  if (const Status status = system_random(secret); !status.ok()) return {status, "getrandom: " + errno_name(status.detail())};
  std::memcpy(&store->secret_, secret.data(), sizeof(store->secret_));
  if (store->siblings_ != nullptr) store->siblings_->join(place.shard, std::move(place.wake));
  *out = std::move(store);
  return {};
}

MountStore::MountStore(SlotPool& slots, const Clock& clock, const Options& options, const Place& place, double write_share,
                       std::unique_ptr<Upstream> upstream)
    : options_(options),
      clock_(clock),
      shard_(place.shard),
      siblings_(place.siblings),
      start_number_(place.start_number),
      memory_(slots, 0, write_share),
      upstream_(std::move(upstream)) {
  // Clients stay with the store that greeted them first: a mount of the same daemon is the same one after a restart.
  const Sha256 name = sha256(as_bytes("halfstep mount " + options_.upstream));
  std::copy_n(name.begin(), uuid_.size(), uuid_.begin());
  // What fits into either share of memory, with a page for the rounding of slots.
  const uint64_t share = std::min(memory_.write_bytes_max(), memory_.read_bytes_max());
  const uint64_t fits = share / 2 / kPageBytes * kPageBytes;
  const uint32_t theirs = upstream_->block_bytes_max();
  geometry_.block_bytes_max = static_cast<uint32_t>(std::min<uint64_t>(fits, theirs != 0 ? theirs : kBlockBytesMax));
}

MountStore::~MountStore() {
  closing_ = true;
  if (siblings_ != nullptr) (void)siblings_->leave(shard_);  // empty unless a start has failed
  upstream_->end();
}

// ---- Names ---------------------------------------------------------------------------------------------------------------

void MountStore::register_layout(std::string_view name, const wire::Layout& layout,
                                 std::function<void(Status, uint32_t)> done) {
  const uint32_t space = upstream_->space_of(name);
  if (space == UINT32_MAX) return done(Code::NotFound, 0);
  if (const uint32_t scope = find_scope(name, layout.id()); scope != 0) return done({}, scope);
  const auto alive = std::count_if(scopes_.begin(), scopes_.end(), [](const Scope& scope) { return scope.alive; });
  if (alive >= kScopesMax) return done(Code::NoSpace, 0);
  const int handle = upstream_->register_layout(space, layout.canonical());
  if (handle < 0) return done(Code::Invalid, 0);
  scopes_.push_back({space, handle, layout, true});
  done({}, static_cast<uint32_t>(scopes_.size()));
}

uint32_t MountStore::find_scope(std::string_view name, const wire::LayoutId& layout) const noexcept {
  const uint32_t space = upstream_->space_of(name);
  for (size_t i = 0; i < scopes_.size(); ++i) {
    if (scopes_[i].alive && scopes_[i].space == space && scopes_[i].layout.id() == layout) return static_cast<uint32_t>(i + 1);
  }
  return 0;
}

const wire::Layout* MountStore::layout_of(uint32_t scope) const noexcept {
  return scope != 0 && scope <= scopes_.size() && scopes_[scope - 1].alive ? &scopes_[scope - 1].layout : nullptr;
}

store::ScopeName MountStore::name_of(uint32_t scope) const {
  const Scope& of = scopes_[scope - 1];
  return {options_.namespaces[of.space], of.layout.id()};
}

const wire::GroupShape* MountStore::shape_of(uint32_t scope, wire::Component component) const noexcept {
  const wire::Layout* layout = layout_of(scope);
  return layout != nullptr && component.group() < layout->groups().size() ? &layout->groups()[component.group()] : nullptr;
}

IndexKey MountStore::key_of(const store::BlockName& name) const noexcept {
  std::array<std::byte, 2 * sizeof(uint32_t) + store::format::kEngineKeyBytesMax> message;
  store_le(message.data(), name.scope);
  store_le(message.data() + sizeof(uint32_t), name.component.value);
  constexpr size_t kHead = 2 * sizeof(uint32_t);
  std::memcpy(message.data() + kHead, name.engine_key.data(), name.engine_key.size());
  const Hash128 hash = keyed_hash(secret_, ConstBytes(message).first(kHead + name.engine_key.size()));
  return {hash.low, hash.high};
}

void MountStore::keys_of(std::span<const store::BlockName> names, std::span<IndexKey> out) const noexcept {
  for (size_t i = 0; i < names.size(); ++i) out[i] = key_of(names[i]);
}

// A change comes with its key, and the key says which scope made it. 0: none that is alive.
uint32_t MountStore::scope_of_key(const IndexKey& key, wire::Component component, ConstBytes engine_key) const noexcept {
  for (uint32_t scope = 1; scope <= scopes_.size(); ++scope) {
    if (scopes_[scope - 1].alive && key_of({scope, component, engine_key}) == key) return scope;
  }
  return 0;
}

// ---- What is known -------------------------------------------------------------------------------------------------------

MountStore::Known* MountStore::find_known(const IndexKey& key) noexcept {
  const auto at = known_.find(key);
  return at == known_.end() ? nullptr : &at->second;
}

void MountStore::learn(const IndexKey& key, Known known) {
  unanswered_.erase(key);
  if (Known* before = find_known(key); before != nullptr) {
    // Another length: it was deleted and put again elsewhere, and the copy here is of the block that is gone.
    Extent* extent = before->block_bytes != known.block_bytes ? memory_.find(key) : nullptr;
    if (extent != nullptr && extent->state == ExtentState::Clean && extent->block_bytes() != known.block_bytes) drop(*extent);
    before->block_bytes = known.block_bytes;
    before->seen_us = std::max(before->seen_us, known.seen_us);
    return;
  }
  // The same of a copy whose name was forgotten.
  if (Extent* extent = memory_.find(key);
      extent != nullptr && extent->state == ExtentState::Clean && extent->block_bytes() != known.block_bytes) {
    drop(*extent);
  }
  known_.emplace(key, std::move(known));
  known_order_.push_back(key);
  // Whoever is forgotten is asked for again; of a block in memory, too.
  while (known_order_.size() > kKnownMax) {
    known_.erase(known_order_.front());
    known_order_.pop_front();
    ++mount_.forgotten;
  }
}

// It is not there any more: not to be asked for, nor served.
void MountStore::forget_block(const IndexKey& key) noexcept {
  known_.erase(key);
  unanswered_.erase(key);
  if (Extent* extent = memory_.find(key); extent != nullptr) drop(*extent);
}

void MountStore::note_unanswered(const IndexKey& key) {
  const uint64_t number = ++unanswered_noted_;
  unanswered_.insert_or_assign(key, number);
  unanswered_order_.emplace_back(key, number);
  while (unanswered_order_.size() > kUnansweredMax) {
    const auto& [oldest, its_number] = unanswered_order_.front();
    if (const auto at = unanswered_.find(oldest); at != unanswered_.end() && at->second == its_number) unanswered_.erase(at);
    unanswered_order_.pop_front();
  }
}

// Of one that is neither in memory nor known.
Status MountStore::why_absent(const IndexKey& key) const noexcept {
  return unanswered(key) ? Status(Code::IoError, shard::kNoAnswer) : Status(Code::NotFound);
}

// Nobody finds it any more. Who reads it, or sends from it, goes on.
void MountStore::drop(Extent& extent) noexcept {
  memory_.unlist(extent);
  memory_.settle(extent);
}

// One that nobody has found yet, or will any more.
void MountStore::discard(Extent& extent) noexcept {
  memory_.unlist(extent);
  memory_.set_state(extent, ExtentState::Clean);
  memory_.settle(extent);
}

// ---- Driving -------------------------------------------------------------------------------------------------------------

std::unique_ptr<UpstreamRequest> MountStore::make_request(uint32_t operation, uint32_t space) {
  auto request = std::make_unique<UpstreamRequest>();
  request->operation = operation;
  request->space = space;
  request->deadline_us = options_.upstream_deadline_us;
  request->started_us = clock_.now_us();
  return request;
}

void MountStore::turn() {
  if (siblings_ != nullptr) {
    for (const Siblings::Call& call : siblings_->take(shard_)) call(*this);
  }
  upstream_->turn();
  send_puts();
  if (!touches_.empty() && clock_.now_us() >= touch_at_us_) send_touches();
  send_sayings();
  send_stages();
  end_leases();
  if (memory_.take_relief() && on_memory_) on_memory_();
}

uint64_t MountStore::next_turn_us() const noexcept {
  if (!to_put_.empty()) return 0;
  uint64_t next_us = touches_.empty() ? UINT64_MAX : touch_at_us_;
  if (!staged_.empty()) next_us = std::min(next_us, clock_.now_us() + kStageUs);
  return next_us;
}

// Puts have so long to reach the upstream; everything else ends now. Whoever waits is answered.
Status MountStore::close() {
  const uint64_t until_us = clock_.now_us() + kCloseUs;
  send_puts();
  while (!putting_.empty() && clock_.now_us() < until_us) {
    upstream_->wait(20);
    upstream_->turn();
    send_puts();
  }
  closing_ = true;
  send_touches();
  upstream_->end();
  for (const Saying& saying : std::exchange(sayings_, {})) {
    if (saying.change != nullptr) answer(*saying.change, Code::Closed);
  }
  while (!waiting_.empty()) {
    Waiting waiting = std::move(waiting_.front());
    waiting_.pop_front();
    if (waiting.cleared) {
      waiting.cleared();
    } else {
      answer(*waiting.change, Code::Closed);
    }
  }
  // Other shards wait for what they have asked of this one; nothing comes after it.
  if (siblings_ != nullptr) {
    for (const Siblings::Call& call : siblings_->leave(shard_)) call(*this);
  }
  for (auto& [number, clear] : std::exchange(clears_, {})) clear.done(Code::Closed);
  while (!staged_.empty()) {
    store::Stage* stage = staged_.front();
    staged_.pop_front();
    stage->status = {Code::Throttled, store::kThrottledMemory};
    stage->done(*stage);
  }
  return {};
}

void MountStore::list(store::Listing& listing) {
  listing.next = 0;
  listing.done(listing);
}

store::Explanation MountStore::explain(const store::KeyQuestion&) const {
  store::Explanation out;
  out.whole = false;  // the upstream knows
  return out;
}

// ---- Numbers -------------------------------------------------------------------------------------------------------------

store::Gauges MountStore::gauges() const noexcept {
  store::Gauges out;
  out.blocks = known_.size();
  out.bytes_live = memory_.resident_bytes();
  out.holds = leases_;
  out.staged_bytes = staging_bytes_;
  out.memory_resident_bytes = memory_.resident_bytes();
  out.memory_pinned_bytes = memory_.pinned_bytes();
  out.memory_capacity_bytes = memory_.capacity_bytes();
  return out;
}

const store::Counters& MountStore::counters() const noexcept {
  counters_.staged_unused = memory_.unread_blocks();
  for (size_t kind = 0; kind < wire::kPrefetchKinds; ++kind) {
    counters_.staged_kinds[kind].unused_bytes = memory_.unread_bytes()[kind];
  }
  return counters_;
}

void MountStore::collect(shard::Metrics* out) const {
  const auto add = [](std::vector<shard::Sample>& to, const char* name, const char* label, const char* value, uint64_t count) {
    shard::Sample sample{name, {}, static_cast<double>(count)};
    if (label != nullptr) sample.labels.emplace_back(label, value);
    to.push_back(std::move(sample));
  };
  auto& counters = out->counters;
  add(counters, "halfstep_mount_fetches_total", "outcome", "arrived", mount_.fetches - mount_.fetches_failed);
  add(counters, "halfstep_mount_fetches_total", "outcome", "failed", mount_.fetches_failed);
  add(counters, "halfstep_mount_fetches_shared_total", nullptr, nullptr, mount_.fetches_shared);
  add(counters, "halfstep_mount_fetch_bytes_total", nullptr, nullptr, mount_.fetch_bytes);
  add(counters, "halfstep_mount_puts_total", "outcome", "passed_on", mount_.puts - mount_.puts_failed);
  add(counters, "halfstep_mount_puts_total", "outcome", "failed", mount_.puts_failed);
  add(counters, "halfstep_mount_put_bytes_total", nullptr, nullptr, mount_.put_bytes);
  add(counters, "halfstep_mount_asked_blocks_total", "outcome", "answered", mount_.asked - mount_.asked_unknown);
  add(counters, "halfstep_mount_asked_blocks_total", "outcome", "unknown", mount_.asked_unknown);
  add(counters, "halfstep_mount_deletes_total", nullptr, nullptr, mount_.deletes);
  add(counters, "halfstep_mount_touches_total", nullptr, nullptr, mount_.touches);
  add(counters, "halfstep_mount_holds_total", "outcome", "passed_on", mount_.holds - mount_.holds_failed);
  add(counters, "halfstep_mount_holds_total", "outcome", "failed", mount_.holds_failed);
  add(counters, "halfstep_mount_names_forgotten_total", nullptr, nullptr, mount_.forgotten);
  uint64_t up = 0;
  uint64_t wanted = 0;
  for (uint32_t space = 0; space < upstream_->spaces(); ++space) {
    hs_client_facts facts{};
    upstream_->facts(space, &facts);
    up += facts.connected;
    wanted += std::max<uint32_t>(facts.connections, 1);
  }
  add(out->gauges, "halfstep_mount_upstream_connections", "state", "up", up);
  add(out->gauges, "halfstep_mount_upstream_connections", "state", "wanted", wanted);
  add(out->gauges, "halfstep_mount_names", nullptr, nullptr, known_.size());
}

}  // namespace halfstep::mount
