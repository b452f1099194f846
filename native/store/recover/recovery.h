// recovery.h — from what is on flash to a catalog that is whole (docs/on-flash-format.md, *Recovery*).
// Before the first answer: the record log, written afresh into its other half; the last page of every footer; segments that
// have none, by their frames, which get their footer. Then, a piece in every turn and with several segments being read at once,
// the sealed ones, newest first, while the store serves. At the end the persistent holds of the blocks that are there are taken
// again.
// An entry is left out if it was deleted, has expired or its scope is dead; what lies past the last recorded watermark is read
// and verified first; of one key's copies the one of the highest rank counts (CopyRank).
// While it goes on, a key that is not found is a miss, and what was found may still give way to a newer block of that key.
// Nothing is written to segments and nothing evicted, so that no birth in the index is younger than what is still to be found
// and no segment is reused before it was looked at; a delete is remembered for what is found after it (tombstones.h).
// What the device does not give is asked for again (patience.h); a segment that it never gives whole is left as it is, neither
// reused nor sealed, for the next start. Two logs that are older than the frames say so: then the shard starts empty, because
// nobody knows what was deleted since.
// Invariants: never refuses for bad media; nothing is buried, retired or reused because it could not be read; never publishes
// an unverified tail; the sequence is above all that was ever on flash before anything is drawn from it. Thread: the
// shard's; begin() and go_on() outside its loop (blocking).
#pragma once

#include <memory>
#include <vector>

#include "base/clock.h"
#include "index/table.h"
#include "store/account/holds.h"
#include "store/catalog/catalog.h"
#include "store/catalog/names.h"
#include "store/durable/blocking_io.h"
#include "store/durable/flusher.h"
#include "store/durable/patience.h"
#include "store/durable/record_log.h"
#include "store/durable/tombstones.h"
#include "store/format/page.h"
#include "store/format/report.h"
#include "store/format/sequence.h"
#include "store/format/shard_media.h"
#include "store/format/store_time.h"
#include "store/memory/memory.h"
#include "store/segment/extent_check.h"
#include "store/segment/segment_loader.h"

namespace halfstep::store {

class Recovery {
 public:
  struct Needs {
    ShardMedia media;
    RecordLog& log;
    Flusher& flusher;
    Tombstones& tombstones;
    Catalog& catalog;
    Names& names;
    Memory& memory;
    Holds& holds;
    Sequence& sequence;
    const Clock& clock;
    StoreTime& store_time;
    Counters& counters;
  };
  // `start_number`: of the store, this start's.
  Recovery(const Needs& needs, uint64_t start_number, RecoveryReport* report);

  // All that has to be known before the first answer. Not ok: nothing was concluded, nothing written.
  Fault begin();
  // The rest, as much of it as so long a time allows. Whether that was all.
  bool go_on(uint64_t us);
  // A piece of the rest. False: it waits for the device or the log.
  bool turn();
  bool done() const noexcept { return done_; }
  uint64_t next_turn_us() const noexcept { return waits_ ? again_us() : 0; }
  // The store stops: nothing is waited for but what is under way.
  void hurry() noexcept;

 private:
  enum class Doubt : uint8_t { None, Birth, BirthByRoll, Soundness };
  enum class Verdict : uint8_t { Open, Yes, No };

  // Before the first answer (recovery_begin.cc)
  void load_log();
  void forget_deletes();
  void note_pins();
  std::vector<uint32_t> segments_with_frames();
  void give_up_cut_off();
  bool lies_behind_the_end(uint32_t number) const noexcept;
  void read_tails(const std::vector<uint32_t>& numbers);
  void look_for_older_log(const std::vector<uint32_t>& numbers);
  Status read(uint64_t offset, Bytes into);
  void expect_sealed(uint32_t number);
  void load(std::vector<uint32_t> numbers);
  void seal(Segment& segment);
  void seal_walked(const std::vector<uint32_t>& numbers);
  void restart_log();

