// record_log.h — deletes, segment generations, persistent holds and expiry changes, on media in two copies before anybody is
// told of them (docs/on-flash-format.md, *Record log* and *Order of durability*).
// A copy has two halves; one is current. A batch of records starts a new page, goes to both copies and is flushed once.
// When the current half is full, what still counts is copied to the other half: pages 1 and up, flush, then page 0, flush;
// page 0 makes it current, so that a cut in between leaves the old half whole.
// Invariants: one batch or compaction in flight; `done` of a record comes after the flush that covers it; a tombstone is
// forgotten only when its sequence is below the generation of every segment that holds frames; tombstones leave room for
// the records of segments, because only new generations make tombstones die. A hold or an expiry change is forgotten when it is
// superseded or over, or when its block is gone and cannot come back: its sequence is below the generation of every segment
// that holds frames, or a later tombstone buries what it applies to. Together they never fill more than a quarter of a half,
// and wait for nobody: takes_life() says whether one more may come.
// Thread: the shard's.
#pragma once

#include <deque>
#include <vector>

#include "index/table.h"
#include "store/durable/blocking_io.h"
#include "store/durable/flusher.h"
#include "store/durable/life_records.h"
#include "store/format/geometry.h"
#include "store/format/page.h"

namespace halfstep::store {

struct Tombstone {
  IndexKey key;
  uint64_t sequence = 0;
};

struct SegmentRecord {
  uint64_t generation = 0;  // 0: never used
  bool bad = false;
  uint8_t retirements = 0;  // so often it was logged bad since it was last written and reclaimed without an error
};

// What the log said at open.
struct LogContents {
  index::Table tombstones;  // key -> sequence of the newest one
  std::vector<Tombstone> tombstone_list;
  LifeRecords life;
  std::vector<SegmentRecord> segments;
  uint64_t sequence_max = 0;
  uint64_t epoch_max = 0;
  uint64_t batch_epoch_max = 0;    // of pages that only a current half can have
  uint64_t created_max_s = 0;      // store time
  uint32_t pages_bad = 0;          // in one copy: the other one had them
  uint32_t unread = 0;             // pages that the device gave of neither copy: what they say is not known
  bool damaged = false;            // unreadable in both copies: the shard starts empty
  bool half_snapshot = false;      // pages of the snapshot are missing
  bool older_than_frames = false;  // both copies are: recovery finds that
  bool newer_records = false;      // kinds that this version must not skip
};

class RecordLog {
 public:
  struct Setup {
    io::Engine* engine = nullptr;
    Flusher* flusher = nullptr;
    Places places;
    HashKey secret;
    // Whether a block may be there, in frames or in memory, that was born before `sequence`. Null: all are.
    bool (*alive)(void* owner, const IndexKey& key, uint64_t sequence) = nullptr;
    void* alive_owner = nullptr;
  };
  // A record to be logged. Belongs to the log from append() until `done`.
  struct Pending {
    format::Record record;
    void (*done)(Pending& pending, Status status) = nullptr;
    void* owner = nullptr;
    Pending* next = nullptr;
  };

  explicit RecordLog(const Setup& setup);

  // Blocking: an empty log of epoch 1 in half 0; reading what is there; a fresh snapshot in the half that was not current.
  Status format_now();
  // `patience`: with a device that does not answer; null: none.
  Status load(LogContents* out, Patience* patience = nullptr);
  // `tombstones` in ascending order of sequence.
  Status restart(const LogContents& contents, std::vector<Tombstone> tombstones, std::vector<SegmentRecord> segments,
                 uint64_t sequence);

  // Records to be logged are pooled, because removes come by the thousand: given back by whoever took them, once done.
  Pending& take_pending() {
    if (free_pending_ == nullptr) return all_pending_.emplace_back();
    Pending& pending = *free_pending_;
    free_pending_ = pending.next;
    pending = {};
    return pending;
  }
  void give_pending(Pending& pending) noexcept {
    pending.next = free_pending_;
    free_pending_ = &pending;
  }
  void append(Pending& pending) noexcept;
  // `oldest_generation`: the lowest of the segments that hold frames; `sequence`: a fresh one, for the pages of this turn.
  void turn(uint64_t oldest_generation, uint64_t sequence, uint64_t store_time_s);
  // Something is queued or being written: what was appended before now is not yet on media.
  bool busy() const noexcept { return step_ != Step::Idle || !urgent_.empty() || !waiting_.empty(); }
  // Three quarters of a half are alive: the oldest segments have to go so that tombstones can.
  bool crowded() const noexcept { return live_pages() * 4 >= uint64_t{half_pages()} * 3; }
  // Crowded, idle, and something has changed since the last time.
  bool wants_prune() const noexcept;
  // In order of sequence.
  const std::deque<Tombstone>& tombstones() const noexcept { return tombstones_; }
  void begin_prune() noexcept { prune_due_ = false; }
  // Ends it: drops those of which drop(const Tombstone&) says yes. False while something is being written: try again.
  template <typename Drop>
  bool end_prune(Drop&& drop) {
    if (step_ != Step::Idle) return false;
    std::erase_if(tombstones_, drop);
    pruned_count_ = tombstones_.size();
    return true;
  }
  // Tombstones are answered in the order in which they were appended: of so many, so many.
  uint64_t tombstones_appended() const noexcept { return tombstones_appended_; }
  uint64_t tombstones_answered() const noexcept { return tombstones_answered_; }
  size_t tombstone_count() const noexcept { return tombstones_.size(); }
  const LifeRecords& life() const noexcept { return life_; }
  // Holds and expiry changes that life() does not have yet.
  uint64_t life_queued() const noexcept { return life_queued_; }
  // Room for one more hold or expiry change.
  bool takes_life() const noexcept;
  // Drops the holds and expiry changes that nothing needs any more, when there is no room and nothing is being written.
  void make_room_for_life(uint64_t oldest_generation, uint64_t store_time_s);
  uint64_t pages_written() const noexcept { return pages_written_; }

