// What a get reads, and when: windows, rounds, and what becomes of each read.
#include <algorithm>
#include <array>
#include <utility>

#include "shard/connection.h"
#include "shard/part_places.h"
#include "shard/request_get.h"
#include "shard/shard.h"

namespace halfstep::shard {

using wire::Answer;
using wire::AnswerReason;
using wire::Reason;

namespace {

constexpr uint64_t kStepBytesMax = 4 * MiB;
// Of each block in a round: a device's large read, beside which the header of its frame does not count; or as little as half of
// it, where the round of all keys is one window then.
constexpr uint64_t kRoundBytes = 512 * KiB;
constexpr uint64_t kRoundBytesMin = 256 * KiB;
// What is read with them: the header of their frame, and what the pages at both ends hold of others; rounded up as memory is.
constexpr uint64_t kRoundHeaderBytes = 64 * KiB;
constexpr uint64_t kRoundsMin = 4;
// In layer order, of a block that is read whole: as much of each is read before more of any.
constexpr uint32_t kLayerPieceBytes = 128 * KiB;
constexpr size_t kStepItemsMax = 1024;
constexpr size_t kLookAheadItems = 64;  // memory is asked for these side by side

AnswerReason answer_of_read(Status status) noexcept {
  switch (status.code()) {
    case Code::NotFound: return {Answer::Miss, Reason::Absent};
    case Code::Corrupt: return {Answer::Miss, Reason::Corrupt};
    case Code::IoError: return {Answer::Unavailable, Reason::Media};
    case Code::Throttled: return {Answer::Throttled, Reason::Load};
    default: return {Answer::Unavailable, Reason::None};
  }
}

}  // namespace

// Over all items.
void GetRequest::begin_pass() noexcept {
  found_.clear();
  found_at_ = 0;
  section_ = key_ = cell_ = 0;
  keys_ = wire::KeyCursor(view_.sections[0].keys);
  key_bytes_ = {};
  planned_all_ = false;
  round_is_last_ = true;
}

// Goes on until the credit is in use, memory is short, or everything is under way.
void GetRequest::advance() {
  while (!finished() && may_read()) {
    if (step_at_ == step_.size() && (planned_all_ || !plan_step())) break;
    if (!begin_reads()) return;
  }
  if (finished()) return;
  set_waits(Waits::Nothing);
  // Also when nothing was found: Final follows when it is this request's turn.
  connection()->offer_chunks(*this);
}

// Gathers the next step. False: no item is left, or none of those left is there.
bool GetRequest::plan_step() {
  step_.clear();
  step_at_ = 0;
  step_bytes_ = 0;
  step_has_credit_ = false;
  const uint64_t step_bytes_max = step_bytes();
  while (section_ < view_.section_count) {
    const wire::SectionView& section = view_.sections[section_];
    if (key_ == section.head.key_count) {
      if (++section_ < view_.section_count) keys_ = wire::KeyCursor(view_.sections[section_].keys);
      key_ = 0;
      continue;
    }
    if (cell_ == 0 && key_bytes_.empty() && !keys_.next(&key_bytes_)) break;  // parse_request found them whole
    if (found_at_ == found_.size()) look_ahead();
    if (!plan_item(key_bytes_, step_bytes_max)) {
      if (begin_again()) return plan_step();
      return true;
    }
    ++found_at_;
    if (++cell_ == section.head.component_count) {
      cell_ = 0;
      ++key_;
      key_bytes_ = {};
    }
  }
  // Nothing of the next round stands in a window of this one.
  if (!step_.empty() && !round_is_last_) return true;
  if (next_round()) return plan_step();
  planned_all_ = true;
  return !step_.empty();
}

// Of which a step may take memory at most.
uint64_t GetRequest::step_bytes() const noexcept {
  const uint64_t credit = connection()->get_credit().whole_bytes();
  if (layer_major()) return exceeds_credit_ ? std::max<uint64_t>(credit / 2, 1) : credit;
  return std::min(std::max<uint64_t>(credit / 4, 1), kStepBytesMax);
}

// Instead of a first step that is full, and of which nothing has begun: while one window is sent, the next is read. False: the
// step is as good as any.
bool GetRequest::begin_again() {
  if (!layer_major() || exceeds_credit_ || step_begun_) return false;
  exceeds_credit_ = true;
  const bool large = planned_bytes_ >= kRoundsMin * kRoundBytes * planned_items_;
  const bool in_rounds = large && begin_rounds();
  for (GetItem* item : step_) {
    item->credit_bytes = 0;
    release(*item);
  }
  step_.clear();
  planned_items_ = 0;
  planned_bytes_ = 0;
  if (!in_rounds) begin_pass();
  return true;
}

// ---- Rounds --------------------------------------------------------------------------------------------------------------

const wire::GroupShape* GetRequest::shape_of(uint32_t section) const noexcept {
  const wire::Layout* const layout = shard().store().layout_of(plans_[section].scope);
  const uint32_t group = wire::Component{view_.sections[section].head.first_component}.group();
  return layout != nullptr && group < layout->groups().size() ? &layout->groups()[group] : nullptr;
}

// The place after the parts that a round sends of each block, from round_first_ on.
uint32_t GetRequest::round_end_of(uint32_t section) const noexcept {
  const wire::GroupShape* const shape = shape_of(section);
  return shape != nullptr ? end_of_round(view_.sections[section], *shape, round_first_, round_bytes_) : round_first_;
}

// False: its layout has just gone.
bool GetRequest::begin_rounds() {
  for (uint32_t s = 0; s < view_.section_count; ++s) {
    if (shape_of(s) == nullptr) return false;
  }
  const uint64_t of_each = step_bytes() / outcomes_.size();
  round_bytes_ = std::clamp(of_each - std::min(of_each, kRoundHeaderBytes), kRoundBytesMin, kRoundBytes);
  rounds_ = true;
  round_end_ = 0;
  if (next_round() && rounds_pay()) return true;
  rounds_ = false;
  round_first_ = 0;
  round_end_ = UINT32_MAX;
  for (uint32_t s = 0; s < view_.section_count; ++s) plans_[s].parts = span_of(view_.sections[s], 0, UINT32_MAX);
  return false;
}

// Whether most of the first step's blocks can be read in parts, for this round. Coded ones cannot, and what is in memory is
// pinned whole.
bool GetRequest::rounds_pay() {
  sought_.clear();
  for (const GetItem* item : step_) {
    sought_.emplace_back(item->read.key, item->read.component).parts = plans_[item->section].parts;
  }
  found_.resize(sought_.size());
  shard().store().find_many(sought_, found_);
  uint64_t in_round_bytes = 0;
  uint64_t whole_bytes = 0;
  for (const store::Found& found : found_) {
    in_round_bytes += found.memory_bytes;
    whole_bytes += found.block_bytes;
  }
  found_.clear();
  return in_round_bytes * 2 <= whole_bytes;
}

bool GetRequest::next_round() {
  if (!rounds_ || (round_end_ != 0 && round_is_last_)) return false;
  round_first_ = round_end_;
  for (uint32_t s = 0; s < view_.section_count; ++s) round_end_ = std::max(round_end_, round_end_of(s));
  if (round_end_ == round_first_) return false;
  for (uint32_t s = 0; s < view_.section_count; ++s) {
    plans_[s].parts = span_of(view_.sections[s], round_first_, round_end_);
  }
  begin_pass();
  return true;
}

// What is found now may be gone, or another, when it is read: then the read says so.
void GetRequest::look_ahead() {
  const wire::SectionHead& head = view_.sections[section_].head;
  std::array<store::BlockName, kLookAheadItems> names;
  std::array<store::IndexKey, kLookAheadItems> index_keys;
  size_t gathered = 0;
  found_at_ = 0;
  wire::KeyCursor keys = keys_;
  ConstBytes key = key_bytes_;
  for (uint32_t k = key_, cell = cell_; gathered < kLookAheadItems;) {
    const wire::Component component{head.first_component + cell};
    names[gathered++] = {plans_[section_].scope, component, key};
    if (++cell < head.component_count) continue;
    cell = 0;
    if (++k == head.key_count || !keys.next(&key)) break;
  }
  shard().store().keys_of(std::span(names).first(gathered), std::span(index_keys).first(gathered));
  sought_.clear();
  for (size_t i = 0; i < gathered; ++i) {
    store::Sought& sought = sought_.emplace_back(index_keys[i], names[i].component);
    sought.parts = plans_[section_].parts;
    sought.to_read = true;
  }
  found_.resize(gathered);
  shard().store().find_many(sought_, found_);
}

// False: the step is full, and the item stays for the next.
bool GetRequest::plan_item(ConstBytes key, uint64_t step_bytes_max) {
  const SectionPlan& plan = plans_[section_];
  const wire::SectionHead& head = view_.sections[section_].head;
  const uint32_t index = key_ * head.component_count + cell_;
  if (exceeds_credit_ && outcomes_[plan.first_number + index].status.answer != Answer::Pending) return true;
  if (key_ > plan.first_missed_key) {
    outcomes_[plan.first_number + index].status = {Answer::Miss, Reason::Skipped};
    return true;
  }
  const wire::Component component{head.first_component + cell_};
  const store::Found& found = found_[found_at_];
  if (!found.present) {
    miss(section_, index, {Answer::Miss, Reason::Absent});
    return true;
  }
  const wire::GroupShape* const shape = rounds_ ? shape_of(section_) : nullptr;
  const uint32_t places =
      plan.parts_per_item != 0 || shape == nullptr ? plan.parts_per_item : shape->parts_of(found.block_bytes);
  if (shape != nullptr && places <= round_first_) return true;  // all of it is on its way
  const uint64_t bytes = found.memory_bytes;
  const size_t items_max = layer_major() ? wire::kItemsMax : kStepItemsMax;
  if (!step_.empty() && (step_bytes_ + bytes > step_bytes_max || step_.size() == items_max)) return false;
  GetItem* item = shard().get_items().take();
  *item = {};
  item->read.key = sought_[found_at_].key;
  item->read.component = component;
  item->read.parts = plan.parts;
  item->read.goes_on = round_first_ != 0;
  if (layer_major()) {
    item->read.piece_bytes = kLayerPieceBytes;
    item->read.landed = &GetRequest::on_landed;
  }
  item->ordinal = round_first_;
  item->end = round_end_;
  item->read.complete = &GetRequest::on_read;
  item->read.owner = item;
  item->read.moment = &moment_;
  item->request = this;
  item->credit_bytes = bytes;
  item->section = section_;
  item->index = index;
  item->number = plan.first_number + index;
  item->name_number = wire::name_number(plan.layout, component, key);
  round_is_last_ = round_is_last_ && places <= round_end_;
  step_.push_back(item);
  step_bytes_ += bytes;
  ++planned_items_;
  planned_bytes_ += found.block_bytes;
  retain();
  return true;
}

// False: the request waits for credit or memory.
bool GetRequest::begin_reads() {
  if (!step_has_credit_) {
    Credit& credit = connection()->get_credit();
    if (!credit.take(*this, step_bytes_)) {
      set_waits(Waits::Credit, &credit);
      return false;
    }
    set_waits(Waits::Nothing);
    step_has_credit_ = true;
  }
  std::vector<store::Read*>& reads = shard().read_window();
  reads.clear();
  const size_t count = std::min(step_.size() - step_at_, step_bound_);
  for (size_t i = step_at_; i < step_at_ + count; ++i) reads.push_back(&step_[i]->read);
  // What is resident completes inside the call: the items stand in the window before.
  const auto first = step_.begin() + static_cast<ptrdiff_t>(step_at_);
  const bool ahead = layer_major() && !window_.empty();
  std::vector<GetItem*>& window = ahead ? ahead_ : window_;
  const size_t window_before = window.size();
  window.insert(window.end(), first, first + static_cast<ptrdiff_t>(count));
  if (!ahead) pass_ = window_first_ = (*first)->ordinal;
  const Status status = shard().store().begin_reads(reads);
  step_begun_ = true;
  if (status.ok()) {
    step_at_ += count;
    return true;
  }
  window.resize(window_before);
  if (status == Code::TooLarge && count > 1) {
    step_bound_ = count / 2;
    return true;
  }
  if (status == Code::Throttled) {
    set_waits(Waits::Memory);
    return false;
  }
  // One block that will never fit, or a store that has ended.
  GetItem& item = *step_[step_at_++];
  const bool large = status == Code::TooLarge;
  miss(item.section, item.index, {large ? Answer::Rejected : Answer::Unavailable, large ? Reason::TooLarge : Reason::Media});
  release(item);
  return true;
}

void GetRequest::on_read(store::Read& read) {
  auto* item = static_cast<GetItem*>(read.owner);
  GetRequest& request = *item->request;
  item->reading = false;
  if (item->left_window) return request.release_unused(*item);
  if (!read.status.ok()) {
    item->state = GetItem::State::Dead;
    request.miss(item->section, item->index, answer_of_read(read.status));
  } else if (item->state == GetItem::State::Reading) {
    request.be_ready(*item);
  } else if (read.resident != read.early && !request.is_same_version(*item, *read.resident)) {
    // It had to be read again, and was written anew meanwhile.
    request.shard().store().unpin(std::exchange(read.resident, nullptr));
    item->state = GetItem::State::Dead;
    request.miss(item->section, item->index, {Answer::Miss, Reason::Absent});
  }
  request.connection()->offer_chunks(request);
}

void GetRequest::on_landed(store::Read& read) {
  auto* item = static_cast<GetItem*>(read.owner);
  if (item->left_window) return;
  GetRequest& request = *item->request;
  if (item->state == GetItem::State::Reading) request.be_ready(*item);
  request.connection()->offer_chunks(request);
}

// A block can be deleted or expire, and be put again, between two rounds: the parts of both are no block.
bool GetRequest::is_same_version(const GetItem& item, const store::Resident& resident) noexcept {
  const uint64_t version = uint64_t{resident.checksum()} << 32 | resident.block_bytes();
  uint64_t& known = outcomes_[item.number].version;
  if (known == 0) known = version;
  return known == version;
}

void GetRequest::be_ready(GetItem& item) {
  item.state = GetItem::State::Ready;
  if (!is_same_version(item, item.resident())) {
    item.state = GetItem::State::Dead;
    return miss(item.section, item.index, {Answer::Miss, Reason::Absent});
  }
  const Status status = count_parts(item);
  if (status.ok()) return;
  item.state = GetItem::State::Dead;
  if (status == Code::Invalid) return miss(item.section, item.index, {Answer::Miss, Reason::Length});
  const bool absent = (view_.batch.flags & wire::kBatchDecodable) != 0;
  miss(item.section, item.index,
       absent ? AnswerReason{Answer::Miss, Reason::Absent} : AnswerReason{Answer::Rejected, Reason::Unsupported});
}

// Invalid: a range reaches beyond the block; Unsupported: the client cannot decode it.
Status GetRequest::count_parts(GetItem& item) const {
  const wire::SectionView& section = view_.sections[item.section];
  const auto parts = static_cast<uint32_t>(item.resident().parts().size());
  item.selected = section.head.range_count == 0 ? parts : plans_[item.section].parts_per_item;
  for (uint32_t r = 0; r < section.head.range_count; ++r) {
    const wire::PartRange range = section.range(r);
    if (uint64_t{range.start} + uint64_t{range.count - 1} * range.stride >= parts) return Code::Invalid;
  }
  for (const store::PartInfo& part : item.resident().parts()) {
    if (part.codec >= kCodecs || (connection()->codecs() >> part.codec & 1U) == 0) return Code::Unsupported;
    item.coded = item.coded || part.codec != 0;
  }
  item.end = std::min(item.selected, item.end);
  item.table_sent = item.ordinal != 0;  // in the first round
  return {};
}

void GetRequest::miss(uint32_t section, uint32_t index, AnswerReason status) {
  SectionPlan& plan = plans_[section];
  // Another round may have missed it already, or all that was asked of it is sent, and what failed is the rest.
  Outcome& outcome = outcomes_[plan.first_number + index];
  if (outcome.status.answer != Answer::Pending) return;
  outcome.status = status;
  const wire::SectionHead& head = view_.sections[section].head;
  if ((head.flags & wire::kSectionStopAtMiss) != 0) {
    plan.first_missed_key = std::min(plan.first_missed_key, index / head.component_count);
  }
}

}  // namespace halfstep::shard
