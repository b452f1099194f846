// ticket.h — a submitted batch: what it asks, where its bytes go, and what is known of every item so far.
// Units are what gets an answer of its own: an item, or with ranges each selected part of an item. A unit is answered when the
// daemon has said so and, for an ok of a get, all its bytes have arrived and verified (but Item::unchecked); then its answer is
// written to the caller's array, once. Invariants: nothing of the caller's is written after finish(); a ticket goes back to the
// pool only when its terminal event was taken from the queue. Thread: filled on the submitter's, then the client's alone;
// queue.h says what the queue's lock covers.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "gpu/copier.h"
#include "net/loop.h"
#include "peer/coded_block.h"
#include "peer/coding.h"
#include "peer/direct_region.h"
#include "peer/halfstep.h"
#include "peer/selection.h"
#include "peer/target.h"
#include "wire/layout.h"
#include "wire/places.h"
#include "wire/records.h"

namespace halfstep::peer {

class Connection;
class Queue;
class Request;
class Ticket;

struct Item {
  static constexpr uint8_t kVoid = 1;      // the daemon aborted a run of it: it cannot become ok
  static constexpr uint8_t kFits = 2;      // has a place for a block of block_bytes
  static constexpr uint8_t kFailed = 4;    // a unit of it is not ok
  static constexpr uint8_t kWanted = 8;    // put: the daemon has granted it
  static constexpr uint8_t kSent = 16;     // put: every byte was queued
  static constexpr uint8_t kChunks = 64;   // put: its bytes lie too scattered to be read from where they are
  static constexpr uint8_t kCoded = 32;    // get: a PartTable has come; its parts travel as they are stored
  static constexpr uint8_t kPlaced = 128;  // get to a device: of the open part some lies there that nobody here has seen

  uint32_t name_number = 0;
  uint32_t block_bytes = 0;         // get: 0 until the first run names it
  uint32_t parts_left = 0;          // selected parts that have not arrived; counts once block_bytes is known
  uint32_t parts_copying = 0;       // of those: verified, and on their way to a device
  uint32_t units_left = 0;          // not settled
  uint32_t seen_at = 0;             // its bitmaps of announced and of arrived parts: first word in Ticket::seen
  uint32_t open_part = UINT32_MAX;  // get: the part that comes in pieces now, put: the next one to go; how far, its sum so far
  uint32_t open_bytes = 0;
  uint32_t open_crc = 0;
  uint8_t flags = 0;
  uint32_t unchecked = 0;  // get: parts that lie in a GPU as the daemon wrote them, and were looked at by nobody else
  float error_bound = 0;   // get: by how much no value of its parts is off, in their own unit; 0: none is lossy
  bool has(uint8_t flag) const noexcept { return (flags & flag) != 0; }
};

struct Unit {
  wire::Answer said = wire::Answer::Pending;
  bool landed = false;  // get to a device: all its bytes have come, and are being copied
  bool arrived = false;
  bool settled = false;
  wire::Reason reason = wire::Reason::None;
};

struct Section {
  std::shared_ptr<const wire::Layout> layout;
  uint32_t layout_index = 0;  // of the client's
  uint32_t first_component = 0;
  uint32_t component_count = 1;
  bool stop_at_miss = false;
  uint32_t key_count = 0;
  uint32_t item_count = 0;
  uint32_t first_item = 0;  // in Ticket::items
  uint32_t first_unit = 0;  // in Ticket::units
  uint32_t units_per_item = 1;
  std::vector<std::byte> keys;   // packed as they travel
  std::vector<uint32_t> key_at;  // by key, and the end
  std::vector<uint32_t> order;   // keys grouped by shard; empty = as they are (one shard)
  wire::GroupShape shape;
  Selection selection;
  Target target;
  int device = -1;                             // whose memory the target is; -1: the host's
  std::shared_ptr<const LayoutCoding> coding;  // put: null where blocks stay plain
  std::shared_ptr<const LayoutCoding> lossy;   // get: null where no part may be lossy
  std::vector<wire::PlacePiece> places;        // get: its target's pieces, where all lie in regions; or by rows, its parts
  std::vector<wire::PlacePart> place_parts;
  std::vector<CodedBlock> blocks;   // by item; empty: all are plain
  std::vector<wire::Offer> offers;  // put: by item; parent = ordinal of a key of this section where kParentInBatch
  hs_answer* answers = nullptr;
  uint32_t* lengths = nullptr;
  float* error_bounds = nullptr;
  uint32_t* unchecked = nullptr;

