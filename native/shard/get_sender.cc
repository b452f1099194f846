#include "shard/get_sender.h"

#include <algorithm>

#include "base/check.h"
#include "shard/client.h"
#include "shard/part_places.h"

namespace halfstep::shard {

using wire::Answer;
using wire::AnswerReason;
using wire::Reason;

void GetSender::begin(const wire::RequestView& view, uint64_t codecs) noexcept {
  HALFSTEP_DCHECK(window_.empty() && ahead_.empty());
  view_ = &view;
  codecs_ = codecs;
  layer_major_ = view.batch.order == wire::Order::LayerMajor;
  window_at_ = 0;
  pass_ = window_first_ = 0;
  undecoded_ = 0;
}

// ---- Windows -------------------------------------------------------------------------------------------------------------

void GetSender::add(std::span<GetItem* const> items) {
  const bool ahead = layer_major_ && !window_.empty();
  std::vector<GetItem*>& window = ahead ? ahead_ : window_;
  window.insert(window.end(), items.begin(), items.end());
  if (!ahead) pass_ = window_first_ = items.front()->ordinal;
}

void GetSender::take_back(size_t count) noexcept {
  std::vector<GetItem*>& window = ahead_.empty() ? window_ : ahead_;
  HALFSTEP_CHECK(count <= window.size(), count, window.size());
  window.resize(window.size() - count);
}

void GetSender::begin_next_window() {
  window_.swap(ahead_);
  window_at_ = 0;
  pass_ = window_first_ = window_.front()->ordinal;
}

void GetSender::drop() {
  for (size_t i = layer_major_ ? 0 : window_at_; i < window_.size(); ++i) leave(*window_[i]);
  for (GetItem* item : ahead_) leave(*item);
  window_.clear();
  ahead_.clear();
  window_at_ = 0;
}

void GetSender::leave(GetItem& item) {
  HALFSTEP_DCHECK(!item.left_window);
  item.left_window = true;
  if (item.decoding) item.decoded->abandon();
  if (item.undecoded && !item.decoding && item.state == GetItem::State::Reading) --undecoded_;
  if (item.unused()) owner_.release(item);
}

// ---- What may be sent ----------------------------------------------------------------------------------------------------

void GetSender::accept(GetItem& item) {
  item.state = GetItem::State::Ready;
  if (!outcomes_.is_same_version(item.number, item.resident())) {
    item.state = GetItem::State::Dead;
    return outcomes_.miss(item.section, item.index, {Answer::Miss, Reason::Absent});
  }
  const Status status = count_parts(item);
  if (status.ok()) return;
  item.state = GetItem::State::Dead;
  if (status == Code::Invalid) return outcomes_.miss(item.section, item.index, {Answer::Miss, Reason::Length});
  if (!owner_.decodes(item)) return refuse_codec(item);
  // What comes in pieces is decoded when all of it is there.
  item.state = GetItem::State::Reading;
  if (item.reading) return;
  item.undecoded = true;
  ++undecoded_;
  if (!layer_major_ || begin_decode(item) != Code::Throttled) return;
  // Those of its window that have memory would keep it until this one has some.
  --undecoded_;
  item.state = GetItem::State::Dead;
  outcomes_.miss(item.section, item.index, {Answer::Throttled, Reason::Budget});
}

void GetSender::refuse_codec(GetItem& item) {
  item.state = GetItem::State::Dead;
  const bool absent = (view_->batch.flags & wire::kBatchDecodable) != 0;
  outcomes_.miss(item.section, item.index,
                 absent ? AnswerReason{Answer::Miss, Reason::Absent} : AnswerReason{Answer::Rejected, Reason::Unsupported});
}

// ---- Decoding ------------------------------------------------------------------------------------------------------------

bool GetSender::begin_decodes() {
  if (undecoded_ == 0 || layer_major_) return false;
  for (size_t i = window_at_; i < window_.size(); ++i) {
    GetItem& item = *window_[i];
    if (item.state != GetItem::State::Reading || item.decoding) continue;
    // One that is still read would find its memory taken by those behind it.
    if (!item.undecoded) return false;
    if (begin_decode(item) == Code::Throttled) return true;
  }
  return false;
}

// Throttled: it is not begun, and nothing is said of it.
Status GetSender::begin_decode(GetItem& item) {
  if (outcomes_.behind_miss(item.section, item.index)) {
    outcomes_.skip(item.section, item.index);
    item.state = GetItem::State::Dead;
    --undecoded_;
    return {};
  }
  // What is sent of it in this window, and no more.
  parts_.clear();
  const uint32_t end = std::min(item.selected, item.end);
  for (uint32_t place = item.ordinal; place < end; ++place) {
    parts_.push_back(static_cast<uint32_t>(part_at(view_->sections[item.section], place)));
  }
  std::ranges::sort(parts_);
  parts_.erase(std::unique(parts_.begin(), parts_.end()), parts_.end());
  const Status status = owner_.decode(item, parts_);
  if (status == Code::Throttled) return status;
  --undecoded_;
  if (!status.ok()) refuse_codec(item);
  return {};
}

void GetSender::accept_decoded(GetItem& item, Status status) {
  item.undecoded = false;
  if (status.ok()) {
    item.coded = false;
    item.state = GetItem::State::Ready;
    [[maybe_unused]] const Status counted = count_parts(item);
    HALFSTEP_DCHECK(counted.ok());
    return;
  }
  item.state = GetItem::State::Dead;
  const bool corrupt = status == Code::Corrupt;
  outcomes_.miss(item.section, item.index,
                 corrupt ? AnswerReason{Answer::Miss, Reason::Corrupt} : AnswerReason{Answer::Throttled, Reason::Budget});
}

// Invalid: a range reaches beyond the block; Unsupported: the client cannot decode it.
Status GetSender::count_parts(GetItem& item) const noexcept {
  const wire::SectionView& section = view_->sections[item.section];
  const auto parts = static_cast<uint32_t>(item.resident().parts().size());
  item.selected = section.head.range_count == 0 ? parts : places_of(section);
  for (uint32_t r = 0; r < section.head.range_count; ++r) {
    const wire::PartRange range = section.range(r);
    if (uint64_t{range.start} + uint64_t{range.count - 1} * range.stride >= parts) return Code::Invalid;
  }
  for (const store::PartInfo& part : item.resident().parts()) {
    if (part.codec >= kCodecs || (codecs_ >> part.codec & 1U) == 0) return Code::Unsupported;
    item.coded = item.coded || part.codec != 0;
  }
  item.place_at = 0;
  // The block of the round before may have been a longer one.
  if (item.ordinal > item.selected) return Code::Invalid;
  for (uint32_t place = 0; place < item.ordinal; ++place) {
    item.place_at += item.resident().parts()[part_at(section, place)].raw_bytes;
  }
  item.end = std::min(item.selected, item.end);
  item.table_sent = item.ordinal != 0;  // in the first round
  return {};
}

// ---- Chunks --------------------------------------------------------------------------------------------------------------

bool GetSender::fill(ChunkBuilder& chunk) {
  HALFSTEP_DCHECK(chunk.empty());
  if (layer_major_) return fill_layer_major(chunk);
  const bool full = fill_key_major(chunk);
  cut_window();
  return full;
}

uint32_t GetSender::part_of(const GetItem& item) const noexcept {
  return static_cast<uint32_t>(part_at(view_->sections[item.section], item.ordinal));
}

// False: the Chunk is full.
bool GetSender::add_part(GetItem& item, ChunkBuilder& chunk) {
  HALFSTEP_DCHECK(!item.left_window && item.ordinal < item.selected);
  const uint32_t part = part_of(item);
  if (!chunk.add(item, part)) return false;
  if (item.part_offset != 0) return true;
  item.place_at += item.resident().parts()[part].raw_bytes;
  ++item.ordinal;
  outcomes_.note_queued(item.number, item.ordinal, item.selected);
  return true;
}

bool GetSender::fill_key_major(ChunkBuilder& chunk) {
  for (; window_at_ < window_.size(); ++window_at_) {
    GetItem& item = *window_[window_at_];
    if (item.state == GetItem::State::Reading) return false;
    if (item.state == GetItem::State::Ready && outcomes_.behind_miss(item.section, item.index)) {
      outcomes_.skip(item.section, item.index);
      item.state = GetItem::State::Dead;
    }
    while (item.state == GetItem::State::Ready && item.ordinal < item.selected) {
      if (!add_part(item, chunk)) return true;
    }
    leave(item);
  }
  return false;
}

// Cuts off what fill_key_major() is done with. Each item is moved once at most.
void GetSender::cut_window() {
  if (window_at_ * 2 < window_.size()) return;
  window_.erase(window_.begin(), window_.begin() + static_cast<ptrdiff_t>(window_at_));
  window_at_ = 0;
}

bool GetSender::fill_layer_major(ChunkBuilder& chunk) {
  while (!window_.empty()) {
    for (; window_at_ < window_.size(); ++window_at_) {
      GetItem& item = *window_[window_at_];
      if (item.state == GetItem::State::Reading) return false;
      if (item.ordinal == window_first_ && item.part_offset == 0) look_over(item);
      // A part that was begun is sent whole, though the read of the others has failed meanwhile.
      if (item.state == GetItem::State::Dead && item.part_offset == 0) continue;
      while (item.ordinal == pass_ && item.ordinal < item.end) {
        if (item.reading && part_of(item) >= item.read.parts_landed) return false;
        if (!add_part(item, chunk)) return true;
      }
    }
    end_pass();
  }
  return false;
}

// Before the first of an item's parts in this window: whether any of them is to be sent.
void GetSender::look_over(GetItem& item) {
  const bool missed = !outcomes_.pending(item.number);  // by another round
  if (item.state != GetItem::State::Ready || (!missed && !outcomes_.behind_miss(item.section, item.index))) return;
  if (!missed) outcomes_.skip(item.section, item.index);
  item.state = GetItem::State::Dead;
}

// Keeps the items that have parts left.
void GetSender::end_pass() {
  size_t kept = 0;
  for (GetItem* item : window_) {
    if (item->state == GetItem::State::Ready && item->ordinal < item->end) {
      window_[kept++] = item;
    } else {
      leave(*item);
    }
  }
  window_.resize(kept);
  window_at_ = 0;
  ++pass_;
}

}  // namespace halfstep::shard