  // A segment
  void step();
  bool all_taken() const noexcept { return loading_ == 0 && next_ == order_.size(); }
  bool turn_loaders();
  bool take();
  bool open_segment(SegmentLoader& loader);
  void close_segment(SegmentLoader& loader);
  bool read_later(SegmentLoader& loader);
  uint64_t again_us() const noexcept;
  bool end();
  void report_found() noexcept;
  void note_unread();
  void take_pins();

  // An entry: true when it is done with
  bool publish(Segment& segment, const FoundEntry& found, const ReadTouches& touches);
  void find_end(format::Entry& entry, const ReadTouches& touches) const;
  bool left_out(Segment& segment, const format::Entry& entry);
  bool placed(Segment& segment, const format::Entry& entry, Status status);
  // The questions that need a look at flash
  void ask_birth(const Block& known);
  void ask_soundness(const Segment& segment, const format::Entry& entry);
  bool settle_doubt(const Segment& segment, const format::Entry& entry);
  bool ask_again();
  Verdict newer_by_frame(const format::Entry& entry, uint32_t number) const;
  bool counts_more(const format::Entry& entry, uint32_t number, const format::Entry& there) const noexcept;

  // After one that failed, since this process opened the device, no later one tells what is on media.
  bool flush() {
    flush_failed_ = !flusher_.flush_now(io_).ok() || flusher_.failures() != 0 || flush_failed_;
    return !flush_failed_;
  }
  void note(std::string sentence) { report_.notes.push_back(std::move(sentence)); }

  static constexpr size_t kLoadersMax = 2;
  static constexpr uint32_t kEntriesPerTurn = 1024;

  const ShardMedia media_;
  RecordLog& record_log_;
  Flusher& flusher_;
  Tombstones& tombstones_;
  Catalog& catalog_;
  Names& names_;
  Memory& memory_;
  Holds& holds_;
  Sequence& sequence_;
  const Clock& clock_;
  StoreTime& store_time_;
  Counters& counters_;
  const uint64_t start_number_;
  RecoveryReport& report_;
  BlockingIo io_;
  Patience patience_;
  uint64_t began_us_ = 0;
  LogContents log_;
  std::vector<bool> walked_;               // by segment: what is known of it comes from frames alone
  std::vector<format::PageHeader> tails_;  // by segment; of no pages: its footer has none that fits
  std::vector<IndexKey> unreadable_;       // failed their check
  index::Table pinned_;                    // keys that the log pins -> birth of the block that was published
  uint64_t sequence_max_ = 0;
  bool flush_failed_ = false;
  bool served_ = false;  // begin() has ended
  bool waits_ = false;
  bool done_ = false;

  // The segments to be taken, in this order; of those that are being loaded, the first is taken from
  std::vector<uint32_t> order_;
  size_t next_ = 0;
  std::vector<std::unique_ptr<SegmentLoader>> loaders_;
  size_t front_ = 0;
  size_t loading_ = 0;
  struct Later {
    Unanswered unanswered;
    uint64_t again_us = 0;
  };
  std::vector<Later> later_;  // by segment: what the device did not give whole

  // Of the one that is taken from
  bool open_ = false;
  size_t ordinal_ = 0;
  uint64_t now_s_ = 0;

  // Of its next entry
  Doubt doubt_ = Doubt::None;
  Verdict newer_ = Verdict::Open;  // than what is known under its key
  Verdict sound_ = Verdict::Open;
  Later doubt_later_;
  bool left_ = false;  // it could not be looked at
  Block known_;
  PageBuffer frame_header_{format::kFrameHeaderPagesMax};
  io::Request frame_io_;
  bool frame_reading_ = false;
  std::unique_ptr<SegmentRead> roll_read_;
  ScannedSegment roll_;
  ExtentCheck check_;
};

}  // namespace halfstep::store
