// rewriter.h — copies what is worth keeping of a segment that is to be reclaimed into the stream of copies.
// The segment's roll is read again, then what is kept, in chunks of its own buffer, in order of place, neighbours as one; each
// extent is verified against its checksum; then the chunk goes to the writer of copies. When a copy is on media the
// index is moved to it, if it still names the original: a block that was deleted, written anew or evicted meanwhile leaves a
// copy that nobody finds. A copy keeps birth, parent, depth, expiry and creation of its original.
// Invariants: the index names a copy only when it is on media; readers use the original until then and may go on with it until
// the segment is emptied; no memory but the buffer is needed, save for a block that is larger than it.
// Who reads goes first: a pass copies small chunks, in step with what users write, so that it ends before the room is used that
// the writers had at its start; when nobody writes it goes on all the same, slowly. In haste it takes all that it can.
// Thread: the shard's. One segment at a time.
#pragma once

#include <deque>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/slots.h"
#include "io/engine.h"
#include "store/account/block_events.h"
#include "store/account/evictor.h"
#include "store/catalog/catalog.h"
#include "store/catalog/names.h"
#include "store/durable/record_log.h"
#include "store/durable/tombstones.h"
#include "store/format/geometry.h"
#include "store/format/report.h"
#include "store/format/store_time.h"
#include "store/format/transfer.h"
#include "store/memory/memory.h"
#include "store/reclaim/policy.h"
#include "store/segment/roll_reader.h"

namespace halfstep::store {

class Streams;

class Rewriter final : public CopyOwner {
 public:
  struct Needs {
    io::Engine& engine;
    const Places& places;
    TransferPool& transfers;
    const RecordLog& log;
    Catalog& catalog;
    Memory& memory;
    const Names& names;
    const BlockEvents& events;
    Evictor& evictor;
    Tombstones& tombstones;
    const Clock& clock;
    StoreTime& store_time;
    const Counters& counters;
  };
  // `buffer`: for what is being copied; empty: nothing is.
  Rewriter(const Needs& needs, Streams& streams, RollReader& rolls, const ReclaimPolicy& policy, Slot buffer);

  bool enabled() const noexcept { return !buffer_.empty(); }
  // Begins a pass over the segment, which should be over when so much has been put. `last_word`: what cannot be read now is
  // dropped and buried, it was tried before.
  void start(Segment& victim, const Keep& keep, uint64_t room_pages, bool last_word);
  void turn();
  // Whether somebody waits for the end of the pass, besides who is starved.
  void set_haste(bool haste) noexcept { haste_ = haste; }
  bool active() const noexcept { return victim_ != nullptr; }
  // Nothing more is copied in this pass: there is no room.
  void give_up();
  uint64_t next_turn_us() const noexcept {
    const bool waits = outstanding_ > 0 || copies_out_ > 0 || flush_asked_ || request_.busy;
    if (!active() || waits) return UINT64_MAX;
    return rests() ? next_chunk_us_ : 0;
  }

  // Of the last pass.
  bool gave_up() const noexcept { return gave_up_; }
  bool copies_failed() const noexcept { return failures_ > 0; }
  // What another pass may still keep.
  Keep left() const noexcept;
  // What start() was told.
  const Keep& asked() const noexcept { return asked_; }
  // The device did not give all that the pass wanted to read.
  bool unread() const noexcept { return unread_; }
  // Empty when nobody remembers events, or it was taken.
  ScannedSegment take_roll() noexcept { return std::exchange(request_.scanned, {}); }

  // From the writer.
  void landed(Extent& copy, uint32_t end_page) override;
  void failed(Extent& copy) override;

 private:
  struct Item {
    const FoundEntry* found = nullptr;  // in the roll
    const Slot* slot = nullptr;
    uint64_t at = 0;  // of the extent in the slot
  };
  struct Range {
    uint64_t device_offset = 0;
    const Slot* slot = nullptr;
    uint64_t at = 0;
    uint64_t bytes = 0;
  };
  struct Move {
    IndexKey key;
    Location original;
    format::Entry copy;
    uint32_t segment = 0;     // of the copy
    uint64_t generation = 0;  // of that
    uint32_t end_page = 0;
    Block chosen;  // the original when it was read
    Touch touch;   // the original's when the copy had landed
  };

  // The entry's block, if it is alive here.
  Block block_of(const FoundEntry& found) const noexcept;
  bool worth_keeping(const Block& block) const noexcept;
  // Of those of which the first ones are kept.
  bool one_of_some(const Block& block) const noexcept;
  // Grows with what users write, in pages of the log.
  uint64_t put_bytes() const noexcept { return counters_.bytes_user + counters_.bytes_padding; }
  // What should have been copied by now and was not.
  uint64_t behind_bytes() const noexcept;
  bool hasty() const noexcept;
  // The next chunk is not yet due.
  bool rests() const noexcept;
  uint64_t chunk_bytes() const noexcept;
  void choose_chunk();
  bool choose(const FoundEntry& found, const Block& block, uint64_t bytes_max, uint64_t* at);
  void want_range(uint32_t page, const Slot& slot, uint64_t at, uint64_t bytes);
  void read_chunk();
  static void on_piece(io::Request& request);
  void verify_some();
  bool verify(const Item& item, const Block& block, Extent& copy);
  void drop_unreadable(const Item& item, const Block& block);
  void commit_chunk();
  void publish();
  Extent& take_copy();
  void give_copy(Extent& copy) noexcept;

  io::Engine& engine_;
  const Places& places_;
  TransferPool& transfers_;
  const RecordLog& log_;
  Catalog& catalog_;
  Memory& memory_;
  const Names& names_;
  const BlockEvents& events_;
  Evictor& evictor_;
  Tombstones& tombstones_;
  const Clock& clock_;
  StoreTime& store_time_;
  const Counters& counters_;
  Streams& streams_;
  RollReader& rolls_;
  const ReclaimPolicy& policy_;
  Slot buffer_;
  Slot large_;  // for one block that does not fit the buffer

  Segment* victim_ = nullptr;
  bool last_word_ = false;
  bool haste_ = false;
  Keep keep_;
  Keep asked_;
  bool unread_ = false;
  uint64_t chosen_bytes_ = 0;   // in this pass, so far
  uint64_t put_before_ = 0;     // at its start
  uint64_t room_bytes_ = 0;     // for what is put until it should be over
  uint64_t next_chunk_us_ = 0;  // at the latest
  bool gave_up_ = false;
  bool flush_asked_ = false;
  uint32_t failures_ = 0;
  RollRequest request_;  // the victim's roll, during the pass
  size_t next_ordinal_ = 0;

  std::vector<Item> items_;  // the chunk
  std::vector<Range> ranges_;
  uint32_t outstanding_ = 0;
  bool read_failed_ = false;
  size_t verify_next_ = 0;
  std::vector<Extent*> verified_;
  uint32_t copies_out_ = 0;  // at the writer
  std::vector<Move> moves_;  // landed, not yet known to be on media

  std::deque<Extent> copies_;
  std::vector<Extent*> unused_;
};

}  // namespace halfstep::store
