// teller.h — names the blocks that others drop without knowing their names, for the events: reclaim, which voids a segment in
// one go, and the lap of the sweep, which sees places alone. The names are in the segment's roll:
//   - of a segment that is to be voided the roll comes first: its blocks leave the index by name, some in each turn; what a bad
//     roll does not name goes with the segment;
//   - what a lap dropped is remembered by its place until its segment's roll is read, one segment at a time, with pauses.
// Where nobody remembers events nothing of this is done. Invariants: a block that went is told by name, or stored again under
// its name, or counted in an Unnamed; nothing waits for a roll for ever; a segment is not written anew before its places are
// told. Thread: the shard's. Memory: 8 bytes for each place, of which there are never more than events that can be remembered.
#pragma once

#include <vector>

#include "base/clock.h"
#include "store/account/block_events.h"
#include "store/account/evictor.h"
#include "store/catalog/catalog.h"
#include "store/catalog/names.h"
#include "store/format/store_time.h"
#include "store/memory/memory.h"
#include "store/segment/roll_reader.h"

namespace halfstep::store {

class Teller {
 public:
  struct Needs {
    const Catalog& catalog;
    const Memory& memory;
    const Names& names;
    BlockEvents& events;
    Evictor& evictor;
    const Clock& clock;
    StoreTime& store_time;
  };
  // `places_max`: how many are remembered, as many as events.
  Teller(const Needs& needs, RollReader& rolls, size_t places_max);

  // Begins to take the blocks of a segment at rest out of the index by name, those that are held only with `held_too`. `roll`:
  // of who has just read it; empty: it is read.
  void empty(const Segment& segment, ScannedSegment roll, bool held_too);
  bool emptying() const noexcept { return victim_ != nullptr; }
  // The segment is voided: whatever is still to be told of it goes unnamed.
  void voided(const Segment& segment);

  // A lap of the sweep drops it.
  void dropped(const Block& block);

  void turn();
  uint64_t next_turn_us() const noexcept;
  // The end is near, and with it of all that is remembered.
  void stop() noexcept { stopped_ = true; }

 private:
  struct Place {
    uint32_t segment = 0;
    uint32_t page = 0;
  };

  bool asleep() const noexcept { return stopped_ || !events_.enabled(); }
  bool owes(const Segment& segment) const noexcept;
  void begin(const Segment& segment);
  const Roll* roll() noexcept;
  void tell_some();
  void tell(const Roll& roll, const FoundEntry& found);
  void end();

  // A turn over so many takes some tens of microseconds.
  static constexpr uint32_t kEntriesPerTurn = 2048;
  static constexpr uint64_t kPauseUs = 100'000;

  const Catalog& catalog_;
  const Memory& memory_;
  const Names& names_;
  BlockEvents& events_;
  Evictor& evictor_;
  const Clock& clock_;
  StoreTime& store_time_;
  RollReader& rolls_;
  const size_t places_max_;
  bool stopped_ = false;
  std::vector<Place> places_;
  uint64_t too_many_ = 0;  // places beside them, since the last turn
  uint64_t due_us_ = 0;

  const Segment* victim_ = nullptr;
  bool held_too_ = false;
  ScannedSegment victim_roll_;

  const Segment* segment_ = nullptr;  // being gone through
  uint64_t generation_ = 0;
  std::vector<uint32_t> pages_;  // of it, to be told; in order
  size_t told_ = 0;
  size_t ordinal_ = 0;
  RollRequest request_;
  bool rolled_ = false;  // its roll has come
};

}  // namespace halfstep::store
