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
#include "store/part_table.h"
#include "wire/layout.h"

namespace halfstep::store {

struct IndexKey {
  uint64_t low = 0;
  uint64_t high = 0;
  bool operator==(const IndexKey&) const noexcept = default;
};

struct BlockName {
  uint32_t scope = 0;
  wire::Component component;
  ConstBytes engine_key;  // 1-255 bytes
};

// Parts of a block, one after the other; no count: all of them.
struct PartSpan {
  uint32_t first = 0;
  uint32_t count = 0;
};

// A verified extent in memory. Pinned while somebody sends from it; afterwards it stays as long as memory allows.
class Resident {
 public:
  uint32_t block_bytes() const noexcept { return block_bytes_; }  // raw
  // Of all of the extent: what has another one is another version of the block.
  uint32_t checksum() const noexcept { return checksum_; }
  std::span<const PartInfo> parts() const noexcept { return {parts_.data(), parts_.size()}; }
  const Slot& slot() const noexcept { return slot_; }

 protected:
  uint32_t block_bytes_ = 0;
  uint32_t checksum_ = 0;
  PartTable parts_;
  Slot slot_;
};

// When a request uses its blocks: all of them when its first window began, so that however many windows it takes, none of its
// blocks looks younger, or lives longer, than one that comes before it in the request (docs/store-rules.md, rule 12). The store
// sets it, at the first use.
struct Moment {
  bool set = false;
  uint64_t log_time = 0;  // LogClock's
  uint64_t store_s = 0;
};

// A read of one block. Pooled by its caller; belongs to the store from begin_reads() until `complete`.
struct Read {
  IndexKey key;
  wire::Component component;               // of the block's name: how a plain block is cut into parts stands nowhere else
  void (*complete)(Read& read) = nullptr;  // may run from inside begin_reads() when the block is resident
  void* owner = nullptr;
  uint64_t tag = 0;
  // What of the block is wanted. Of a large one on flash no more may be read: all other parts have no bytes then.
  PartSpan parts;
  bool goes_on = false;      // its request has read other parts of the block before: one hit
  bool ahead = false;        // the stager's: bringing a block is not using it
  Moment* moment = nullptr;  // its request's, looked at inside begin_reads(); null: now
  // Not 0: a large plain block that is read whole comes in pieces of so many bytes, those of all blocks of the window in turns,
  // and `landed` says, before `complete` and never after it, that there are more of its parts; it calls nothing of the store's.
  // Blocks that are on their way already, and others, may do without.
  uint32_t piece_bytes = 0;
  void (*landed)(Read& read) = nullptr;

  // Those of its parts before this one are in `early`, verified. It is pinned from the first landed() on, whatever becomes of
  // the read, which may end with another resident, or with none: give it back with unpin(), too.
  uint32_t parts_landed = 0;
  Resident* early = nullptr;
  // Ok; NotFound; Corrupt (dropped and counted); IoError (the device did not give it now); Throttled(kThrottledMemory): it had
  // to be read once more, and there was no memory for that.
  Status status;
  Resident* resident = nullptr;  // pinned when Ok: give back with unpin()

  // The store's own, until `complete`.
  void* store_own = nullptr;
  Read* store_next = nullptr;
};

// A block that somebody will ask for soon: brought into memory, verified, and kept there for its first read. Pooled by its
// caller; belongs to the store from stage() until `done`, or until withdraw() takes it back.
struct Stage {
  IndexKey key;
  wire::Component component;
  uint8_t priority = 0;  // lower ones first
  bool follow = false;   // where there is no room for staged blocks: waits until earlier ones were read
  uint64_t keep_us = 0;  // how long it is kept for its first read, from when it is there; of several the longest
  void (*done)(Stage& stage) = nullptr;  // never from inside stage()
  void* owner = nullptr;
  uint64_t tag = 0;

  // Ok; NotFound; Corrupt; IoError; Throttled(kThrottledMemory): no room for staged blocks now; TooLarge: there never is.
  Status status;
  bool was_there = false;  // in memory already

