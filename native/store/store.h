// store.h — one shard's flash store: names to verified bytes, over an engine, a clock and a secret.
// A state machine: nothing here waits, owns a thread or reads a clock of its own, so that the same code runs on io_uring and on
// a faulty memory device. Truth is on flash (format.h); the index only finds it.
//
// Life of a put:  begin_write() reserves a slot -> the caller fills it and names each part's checksum -> commit_write() makes
// the block readable at once (from the slot) and puts it into the open frame -> the frame is written -> with `persist`, done
// after the flush that covers it.
// Life of a get:  begin_reads() for a window, all slots or none -> each read completes with a verified, pinned Resident, or
// with an honest miss -> unpin().
//
// Invariants (docs/store-rules.md has all of them; each is asserted or tested where it is kept):
//   - bytes are handed out only after their extent's checksum, bound to the key, was verified in this process's memory;
//   - a segment is reused only after its new generation is logged and flushed, and while nothing reads from it;
//   - a deleted block never comes back: its tombstone is on media before the delete is acknowledged;
//   - physical bytes never exceed the size at creation.
// Thread: the shard's. Completions run from turn() or, where said, from inside the call.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/prng.h"
#include "base/slots.h"
#include "base/status.h"
#include "io/engine.h"
#include "store/durable/shard_place.h"
#include "store/format/block.h"
#include "store/format/geometry.h"
#include "store/format/namespace_info.h"
#include "store/format/options.h"
#include "store/format/report.h"
#include "store/format/requests.h"
#include "wire/layout.h"

namespace halfstep::store {

class Events;
struct Explanation;
struct KeyQuestion;

class Store {
 public:
  // Writes an empty store, of all its shards, over device 0 of the engine, from nothing: geometry, secret, namespace "default".
  // Blocking. `random` makes the secret: the operating system's, unless a run has to be repeated bit by bit.
  static Fault format(io::Engine& engine, Arena& arena, const Clock& clock, const Geometry& geometry,
                      const std::function<Status(Bytes)>& random = system_random);
  // Reads the header, takes ownership (start number), recovers, or begins to. Blocking; never refuses for bad media.
  // `why_refused` of the Fault: not a store, a newer format, or another owner took it.
  static Fault open(io::Engine& engine, SlotPool& slots, const Clock& clock, const Options& options,
                    std::unique_ptr<Store>* out);
  // The same for one shard of several. `options` are the whole store's.
  static Fault open_shard(io::Engine& engine, SlotPool& slots, const Clock& clock, const Options& options,
                          const ShardPlace& place, std::unique_ptr<Store>* out);
  virtual ~Store() = default;

  virtual const Geometry& geometry() const noexcept = 0;
  virtual const RecoveryReport& recovery() const noexcept = 0;
  // Not all that is on flash has been found yet (recovery().segments_left): what is not found is a miss. Nothing is evicted,
  // and nothing taken in: puts, expiry changes and new persistent holds are throttled (kThrottledRecovery); a remove counts for
  // what is found later, too; a list waits for the end. Of a block that was evicted and put again, the older copy may be
  // answered until the newer is found.
  virtual bool recovering() const noexcept = 0;
  virtual std::array<std::byte, 16> uuid() const noexcept = 0;
  // Of this start; higher than that of every earlier one.
  virtual uint64_t start_number() const noexcept = 0;
  // Another process has taken it: nothing is written any more, and puts that were committed are not answered.
  virtual bool lost() const noexcept = 0;

  // Names ------------------------------------------------------------------------------------------------------------------
  virtual bool has_namespace(std::string_view name) const noexcept = 0;
  virtual std::vector<NamespaceInfo> namespaces() const = 0;
  // What each has, by group and codecs; in the order of their numbers. Costs a look at every segment.
  virtual std::vector<NamespaceStock> stocks() const { return {}; }
  // These rewrite the store header: `done(status)` comes when it is on media, or from inside the call when nothing had to
  // change. delete_namespace and clear retire scopes in O(1); their blocks are gone for match and get at once. A layout that
  // was cleared has a new scope, which is empty: find_scope() tells it.
  virtual void create_namespace(const NamespaceInfo& info, std::function<void(Status)> done) = 0;
  // Quota, default TTL and pin budget of one that exists. Over its new quota it loses its oldest blocks, soon; over its new pin
  // budget it keeps its pins and takes no more.
  virtual void limit_namespace(const NamespaceInfo& info, std::function<void(Status)> done) = 0;
  virtual void delete_namespace(std::string_view name, std::function<void(Status)> done) = 0;
  // NotFound: the namespace does not have this layout.
  virtual void clear(std::string_view name, const wire::LayoutId& layout, std::function<void(Status)> done) = 0;
  virtual void register_layout(std::string_view name, const wire::Layout& layout,
                               std::function<void(Status, uint32_t scope)> done) = 0;
  // 0 = none.
  virtual uint32_t find_scope(std::string_view name, const wire::LayoutId& layout) const noexcept = 0;
  // Null for a scope that is not alive.
  virtual const wire::Layout* layout_of(uint32_t scope) const noexcept = 0;
  virtual ScopeName name_of(uint32_t scope) const = 0;
  virtual IndexKey key_of(const BlockName& name) const noexcept = 0;
  // The same of many, in half the time of one after the other. `out` is as long as `names`.
  virtual void keys_of(std::span<const BlockName> names, std::span<IndexKey> out) const noexcept = 0;

