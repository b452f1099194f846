// pruner.h — drops the tombstones that bury nothing when the record log is crowded, so that it need not wait for the segments
// that are older than they are.
// A pass goes through the rolls of all segments that hold frames. Tombstones that come while it runs are not looked at. What is
// written meanwhile is younger than every tombstone of the pass, or is a copy of a block that is alive: neither needs one.
// Invariants: a tombstone goes only if every entry on flash that it could bury is known, and none of them is older than it.
// Thread: the shard's.
#pragma once

#include <vector>

#include "index/table.h"
#include "store/catalog/catalog.h"
#include "store/durable/record_log.h"
#include "store/segment/roll_reader.h"

namespace halfstep::store {

class Pruner {
 public:
  Pruner(RecordLog& log, const Catalog& catalog, RollReader& rolls);

  void turn();

 private:
  void begin();
  void read_next();
  void take(const Roll& roll);
  void end();

  RecordLog& log_;
  const Catalog& catalog_;
  RollReader& rolls_;
  RollRequest request_;
  enum class State : uint8_t { Idle, Walking, Ending } state_ = State::Idle;
  struct Place {
    uint32_t segment = 0;
    uint64_t generation = 0;
  };
  std::vector<Place> order_;  // still to be read
  index::Table newest_;       // key -> sequence of its newest tombstone, when the pass began
  index::Table needed_;       // keys of entries that are buried by it
  uint64_t keep_above_ = 0;   // not all entries are known that later ones may bury
};

}  // namespace halfstep::store
