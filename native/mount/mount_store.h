// mount_store.h — a store whose blocks are a daemon's, with a copy in memory of those that this host uses.
// What it knows of a block, and how that changes:
//   unknown  -> ask(): a match at the upstream -> known (there, so long), or absent, which is not remembered, or unanswered
//   known    -> a read: Reading, one fetch for however many wait -> resident | absent
//   absent   -> a put: Filling -> Dirty (readable, on its way to the upstream) -> resident
//   resident -> gives way (the policy of store/memory), deleted, or older than max_age_us: asked again before it is served
// Every name carries the time at which the upstream last said that the block is there; nothing is served that is older than
// max_age_us. So a delete made elsewhere is in force here by then, and a mount without an upstream serves what it has so long.
// A delete or clear through the mount takes effect in memory at once. It goes to the upstream when no put of the same block is
// on its way there, for of two requests in flight either may come first; what came back meanwhile is dropped with its answer.
// Invariants: bytes of the upstream are verified by the client core before anything here sees them, and named by their sums
// from then on; a slot that the core reads or writes is Dirty or Reading, which gives way to nobody, until the request's
// done(). Thread: the shard's. Completions run from turn(), or from inside the call where the store's face allows it. Not
// passed on: holds, expiry, lists and namespaces (commands.cc refuses them).
#pragma once

#include <array>
#include <deque>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "base/clock.h"
#include "base/hash.h"
#include "base/slots.h"
#include "mount/options.h"
#include "mount/siblings.h"
#include "mount/upstream.h"
#include "shard/asks_first.h"
#include "shard/samples.h"
#include "store/account/events.h"
#include "store/memory/memory.h"
#include "store/store.h"

namespace halfstep::mount {

class MountStore final : public store::Store, public shard::AsksFirst {
 public:
  // Which of a mount's shards this is. siblings: null where it is the only one.
  struct Place {
    uint32_t shard = 0;
    std::shared_ptr<Siblings> siblings;
    std::function<void()> wake;  // makes the shard turn, soon; any thread may call it while the store is there
    uint64_t start_number = 1;   // the same for all of them, larger after each start
  };
  // `upstream` is open. write_share: of memory, what puts may have on their way to the upstream.
  static Fault open(SlotPool& slots, const Clock& clock, const Options& options, Place place, double write_share,
                    std::unique_ptr<Upstream> upstream, std::unique_ptr<MountStore>* out);
  ~MountStore() override;

  void collect(shard::Metrics* out) const;

  // shard::AsksFirst
  bool ask(shard::Question& question) override;
  void forget(shard::Question& question) noexcept override;
  bool unanswered(const store::IndexKey& key) const noexcept override { return unanswered_.count(key) != 0; }
  uint64_t codecs() const noexcept override { return 1; }  // raw: the client core codes what goes to the upstream

  // store::Store
  const store::Geometry& geometry() const noexcept override { return geometry_; }
  const store::RecoveryReport& recovery() const noexcept override { return recovery_; }
  bool recovering() const noexcept override { return false; }
  std::array<std::byte, 16> uuid() const noexcept override { return uuid_; }
  uint64_t start_number() const noexcept override { return start_number_; }
  bool lost() const noexcept override { return false; }

  bool has_namespace(std::string_view name) const noexcept override { return upstream_->space_of(name) != UINT32_MAX; }
  std::vector<store::NamespaceInfo> namespaces() const override { return {}; }  // their numbers are the upstream's to tell
  void create_namespace(const store::NamespaceInfo&, std::function<void(Status)> done) override { done(Code::Unsupported); }
  void limit_namespace(const store::NamespaceInfo&, std::function<void(Status)> done) override { done(Code::Unsupported); }
  void delete_namespace(std::string_view, std::function<void(Status)> done) override { done(Code::Unsupported); }
  void clear(std::string_view name, const wire::LayoutId& layout, std::function<void(Status)> done) override;
  void register_layout(std::string_view name, const wire::Layout& layout, std::function<void(Status, uint32_t)> done) override;
  uint32_t find_scope(std::string_view name, const wire::LayoutId& layout) const noexcept override;
  const wire::Layout* layout_of(uint32_t scope) const noexcept override;
  store::ScopeName name_of(uint32_t scope) const override;
  store::IndexKey key_of(const store::BlockName& name) const noexcept override;
  void keys_of(std::span<const store::BlockName> names, std::span<store::IndexKey> out) const noexcept override;

