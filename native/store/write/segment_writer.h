// segment_writer.h — appends frames to the open segment of one stream, and knows what of them is on media.
// A frame is: header pages built in a slot of their own, then the extents of committed blocks as they lie in their slots.
// It is submitted as soon as nothing else is being written, or when kFrameCollectBytes have gathered.
// A copy that reclaim writes goes the same way, but nothing finds it until the rewriter moves the index to it.
// A frame that failed is written again, the same bytes at the same place, until it lands: a device that fails for a while costs
// no segment. Its segment ends only when other places could be written meanwhile and this one could not (device_health.h), or
// when the store stops. While the device takes nothing, who waits for media is told so at once.
// Invariants: a segment has one writer and is written front to back; a frame's place leaves room for the footer;
// `persist` is answered when the contiguous watermark has passed the frame and a flush begun after that has completed;
// nothing is appended to a segment after a frame of it was given up, or a flush of it failed; after a flush that failed, no
// frame is written before one has succeeded.
// Thread: the shard's. Allocates only while its lists grow to their largest size.
#pragma once

#include <array>
#include <atomic>
#include <vector>

#include "base/clock.h"
#include "base/slots.h"
#include "io/request.h"
#include "store/account/block_events.h"
#include "store/account/holds.h"
#include "store/catalog/catalog.h"
#include "store/catalog/device_health.h"
#include "store/catalog/names.h"
#include "store/durable/flusher.h"
#include "store/durable/tombstones.h"
#include "store/format/report.h"
#include "store/format/requests.h"
#include "store/format/sequence.h"
#include "store/format/shard_media.h"
#include "store/format/store_time.h"
#include "store/format/transfer.h"
#include "store/memory/memory.h"
#include "store/memory/own_memory.h"
#include "store/write/segment_supply.h"

namespace halfstep::store {

inline constexpr uint64_t kFrameCollectBytes = 1 * MiB;
inline constexpr uint64_t kFramePayloadBytesMax = 4 * MiB;  // but at least one block
// What is not yet known to be on media is verified after a crash: this bounds it.
inline constexpr uint64_t kUnflushedBytesMax = 64 * MiB;
inline constexpr uint64_t kUnflushedUsMax = 500'000;

// While so many of the open segment are left, the next one is made ready; and of what is reclaimed for it, what is worth
// keeping is copied while so many are: the sooner that begins, the less of it stands before the gets of a moment.
constexpr uint64_t ready_ahead_pages(uint64_t segment_pages) noexcept { return segment_pages / 4; }
constexpr uint64_t copy_ahead_pages(uint64_t segment_pages) noexcept { return segment_pages * 3 / 4; }

// New blocks by expected life, copies by themselves (streams.h).
inline constexpr uint8_t kStreamShort = 1, kStreamDefault = 2, kStreamKept = 3;

class SegmentWriter {
 public:
  struct Needs {
    ShardMedia media;
    TransferPool& transfers;
    Flusher& flusher;
    // Nothing is called durable meanwhile: a start might take the scope that it stands in for a deleted one.
    const std::atomic<bool>& names_uncertain;
    Catalog& catalog;
    Names& names;
    Memory& memory;
    const Holds& holds;
    WriteHealth& writes;
    Tombstones& tombstones;
    BlockEvents& events;
    Sequence& sequence;
    const Clock& clock;
    StoreTime& store_time;
    Counters& counters;
  };
  // `frame_headers`: header pages that no frame uses, for all writers. `lane`: which of the store's writers this is.
  SegmentWriter(const Needs& needs, std::vector<Slot>& frame_headers, SegmentSupply& supply, uint8_t lane, uint8_t stream);
  SegmentWriter(const SegmentWriter&) = delete;
  SegmentWriter& operator=(const SegmentWriter&) = delete;

  uint8_t stream() const noexcept { return stream_; }
  uint8_t ttl_class() const noexcept { return ttl_class_; }
  // Only while not in_use().
  void set_class(uint8_t stream, uint8_t ttl_class) noexcept;
  bool in_use() const noexcept { return open_ != nullptr || pending_ != nullptr; }
  const Segment* open_segment() const noexcept { return open_; }
  // Pages that the open segment still takes, what waits for it taken off; 0 when there is none.
  uint64_t room_pages() const noexcept;

  // The extent is Dirty and readable; it is the writer's until its frame has landed.
  void commit(Extent& extent);
  void turn();
  uint64_t next_turn_us() const noexcept;

  // Nothing committed is waiting, in flight, or short of being answered.
  bool idle() const noexcept { return pending_ == nullptr && frames_out_ == 0 && persists_.empty(); }
  // Blocks wait and there is no segment to write them to, nor one about to be.
  bool starved() const noexcept { return starved_; }
  // It needs a segment, or its own has room for less than so many pages.
  bool wants_segment(uint64_t ahead_pages) const noexcept;
  // Its segment has taken nothing for so long that it needs another one, whatever that costs.
  bool stuck() const noexcept;
  // Copies that wait for a frame go back to the rewriter, unwritten.
  void withdraw_copies();
  // The end is near: a frame that failed is tried again at once, and not for ever.
  void hurry() noexcept;
  // There will be no segment for what still waits: who waits for it is told.
  void give_up();
  // Closes the open segment, so that it gets a footer and can be reclaimed.
  void close_open_segment();
  // Segments that are full and whose frames have all landed are handed to the sealer when everything in them is on media.
  bool durable(const Segment& segment) const noexcept { return segment.durable_page == segment.next_page; }
  void want_durable(const Segment& segment);
  // Frames of it have landed that no flush has covered yet: those who wait for them get their answer from the next one.
  bool unflushed(const Segment& segment) const noexcept;
  bool may_become_durable(Location location) const noexcept;
  void want_flush() noexcept { flush_wanted_ = true; }

