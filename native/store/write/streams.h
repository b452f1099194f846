// streams.h — the writers of a store: new blocks by how long they will live, and what reclaim copies by itself, so that a
// segment dies as a whole.
//   stream 1  short: a TTL of at most ten minutes, or a hint that it is a final turn
//   stream 2  everything else that is new
//   stream 3  copies: they were used since they were written, or are held; never mixed with new blocks
// Within a stream new blocks go by their TTL class: powers of two from one minute to a day, 0 = longer or for ever. At most
// four segments are open at once: one for copies, one for what lives for ever, and two for the classes that come along; a class
// that finds no writer goes to the next longer one.
// Thread: the shard's.
#pragma once

#include <array>

#include "store/write/segment_writer.h"

namespace halfstep::store {

class Streams {
 public:
  static constexpr uint8_t kLanes = 4;

  // Takes header pages for frames of the pool, for good.
  Streams(const SegmentWriter::Needs& needs, SlotPool& slots, SegmentSupply& supply);

  SegmentWriter& of(const Segment& segment) noexcept { return writers_[segment.lane]; }
  const SegmentWriter& of(const Segment& segment) const noexcept { return writers_[segment.lane]; }
  SegmentWriter& copies() noexcept { return writers_[kCopies]; }
  const SegmentWriter& copies() const noexcept { return writers_[kCopies]; }

  // A new block goes to the writer of its stream and class.
  void commit(Extent& extent);
  void turn();
  uint64_t next_turn_us() const noexcept;

  bool idle() const noexcept;
  // A writer of new blocks has some and no segment.
  bool starved() const noexcept { return starved_count() > 0; }
  // How many segments the writers of new blocks need now, or once so many more pages are written.
  uint32_t segments_wanted(uint64_t ahead_pages) const noexcept;
  // What an open segment for new blocks still takes, of several that with the most: who fills the others may never come again.
  // At most copy_ahead_pages().
  uint64_t room_pages() const noexcept;
  void hurry() noexcept;
  void give_up();
  void close_open_segments();
  void want_flush() noexcept;
  // Written, and some flush to come may cover it.
  bool may_become_durable(Location location) const noexcept {
    return of(catalog_.segment(location.segment)).may_become_durable(location);
  }

  // What a TTL of so many seconds is called; 0 = for ever, or longer than a day.
  static uint8_t ttl_class_of(uint32_t ttl_s) noexcept;
  static uint8_t stream_of(uint32_t ttl_s, uint8_t hint) noexcept;

  // Of every writer. Adds the frames that they have out, by segment.
  void check_invariants(std::vector<uint32_t>& frames) const;

 private:
  static constexpr uint8_t kForever = 0, kCopies = 3;
  uint32_t starved_count() const noexcept;
  SegmentWriter& writer_for(const format::Entry& entry) noexcept;

  const Catalog& catalog_;
  const Places& places_;
  StoreTime& store_time_;
  std::vector<Slot> frame_headers_;  // those that no frame uses
  std::array<SegmentWriter, kLanes> writers_;
  uint8_t classes_;  // writers from 1 on for the classes that come along: a small store cannot spare the segments
};

}  // namespace halfstep::store