  store::Found find(const store::Sought& sought) noexcept override;
  void find_many(std::span<const store::Sought> sought, std::span<store::Found> out) noexcept override;
  Status begin_reads(std::span<store::Read* const> window) override;
  void unpin(store::Resident* resident) noexcept override;
  void stage(store::Stage& stage) override;
  bool withdraw(store::Stage& stage) noexcept override;
  Status begin_write(store::Write& write) override;
  void commit_write(store::Write& write) override;
  void abort_write(store::Write& write) noexcept override;
  void remove(store::Change& change) override;
  void touch(std::span<const store::IndexKey> keys) override;
  void expire(store::Change& change) override;
  void list(store::Listing& listing) override;

  uint64_t owner_of(std::string_view name_space, uint64_t owner) const noexcept override;
  Status hold(const store::IndexKey& key, uint64_t owner, uint64_t until_us) override;
  void hold(store::Change& change) override;
  uint64_t renew(uint64_t owner, uint64_t until_us) noexcept override;
  void release(store::Change& change) override;
  void release_all(store::Change& change) override;

  void turn() override;
  uint64_t next_turn_us() const noexcept override;
  void set_on_memory(std::function<void()> on_memory) override { on_memory_ = std::move(on_memory); }
  Status close() override;

  const store::Counters& counters() const noexcept override;
  store::Gauges gauges() const noexcept override;
  ConstBytes index_memory() const noexcept override { return {}; }
  const store::Events& events() const noexcept override { return events_; }
  store::Explanation explain(const store::KeyQuestion& question) const override;

 private:
  struct KeyHash {
    size_t operator()(const store::IndexKey& key) const noexcept { return key.low; }
  };
  struct Scope {
    uint32_t space = 0;
    int handle = 0;  // of the upstream's client
    wire::Layout layout;
    bool alive = true;
    bool asked = false;    // the upstream, about blocks of it
    uint32_t putting = 0;  // of putting_
  };
  // A block that the upstream had at `seen_us`.
  struct Known {
    uint32_t scope = 0;
    uint32_t component = 0;
    uint32_t block_bytes = 0;
    uint64_t seen_us = 0;
    std::string engine_key;
  };
  // A block on its way to the upstream: Dirty until that has ended.
  struct Put {
    store::Extent* extent = nullptr;
    store::Parent parent_kind = store::Parent::Unknown;
    uint64_t parent = 0;
    uint32_t ttl_s = 0;
    uint16_t depth = 0;
    uint8_t hint = 0;
    bool persist = false;
  };
  // What of the upstream's work waits for puts to end.
  struct Waiting {
    store::IndexKey key;  // a delete's
    uint32_t scope = 0;
    store::Change* change = nullptr;
    std::string engine_key;
    wire::Component component;
    std::function<void()> cleared;  // a clear's
  };
  // A clear that a client asked this shard for.
  struct Clear {
    uint32_t space = 0;
    uint32_t open = 0;  // shards whose word is awaited
    bool was_sent = false;
    wire::LayoutId layout{};
    Status status;  // the upstream's
    std::function<void(Status)> done;
  };
  // What an owner says of its holds, or of a block's end, on its way to the upstream.
  struct Saying {
    uint32_t operation = 0;
    uint32_t space = 0;
    uint64_t owner = 0;     // as the client named it; 0: none
    uint64_t until_us = 0;  // of a lease
    uint64_t for_s = 0;     // of a pin or an expiry; 0 = without end
    bool persist = false;
    int handle = -1;  // -1: of all that the owner holds
    wire::Component component;
    std::string engine_key;
    store::IndexKey key;
    store::Change* change = nullptr;  // null: nobody waits
  };
  // The leases of an owner, by owner_of().
  struct Holder {
    uint32_t space = 0;
    uint64_t until_us = 0;
    std::unordered_set<store::IndexKey, KeyHash> keys;
  };
  // A block that is brought ahead of its first read.
  struct Staging {
    store::Read read;
    uint64_t bytes = 0;
  };
  // Counted for operators beside the store's own.
  struct MountCounters {
    uint64_t fetches = 0, fetch_bytes = 0, fetches_shared = 0, fetches_failed = 0;
    uint64_t asked = 0, asked_unknown = 0, forgotten = 0;
    uint64_t puts = 0, put_bytes = 0, puts_failed = 0, deletes = 0, touches = 0, holds = 0, holds_failed = 0;
  };

  MountStore(SlotPool& slots, const Clock& clock, const Options& options, const Place& place, double write_share,
             std::unique_ptr<Upstream> upstream);
  static void answer(store::Change& change, Status status) {
    change.status = status;
    change.done(change);
  }

  // Names.
  const wire::GroupShape* shape_of(uint32_t scope, wire::Component component) const noexcept;
  uint32_t scope_of_key(const store::IndexKey& key, wire::Component component, ConstBytes engine_key) const noexcept;
  bool fresh(const Known& known) const noexcept { return known.seen_us + options_.max_age_us > clock_.now_us(); }
  Known* find_known(const store::IndexKey& key) noexcept;
  void learn(const store::IndexKey& key, Known known);
  void forget_block(const store::IndexKey& key) noexcept;
  void note_unanswered(const store::IndexKey& key);
  bool is_to_ask(const store::IndexKey& key) noexcept;
  Status why_absent(const store::IndexKey& key) const noexcept;