  // Ends the process where its lists and sums differ. Adds the frames that it has out, by segment; returns how many those are.
  uint32_t check_invariants(std::vector<uint32_t>& frames) const;

 private:
  struct Frame {
    SegmentWriter* writer = nullptr;
    Segment* segment = nullptr;
    uint32_t start_page = 0;
    uint32_t pages = 0;
    Slot header;
    Extent* first = nullptr;
    uint32_t header_pages = 0;
    uint32_t outstanding = 0;
    int32_t error = 0;
    bool landed = false;
    bool failed = false;            // and waits to be written again
    uint32_t tries = 0;             // that failed
    uint32_t witnessed = 0;         // of them, though something else had landed since the one before
    uint64_t others_seen = 0;       // what had landed anywhere when it was last submitted
    uint64_t failing_since_us = 0;  // 0: not; its neighbours may land meanwhile
  };
  struct Plan {
    uint32_t blocks = 0;
    uint32_t entry_pages = 0;
    uint32_t table_pages = 0;
    uint32_t pages = 0;
    uint64_t long_key_bytes = 0;  // in the footer
  };
  struct Persist {
    Write* write = nullptr;
    uint32_t segment = 0;
    uint64_t generation = 0;
    uint32_t end_page = 0;
    Location location;  // of the block, whose key the write says
  };

  // segment_writer.cc: frames on their way
  bool wanted(const Extent& extent) noexcept;
  void drop_dead_pending();
  void drop_pending(Extent& extent);
  Plan plan_frame(const Segment& segment) const noexcept;
  bool submit_frame();
  void build_header(Frame& frame, const Plan& plan);
  void enter_catalog(Segment& segment, Extent& extent);
  void refused(Segment& segment, Extent& extent) noexcept;
  void submit_transfers(Frame& frame);
  io::IoClass io_class() const noexcept;
  void end_segment(Segment& segment);
  void answer(Write& write, Status status);

  // segment_writer_landing.cc: what became of them
  static void on_transfer(io::Request& request);
  bool may_be_tried_again(const Frame& frame) const noexcept;
  void put_off(Frame& frame) noexcept;
  void try_again();
  void tell_of_outage();
  bool waits_for_flush() noexcept;
  void frames_landed();
  void frame_done(Frame& frame);
  void extent_landed(Frame& frame, Extent& extent);
  void retry(Extent& extent);
  void flush_starting();
  void flush_done(Status status);
  void notice_flush_failure();
  void flush_failed(Segment& segment);

  static constexpr uint64_t kStarvedPatienceUs = 250'000;  // of who waits for a segment that nobody can make

  const ShardMedia media_;
  TransferPool& transfers_;
  Flusher& flusher_;
  const std::atomic<bool>& names_uncertain_;
  Catalog& catalog_;
  Names& names_;
  Memory& memory_;
  const Holds& holds_;
  WriteHealth& writes_;
  Tombstones& tombstones_;
  BlockEvents& events_;
  Sequence& sequence_;
  const Clock& clock_;
  StoreTime& store_time_;
  Counters& counters_;
  std::vector<Slot>& frame_headers_;
  SegmentSupply& supply_;
  const uint8_t lane_;
  uint8_t stream_;
  uint8_t ttl_class_ = 0;
  Segment* open_ = nullptr;
  Extent* pending_ = nullptr;  // committed, in order of birth
  Extent** pending_tail_ = &pending_;
  uint64_t pending_bytes_ = 0;
  std::array<Frame, kFramesInFlightMax> frames_;  // a ring: landed in any order, done in this one
  uint32_t frame_first_ = 0;
  uint32_t frames_out_ = 0;
  bool starved_ = false;
  bool hurried_ = false;
  uint32_t frames_failed_ = 0;      // of those that are out
  uint64_t again_at_us_ = 0;        // they are written again
  uint64_t failing_since_us_ = 0;   // 0: not, or a frame was done since
  uint32_t failures_in_a_row_ = 0;  // of segments
  uint64_t next_frame_at_us_ = 0;   // not before
  bool told_of_outage_ = false;     // those who waited when it began
  uint64_t starved_since_us_ = 0;   // 0: it is not
  bool flush_in_doubt_ = false;     // one failed, and none has succeeded since
  uint64_t flush_again_us_ = 0;
  uint32_t flushes_failed_ = 0;  // in a row

  std::vector<Persist> persists_;
  std::vector<Write*> answered_;  // `done` runs from turn(), never from inside commit()
  FlushWaiter flush_;
  struct Unflushed {
    Segment* segment = nullptr;
    uint64_t generation = 0;
    uint32_t covered_page = 0;  // written when the flush began
  };
  std::vector<Unflushed> unflushed_;  // segments that have been written to and may have more than their watermark
  bool flush_wanted_ = false;
  uint64_t failures_seen_ = 0;  // of the flusher
  uint64_t unflushed_bytes_ = 0;
  uint64_t unflushed_since_us_ = UINT64_MAX;
};

}  // namespace halfstep::store