  // The store's own, until `done`.
  Stage* store_before = nullptr;
  Stage* store_next = nullptr;
  uint8_t store_state = 0;
};

enum class Parent : uint8_t { Unknown, Root, Known };

// What the client knows of a block's future. A tool pause, thinking tokens and a final turn will not live long.
enum class Hint : uint8_t { None, FinalTurn, Thinking, ToolPause, SystemPrompt };

// Bit c: codec c can be decoded. Raw blocks need none.
inline constexpr uint64_t kAllCodecs = UINT64_MAX;

// A block on its way in. Pooled by its caller; belongs to the caller until commit_write(), then to the store until `done`.
struct Write {
  // In
  BlockName name;  // engine_key must stay readable until begin_write() returns
  IndexKey key;
  uint32_t block_bytes = 0;  // raw
  std::span<const PartInfo>
      coded_parts;  // empty: plain, cut by the group's shape. Else stored_bytes, raw_bytes, raw_crc, codec
  Parent parent_kind = Parent::Unknown;
  uint64_t parent = 0;
  uint32_t ttl_s = 0;
  uint16_t depth = 0;
  uint8_t hint = 0;
  bool persist = false;
  uint64_t codecs = kAllCodecs;          // its writer's: a block there that needs others is replaced
  void (*done)(Write& write) = nullptr;  // after commit_write(): readable (cache) or on media (persist), or it failed
  void* owner = nullptr;
  uint64_t tag = 0;

  // Between begin_write() and commit_write(): the caller fills the slot's first stored_bytes and every part's stored_crc.
  Slot* slot = nullptr;
  std::span<PartInfo> parts;
  uint32_t stored_bytes = 0;

  Status status;
  void* store_own = nullptr;
};

// A change of one block's life that is on media before it is answered: a remove, a persistent hold, its release, an expiry.
// Pooled by its caller; belongs to the store until `done`, which may come from inside the call.
struct Change {
  IndexKey key;
  // Ok; NotFound: no such block; Throttled(detail: kThrottledPins, kThrottledHolds, kThrottledLog); IoError: it may or may not
  // be on media; Closed: another owner has the store.
  void (*done)(Change& change) = nullptr;
  void* owner = nullptr;
  uint64_t tag = 0;
  Status status;
  void* store_own = nullptr;
  bool store_fresh_pin = false;

  ConstBytes engine_key;      // remove: for its event, read inside the call; empty: nobody knows it
  wire::Component component;  // remove: for its event
  uint64_t holder = 0;        // hold, release: whose
  uint64_t for_s = 0;         // hold, expire: from now on; 0 = without end
};
using Remove = Change;

// A block that is looked for. Its component says how long blocks of a fixed number of parts are; who asks for `present` alone
// may leave it out.
struct Sought {
  Sought() = default;
  Sought(const IndexKey& key_in, wire::Component component_in = {}) noexcept : key(key_in), component(component_in) {}
  IndexKey key;
  wire::Component component;
  PartSpan parts;  // as in Read
  // begin_reads() follows, and says so if a block that is in memory has left the index: it is not looked up for that before.
  bool to_read = false;
  uint64_t codecs = kAllCodecs;  // a block that needs others does not count as present
};
struct Found {
  bool present = false;
  uint32_t block_bytes = 0;
  uint64_t memory_bytes = 0;  // what a read of these parts takes, when it comes from flash
};

struct Listed {
  wire::LayoutId layout{};
  wire::Component component;
  ConstBytes engine_key;
  uint32_t block_bytes = 0;
  uint32_t parts = 0;
  uint64_t created_s = 0;
  uint64_t expiry_s = 0;  // 0 = never
};

// A piece of the list of a namespace's blocks. The segments' rolls are read from flash for it. Pooled by its caller; belongs to
// the store until `done`, which may come from inside the call.
struct Listing {
  std::string name_space;
  uint64_t cursor = 0;  // 0: the start
  uint32_t limit = 0;
  void (*visit)(Listing& listing, const Listed& listed) = nullptr;  // what it refers to is gone afterwards
  void (*done)(Listing& listing) = nullptr;
  void* owner = nullptr;

  uint64_t next = 0;  // the cursor to go on from; 0 at the end