  // Memory (mount_read.cc, mount_write.cc).
  store::Extent* servable(const store::IndexKey& key) noexcept;
  store::Extent* make_reading(const store::IndexKey& key, const Known& known);
  void drop(store::Extent& extent) noexcept;
  void discard(store::Extent& extent) noexcept;
  static bool cut(store::Extent& extent, const wire::GroupShape& shape, uint32_t block_bytes);
  static void sum(store::Extent& extent) noexcept;

  // The upstream.
  std::unique_ptr<UpstreamRequest> make_request(uint32_t operation, uint32_t space);
  void fetch(std::span<store::Extent* const> extents);
  void fetched(UpstreamRequest& request);
  void arrived(store::Extent& extent, Status status);
  void answered(UpstreamRequest& request);
  void send_puts();
  void put_done(UpstreamRequest& request);
  void put_ended(store::Extent& extent, Status status);
  void note_touch(const store::IndexKey& key);
  void send_touches();
  uint64_t mask_of(uint32_t space) const noexcept;
  bool sayings_full() const noexcept;
  Saying& say();
  void say_change(store::Change& change, uint32_t operation);
  void send_sayings();
  void said(UpstreamRequest& request, const std::vector<store::Change*>& changes);
  void end_leases();
  void send_stages();
  void note_read(store::Extent& extent) noexcept;
  void note_arrival(store::Extent& extent, bool is_there) noexcept;
  static void on_staged(store::Read& read);
  void send_waiting();
  bool put_under_way(const Waiting& waiting) const noexcept;
  void send_delete(Waiting waiting);

  // Clears (mount_clear.cc).
  void on_each_shard(uint64_t number, const std::function<void(MountStore&, std::function<void()> then)>& verb);
  void clear_goes_on(uint64_t number);
  void retire_named(uint32_t space, const wire::LayoutId& layout, std::function<void()> then);
  void retire_asked(uint32_t space, const wire::LayoutId& layout);
  void retire(uint32_t scope);

  const Options options_;
  const Clock& clock_;
  const uint32_t shard_;
  const std::shared_ptr<Siblings> siblings_;
  HashKey secret_;
  std::array<std::byte, 16> uuid_{};
  uint64_t start_number_ = 0;
  store::Geometry geometry_;
  store::RecoveryReport recovery_;
  mutable store::Counters counters_;  // memory counts some of it: fetched from there when asked for
  MountCounters mount_;
  store::Events events_{0};   // the upstream's to tell
  std::deque<Scope> scopes_;  // scope n is number n - 1; none ever moves or is used again
  std::unordered_map<store::IndexKey, Known, KeyHash> known_;
  std::deque<store::IndexKey> known_order_;  // oldest first; some have gone
  // About these the upstream gave no answer when it was asked last. Each with a number, by which the oldest go.
  std::unordered_map<store::IndexKey, uint64_t, KeyHash> unanswered_;
  std::deque<std::pair<store::IndexKey, uint64_t>> unanswered_order_;
  uint64_t unanswered_noted_ = 0;
  store::Memory memory_;
  std::deque<Put> to_put_;
  std::unordered_set<store::Extent*> putting_;                           // in to_put_, or on their way
  std::unordered_map<store::IndexKey, uint32_t, KeyHash> putting_keys_;  // of those, how many
  std::deque<Waiting> waiting_;
  std::unordered_map<uint64_t, Clear> clears_;  // by their numbers
  uint64_t clears_begun_ = 0;
  std::vector<store::IndexKey> touches_;
  uint64_t touch_at_us_ = 0;
  std::deque<Saying> sayings_;
  bool sayings_news_ = false;            // some may go that could not before
  std::unordered_set<uint64_t> saying_;  // owners, of which something is on its way
  std::unordered_map<uint64_t, Holder> holders_;
  size_t leases_ = 0;
  uint64_t leases_at_us_ = 0;
  std::deque<store::Stage*> staged_;
  std::unordered_map<store::Stage*, std::unique_ptr<Staging>> staging_;  // on their way
  uint64_t staging_bytes_ = 0;
  std::unordered_map<uint64_t, shard::Question*> questions_;  // by their numbers
  uint64_t questions_asked_ = 0;
  uint64_t asking_ = 0;  // blocks, also of questions that were forgotten
  std::function<void()> on_memory_;
  bool closing_ = false;
  std::unique_ptr<Upstream> upstream_;  // last: its end answers what refers to the members above
};

}  // namespace halfstep::mount