  // Blocks -----------------------------------------------------------------------------------------------------------------
  virtual Found find(const Sought& sought) noexcept = 0;
  // One for each, in order: memory is asked for ahead. `out` is as long as `sought`.
  virtual void find_many(std::span<const Sought> sought, std::span<Found> out) noexcept = 0;
  // A window of reads: takes memory for all of them or for none (Throttled: try again after on_memory; TooLarge: would never
  // fit, or not as long as blocks are staged: cut the window). `complete` comes once for each, also for misses.
  virtual Status begin_reads(std::span<Read* const> window) = 0;
  virtual void unpin(Resident* resident) noexcept = 0;
  // Takes it into a queue: turn() brings what is in it, a little at a time while others read. close() ends what is left with
  // Throttled.
  virtual void stage(Stage& stage) = 0;
  // True: it was still in the queue, and is the caller's again. False: its read runs, and `done` will come.
  virtual bool withdraw(Stage& stage) noexcept = 0;
  // Ok: slot and parts are set. Present; Throttled(detail = why: see kThrottled…); TooLarge; Invalid (length against shape);
  // IoError: the device takes nothing now.
  virtual Status begin_write(Write& write) = 0;
  virtual void commit_write(Write& write) = 0;
  virtual void abort_write(Write& write) noexcept = 0;
  virtual void remove(Change& change) = 0;
  // These blocks are used now, all at one moment: a request's deepest block first, its root last. Absent keys are ignored. A
  // get touches by itself, each window from its last block to its first.
  virtual void touch(std::span<const IndexKey> keys) = 0;
  // From now on the block ends `for_s` from now.
  virtual void expire(Change& change) = 0;
  // Blocks from a cursor on, in an order that stays put while blocks come and go. Of listings that follow each other, a block
  // that reclaim moves meanwhile may be in two or in none.
  virtual void list(Listing& listing) = 0;

  // A client's owner as holds know it: keyed with the store's secret, so that nobody can name the owner of another namespace.
  virtual uint64_t owner_of(std::string_view name_space, uint64_t owner) const noexcept = 0;
  // Holds: the newest (key, owner) wins. They keep a block from eviction and from its namespace's quota, not from its expiry --
  // A volatile one, of lease_ms_max at most: Ok; NotFound; Throttled (kThrottledLeases, kThrottledHolds).
  virtual Status hold(const IndexKey& key, uint64_t owner, uint64_t until_us) = 0;
  // A persistent one, in its namespace's pin budget, logged.
  virtual void hold(Change& change) = 0;
  // Moves the end of an owner's volatile holds; how many it has.
  virtual uint64_t renew(uint64_t owner, uint64_t until_us) noexcept = 0;
  // Ends the holder's hold on the key, or all that it has (`key` is not looked at). Ok also when there was none.
  virtual void release(Change& change) = 0;
  virtual void release_all(Change& change) = 0;

  // Driving ----------------------------------------------------------------------------------------------------------------
  // Once per turn of the loop, after engine.poll(): closes the frame if the device is idle or it is full, starts flushes,
  // reclaim and sealing, expires holds.
  virtual void turn() = 0;
  // When turn() wants to run again though nothing happens; UINT64_MAX = never.
  virtual uint64_t next_turn_us() const noexcept = 0;
  // Called when begin_reads() or begin_write() was throttled for memory and some came free.
  virtual void set_on_memory(std::function<void()> on_memory) = 0;
  // Seals what is open, flushes, marks a clean stop. Blocking (engine.wait()); afterwards only find(), counters(), gauges() and
  // the destructor may be called. NoSpace: some blocks found no segment to be written to, and are lost; all others are kept.
  virtual Status close() = 0;

  virtual const Counters& counters() const noexcept = 0;
  virtual Gauges gauges() const noexcept = 0;
  // The index's table, for whoever asks where it lies.
  virtual ConstBytes index_memory() const noexcept = 0;
  // What came and went since the start, as far as memory reaches.
  virtual const Events& events() const noexcept = 0;
  // What is known of an engine key (explain.h): of its blocks that are there, and of those that went.
  virtual Explanation explain(const KeyQuestion& question) const = 0;
};

}  // namespace halfstep::store