  // The store's own, until `done`.
  uint32_t listed = 0;
  Listing* store_next = nullptr;
};

struct Geometry {
  uint64_t device_bytes = 0;
  uint64_t segment_bytes = 0;
  uint32_t segments = 0;  // of all shards
  uint32_t shards = 1;
  uint32_t block_bytes_max = 0;
};
// What format() would make of a device of this size, and with a write buffer a shard of this one; Fault names the smallest size
// that works.
Fault plan_geometry(uint64_t device_bytes, uint64_t segment_bytes_or_0, uint64_t write_buffer_bytes, Geometry* out,
                    uint32_t shards = 1);

struct NamespaceInfo {
  std::string name;
  uint64_t quota_bytes = 0;    // 0 = no limit but the store's
  uint32_t default_ttl_s = 0;  // 0 = none
  uint64_t pin_budget_bytes = 0;
  bool sliding_ttl = false;  // the default TTL counts from a block's last use
  // Told, never taken:
  uint64_t used_bytes = 0;  // what the quota counts
  uint64_t pinned_bytes = 0;
  uint64_t leased_bytes = 0;  // of blocks with a lease
  uint64_t holds = 0;         // leases and pins
  uint32_t number = 0;        // grows with each that is made
};

// What a scope stands for, or stood for as far as that is remembered (events.h): else nothing.
struct ScopeName {
  std::string name_space;
  wire::LayoutId layout{};
};

class Events;
struct Explanation;
struct KeyQuestion;

// What a start found; while it goes on, so far.
struct RecoveryReport {
  uint64_t blocks = 0, bytes = 0, micros = 0;
  uint64_t first_answer_micros = 0;  // of them, before anything was answered
  uint64_t segments_left = 0;
  uint64_t segments_by_footer = 0, segments_by_frames = 0, segments_empty = 0, segments_bad = 0;
  // Looked at once more because the device did not answer; never to be read, and left for the next start.
  uint64_t segments_read_again = 0, segments_unread = 0;
  uint64_t blocks_dropped_deleted = 0, blocks_dropped_expired = 0, blocks_dropped_corrupt = 0, blocks_dropped_dead_scope = 0,
           blocks_dropped_index_full = 0, blocks_unread = 0;  // unread: left on flash for the next start
  uint64_t pages_bad = 0, tombstones = 0, pins = 0;
  std::vector<std::string> notes;  // one sentence for each thing that an operator should know
};

// Monotonic, since start. Names become metric names.
struct Counters {
  uint64_t hits_memory = 0, hits_flash = 0;
  uint64_t part_reads = 0, part_reads_failed = 0;  // of some parts of a block; the failed ones were done again, of the whole
  // Blocks of which parts were handed out before the rest had landed; the failed ones were read again.
  uint64_t early_reads = 0, early_reads_failed = 0;
  uint64_t misses_absent = 0, misses_corrupt = 0, misses_collision = 0, misses_expired = 0, misses_io = 0, misses_memory = 0;
  uint64_t writes_committed = 0, writes_aborted = 0, writes_present = 0, writes_throttled = 0, writes_failed = 0;
  // Refused at once, or answered at once while they waited for media, because the device took nothing.
  uint64_t writes_refused = 0;
  uint64_t bytes_user = 0, bytes_padding = 0, bytes_metadata = 0, bytes_rewritten = 0;
  // Written once more at their place, because the device had failed; the frames and footers that they are of.
  uint64_t bytes_repeated = 0, frames_repeated = 0;
  uint64_t blocks_rewritten = 0;
  // By why they left the index; their sum is blocks_evicted. Deleted: by a client's wish, with a tombstone.
  uint64_t blocks_evicted_age = 0, blocks_evicted_expired = 0, blocks_evicted_dead_scope = 0, blocks_evicted_quota = 0,
           blocks_evicted_deleted = 0, blocks_evicted_unreadable = 0;
  uint64_t touches = 0, touch_pages = 0;
  // Blocks that were brought into memory ahead of their first read; then either read there, or asked for while they still came,
  // or kept in vain. Of these ends, those of blocks that were in memory already are counted, too.
  uint64_t staged = 0, staged_bytes = 0, staged_used = 0, staged_late = 0, staged_unused = 0;
  uint64_t blocks_given_up = 0;  // of those unreadable: by the device's errors at several moments; their bytes were never seen
  // Bad: found so by the start, or logged bad since. Tried again: of those, taken into use once more.
  uint64_t removes = 0, blocks_evicted = 0, segments_reclaimed = 0, segments_sealed = 0, segments_bad = 0;
  uint64_t segments_tried_again = 0;
  // On their way to being written again; skipped: wanted before all of it was discarded.
  uint64_t segments_discarded = 0, bytes_discarded = 0, discards_skipped = 0, discards_failed = 0;
  uint64_t flushes = 0, record_pages = 0, holds_taken = 0, holds_refused = 0;
  uint64_t throttled_recovering = 0;  // writes and changes of blocks, because the store was still recovering
  uint64_t pending_walks = 0;         // over what waits for a frame; told nobody but tests
  uint64_t index_full = 0;            // blocks that were not taken in, or were evicted at once, because the index had no room
  // What the scrub read, found good, dropped for its bytes or for the device's errors; pages of footers that were not good.
  uint64_t scrub_bytes = 0, scrub_blocks = 0, scrub_dropped_corrupt = 0, scrub_dropped_io = 0, scrub_pages_bad = 0;
  uint64_t scrub_unread = 0;  // blocks and pages of footers that the device did not give: left for the next pass
  uint64_t scrub_passes = 0, segments_retired = 0;
};
struct Gauges {
  uint64_t blocks = 0, bytes_live = 0, segments_free = 0, segments_open = 0, segments_sealed = 0, holds = 0, pins = 0;
  int64_t clock_ahead_s = 0;  // of the store's time (store_time.h); below 0: behind it
  // Out of use: logged bad, and what the start could not read (of the sealed ones).
  uint64_t segments_bad = 0, segments_unread = 0;
  bool writes_out = false;  // the device takes nothing just now
  uint64_t memory_resident_bytes = 0, memory_pinned_bytes = 0, memory_capacity_bytes = 0, index_bytes = 0;
  uint64_t staged_bytes = 0;                        // kept for their first read, or on their way
  uint64_t scrub_bytes_per_s = 0, scrub_age_s = 0;  // older than this is nothing that the scrub has still to look at
  uint64_t catalog_bytes = 0;                       // the index and what the segments take beside it
  bool discards = false;                            // a device takes them, and they have not failed too often
  double age_limit = 0;  // of the policy: younger than so many capacities of writes is kept when it was touched
};

inline constexpr uint64_t kScrubAuto = UINT64_MAX;

struct Options {
  uint64_t lease_ms_max = 60'000;
  // Of the store, what one namespace alone may lease. All together never lease one and a half times as much.
  double lease_share = 0.5;
  uint64_t holds_max = 1'000'000;
  // The index is sized once. 0: for blocks of 256 KiB on average, but never less than 16 MiB where smaller blocks would fill
  // that.
  uint64_t index_bytes = 0;
  bool large_pages = true;  // for the index, where they are to be had
  // Of the slots, what writes may hold at once. The rest is for reads; of it what is staged takes half at most, and never the
  // room for one largest block.
  double write_share = 0.5;
  // Eviction (policy.h): what reclaim may write again, as a share of what users write and, when that leaves more, in bytes a
  // day of users' writes and its own together (0 = the share alone).
  std::string policy = "seg-adapt10";
  double rewrite_share = 0.10;
  uint64_t rewrite_bytes_per_day = 0;
  // open() reads the record log and the open segments, and goes on with the sealed ones for so long; turn() takes the rest.
  uint64_t recover_before_us = UINT64_MAX;
  // A block device is told what is empty, at most so fast (0 = never): reads may be slower meanwhile.
  uint64_t discard_bytes_per_s = uint64_t{1} << 30;
  // Background verification (scrubber.h): what it may read. 0 = none; kScrubAuto: so that a pass takes two weeks at most.
  uint64_t scrub_bytes_per_s = 0;
  uint32_t events_max = 65'536;  // that are remembered (events.h), about 112 bytes each
};

// What one of several shards gets of what the whole store is allowed; never 0, which means something else, of more than 0.
constexpr uint64_t share_of(uint64_t whole, uint32_t shards) noexcept {
  return whole == 0 ? 0 : std::max<uint64_t>(whole / std::max(shards, 1U), 1);
}
// Rates, budgets and memory.
Options share_of(Options whole, uint32_t shards) noexcept;

class HeaderKeeper;

// One shard of a store that has several: what it shares with the others, which one it is, and what wakes its thread when the
// others have changed the store's header (any thread calls it). `yield`: where one thread drives several shards, the others'
// turns, for one that can only go on after them; null: it sleeps.
struct ShardPlace {
  std::shared_ptr<HeaderKeeper> keeper;
  uint32_t number = 0;
  std::function<void()> wake;
  std::function<void()> yield;
};

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

// Detail of Throttled from begin_write() and of changes.
inline constexpr int32_t kThrottledPending = 1;   // another writer holds the key
inline constexpr int32_t kThrottledMemory = 2;    // no slot now
inline constexpr int32_t kThrottledSpace = 3;     // no segment can be reclaimed now: everything is held or being read
inline constexpr int32_t kThrottledQuota = 4;     // the sweep makes room
inline constexpr int32_t kThrottledPins = 5;      // the pin budget is used up
inline constexpr int32_t kThrottledLog = 6;       // the record log has no room for holds and expiry changes now
inline constexpr int32_t kThrottledRecovery = 7;  // until all that is on flash is known
inline constexpr int32_t kThrottledLeases = 8;    // the namespace leases as many bytes as it may
inline constexpr int32_t kThrottledHolds = 9;     // it has as many holds as it may

}  // namespace halfstep::store