  // Null for a block that is plain.
  const CodedBlock* coded(uint32_t item) const noexcept {
    return item < blocks.size() && !blocks[item].plain() ? &blocks[item] : nullptr;
  }
  // Bytes of a part as it travels.
  uint32_t stored_bytes_of(uint32_t item, uint32_t part, uint32_t block_bytes) const noexcept {
    const CodedBlock* block = coded(item);
    return block != nullptr ? block->parts[part].stored_bytes : shape.bytes_of(part, block_bytes);
  }
  ConstBytes packed_key(uint32_t key) const noexcept {
    return ConstBytes(keys).subspan(key_at[key], key_at[key + 1] - key_at[key]);
  }
  ConstBytes engine_key(uint32_t key) const noexcept { return packed_key(key).subspan(1); }
};

// Whose a ticket is: the client (client.h).
class TicketHost {
 public:
  // Back to the pool: its terminal event was taken, or it will not be submitted. Any thread.
  virtual void recycle(Ticket& ticket) = 0;
  // A connection's socket reads a piece of the caller's memory no more. The client's thread.
  virtual void on_payload_released(Ticket& ticket) = 0;
  // No daemon writes for one request of it any more. The client's thread.
  virtual void on_placement_over(Ticket& ticket) = 0;

 protected:
  ~TicketHost() = default;
};

class Ticket {
 public:
  Ticket(TicketHost& core, void (*deadline)(void* ticket)) : host(core), timer(deadline, this) {}

  // ---- Fixed from submission on
  TicketHost& host;
  hs_ticket id = 0;
  uint32_t place = 0;  // in the client's pool
  Queue* queue = nullptr;
  uint32_t operation = 0;
  uint64_t deadline_us = 0;  // of the client's clock
  wire::Batch batch;         // deadline_us is filled in when a request of it is encoded
  bool wants_progress = false;
  uint64_t user_data = 0;
  uint32_t section_count = 0;
  std::vector<Section> sections;   // the first section_count; the rest keeps its memory for later
  std::vector<RegionUse> regions;  // that its targets lie in
  std::vector<Item> items;
  std::vector<Unit> units;
  uint64_t owner = 0;  // hold, renew, release
  uint64_t cursor = 0;
  uint64_t* cursor_out = nullptr;
  uint32_t limit = 0;
  std::string text;
  uint64_t value = 0;
  uint8_t prefetch_kind = 0;
  uint64_t pin_budget_bytes = 0;
  uint32_t default_ttl_s = 0;
  bool sliding_ttl = false;
  bool sets_coding = false;
  wire::CodingRecord coding;
  bool persistent = false;
  wire::LayoutId layout_id{};       // clear
  std::vector<std::byte> question;  // explain
  hs_text_sink sink = nullptr;
  void* sink_context = nullptr;
  hs_answer* outcome = nullptr;

  // ---- The client thread's
  enum class State : uint8_t { Submitted, Gated, Staging, Encoding, Waiting, Running, Copying, Fencing, Finished };
  State state = State::Submitted;
  Ticket* previous = nullptr;  // all that the client's thread has and that are not finished
  Ticket* next = nullptr;
  net::Timer timer;                 // the deadline; while fencing, how long the fence may take
  std::vector<Request*> requests;   // not over yet
  bool dispatching = false;         // its requests are being given out: it is not over yet
  bool asked = false;               // a daemon may know of it
  uint32_t payload_references = 0;  // chunks of a put that a socket still reads from the caller's memory, and the encoder
  uint32_t copies = 0;              // to or from a device, under way
  uint32_t placements = 0;          // its requests for which a daemon may write into the caller's memory
  std::vector<Connection*> fence;   // those of its connections that may have such
  wire::AnswerReason end;           // what unsettled units get
  wire::AnswerReason whole;         // outcome of a batch without items
  std::vector<uint64_t> seen;       // bitmaps of announced parts
  std::vector<uint32_t> step_left;  // by ordinal: items of which this part is still to come; empty = steps are items
  uint32_t steps_done = 0;
  uint32_t steps_told = 0;
  uint32_t items_settled = 0;
  uint32_t items_ok = 0;

  // ---- Of GPUs (device_work.h)
  int device = -1;                                // of those of its sections that have one
  std::vector<std::unique_ptr<gpu::Gate>> gates;  // of the caller's streams; empty: open
  struct Staging {
    std::vector<std::byte*> slots;
    uint64_t bytes_all = 0;   // of sections on a device
    uint64_t bytes = 0;       // whose copies were submitted
    uint64_t section_at = 0;  // where those of the section begin
    uint32_t section = 0;
    uint32_t item = 0;
    bool waited = false;
    bool failed = false;
    bool over = false;  // the bytes are in the slots, and the targets there
  };
  Staging staging;

  // ---- The encoder's, of a put: what is coded together is offered together, while the rest is being coded.
  struct Encoding {
    struct Piece {
      std::atomic<uint32_t> left{0};  // items
      Request* request = nullptr;     // the client's: theirs
    };
    uint32_t next = 0;  // item; under the encoder's lock
    std::atomic<bool> abandoned{false};
    std::unique_ptr<Piece[]> pieces;  // none: all items are one piece
    std::vector<uint32_t> piece_of;   // by item; empty: all items are one piece
    Piece whole;
    // The client's:
    uint32_t piece_count = 0;
    uint32_t told = 0;        // of them it was told
    wire::CodingKnown known;  // what the choices knew

