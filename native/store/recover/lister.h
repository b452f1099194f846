// lister.h — the list of a namespace's blocks, by segment and ordinal. Behind the segments come the blocks that are not in a
// frame yet, by their places in memory: whoever gets into a frame while a list is at them is not met twice. The cursor is the
// place of the next block, plus one: places do not change while blocks come and go. Invariants: listings are answered in the
// order in which they came; one segment's roll at most is kept, because the next piece of a list begins where this one ends.
// Thread: the shard's.
#pragma once

#include "base/clock.h"
#include "store/catalog/catalog.h"
#include "store/catalog/names.h"
#include "store/durable/record_log.h"
#include "store/format/header.h"
#include "store/format/store_time.h"
#include "store/memory/memory.h"
#include "store/segment/roll_reader.h"

namespace halfstep::store {

class Lister {
 public:
  static constexpr uint64_t kKeepRollUs = 5'000'000;

  struct Needs {
    const HeaderState& header;
    const RecordLog& log;
    const Catalog& catalog;
    const Memory& memory;
    const Names& names;
    const Clock& clock;
    StoreTime& store_time;
  };
  Lister(const Needs& needs, RollReader& rolls);

  void list(Listing& listing);
  void turn();

 private:
  void go_on();
  // Of the segment, from `ordinal` on; false when the listing's limit is reached.
  bool list_roll(Listing& listing, const Segment& segment, const Roll& roll, uint32_t ordinal);
  bool list_memory(Listing& listing, uint32_t from);
  void end(uint64_t next);
  void note_time(Listing& listing) noexcept;
  void visit(Listing& listing, const format::Entry& entry, ConstBytes engine_key, uint32_t expiry_s);
  static uint64_t cursor_of(uint32_t segment, uint32_t ordinal) noexcept { return (uint64_t{segment} << 32 | ordinal) + 1; }

  const HeaderState& header_;
  const RecordLog& log_;
  const Catalog& catalog_;
  const Memory& memory_;
  const Names& names_;
  const Clock& clock_;
  StoreTime& store_time_;
  RollReader& rolls_;
  Listing* head_ = nullptr;
  Listing** tail_ = &head_;
  uint32_t number_ = 0;  // of the listing's namespace
  RollRequest request_;
  uint64_t generation_ = 0;  // of the roll that was read; 0: none was
  uint64_t kept_since_us_ = 0;
  uint64_t walked_since_us_ = UINT64_MAX;  // with nobody's call to count for; UINT64_MAX: not now
};

}  // namespace halfstep::store
