// requests.h — what callers hand to a store: reads, writes, changes, questions. Each is pooled by its caller, and the store's
// own for the time that its comment says. Thread: the shard's.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "base/slots.h"
#include "base/status.h"
#include "store/format/block.h"
#include "store/format/hint.h"
#include "store/format/part_table.h"
#include "wire/layout.h"

namespace halfstep::store {

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
  // What of the block is wanted. Of a large one on flash no more may be read: no other parts are there then (PartInfo).
  PartSpan parts;
  bool goes_on = false;      // its request has read other parts of the block before: one hit
  bool ahead = false;        // the stager's: bringing a block is not using it
  Moment* moment = nullptr;  // its request's, looked at inside begin_reads(); null: now
  // Not 0: a large block that is read whole comes in pieces of so many bytes, those of all blocks of the window in turns,
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
  uint8_t kind = 0;      // what for, as the wire has it (kPrefetchKinds): counted by it
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
  uint8_t hint = 0;  // Hint
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

  uint64_t next = 0;      // the cursor to go on from; 0 at the end
  uint64_t later_us = 0;  // that it took after list() had returned, reads of the device apart

  // The store's own, until `done`.
  uint32_t listed = 0;
  Listing* store_next = nullptr;
};

}  // namespace halfstep::store