    Piece& piece(uint32_t number) noexcept { return pieces ? pieces[number] : whole; }
    // The client's: the encoder has yet to let go of some of it. That is one of the ticket's payload references.
    bool under_way() const noexcept { return told < piece_count; }
    uint32_t piece_with(uint32_t item) const noexcept { return piece_of.empty() ? 0 : piece_of[item]; }
    void reset() noexcept {
      pieces.reset();
      piece_of.clear();
      whole.request = nullptr;
      piece_count = told = 0;
    }
  };
  Encoding encoding;

  // ---- The queue's, under its lock
  Ticket* next_event = nullptr;
  bool event_listed = false;
  bool done = false;
  uint32_t event_steps = 0;

  bool changes_store() const noexcept {
    return operation != HS_OP_GET && operation != HS_OP_MATCH && operation != HS_OP_LIST && operation != HS_OP_STAT &&
           operation != HS_OP_EXPLAIN && operation != HS_OP_TOUCH && operation != HS_OP_PREFETCH;
  }
  bool is_get() const noexcept { return operation == HS_OP_GET; }
  bool is_put() const noexcept { return operation == HS_OP_PUT; }
  // A put with blocks to code.
  bool codes() const noexcept;
  // Nothing of an earlier batch is left but its id; memory is.
  void reset();
  // Gives memory back, too.
  void shed();
  // Once sections are known: sizes items and units and marks the caller's arrays.
  void prepare();

  Item& item(const Section& section, uint32_t number) noexcept { return items[section.first_item + number]; }

  // The daemon's answer for all units of an item, or for one. Invalid: said already.
  Status say(Section& section, uint32_t item, wire::AnswerReason answer);
  Status say_unit(Section& section, uint32_t item, uint32_t ordinal, wire::AnswerReason answer);
  // The answer of the request as a whole, for a unit that no other names.
  void say_if_silent(Section& section, uint32_t item, uint32_t ordinal, wire::AnswerReason answer) {
    if (unit(section, item, ordinal).said == wire::Answer::Pending) (void)say_unit(section, item, ordinal, answer);
  }
  // The client's own word for what the daemon has not answered in full: a connection that died, a refused layout.
  void fail_item(Section& section, uint32_t item, wire::AnswerReason answer);
  // get: the length of an item's block, as the first run says it. Invalid: no block of the section can have it.
  Status announce(Section& section, uint32_t item, uint32_t block_bytes);
  // get: marks a part as coming. False: it is not selected, or it came before.
  bool mark_seen(Section& section, uint32_t item, uint32_t part);
  // get: all bytes of a part are there.
  void part_arrived(Section& section, uint32_t item, uint32_t part, bool verified);
  // get to a device: they are verified, and their copy is to come. Then part_copied() for each, be it good or not.
  void part_landed(Section& section, uint32_t item, uint32_t part);
  void part_copied(Section& section, uint32_t item, uint32_t part);
  // The unit of a part is not ok.
  void fail_part(Section& section, uint32_t item, uint32_t part, wire::AnswerReason answer);
  // No unit of it has an answer, and no byte of it has come.
  bool untouched(const Section& section, uint32_t item) const noexcept;
  // put: as if nothing of it had been queued yet.
  void unsend(Section& section, uint32_t number) noexcept {
    Item& of = item(section, number);
    of.flags &= static_cast<uint8_t>(~(Item::kWanted | Item::kSent));
    of.open_part = of.open_bytes = of.open_crc = 0;
  }
  // Some unit of the item was never answered by the daemon, or was called ok before its bytes were there.
  bool item_open(const Section& section, uint32_t item) const noexcept;

  // For a batch without items: the worst answer counts; of a renew the best, for an owner need not have leases on every shard.
  void say_whole(wire::AnswerReason answer) noexcept {
    if (operation == HS_OP_RENEW && answer.answer == wire::Answer::Miss && whole.answer == wire::Answer::Ok) return;
    if (operation == HS_OP_RENEW && answer.answer == wire::Answer::Ok && whole.answer == wire::Answer::Miss) whole = answer;
    if (whole.answer == wire::Answer::Pending || whole.answer == wire::Answer::Ok) whole = answer;
  }
  // Settles all that is open with `end` and writes the outcome. Nothing of the caller's is touched afterwards.
  void finish();

 private:
  // A change that is late or cancelled was asked for all the same, and as a rule it was done.
  wire::AnswerReason in_truth(wire::AnswerReason answer) const noexcept;
  void settle(Section& section, uint32_t item, uint32_t ordinal, wire::AnswerReason answer);
  void keep_arrived(Section& section, uint32_t number);
  void settle_if_known(Section& section, uint32_t item, uint32_t ordinal);
  Unit& unit(const Section& section, uint32_t item, uint32_t ordinal) noexcept {
    return units[section.first_unit + item * section.units_per_item + ordinal];
  }
  void count_step(uint32_t ordinal) noexcept;
  void count_all_steps(Section& section, uint32_t item) noexcept;
};

}  // namespace halfstep::peer