 private:
  enum class Step : uint8_t { Idle, Batch, BatchFlush, Snapshot, SnapshotFlush, Commit, CommitFlush };

  uint32_t half_pages() const noexcept { return setup_.places.log_half_pages; }
  struct Queue {
    Queue() = default;
    Queue(const Queue&) = delete;  // an empty one points into itself
    Queue& operator=(const Queue&) = delete;
    Pending* head = nullptr;
    Pending** tail = &head;
    bool empty() const noexcept { return head == nullptr; }
    void push(Pending& pending) noexcept {
      pending.next = nullptr;
      *tail = &pending;
      tail = &pending.next;
    }
    Pending& pop() noexcept {
      Pending& first = *head;
      head = first.next;
      if (head == nullptr) tail = &head;
      first.next = nullptr;
      return first;
    }
    Pending* pop_all() noexcept {
      Pending* all = head;
      head = nullptr;
      tail = &head;
      return all;
    }
  };
  class HalfReader;

  uint64_t live_pages() const noexcept;
  uint64_t tombstones_max() const noexcept;
  uint64_t life_max() const noexcept;
  void forget_tombstones(uint64_t oldest_generation);
  void forget_life(uint64_t oldest_generation, uint64_t store_time_s);
  void load_half(uint32_t half, Patience* patience, LogContents* out, uint64_t* epoch);
  void apply(const format::Record& record, LogContents* out);
  void remember(const format::Record& record);

  void seal(Bytes page, uint32_t half, uint32_t place, uint32_t batch, uint32_t entries, uint8_t flags, uint32_t page_number,
            uint32_t page_count);
  void begin_batch();
  void begin_snapshot();
  format::Record snapshot_record(size_t number) const noexcept;
  void snapshot_chunk();
  void write_pages(uint32_t half, uint32_t place, uint32_t pages);
  void written(Status status);
  void flushed(Status status);
  void finish_batch(Status status);
  static void on_request(io::Request& request);

  Setup setup_;
  std::deque<Tombstone> tombstones_;  // in order of sequence
  std::vector<SegmentRecord> segments_;
  LifeRecords life_;
  std::vector<uint32_t> snapshot_segments_;  // then the tombstones, then holds and expiries; they do not change meanwhile
  uint32_t snapshot_next_page_ = 0;
  uint32_t snapshot_pages_ = 0;

  uint32_t half_ = 0;
  uint32_t next_page_ = 0;
  uint64_t epoch_ = 0;
  uint64_t sequence_ = 0;
  uint64_t store_time_s_ = 0;
  bool must_compact_ = false;  // the current half failed in a copy, or is full
  bool copy_failed_ = false;   // of this batch or snapshot, in one of the copies
  bool snapshot_again_ = false;
  bool prune_due_ = false;   // a segment has a new generation
  size_t pruned_count_ = 0;  // tombstones left by the last one
  uint64_t tombstones_appended_ = 0;
  uint64_t tombstones_answered_ = 0;

  uint64_t life_queued_ = 0;  // appended and not answered

  Queue urgent_;   // of segments; holds and expiry changes, which had to find room before
  Queue waiting_;  // tombstones: they wait while the log is crowded
  Queue batch_;
  Step step_ = Step::Idle;
  PageBuffer buffer_;
  io::Request requests_[2];
  uint32_t outstanding_ = 0;
  uint64_t failures_before_ = 0;  // of the flusher, when this batch or snapshot began
  FlushWaiter flush_;
  uint64_t pages_written_ = 0;
  std::deque<Pending> all_pending_;
  Pending* free_pending_ = nullptr;
};

}  // namespace halfstep::store
