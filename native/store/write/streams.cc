#include "store/write/streams.h"

#include <bit>

#include "base/check.h"

namespace halfstep::store {
namespace {

constexpr uint32_t kShortTtlS = 600;
constexpr uint32_t kDayS = 86'400;
constexpr uint8_t kTtlClassMax = 11;  // 1, 2, 4 … 1,024 minutes; the last one takes what is left of the day

// An open segment that fills slowly is room that nothing else can use.
constexpr uint32_t kSegmentsPerClass = 16;
constexpr uint8_t kClassesMax = 2;

constexpr uint8_t longevity(uint8_t ttl_class) noexcept { return ttl_class == 0 ? UINT8_MAX : ttl_class; }

}  // namespace

uint8_t Streams::ttl_class_of(uint32_t ttl_s) noexcept {
  if (ttl_s == 0 || ttl_s > kDayS) return 0;
  const auto minutes = static_cast<uint32_t>(div_up(ttl_s, 60));
  return static_cast<uint8_t>(std::min<uint32_t>(std::bit_width(minutes - 1) + 1U, kTtlClassMax));
}

uint8_t Streams::stream_of(uint32_t ttl_s, uint8_t hint) noexcept {
  return goes_first(hint) || (ttl_s != 0 && ttl_s <= kShortTtlS) ? kStreamShort : kStreamDefault;
}

Streams::Streams(const SegmentWriter::Needs& needs, SlotPool& slots, SegmentSupply& supply)
    : catalog_(needs.catalog),
      places_(needs.media.places),
      store_time_(needs.store_time),
      writers_{{{needs, frame_headers_, supply, 0, kStreamDefault},
                {needs, frame_headers_, supply, 1, kStreamShort},
                {needs, frame_headers_, supply, 2, kStreamShort},
                {needs, frame_headers_, supply, kCopies, kStreamKept}}},
      classes_(static_cast<uint8_t>(std::min<uint32_t>(catalog_.segment_count() / kSegmentsPerClass, kClassesMax))) {
  for (uint32_t i = 0; i < kFrameHeaders; ++i) {
    frame_headers_.push_back(slots.take(kFrameHeaderBytes));
    HALFSTEP_DCHECK(!frame_headers_.back().empty() && frame_headers_.back().piece_count() == 1,
                    frame_headers_.back().piece_count());
  }
}

SegmentWriter& Streams::writer_for(const format::Entry& entry) noexcept {
  const uint32_t ttl_s = entry.expiry_s == 0 ? 0 : entry.expiry_s - entry.created_s;
  const uint8_t ttl_class = ttl_class_of(ttl_s);
  const uint8_t stream = stream_of(ttl_s, entry.hint);
  SegmentWriter* best = &writers_[kForever];
  if (stream == kStreamDefault && ttl_class == 0) return *best;
  SegmentWriter* unused = nullptr;
  for (uint8_t lane = 1; lane <= classes_; ++lane) {
    SegmentWriter& writer = writers_[lane];
    if (!writer.in_use()) {
      if (unused == nullptr) unused = &writer;
      continue;
    }
    if (writer.stream() == stream && writer.ttl_class() == ttl_class) return writer;
    const uint8_t life = longevity(writer.ttl_class());
    if (life >= longevity(ttl_class) && life < longevity(best->ttl_class())) best = &writer;
  }
  if (unused == nullptr) return *best;
  unused->set_class(stream, ttl_class);
  return *unused;
}

void Streams::commit(Extent& extent) { writer_for(extent.entry).commit(extent); }

void Streams::turn() {
  const uint64_t now_s = store_time_.now_s();
  for (uint8_t lane = 1; lane <= classes_; ++lane) {
    const Segment* open = writers_[lane].open_segment();
    if (open != nullptr && open->all_expired(now_s)) writers_[lane].close_open_segment();  // nobody fills it any more
  }
  for (SegmentWriter& writer : writers_) writer.turn();
}

uint64_t Streams::next_turn_us() const noexcept {
  uint64_t next_us = UINT64_MAX;
  for (const SegmentWriter& writer : writers_) next_us = std::min(next_us, writer.next_turn_us());
  return next_us;
}

bool Streams::idle() const noexcept {
  return std::all_of(writers_.begin(), writers_.end(), [](const SegmentWriter& writer) { return writer.idle(); });
}

uint32_t Streams::starved_count() const noexcept {
  uint32_t starved = 0;
  for (uint8_t lane = 0; lane < kCopies; ++lane) starved += writers_[lane].starved() ? 1 : 0;
  return starved;
}

uint32_t Streams::segments_wanted(uint64_t ahead_pages) const noexcept {
  const bool soon = std::any_of(writers_.begin(), writers_.begin() + kCopies,
                                [&](const SegmentWriter& writer) { return writer.wants_segment(ahead_pages); });
  return std::max(starved_count(), soon ? 1U : 0U);
}

uint64_t Streams::room_pages() const noexcept {
  const uint64_t ahead = copy_ahead_pages(places_.segment_pages());
  uint64_t most = 0;
  bool any = false;
  for (uint8_t lane = 0; lane < kCopies; ++lane) {
    any = any || writers_[lane].open_segment() != nullptr;
    most = std::max(most, writers_[lane].room_pages());
  }
  return any ? std::min(most, ahead) : ahead;
}

void Streams::want_flush() noexcept {
  for (SegmentWriter& writer : writers_) writer.want_flush();
}

void Streams::hurry() noexcept {
  for (SegmentWriter& writer : writers_) writer.hurry();
}

void Streams::give_up() {
  for (SegmentWriter& writer : writers_) writer.give_up();
}

void Streams::close_open_segments() {
  for (SegmentWriter& writer : writers_) writer.close_open_segment();
}

void Streams::check_invariants(std::vector<uint32_t>& frames) const {
  size_t out = 0;
  for (const SegmentWriter& writer : writers_) out += writer.check_invariants(frames);
  HALFSTEP_CHECK(frame_headers_.size() + out == kFrameHeaders, frame_headers_.size(), out);
}

}  // namespace halfstep::store
