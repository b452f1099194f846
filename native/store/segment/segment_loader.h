// segment_loader.h — what a start has to read of one segment: its entries, then their touches. Several work at once, so that
// the device reads one segment while the entries of another are taken into the index.
// Invariants: one request in flight at most. Thread: the shard's.
#pragma once

#include "store/catalog/catalog.h"
#include "store/format/shard_media.h"
#include "store/segment/segment_read.h"
#include "store/segment/touch_map.h"

namespace halfstep::store {

class SegmentLoader {
 public:
  SegmentLoader(const ShardMedia& media, const Catalog& catalog);
  SegmentLoader(const SegmentLoader&) = delete;  // its request points into it
  SegmentLoader& operator=(const SegmentLoader&) = delete;

  // `tail`: the last page of its footer, if that was read already. Null: whatever is there.
  void begin(uint32_t number, const format::PageHeader* tail);
  bool idle() const noexcept { return step_ == Step::Idle; }
  bool ready() const noexcept { return step_ == Step::Ready; }
  // False: it waits for the device, or nobody waits for it.
  bool turn();

  // When ready, until end().
  uint32_t number() const noexcept { return number_; }
  ScannedSegment& scanned() noexcept { return scanned_; }
  const ReadTouches& touches() const noexcept { return touches_; }
  // The device did not give all of it. Frames say what a footer says: with that, they are not missed.
  bool unread() const noexcept { return (!scanned_.by_footer && scanned_.read_errors > 0) || touches_unread_; }
  void end() noexcept { step_ = Step::Idle; }

 private:
  enum class Step : uint8_t { Idle, Entries, Touches, Ready };

  bool read_touches();
  void take_touches_read();

  static constexpr uint32_t kTouchWindowPages = 16;
  const ShardMedia media_;
  const Catalog& catalog_;
  SegmentRead read_;
  Step step_ = Step::Idle;
  uint32_t number_ = 0;
  ScannedSegment scanned_;
  ReadTouches touches_;
  PageBuffer window_;
  io::Request io_;
  bool reading_ = false;
  uint32_t touch_pages_ = 0;
  uint32_t touch_page_ = 0;  // the first one of the window
  bool touches_unread_ = false;
};

}  // namespace halfstep::store
